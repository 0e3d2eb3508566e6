"""How a call is timed, by a clock that goes as told."""

from collections.abc import Callable

import pytest

from lms.tf.measure import bench

pytestmark = pytest.mark.tf

Timing = Callable[..., tuple[float, int]]


@pytest.fixture
def timing(monkeypatch: pytest.MonkeyPatch) -> Timing:
    """Time a call of given lengths, the last for all that follow.

    What is yielded takes them; it returns the seconds found and how many calls were
    made.
    """
    now = [0.0]

    class Clock:
        @staticmethod
        def perf_counter() -> float:
            return now[0]

    monkeypatch.setattr(bench, "time", Clock)

    def take(*lengths: float, set_up: bool = False) -> object:
        calls: list[float] = []

        def call() -> None:
            calls.append(lengths[min(len(calls), len(lengths) - 1)])
            now[0] += calls[-1]

        return bench.seconds_of(call, set_up=set_up), len(calls)

    return take  # type: ignore[return-value]


def test_the_first_call_does_not_count(timing: Timing) -> None:
    assert timing(9.0, 0.008) == (pytest.approx(0.008), 1 + 3)  # until 0.02 s
    assert timing(9.0, 0.001) == (pytest.approx(0.001), 1 + 9)


def test_a_slow_first_call_counts_where_it_was_set_up_before(timing: Timing) -> None:
    assert timing(9.0, 2.0) == (2.0, 2)
    assert timing(9.0, 2.0, set_up=True) == (9.0, 1)
    assert timing(0.01, 0.008, set_up=True) == (pytest.approx(0.008), 1 + 3)
