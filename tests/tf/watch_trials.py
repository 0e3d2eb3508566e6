"""Work of the test processes: bytes that change while a tensor is away, and are found.

A host function is put between each swap-out and its swap-ins, and changes one bit of
the array when its turn comes.
"""

import random
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import lms
from lms.errors import ChangedTensorError
from lms.ir.graph import GraphView, Op, Tensor
from lms.ir.recompute import PREFIX
from lms.tf import building, compat
from lms.tf.nodes import COPY_IN, COPY_OUT, Nodes
from lms.tf.rewriting import rebuild
from lms.tf.watch import Watch
from tests.tf.steps import DEVICE
from tests.tf.training import digest

__all__ = ["compare_second_runs", "flip", "flip_by_rule", "sum_kinds", "train_odd"]
__all__ += ["train_watched"]

_KINDS = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
_KINDS += ("uint16", "int8", "complex64", "complex128")


def flip(count: int, policy: str) -> dict[str, Any]:
    """Train, and change one bit of a tensor that is away in each second step.

    Returns:
        How many steps `raised`, after how many the variables were `kept`, how many
        errors `named` the tensor, the last error's `words`, how many tensors were
        `swapped`, a digest of the variables at the end, the peak, and the proof.
    """
    draw, flips = random.Random(0), _Flips()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(building, "rebuild", flips.rebuild)
        run, variables, planned = _step(policy, check="moved")
        run()
        raised = kept = named = 0
        words = ""
        for _ in range(count):
            before = digest(variables)
            flips.armed = draw.randrange(flips.count), draw.random(), draw.randrange(8)
            try:
                run()
            except ChangedTensorError as error:
                raised, words = raised + 1, str(error)
                named += repr(flips.tensors[flips.last]) in words
            kept += digest(variables) == before
            flips.armed = None
            run()
    return {"raised": raised, "kept": kept, "named": named, "words": words} | {
        "swapped": len(planned().plan.swaps),
        "numbers": digest(variables),
        "peak": tf.config.experimental.get_memory_info("GPU:0")["peak"],
        "proof": planned().proof,
    }


def compare_second_runs() -> dict[str, Any]:
    """Train with recomputed ops, one of which is another op when it runs again.

    Returns:
        `steps` that ran, how many of these `raised`, the `words` of the first error,
        and how many second runs were `compared`.
    """

    def rebuild_other(traced: Any, step: Any, nodes: list[Any], **known: Any) -> Any:
        again = [n for n in nodes if n.name.startswith(PREFIX) and n.op == "Relu"]
        again[-1].op = "Softplus"
        return rebuild(traced, step, nodes, **known)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(building, "rebuild", rebuild_other)
        run, _, planned = _step("float32", check="moved", recompute=True)
        count, raised = 3 * planned().recomputed_ops, list[str]()
        for _ in range(count):
            try:
                run()
            except ChangedTensorError as error:
                raised.append(str(error))
    return {
        "steps": count,
        "raised": len(raised),
        "words": raised[0],
        "compared": planned().compared_again,
    }


def train_watched(steps: int, policy: str, *, check: str | None) -> dict[str, Any]:
    """Train without changes; returns a digest of the variables, and the peaks."""
    run, variables, planned = _step(policy, check=check)
    for _ in range(steps):
        run()
    report = planned()
    return {
        "numbers": digest(variables),
        "peak": report.measured_peak_bytes,
        "budget": report.budget_bytes,
        "compared": report.compared,
        "moved": sum(len(swap.swap_ins) for swap in report.plan.swaps),
    }


def flip_by_rule(count: int) -> dict[str, Any]:
    """Change a bit in steps that IBM's rule plans, whose writes may come at any time.

    Returns:
        How many steps `raised`, and after how many the variables were `kept`.
    """
    flips, weights = _Flips(), tf.Variable(tf.ones([6, 64, 64]) / 64)
    x = tf.constant(np.random.default_rng(0).standard_normal((512, 64)), tf.float32)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for layer in tf.unstack(weights):
                y = tf.nn.tanh(y @ layer)
            loss = tf.reduce_sum(tf.square(y))
        gradient: Any = tape.gradient(loss, weights)
        weights.assign_sub(0.01 * gradient)
        return loss

    rule = {"swapout_threshold": 5, "swapin_ahead": 1, "swapin_groupby": 0}
    raised = kept = 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(building, "rebuild", flips.rebuild)
        run = lms.fit_in_memory(step, [x], thresholds=rule, check="moved")
        run(x)
        for i in range(count):
            before = weights.numpy()
            flips.armed = i % flips.count, 0.5, i % 8
            try:
                run(x)
            except ChangedTensorError as error:
                raised += "as before the step" in str(error)
            kept += bool((weights.numpy() == before).all())
    return {"raised": raised, "kept": kept}


def train_odd(*, check: str | None) -> dict[str, Any]:
    """Train on tensors whose bytes are no multiple of 8, and on one of unknown size."""
    keras.utils.set_random_seed(3)
    filters = tf.Variable(tf.random.stateless_normal([4, 3, 3, 3, 3], (1, 2)) / 9)
    x = tf.random.stateless_normal([1, 201, 201, 3], (3, 4))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for each in tf.unstack(filters):
                y = tf.nn.tanh(tf.nn.conv2d(y, each, 1, "SAME"))
            kept = tf.boolean_mask(tf.reshape(y, [-1]), tf.reshape(x, [-1]) > 0)
            loss = tf.reduce_sum(tf.square(y)) + tf.reduce_sum(kept)
        gradient: Any = tape.gradient(loss, filters)
        filters.assign_sub(1e-6 * gradient)
        return loss

    knobs: Any = {"check": check, "recompute": False, "replan": False}
    run = lms.fit_in_memory(step, [x], budget="5MiB", **knobs)
    for _ in range(3):
        run(x)
    (report,) = run.report
    return {
        "numbers": digest([filters]),
        "peak": report.measured_peak_bytes,
        "budget": report.budget_bytes,
        "compared": report.compared,
    }


