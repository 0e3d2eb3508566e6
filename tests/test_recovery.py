"""Steps that fail as the test wants it: what is repeated, what is put back, what said.

The CPU of this process has no limit: what is swapped follows from the budget.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lms import fit_in_memory
from lms.errors import OutOfMemoryError

pytestmark = pytest.mark.tf

# Nine tensors of 64 KiB are enough for the step; it makes about twenty of them.
BUDGET = 640 * 1024


@pytest.fixture
def fitted() -> Any:
    """A planned step of gradient descent; its state is read after it was written."""
    import tensorflow as tf

    draw = np.random.default_rng(0)
    weights = tf.Variable(
        tf.constant(0.3 * draw.standard_normal((6, 16, 16)), "float32")
    )
    state = tf.Variable(tf.constant(1.0))

    def step(x: tf.Tensor) -> tf.Tensor:
        state.assign_add(1.0)
        with tf.GradientTape() as tape:
            y = x * state
            for layer in tf.unstack(weights):
                y = tf.nn.tanh(tf.linalg.matmul(y, layer))
            loss = tf.reduce_mean(tf.square(y - x))
        gradient: Any = tape.gradient(loss, weights)
        weights.assign_sub(0.5 * gradient)
        return loss

    # Whether running again is faster than moving is measured: either may happen.
    signature = [tf.TensorSpec([1024, 16])]
    made = fit_in_memory(step, signature, budget=BUDGET, recompute=False)
    assert made.report[0].swap_count > 0
    return made, (weights, state)


def batch() -> Any:
    return np.random.default_rng(1).standard_normal((1024, 16)).astype("float32")


def prepared(fitted: Any) -> Any:
    (step,) = fitted._steps.values()
    return step


def fail(fitted: Any, times: int) -> None:
    from tests.tf.recovery_trials import fail

    fail(prepared(fitted), times)


def test_early_writes_are_kept_and_late_ones_wait(fitted: Any) -> None:
    made, (weights, state) = fitted
    step = prepared(made)
    handles = [handle for handle, _ in step.kept.handles]
    assert any(handle is state.handle for handle in handles)
    assert not any(handle is weights.handle for handle in handles)
    made(batch())
    assert step.beginning.begun


def test_a_step_that_failed_is_repeated_with_the_same_batch(fitted: Any) -> None:
    made, (_, state) = fitted
    fail(made, 1)
    made(batch())
    assert state.numpy() == 2
    (report,) = made.report
    assert report.replans == 1
    assert report.budget_bytes < BUDGET
    assert report.budget_bytes + report.margin_bytes == BUDGET


def test_after_three_plans_more_it_is_given_up_and_nothing_is_written(
    fitted: Any,
) -> None:
    made, (weights, state) = fitted
    before = weights.numpy()
    fail(made, 9)
    with pytest.raises(OutOfMemoryError, match="got out of memory 4 times: OOM as the"):
        made(batch())
    assert state.numpy() == 1
    np.testing.assert_array_equal(before, weights.numpy())


def test_a_failure_among_the_writes_is_said(fitted: Any) -> None:
    import tensorflow as tf

    made, _ = fitted
    step = prepared(made)

    def failing(inputs: Any) -> Any:
        step.beginning.begun = True
        raise tf.errors.ResourceExhaustedError(None, None, "OOM")

    step.rebuilt = failing
    with pytest.raises(OutOfMemoryError, match="while it writes variables"):
        made(batch())


@pytest.mark.parametrize(
    ("least", "reserved", "taken"),
    [
        (BUDGET - 256, 0, BUDGET - 256),
        (BUDGET + 256, 0, BUDGET),
        (BUDGET - 256, 512, BUDGET),  # a batch that waits needs its place too
    ],
)
def test_without_a_tighter_plan_the_least_room_is_taken_or_the_same(
    fitted: Any, least: int, reserved: int, taken: int
) -> None:
    import tensorflow as tf

    from lms.errors import BudgetError

    made, _ = fitted
    step = prepared(made)
    plan_into, budgets = step.plan_into, []

    def failing(inputs: Any) -> Any:
        raise tf.errors.ResourceExhaustedError(None, None, "OOM")

    def never_tighter(room: Any) -> Any:
        budgets.append(room.budget)
        if room.budget < least and room.budget < BUDGET:
            raise BudgetError("too little", least_bytes=least)
        return plan_into(room)

    step.rebuilt, step.plan_into = failing, never_tighter
    measure = step.measure
    step.measure = lambda: replace(measure(), reserved=reserved)
    made(batch())
    assert budgets[1:] == [taken]
    assert made.report[0].replans == 1
