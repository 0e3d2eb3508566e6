"""Work of the test processes: a model with a replica on each card."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from lms import LMSCallback, fit_in_memory
from lms.errors import BudgetError
from tests.models import SILENT
from tests.tf.training import digest

__all__ = ["fit_replicas", "run_out", "run_replicas", "run_split"]

_CARDS = ("GPU:0", "GPU:1")


def fit_replicas(budget: str) -> dict[str, Any]:
    """Fit plainly, within a budget, and with a card that runs out in mid-step.

    Returns:
        By training the `digest` of weights and slots, the `losses` of evaluation and
        the `predicted` digest; of planned ones `reports`, `peaks` and `fits`, whether
        each card's measured peak is within its promise.
    """
    tf.config.experimental.enable_op_determinism()
    found = {"plain": _fit([])}
    for name, failing in (("planned", ""), ("failing", "GPU:1")):
        callback = LMSCallback(budget, verbose=0)
        found[name] = _fit([callback, _Trouble(callback, failing)])
        reports = callback.report
        train = [r for r in reports if r.kind == "train"]
        found[name] |= {
            "devices": [r.device for r in train],
            "changes": [r.swap_count + r.recomputed_ops for r in train],
            "replans": [r.replans for r in train],
            "kinds": sorted({r.kind for r in reports}),
            "over": [
                r.measured_peak_bytes - r.predicted_peak_bytes
                for r in train
                if r.measured_peak_bytes and not r.replans
            ],
        }
    return found


def refuse_replicas(budget: str, page: str) -> str:
    """Fit within a budget that is too small; write a page, return the error."""
    callback = LMSCallback(budget, verbose=0)
    try:
        _fit([callback])
    except BudgetError as error:
        callback.page(page)
        return str(error)
    return ""


def _fit(callbacks: list[Any]) -> dict[str, Any]:
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    with tf.distribute.MirroredStrategy(_CARDS).scope():
        known: Any = {"padding": "same", "activation": "relu"}
        parts = [layers.Conv2D(16, 3, **known) for _ in range(5)]
        ends = [layers.BatchNormalization(), layers.Dropout(0.2)]
        ends += [layers.GlobalAveragePooling2D(), layers.Dense(5)]
        model: Any = keras.Sequential([keras.Input((32, 32, 3)), *parts, *ends])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    draw = np.random.default_rng(0)
    x = draw.standard_normal((160, 32, 32, 3)).astype("float32")
    y = draw.integers(0, 5, 160)
    model.fit(x, y, 32, shuffle=False, verbose=SILENT, callbacks=callbacks)
    told = {"batch_size": 32, "verbose": SILENT, "callbacks": callbacks[:1]}
    return {
        "digest": digest((*model.variables, *model.optimizer.variables)),
        "losses": model.evaluate(x[:64], y[:64], **told),
        "predicted": digest([tf.constant(model.predict(x[:64], **told))]),
    }


class _Trouble(keras.callbacks.Callback):
    """The third step writes some variables of all cards, then one card runs out."""

    def __init__(self, callback: LMSCallback, card: str) -> None:
        super().__init__()
        self._callback, self._card = callback, card

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        del logs
        if batch != 2 or not self._card:
            return
        (step,) = self._callback._hooks["train"].fitted._steps.values()
        rebuilt = step.rebuilt

        def failing(inputs: Any) -> Any:
            del inputs
            step.rebuilt = rebuilt
            for handle, dtype in step.kept.handles:
                written = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype) + 1
                tf.raw_ops.AssignVariableOp(resource=handle, value=written)
            said = f"OOM when allocating a tensor on /device:{self._card}"
            raise tf.errors.ResourceExhaustedError(None, None, said)

        step.rebuilt = failing  # pyright: ignore[reportAttributeAccessIssue]


def run_replicas(budget: str) -> dict[str, Any]:
    """Run a loop of one's own, with `strategy.run` in it, plainly and planned."""
    tf.config.experimental.enable_op_determinism()
    found: dict[str, Any] = {}
    for name in ("plain", "planned"):
        keras.utils.set_random_seed(7)
        strategy = tf.distribute.MirroredStrategy(_CARDS)
        with strategy.scope():
            parts = [layers.Dense(64, activation="tanh") for _ in range(12)]
            model: Any = keras.Sequential([keras.Input((64,)), *parts])
            optimizer: Any = keras.optimizers.Adam(1e-3)
            optimizer.build(model.trainable_variables)
        rows = np.random.default_rng(0).standard_normal((8192, 64)).astype("float32")
        data = tf.data.Dataset.from_tensor_slices(rows).batch(2048)
        data = strategy.experimental_distribute_dataset(data)

        def one(x: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - x))
            gradients = tape.gradient(loss, model.trainable_variables)
            pairs = zip(gradients, model.trainable_variables, strict=True)
            optimizer.apply_gradients(pairs)
            return loss

        def step(batch: Any, strategy: Any = strategy, one: Any = one) -> Any:
            return strategy.reduce("SUM", strategy.run(one, args=(batch,)), axis=None)

        run: Any = tf.function(step)
        if name == "planned":
            run = fit_in_memory(step, [data.element_spec], budget=budget)
        losses = [float(run(batch)) for batch in data]
        weights = digest((*model.variables, *optimizer.variables))
        found[name] = {"losses": losses, "digest": weights}
    changes = [r.swap_count + r.recomputed_ops for r in run.report]
    return found | {"changes": changes, "devices": [r.device for r in run.report]}


