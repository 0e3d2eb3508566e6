"""What the workers run: sums of large tensors, in a variable and as additions."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import lms
from lms.tf import compat
from lms.tf.capture.gradient_sums import with_plain_sums
from lms.tf.measure.devices import find_device
from lms.units import MIB
from tests.tf.steps import DEVICE, specialised

__all__ = ["branches", "run_sum", "sum_nodes", "sums_of_both"]


# Terms are made in any order, side by side: now and then few are there at a time.
_CALLS = 20


def sum_nodes(elements: int) -> list[Any]:
    """What the optimiser makes of a sum of three terms, in the order of readiness."""

    def node(name: str, op: str, *inputs: str, kind: str = "T") -> Any:
        made = compat.NodeDef(name=name, op=op, input=inputs, device=DEVICE)
        made.attr[kind].type = tf.float32.as_datatype_enum
        return made

    def added(number: int, term: str, *controls: str) -> Any:
        name = f"added_{number}"
        made = node(name, "AssignAdd", "begun", term, *controls)
        made.attr["use_locking"].b = True
        return made

    variable = node("variable", "TemporaryVariable", "^first", "^go", kind="dtype")
    variable.attr["shape"].shape.dim.add().size = elements
    zeros = compat.constant("zeros", 0.0, tf.float32)
    zeros.attr["value"].tensor.tensor_shape.dim.add().size = elements
    zeros.device = variable.device
    ends = (f"^added_{number}" for number in range(3))
    value = node("sum", "DestroyTemporaryVariable", "begun", *ends)
    for named in (variable, value):
        named.attr["var_name"].s = b"sum"
    return [
        compat.NodeDef(name="go", op="NoOp"),
        compat.NodeDef(name="then", op="NoOp"),
        node("first", "Neg", "x"),
        node("second", "Neg", "y"),
        variable,
        zeros,
        node("begun", "Assign", "variable", "zeros"),
        node("third", "Neg", "z", "^second", "^first"),
        added(2, "first:0"),
        added(1, "second:0", "^then"),
        added(0, "third:0"),
        value,
    ]


def run_sum(terms: Sequence[np.ndarray], *, plain: bool) -> np.ndarray:
    """The sum of the negated terms' negatives, as it is made or as additions."""
    return _sum_call([-term for term in terms], plain=plain)().copy()


def _sum_call(terms: Sequence[Any], *, plain: bool) -> Callable[[], np.ndarray]:
    nodes = sum_nodes(len(terms[0]))
    nodes = with_plain_sums(nodes, frozenset()) if plain else nodes
    spec = tf.TensorSpec(terms[0].shape)
    function = compat.build_function(
        compat.graph_def(nodes, None), [(name, spec, None) for name in "xyz"], ["sum:0"]
    )
    given = [tf.constant(term) for term in terms]

    def call() -> np.ndarray:
        with compat.planned_as_is():
            return function.call_flat(*given)[0].numpy()

    return call


def sums_of_both() -> dict[str, Any]:
    """A sum in a variable and as additions: its bits, its peak, what is kept."""
    memory = find_device().memory
    terms = np.random.default_rng(0).standard_normal((3, MIB)).astype("float32")
    found: dict[str, Any] = {"size": terms[0].nbytes}
    for name, plain in (("own_", False), ("", True)):
        call = _sum_call(list(terms), plain=plain)
        before = memory.current_bytes or 0
        result = call().copy()
        found[f"{name}kept"] = (memory.current_bytes or 0) - before
        memory.reset_peak()
        for _ in range(_CALLS):
            call()
        found[f"{name}peak"] = (memory.peak_bytes or 0) - before
    negated = [-term for term in terms]
    found["equal"] = bool((result == negated[0] + negated[1] + negated[2]).all())
    return found


def branches(budget: str | None) -> dict[str, Any]:
    """Steps in which a large gradient is the sum of many, of which each is large.

    TensorFlow's optimiser only changes such sums where a step takes more than 80 % of
    the 256 MiB that it takes a CPU to have.
    """
    weights = [tf.Variable(tf.fill([16], 0.1 * (k + 1))) for k in range(9)]
    x = tf.random.stateless_normal([4, 256, 256, 16], (1, 2))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            stem = tf.tanh(x * weights[0])
            losses = [tf.reduce_mean(tf.tanh(stem * weight)) for weight in weights[1:]]
            loss = tf.add_n(losses)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(gradient)
        return loss

    own = specialised(step, x).own
    fitted = lms.fit_in_memory(step, [x], budget=budget)
    losses = [float(fitted(x)) for _ in range(3)]
    (report,) = fitted.report
    return {
        "own": own is not None,
        "losses": losses,
        "weights": [weight.numpy().tobytes().hex() for weight in weights],
        "swaps": report.swap_count,
        "predicted": report.predicted_peak_bytes,
        "measured": report.measured_peak_bytes,
        "budget": report.budget_bytes,
    }
