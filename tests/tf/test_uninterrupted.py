"""Ctrl-C waits for the end of what must not be left half-done."""

import signal
import threading

import pytest

from lms.tf.uninterrupted import handled, uninterrupted


def test_an_error_within_does_not_swallow_it() -> None:
    @uninterrupted()
    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        raise ValueError("first")

    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert isinstance(caught.value.__context__, ValueError)


def test_what_comes_within_is_heard_when_the_outer_one_has_ended() -> None:
    done: list[str] = []

    @uninterrupted()
    def inner() -> None:
        signal.raise_signal(signal.SIGINT)

    @uninterrupted()
    def outer() -> None:
        inner()
        done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        outer()
    assert done == ["outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_is_ignored_stays_ignored() -> None:
    own = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with uninterrupted(), handled({signal.SIGINT: signal.SIG_DFL}):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, own)


def test_other_threads_leave_handlers_alone() -> None:
    found: list[object] = []

    def run() -> None:
        with uninterrupted():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