def run_split(budget: str) -> dict[str, Any]:
    """Run a model whose halves lie on two cards, plainly and planned."""
    tf.config.experimental.enable_op_determinism()
    found: dict[str, Any] = {}
    for name in ("plain", "planned"):
        draw = np.random.default_rng(0)
        halves = list[list[Any]]()
        for card in _CARDS:
            with tf.device(card):
                values = (draw.standard_normal((64, 64)) / 8 for _ in range(6))
                halves.append([tf.Variable(tf.constant(v, tf.float32)) for v in values])
        x = tf.constant(draw.standard_normal((2048, 64)), tf.float32)
        run: Any = tf.function(_descend_on_both(*halves))
        if name == "planned":
            run = fit_in_memory(run, [tf.TensorSpec([2048, 64])], budget=budget)
        losses = [float(run(x)) for _ in range(3)]
        found[name] = {"losses": losses, "digest": digest([*halves[0], *halves[1]])}
    reports = run.report
    return found | {
        "changes": [r.swap_count + r.recomputed_ops for r in reports],
        "over": [r.measured_peak_bytes - r.budget_bytes for r in reports],
    }


def _descend_on_both(first: Any, second: Any) -> Any:
    """Return a step of gradient descent, half of which runs on each card."""

    def half(x: Any, weights: Any) -> Any:
        for weight in weights:
            x = tf.tanh(x @ weight)
        return x

    def step(x: Any) -> Any:
        with tf.device(_CARDS[0]), tf.GradientTape() as tape:
            one: Any = tape
            between = half(x, first)
        with tf.device(_CARDS[1]):
            with tf.GradientTape() as tape:
                two: Any = tape
                two.watch(between)
                loss = tf.reduce_mean(tf.square(half(between, second)))
            back, *late = two.gradient(loss, [between, *second])
        with tf.device(_CARDS[0]):
            early: Any = one.gradient(between, first, output_gradients=back)
        for weight, gradient in zip((*first, *second), (*early, *late), strict=True):
            weight.assign_sub(gradient)
        return loss

    return step


def run_out() -> str:
    """Return the error of a step that no plan fits: GPU:0's sizes depend on values."""

    def step(x: Any) -> Any:
        with tf.device("GPU:0"):
            ends = tf.reduce_sum(tf.ones([tf.cast(tf.reduce_sum(x), tf.int32)]))
        with tf.device("GPU:1"):
            large = [x + float(i) * ends for i in range(8)]
            return tf.reduce_sum(tf.concat(large, 0))

    try:
        fit_in_memory(step, [tf.TensorSpec([1 << 20])])(tf.ones([1 << 20]))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "ended"