def sum_kinds() -> dict[str, list[bool]]:
    """Digests of each type, of a few lengths, before and after one bit has changed.

    Returns:
        By type, whether each digest is the sum that NumPy finds, and whether another.
    """
    found = dict[str, list[bool]]()
    for name in _KINDS:
        dtype = tf.as_dtype(name)
        found[name] = []
        for count in (1, 7, 8, 40, 1000, 1003):
            array = _noise(count, dtype)
            first = _digest_of(array)
            found[name].append(first == _summed(array))
            array.view(np.uint8)[-1] ^= 1
            found[name].append(first != _digest_of(array))
    return found


class _Flips:
    """Changes a bit of one tensor that is away, when it is armed.

    `armed` is the tensor's number, the place in it from 0 to 1, and the bit.
    """

    def __init__(self) -> None:
        self.armed: tuple[int, float, int] | None = None
        self.tensors: list[str] = []
        self.last = -1
        self._functions: list[Any] = []

    @property
    def count(self) -> int:
        return len(self.tensors)

    def rebuild(self, traced: Any, step: Any, nodes: list[Any], **known: Any) -> Any:
        """Build a step with a function behind each swap-out of a tensor."""
        self.tensors = []
        outs = {n.name: n for n in nodes if n.op == COPY_OUT}
        host = compat.device_name("CPU:0")
        for node in [node for node in nodes if node.op == COPY_IN]:
            out, call = outs[node.input[0]], f"{node.name}/flip"
            made = compat.made_node(call, "PyFunc", [out.name], host)
            function = self._function(len(self.tensors))
            made.attr["token"].s = compat.register_host_function(function).encode()
            for key in ("Tin", "Tout"):
                made.attr[key].list.type.append(out.attr["T"].type)
            node.input[0] = call
            nodes.append(made)
            self.tensors.append(out.input[0])
        return rebuild(traced, step, nodes, **known)

    def _function(self, number: int) -> Any:
        def flipped(array: np.ndarray) -> np.ndarray:
            if self.armed is None or self.armed[0] != number:
                return array
            self.last, array = number, array.copy()
            flat = array.reshape(-1).view(np.uint8)
            flat[int(self.armed[1] * flat.size)] ^= 1 << self.armed[2]
            return array

        self._functions.append(flipped)  # the graph holds it weakly
        return flipped


def _step(
    policy: str, *, check: str | None, recompute: bool = False
) -> tuple[Any, Sequence[Any], Any]:
    """A planned step; returns (runs it, its variables, its report)."""
    tf.config.experimental.enable_op_determinism()
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(3)
    model, optimizer = _model(), keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    noise = np.random.default_rng(0).standard_normal((8, 32, 32, 3))
    x = tf.constant(noise, tf.float32)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.square(tf.cast(model(x, training=True), "float32"))
            )
        gradients: Any = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    knobs: Any = {"check": check, "recompute": recompute, "replan": False}
    run = lms.fit_in_memory(step, [x], budget=_BUDGETS[policy], **knobs)
    variables = [*model.variables, *optimizer.variables]
    return lambda: run(x), variables, lambda: run.report[0]


_BUDGETS = {"float32": "4MiB", "mixed_bfloat16": "4MiB"}


def _model() -> keras.Model:
    x = inputs = keras.Input((32, 32, 3))
    skips = list[Any]()
    for filters in (16, 16, 16, 16):
        x = layers.Conv2D(filters, 3, padding="same")(x)
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(x)
        skips.append(x)
    for skip in reversed(skips):
        x = layers.Conv2D(16, 3, padding="same")(x + skip)
    return keras.Model(inputs, layers.Conv2D(1, 1)(x))


def _noise(count: int, dtype: tf.DType) -> np.ndarray:
    draw = np.random.default_rng(count).integers(0, 256, count * dtype.size, np.uint8)
    return draw.view(dtype.as_numpy_dtype)


def _digest_of(array: np.ndarray) -> int:
    """Return the digest that a watch gives an array on the device."""
    dtype = tf.as_dtype(array.dtype)
    made = Tensor(name="x:0", size=array.nbytes, dtype=dtype.name)
    graph = GraphView(ops=(Op(name="x", type="Placeholder", outputs=(made,)),))
    watch, nodes = Watch(device=DEVICE, graph=graph, label="lms"), Nodes(())
    (name,) = watch.add(nodes, "x", "x:0", made)
    inputs = [("x", tf.TensorSpec(array.shape, dtype), None)]
    built = compat.graph_def(nodes, None)
    function = compat.build_function(built, inputs, [f"{name}:0"])
    with compat.planned_as_is():
        (found,) = function.call_flat(compat.host_tensor(array))
    return int(found)


def _summed(array: np.ndarray) -> int:
    """Return the sum of words and of what is left, as NumPy finds it."""
    data = array.tobytes()
    whole = len(data) if len(data) % 8 == 0 else len(data) // 64 * 64
    kind = {1: np.int8, 2: np.int16, 4: np.int32}.get(array.itemsize, np.int64)
    words = np.frombuffer(data[:whole], np.int64)
    rest = np.frombuffer(data[whole:], kind).astype(np.int64)
    with np.errstate(over="ignore"):
        return int(words.sum() + rest.sum())
