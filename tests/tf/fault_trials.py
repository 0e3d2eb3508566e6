"""Work of the processes: planned trainings in which an allocation fails at some point.

A host function is put between two ordered ops of the planned step. When its turn comes
it takes all memory that is free, and keeps it until the step has failed: so the next op
that needs memory gets none, whichever it is. oneDNN's convolutions, products and
poolings, which do not survive that, are among them.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from lms import LMSCallback
from lms.errors import LMSError
from lms.tf import building, compat
from lms.tf.measure.devices import find_device
from lms.tf.recovery import PreparedStep
from tests.models import Case
from tests.tf.training import hashes, train

__all__ = ["fault", "plain"]

_DEVICE = "GPU:0"


def plain() -> dict[str, str]:
    """Hashes of all numbers of plain Keras's training."""
    tf.config.experimental.enable_op_determinism()
    return hashes(train(_CASE, []).numbers)


def fault(point: int) -> dict[str, Any]:
    """Train with an allocation that fails at a point.

    Args:
        point: Seed of where in the second step's order the memory is taken.

    Returns:
        The `error` of a refusal, or the `numbers`, how often the step was planned anew,
        and the type of the op that got no memory; and how much was `taken`.
    """
    tf.config.experimental.enable_op_determinism()
    hog = _Hog(point)
    callback = LMSCallback(verbose=0)
    try:
        with hog.in_planned_steps():
            numbers = train(_CASE, [hog.clock, callback]).numbers
    except LMSError as error:
        return {"taken": hog.taken, "error": f"{type(error).__name__}: {error}"}
    return {
        "taken": hog.taken,
        "error": None,
        "numbers": hashes(numbers),
        "before": hog.before,
        "replans": [report.replans for report in callback.report],
    }


def _model() -> keras.Model:
    """Convolutions, strided and not, poolings and products; weights wander if let."""
    x = inputs = keras.Input((48, 48, 3))
    for _ in range(6):
        x = layers.Conv2D(16, 3, padding="same", activation="relu")(x)
        x = layers.BatchNormalization()(x)
    x = layers.Conv2D(24, 3, strides=2, padding="same")(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Dense(64, activation="gelu")(layers.Flatten()(x))
    model = keras.Model(inputs, layers.Dense(5)(x))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", jit_compile=False)  # pyright: ignore[reportArgumentType]
    return model


def _data() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((36, 48, 48, 3)), draw.standard_normal((36, 5))
    return {"x": x, "y": y, "batch_size": 12, "shuffle": False}


_CASE = Case(build=_model, fit=_data, epochs=1)


class _Hog:
    """Takes all memory once, at one point of the second step."""

    def __init__(self, point: int) -> None:
        self.taken = 0
        self.before = ""
        self._point = point
        self._held: list[Any] = []
        self._functions: list[Any] = []
        self.clock = _Clock()

    def in_planned_steps(self) -> Any:
        """Within it, steps that are rewritten have it in them."""
        return _Patched(self)

    def put_into(self, nodes: list[Any], chain: Sequence[str]) -> None:
        """Between two ordered ops; the second one is asked for its type."""
        at = random.Random(self._point).randrange(1, len(chain))
        by_name = {node.name: node for node in nodes}
        self._functions.append(self._take)  # the graph holds it weakly
        node = compat.NodeDef(name="lms_tests/hog", op="PyFunc")
        node.device = by_name[chain[at]].device
        node.input.append(f"^{chain[at - 1]}")
        node.attr["token"].s = compat.register_host_function(
            self._functions[-1]
        ).encode()
        for key in ("Tin", "Tout"):
            node.attr[key].list.SetInParent()
        for later in by_name.values():
            waits = f"^{chain[at - 1]}" in later.input
            if waits and (later.name == chain[at] or "lms/room" in later.name):
                later.input.append("^lms_tests/hog")
        self.before = by_name[chain[at]].op
        nodes.append(node)

    def release(self) -> None:
        """Give back what was taken."""
        self._held.clear()

    def _take(self) -> list[object]:
        if self.taken or self.clock.step != 1:
            return []
        with tf.device(_DEVICE):
            for size in self._sizes():
                try:
                    taken = tf.raw_ops.Empty(shape=[size], dtype=tf.uint8, init=False)
                except tf.errors.ResourceExhaustedError:
                    break  # what is left lies in smaller pieces
                self._held.append(taken)
                self.taken += size
        return []

    def _sizes(self) -> Iterator[int]:
        """Parts of what is free, as long as there is some."""
        limit = find_device().limit or 0
        while True:
            now = tf.config.experimental.get_memory_info(_DEVICE)["current"]
            if limit - now < 64 * 1024:
                return
            yield max(256, (limit - now) // 16)


class _Clock(keras.callbacks.Callback):
    """Counts the steps that have ended."""

    step = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step = batch + 1


class _Patched:
    """The library with a hog in it."""

    def __init__(self, hog: _Hog) -> None:
        self._hog = hog

    def __enter__(self) -> None:
        self._owned = building.rewrite, building.rebuild, PreparedStep.planned_anew
        (rewrite, rebuild, anew), hog = self._owned, self._hog
        chain = list[str]()

        def seen(step: Any, plan: Any, *args: Any, **options: Any) -> list[Any]:
            chain[:] = plan.chain
            return rewrite(step, plan, *args, **options)

        def with_hog(traced: Any, step: Any, nodes: Any, **options: Any) -> Any:
            if chain and not hog.taken:  # behind the proof
                hog.put_into(nodes, chain)
            chain.clear()
            return rebuild(traced, step, nodes, **options)

        def without_hog(self: PreparedStep, reason: str) -> Any:
            hog.release()
            return anew(self, reason)

        building.rewrite, building.rebuild = seen, with_hog
        PreparedStep.planned_anew = without_hog

    def __exit__(self, *_: object) -> None:
        self._hog.release()
        building.rewrite, building.rebuild, PreparedStep.planned_anew = self._owned
