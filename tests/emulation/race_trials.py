"""Trainings on cards that look for races."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from experiments.models.own import GAN
from lms import LMSCallback
from lms.emulation.counters import counter
from lms.errors import BudgetError
from tests.models import CASES, SILENT, Case, conv_net
from tests.tf.training import Trained, different, digest, memory, train

__all__ = ["ZOO", "moved", "plain_and_planned"]

# Parts of plain Keras's peak; a larger one is tried where a smaller one is refused.
_SHARES: Final = (0.45, 0.6, 0.8)


def _gan() -> keras.Model:
    """A generator and a critic of images of 32 x 32, in one step."""
    made: Any = GAN(32, 16)
    made.compile(keras.optimizers.Adam(2e-4, 0.5), keras.optimizers.RMSprop(2e-4))
    made.jit_compile = False
    return made


def _vision_transformer() -> keras.Model:
    """Patches of an image, which attend to each other twice."""
    inputs = keras.Input((32, 32, 3))
    x: Any = layers.Reshape((-1, 32))(layers.Conv2D(32, 4, strides=4)(inputs))
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(2, 16, dropout=0.1)(y, y)
        y = layers.Dense(128, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(32)(y)
    x = layers.Dense(5, activation="softmax")(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, x)
    optimizer: Any = keras.optimizers.AdamW(1e-3)
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=False)  # pyright: ignore[reportArgumentType]
    return model


def _replicas() -> keras.Model:
    """Convolutions with a replica on each of two cards."""
    with tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"]).scope():
        return conv_net()


_IMAGES: Final = CASES["a residual network"].data()

# Ten kinds of models on one card, and two models on two cards.
ZOO: Final[Mapping[str, Case]] = {
    "a residual network": CASES["a residual network"],
    "a U-Net": CASES["a 3D U-Net"],
    "a transformer": replace(CASES["mixed_float16"], policy="float32"),
    "an LSTM": CASES["an LSTM in a loop"],
    "a GAN": Case(build=_gan, fit={"x": _IMAGES["x"], "batch_size": 8}),
    "an autoencoder": CASES["a train_step of its own"],
    "a vision transformer": Case(build=_vision_transformer, fit=_IMAGES),
    "a network in float16": replace(
        CASES["a residual network"],
        policy="mixed_float16",
        fit={**_IMAGES, "batch_size": 2},  # a CPU is slow in float16
    ),
    "an embedding": CASES["an embedding whose equal words' gradients are added up"],
    "convolutions by channel": CASES["grouped convolutions"],
    "two replicas": Case(build=_replicas, fit=_IMAGES, cards=2),
    "halves on two cards": CASES["halves on two cards"],
}


class _Steps(keras.callbacks.Callback):
    """Ends a training after some steps."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most, self.count = most, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count += 1
        model: Any = self.model
        model.stop_training = self.count >= self._most


def plain_and_planned(name: str, steps: int) -> dict[str, Any]:
    """Train a model of `ZOO` plainly, then planned in a share of its peak.

    Returns:
        Races of each training; of the planned one its steps, the share, tensors that
        leave the device, and names of numbers that differ from the plain ones.
    """
    tf.config.experimental.enable_op_determinism()
    case = replace(ZOO[name], epochs=steps)
    plain = train(case, [_Steps(steps)])
    before = counter("races")
    for share in _SHARES:
        budget = memory("current") + int(share * plain.peak)
        callback = LMSCallback(budget=budget, verbose=0)
        try:
            return {
                "plain": before,
                **_planned(case, callback, _Steps(steps), plain),
                "planned": counter("races") - before,
                "share": share,
            }
        except BudgetError:
            continue
    raise AssertionError(f"{name} was refused in each of {_SHARES}")


def _planned(
    case: Case, callback: LMSCallback, ended: _Steps, plain: Trained
) -> dict[str, Any]:
    numbers = train(case, [callback, ended]).numbers
    plans = [report.plan for report in callback.report if report.kind == "train"]
    return {
        "steps": ended.count,
        "moved": sum(len(plan.swaps) for plan in plans),
        "different": different(plain.numbers, numbers),
    }


def moved() -> dict[str, Any]:
    """Train a small model in which tensors are moved, for two steps.

    Returns:
        Digest of weights, names of copies out and of copies back.
    """
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(7)
    known: Any = {"padding": "same", "activation": "tanh"}
    parts = [keras.layers.Conv2D(8, 3, **known) for _ in range(6)]
    model: Any = keras.Sequential([keras.Input((32, 32, 8)), *parts])
    model.compile("sgd", "mse", jit_compile=False)
    x = np.random.default_rng(0).standard_normal((16, 32, 32, 8)).astype("float32")
    callback = LMSCallback(budget="2.5MiB", recompute=False, verbose=0)
    model.fit(x, x, 8, verbose=SILENT, callbacks=[callback])
    (report,) = callback.report
    swaps = [
        (f"lms/{number}/{swap.tensor.rpartition(':')[0]}", len(swap.swap_ins))
        for number, swap in enumerate(report.plan.swaps)
    ]
    return {
        "digest": digest(model.variables),
        "out": [f"{name}/out" for name, _ in swaps],
        "into": [f"{name}/in{i}" for name, count in swaps for i in range(count)],
    }
