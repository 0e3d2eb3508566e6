"""Writes leave a branch that runs if all is finite, and write what they would have."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lms.tf.capture.loops import control_flow
from lms.tf.capture.tracing import trace
from lms.tf.lowering import TracedStep
from lms.tf.passes.chosen_writes import CHOSEN
from lms.tf.passes.splitting import Cuts, OpSize
from lms.tf.proving import prove_step
from lms.tf.rewriting import rebuild
from tests.tf.steps import specialised

pytestmark = pytest.mark.tf

WRITES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
START = [-0.0, 0.0, 1.5, -2.0]


class Model:
    """Four weights, their velocity and average, a scale, and a count."""

    def __init__(self) -> None:
        made = [tf.Variable(tf.constant(START)) for _ in range(3)]
        self.weights, self.velocity, self.average = made
        self.scale, self.count = (
            tf.Variable(tf.constant(2.0)),
            tf.Variable(tf.constant(0)),
        )

    @property
    def values(self) -> list[bytes]:
        held = (self.weights, self.velocity, self.average, self.scale, self.count)
        return [variable.numpy().tobytes() for variable in held]

    def learn(self, gradient: Any) -> None:
        gradient /= self.scale
        self.velocity.assign(0.9 * self.velocity - gradient)
        self.weights.assign_add(self.velocity)
        self.average.assign_sub(0.1 * (self.average - self.weights))
        self.count.assign_add(1)

    def lower(self) -> None:
        self.scale.assign(self.scale / 2.0)
        self.count.assign(0)


def inside(step: TracedStep) -> list[str]:
    """Types of the writes that are left in branches."""
    fixed = control_flow(step.nodes)
    return sorted(n.op for n in step.nodes if n.name in fixed and n.op in WRITES)


GIVEN = [[1, -2, 0.5, 3], [1, np.inf, 0, 0], [np.nan, 0, 0, 0], [0, 0, -1, 1]]
XS = [np.array(each, np.float32) for each in GIVEN]


def same_bits(step: Callable[[Model, Any], None]) -> TracedStep:
    """Run a step as it is and rewritten, on equal models; return the rewritten one."""

    def of(model: Model) -> Any:
        def run(x: Any) -> Any:
            step(model, x * model.weights + 1.0)
            return tf.reduce_sum(model.weights)

        return tf.function(run, autograph=False, jit_compile=False)

    expected, found = Model(), Model()
    asked, traced = of(expected), trace(of(found), (XS[0],))
    own = specialised(of(found), XS[0])
    proof = prove_step(traced, own, own.nodes, [], [((), ())], None)
    assert proof.proved, proof.failed
    given = rebuild(traced, own, own.nodes)
    for x in (*XS, *XS[::-1]):
        result = given(traced.flat_inputs((x,)))
        np.testing.assert_array_equal(result, asked(tf.constant(x)))
        assert found.values == expected.values
    return own


def finite(gradient: Any) -> Any:
    return tf.reduce_all(tf.math.is_finite(gradient))


def test_large_variables_are_written_outside_with_the_same_bits() -> None:
    def step(model: Model, gradient: Any) -> None:
        tf.cond(finite(gradient), lambda: model.learn(gradient), model.lower)

    own = same_bits(step)
    assert inside(own) == ["AssignAddVariableOp", *["AssignVariableOp"] * 2]
    switched = {n.attr["T"].type for n in own.nodes if n.op == "Switch"}
    assert tf.float32.as_datatype_enum not in switched  # no gradient waits for it
    resources = [n for n in own.nodes if n.op == "Switch" and n.attr["T"].type == 20]
    assert len(resources) == 2  # the scale and the count
    chosen = {n.name for n in own.nodes if n.op == "SelectV2"}
    assert len(chosen) == 3
    assert not chosen & Cuts(own.graph, own.nodes, OpSize(most=1)).open


def _sparse_rows(model: Model, gradient: Any) -> None:
    """Two of three rows are tested, and rows are added up by number."""
    tests = tf.reshape(tf.math.is_finite(gradient), [2, 2])
    rows = tf.tensor_scatter_nd_update(tf.ones([3, 2], tf.bool), [[1], [0]], tests)

    def learn() -> None:
        model.learn(gradient)
        total = tf.math.unsorted_segment_sum(gradient, [1, 1, 3, 0], 4)
        model.average.assign_add(total)

    tf.cond(tf.reduce_all(rows), learn, model.lower)


def test_numbers_of_rows_are_tested() -> None:
    own = same_bits(_sparse_rows)
    assert inside(own) == ["AssignAddVariableOp", *["AssignVariableOp"] * 2]


def test_gradients_that_are_clipped_by_their_common_norm_leave() -> None:
    def step(model: Model, gradient: Any) -> None:
        def learn() -> None:
            squares = [tf.reduce_sum(tf.square(g)) for g in (gradient, 2 * gradient)]
            norm = tf.sqrt(tf.reduce_sum(tf.stack(squares)))
            scale = tf.minimum(1 / norm, 1.0) + (norm - norm)
            model.learn(gradient * scale)

        tf.cond(finite(gradient), learn, model.lower)

    own = same_bits(step)
    assert inside(own) == ["AssignAddVariableOp", *["AssignVariableOp"] * 2]


def test_a_branch_within_the_branch_keeps_its_variables() -> None:
    def step(model: Model, gradient: Any) -> None:
        def learn() -> None:
            model.learn(gradient)
            tf.cond(
                model.count > 1,
                lambda: model.average.assign(tf.zeros(4)),
                lambda: model.average.assign_add(tf.ones(4)),
            )

        tf.cond(finite(gradient), learn, model.lower)

    own = same_bits(step)
    changed = [n.name for n in own.nodes if n.op == "SelectV2"]
    assert len(changed) == 2  # velocity and weights
    assert len(inside(own)) == 6


def test_a_variable_that_is_written_twice_leaves_whole() -> None:
    """Its old value at the second write is what the first write left."""

    def step(model: Model, gradient: Any) -> None:
        def learn() -> None:
            model.learn(gradient)
            model.velocity.assign(tf.clip_by_value(model.velocity, -0.5, 0.5))
            length = tf.sqrt(tf.reduce_sum(tf.square(model.weights)))
            model.weights.assign(model.weights / (1e-3 + length))

        tf.cond(finite(gradient), learn, model.lower)

    own = same_bits(step)
    assert len([n for n in own.nodes if n.op == "SelectV2"]) == 5


def _a_second_condition(model: Model, gradient: Any) -> None:
    tf.cond(finite(gradient), lambda: model.learn(gradient), model.lower)
    for variable in (model.weights, model.velocity, model.average):
        halve = partial(variable.assign, variable * 0.5)
        tf.cond(model.count > 1, halve, lambda: tf.zeros(4))


def _divides_whole_numbers(model: Model, gradient: Any) -> None:
    def learn() -> None:
        model.learn(gradient * tf.cast(10 // (model.count + 1), tf.float32))

    positive = tf.reduce_all(model.count >= 0)
    tf.cond(tf.logical_and(finite(gradient), positive), learn, model.lower)


def _inverts(model: Model, gradient: Any) -> None:
    def learn() -> None:
        matrix = tf.linalg.inv(tf.reshape(gradient, [2, 2]) + 9.0 * tf.eye(2))
        model.average.assign_sub(tf.reshape(matrix, [4]))

    tf.cond(finite(gradient), learn, model.lower)


def _sums_unknown_rows(model: Model, gradient: Any) -> None:
    """A negative number of rows would be an error."""

    def learn() -> None:
        rows = tf.maximum(model.count, 0) + 4
        total = tf.math.unsorted_segment_sum(gradient, [0, 1, 2, 3], rows)
        model.average.assign_sub(total[:4])

    tf.cond(finite(gradient), learn, model.lower)


def _of_a_comparison(model: Model, gradient: Any) -> None:
    small = tf.reduce_all(tf.abs(gradient) < 9.0)
    tf.cond(small, lambda: model.learn(gradient), model.lower)


def _both_write(model: Model, gradient: Any) -> None:
    def reset() -> None:
        for variable in (model.weights, model.velocity, model.average):
            variable.assign(tf.zeros(4))

    tf.cond(finite(gradient), lambda: model.learn(gradient), reset)


def _returns_what_it_wrote(model: Model, gradient: Any) -> None:
    def learned() -> Any:
        model.learn(gradient)
        return model.weights + 0.0

    model.average.assign(tf.cond(finite(gradient), learned, lambda: tf.ones(4)))


def _learns_if_not_finite(model: Model, gradient: Any) -> None:
    zeros = tf.zeros(4)
    tf.cond(finite(gradient), model.lower, lambda: model.learn(zeros))


@pytest.mark.parametrize(
    "step",
    [
        _a_second_condition,
        _both_write,
        _divides_whole_numbers,
        _inverts,
        _learns_if_not_finite,
        _of_a_comparison,
        _returns_what_it_wrote,
        _sums_unknown_rows,
    ],
)
def test_other_branches_stay_as_they_are(step: Any) -> None:
    own = same_bits(step)
    assert not [n for n in own.nodes if n.name.endswith(CHOSEN)]
    assert "AssignSubVariableOp" in inside(own)
