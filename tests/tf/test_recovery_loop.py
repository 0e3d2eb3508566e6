"""Steps that fail as the test wants it: what is repeated, what is put back, what said.

Budgets are bytes above what the card of this process holds already.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lms import fit_in_memory
from lms.errors import BudgetError, OutOfMemoryError, UnsupportedError
from lms.tf.attempts import Offers
from lms.tf.prepare import Captured
from tests.room import above_what_is_held
from tests.tf import recovery_trials
from tests.tf.steps import descent

pytestmark = pytest.mark.tf


@pytest.fixture
def budget() -> int:
    """Room for nine tensors of 64 KiB is enough; the step makes about twenty."""
    return above_what_is_held(640 * 1024)


@pytest.fixture
def fitted(budget: int) -> Any:
    """A planned step of gradient descent; its state is read after it was written."""
    descend, weights = descent(6, 16)
    state = tf.Variable(tf.constant(1.0))

    def step(x: tf.Tensor) -> tf.Tensor:
        state.assign_add(1.0)
        return descend(x * state)

    # Whether running again is faster than moving is measured: either may happen.
    signature = [tf.TensorSpec([1024, 16])]
    made = fit_in_memory(step, signature, budget=budget, recompute=False)
    assert made.report[0].swap_count > 0
    return made, (weights, state)


def batch() -> Any:
    return np.random.default_rng(1).standard_normal((1024, 16)).astype("float32")


def prepared(fitted: Any) -> Any:
    (step,) = fitted._steps.values()
    return step


def fail(fitted: Any, times: int) -> None:
    recovery_trials.fail(prepared(fitted), times)


def test_early_writes_are_kept_and_late_ones_wait(fitted: Any) -> None:
    made, (weights, state) = fitted
    step = prepared(made)
    handles = [handle for handle, _ in step.kept.handles]
    assert any(handle is state.handle for handle in handles)
    assert not any(handle is weights.handle for handle in handles)
    made(batch())
    assert step.commit_flag.begun


def test_a_step_that_failed_is_repeated_with_the_same_batch(
    fitted: Any, budget: int
) -> None:
    made, (_, state) = fitted
    before = made.report[0].addresses  # other tests may leave free memory in pieces
    fail(made, 1)
    made(batch())
    assert state.numpy() == 2
    (report,) = made.report
    assert report.replans == 1
    assert report.budget_bytes + report.margin_bytes == budget
    assert report.addresses != "planned"
    assert report.addresses in (before, "not planned: it ran out of memory")


def test_another_thread_waits_until_a_step_is_planned_anew(fitted: Any) -> None:
    made, (_, state) = fitted
    fail(made, 1)
    data = batch()
    with ThreadPoolExecutor(2) as pool:
        losses = list(pool.map(made, [data, data]))
    assert len(losses) == 2
    assert state.numpy() == 3
    assert made.report[0].replans == 1


def test_a_failure_among_the_writes_is_said(fitted: Any) -> None:
    made, _ = fitted
    step = prepared(made)

    def failing(inputs: Any) -> Any:
        step.commit_flag.begun = True
        raise tf.errors.ResourceExhaustedError(None, None, "OOM")

    step.rebuilt = failing
    with pytest.raises(OutOfMemoryError, match="while it writes variables"):
        made(batch())


def test_a_step_that_seemed_to_fit_is_planned_when_it_runs_out(fitted: Any) -> None:
    planned, (weights, state) = fitted
    (report,) = planned.report
    step = report.unplanned_peak_bytes - report.persistent_bytes
    budget = report.persistent_bytes + int(1.25 * step)
    signature = [tf.TensorSpec([1024, 16])]
    made = fit_in_memory(planned._calling[0], signature, budget=budget, recompute=False)
    assert made.report[0].fits_unplanned
    assert not made.fits_unplanned(), "with so little to spare it is watched"
    fail(made, 1)
    made(batch())
    assert made.report[0].swap_count > 0
    assert made.report[0].replans == 1
    assert state.numpy() == 2
    assert np.all(np.isfinite(weights.numpy()))


def test_a_step_without_a_plan_runs_until_memory_is_used_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Captured, "offers", lambda *_: Offers())  # no guesses
    state = tf.Variable(tf.constant(0.0))

    def step(x: tf.Tensor) -> tf.Tensor:
        state.assign_add(1.0)
        return tf.zeros([tf.reduce_max(x)], name="rows")

    signature = [tf.TensorSpec([3], tf.int32)]
    with pytest.raises(UnsupportedError, match="rows"):
        fit_in_memory(step, signature, budget="1GiB")
    made, x = fit_in_memory(step, signature), tf.constant([1, 2, 3])
    assert "cannot be planned and runs as without LMS: Could not" in caplog.text
    assert made(x).shape == [3]
    own, left = prepared(made).rebuilt, [1]

    def failing(inputs: Any) -> Any:
        state.assign_add(1.0)  # it has written before it fails
        left[0] -= 1
        if left[0] < 0:
            return own(inputs)
        raise tf.errors.ResourceExhaustedError(None, None, "OOM")

    prepared(made).rebuilt = failing
    assert made(x).shape == [3]  # in another order there may be room
    assert state.numpy() == 3.0
    left[0] = 9
    with pytest.raises(UnsupportedError, match="rows") as refused:
        made(x)
    assert isinstance(refused.value.__cause__, tf.errors.ResourceExhaustedError)
    assert state.numpy() == 3.0


def test_a_step_of_unknown_size_is_planned_by_a_guess_when_it_runs_out() -> None:
    state = tf.Variable(tf.constant(0.0))

    def step(x: tf.Tensor) -> tf.Tensor:
        state.assign_add(1.0)
        return tf.zeros([tf.reduce_max(x)], name="rows")

    made = fit_in_memory(step, [tf.TensorSpec([3], tf.int32)])
    x = tf.constant([1, 2, 3])

    def failing(inputs: Any) -> Any:
        state.assign_add(1.0)  # it has written before it fails
        raise tf.errors.ResourceExhaustedError(None, None, "OOM")

    prepared(made).rebuilt = failing
    assert made(x).shape == [3]
    assert made.report[0].replans == 1
    assert "rows" in made.report[0].unknown_memory
    assert state.numpy() == 1.0


def test_a_guess_that_does_not_fit_names_no_least_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Captured.plan

    def refusing(captured: Captured, attempt: Any) -> Any:
        if captured.rewrites.guesses:
            raise BudgetError("at least 947 MiB", least_bytes=947 << 20)
        return own(captured, attempt)

    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.zeros([tf.reduce_max(x)], name="rows")

    def failing(inputs: Any) -> Any:
        raise tf.errors.ResourceExhaustedError(None, None, "OOM")

    monkeypatch.setattr(Captured, "plan", refusing)
    made = fit_in_memory(step, [tf.TensorSpec([3], tf.int32)])
    prepared(made).rebuilt = failing
    with pytest.raises(UnsupportedError, match=r"rows.* guessed sizes fits") as told:
        made(tf.constant([1, 2, 3]))
    assert "947" not in str(told.value)


def test_a_step_whose_variables_were_not_kept_is_never_repeated(fitted: Any) -> None:
    planned, (_, state) = fitted
    signature = [tf.TensorSpec([1024, 16])]
    made = fit_in_memory(planned._calling[0], signature, budget="1GiB")
    assert made.fits_unplanned()
    step = prepared(made)

    def failing(inputs: Any) -> Any:
        state.assign_add(1.0)  # it has written before it fails
        raise tf.errors.ResourceExhaustedError(None, None, "OOM")

    step.rebuilt = failing
    with pytest.raises(OutOfMemoryError, match="may be updated and some not"):
        made(batch())
    assert state.numpy() == 2


def test_every_step_with_a_loop_of_unknown_memory_can_be_undone(budget: int) -> None:
    weights = tf.Variable(tf.fill([32, 32], 0.01))

    def step(x: tf.Tensor, rounds: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = x
            for _ in tf.range(rounds):
                y = tf.nn.tanh(tf.linalg.matmul(y, weights))
            loss = tf.reduce_sum(y)
        gradient: Any = tape.gradient(loss, weights)
        weights.assign_sub(gradient)
        return loss

    signature = [tf.TensorSpec([64, 32]), tf.TensorSpec([], tf.int32)]
    made = fit_in_memory(tf.function(step), signature, budget="1GiB")
    assert made.report[0].unknown_memory
    assert not made.fits_unplanned()
    args = tf.ones([64, 32]), tf.constant(2)
    for _ in range(4):
        made(*args)
    before = weights.numpy()
    fail(made, 99)
    with pytest.raises(
        OutOfMemoryError, match=r"with \d plans? \(OOM as .* are as before the step"
    ):
        made(*args)
    np.testing.assert_array_equal(before, weights.numpy())
