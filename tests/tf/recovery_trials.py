"""Work of the processes: trainings in which a step runs out of memory in the middle."""

import re
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from lms import LMSCallback
from lms.tf.recovery import PreparedStep
from tests.models import Case
from tests.tf import training

__all__ = ["fail", "train"]

_BATCHES = 3


def train(  # noqa: PLR0913 - what differs between trials
    *,
    planned: bool,
    budget: str | None = None,
    held: float = 0,
    failures: int = 0,
    counted: bool = False,
    stored: bool = False,
    epochs: int = 1,
) -> dict[str, Any]:
    """Train with op determinism.

    Args:
        planned: Whether large model support is used.
        budget: As the callback takes it.
        stored: Whether a stored plan is obeyed, of a training before.
        epochs: Epochs to train.
        counted: Whether the loss weighs classes by how many there are of each, which
            makes a tensor that may be of any size.
        held: Part of the step's memory that another tensor takes from the third batch
            on, besides all memory that the step leaves free.
        failures: How often the third batch runs out of memory after a partial run.

    Returns:
        `numbers`, hashes of all losses, weights and slots; `replans`, tensors
        swapped and ops recomputed (`changes`), ops
        `cut` and `addresses` of each report; how many variables were `kept`; the
        replans that were `said`.
    """
    tf.config.experimental.enable_op_determinism()
    plan = None
    if stored:
        before = LMSCallback(budget, verbose=0, replan=False)
        _model("mse").fit(_data(), verbose="0", callbacks=[before])
        plan = before.plan
        keras.backend.clear_session()
    callback = LMSCallback(budget, verbose=0, plan=plan)
    said: list[int] = []
    callback._print = lambda line: said.append(_replans(line))
    trouble = _Trouble(callback, held, failures)
    loss = _balanced if counted else "mse"
    case = Case(build=lambda: _model(loss), fit=lambda: {"x": _data()}, epochs=epochs)
    trained = training.train(case, [trouble, callback] if planned else [])
    return {
        "numbers": training.hashes(trained.numbers),
        "replans": [report.replans for report in callback.report],
        "changes": [r.swap_count + r.recomputed_ops for r in callback.report],
        "cut": [report.ops_cut for report in callback.report],
        "addresses": [report.addresses for report in callback.report],
        "kept": trouble.kept,
        "said": said,
        "unknown": [len(report.unknown_memory) for report in callback.report],
    }


def _replans(line: str) -> int:
    found = re.search("replanned (once|([0-9]+) times)", line)
    return int(found[2] or 1) if found else 0


def _balanced(targets: Any, made: Any) -> Any:
    """The error of each row, by how many rows are of its class."""
    classes = tf.argmax(targets, -1, tf.int32)
    shares = 1.0 / tf.cast(tf.math.bincount(classes), tf.float32)
    errors = tf.reduce_mean(tf.square(targets - made), -1)
    return errors * tf.gather(shares, classes)


def _model(loss: Any) -> keras.Model:
    """Dropout writes random state early, Adam and batch normalisation write late."""
    inputs = keras.Input((64, 64, 3))
    x = inputs
    dropout = layers.Dropout(0.1)  # shared: it reads the state that it wrote
    for _ in range(3):
        x = layers.Dense(8, use_bias=False)(x)  # oneDNN's convolutions would crash
        x = dropout(layers.ReLU()(layers.BatchNormalization()(x)))
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(5)(x))
    model.compile(optimizer="adam", loss=loss, metrics=["mae"], jit_compile=False)  # pyright: ignore[reportArgumentType]
    return model


def _data() -> tf.data.Dataset:
    def batches() -> Any:
        draw = np.random.default_rng(0)
        for _ in range(_BATCHES):
            x = draw.standard_normal((16, 64, 64, 3)).astype("float32")
            yield x, x.mean((1, 2))[:, [0, 1, 2, 0, 1]]

    specs = tf.TensorSpec([16, 64, 64, 3]), tf.TensorSpec([16, 5])
    data = tf.data.Dataset.from_generator(batches, output_signature=specs)
    return data.apply(tf.data.experimental.assert_cardinality(_BATCHES))


class _Trouble(keras.callbacks.Callback):
    """Comes with the third batch."""

    def __init__(self, callback: LMSCallback, held: float, failures: int) -> None:
        super().__init__()
        self.kept = 0
        self._callback = callback
        self._held = held
        self._failures = failures
        self._hog: Any = None
        self._is_over = False

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch != 2 or self._is_over:
            return
        self._is_over = True
        (step,) = self._callback._hooks["train"].fitted._steps.values()
        self.kept = len(step.kept.handles)
        if self._held:
            assert step.parts[0].found.planned is not None
            budget = step.parts[0].found.planned.budget
            assert budget.limit is not None
            assert step.parts[0].measured_peak is not None
            taken = step.parts[0].measured_peak - budget.persistent
            size = budget.limit - step.parts[0].measured_peak + int(self._held * taken)
            self._hog = tf.raw_ops.Empty(shape=[size], dtype=tf.uint8, init=False)
        fail(step, self._failures)


def fail(step: PreparedStep, failures: int) -> None:
    """Let a step and its replacements fail after their early writes."""
    rebuilt = step.rebuilt

    def failing(inputs: Any) -> Any:
        for handle, dtype in step.kept.handles:
            written = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype) + 1
            tf.raw_ops.AssignVariableOp(resource=handle, value=written)
        step.rebuilt = rebuilt
        raise tf.errors.ResourceExhaustedError(None, None, "OOM as the test wants it")

    if failures > 0:
        step.rebuilt = failing  # pyright: ignore[reportAttributeAccessIssue]
        step.source = _Failing(step.source, failures - 1)


class _Failing:
    """A source whose next `failures` steps fail."""

    def __init__(self, source: Any, failures: int) -> None:
        self._source = source
        self._failures = failures

    @property
    def step(self) -> Any:
        return self._source.step

    def prepare(self, tried: Any) -> PreparedStep:
        following = self._source.prepare(tried)
        fail(following, self._failures)
        return following
