"""One step that is called by two threads."""

import threading
from typing import Any

import pytest
import tensorflow as tf

from lms.fit import fitted

pytestmark = pytest.mark.tf


def test_two_threads_that_call_a_new_signature_make_one_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    prepare, both = fitted.prepare, threading.Barrier(2)

    def noted(*args: Any, **options: Any) -> Any:
        made.append(args)
        return prepare(*args, **options)

    monkeypatch.setattr(fitted, "prepare", noted)
    step = fitted.fit_in_memory(
        lambda x: 2.0 * x, [tf.TensorSpec([None, 2])], budget="1GiB"
    )
    results: list[float] = []

    def call() -> None:
        both.wait()
        results.append(float(tf.reduce_sum(step(tf.ones([3, 2])))))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [12.0, 12.0]
    assert len(made) == len(step.report) == 1
