"""Planned steps whose allocations are recorded, on a dry card.

    python -m tests.profiling.allocation_trials BUILD BUDGET [BUILD BUDGET ...]

prints what was found, as a line of JSON each.
"""

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from lms import LMSCallback
from lms.emulation import counters
from lms.planning import strategies
from profiling.allocations import compare, logged
from profiling.sessions import MARK, Session, recording


def convolutions() -> tuple[Any, Any, Any]:
    """Convolutions, normalisation, pooling: as in ResNets and U-Nets."""
    x = inputs = keras.Input((32, 32, 3))
    for filters in (16, 16, 32):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.GlobalAveragePooling2D()(layers.MaxPooling2D()(x))
    model = keras.Model(inputs, layers.Dense(10)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-3), loss, metrics=["accuracy"])
    return model, np.ones((32, 32, 32, 3), "float32"), np.zeros(32, "int32")


def attention() -> tuple[Any, Any, Any]:
    """Softmax, sums that reduce nothing, dropout, argmax of large logits."""
    x = inputs = keras.Input((128,), dtype="int32")
    x = layers.Embedding(512, 64)(x)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 16, dropout=0.1)(y, y)
        y = layers.Dense(128, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dropout(0.1)(layers.Dense(64)(y))
    model = keras.Model(inputs, layers.Dense(512)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model, np.ones((8, 128), "int32"), np.ones((8, 128), "int32")


def volumes() -> tuple[Any, Any, Any]:
    """Convolutions of volumes, joined: as in the case study's network."""
    from unet3d.model import build_unet

    x = np.ones((1, 32, 32, 32, 4), "float32")
    return build_unet(32, 8, 3, batch_size=1, seed=0), x, x[..., :3].astype("uint8")


def half_precision() -> tuple[Any, Any, Any]:
    """Casts, and the loss scale's checks."""
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    model, x, y = convolutions()
    model.compile("adam", model.loss)
    return model, x, y


class _Recorded(keras.callbacks.Callback):
    """Records the fourth step."""

    def __init__(self) -> None:
        super().__init__()
        self.session, self._stack, self._steps = Session(), ExitStack(), 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._steps += 1
        if self._steps == 4:
            self._stack.enter_context(recording(self.session))
            self.session.moments.append(counters.now())
            self._stack.callback(lambda: self.session.moments.append(counters.now()))
            mark = tf.profiler.experimental.Trace(MARK, step_num=0, _r=1)
            self._stack.enter_context(mark)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        float((logs or {})["loss"])  # the device has ended the step
        self._stack.close()


def unlike(name: str, budget: str) -> dict[str, Any]:
    """Ops of a planned step that took other memory than was expected."""
    build: Callable[[], tuple[Any, Any, Any]] = globals()[name]
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    model, x, y = build()
    model.jit_compile = False
    ours, recorded = LMSCallback(budget, verbose=0), _Recorded()
    known: dict[str, Any] = {"batch_size": len(x), "epochs": 4, "verbose": 0}
    model.fit(x, y, callbacks=[ours, recorded], **known)
    step, plan, spans = ours.timelines[0], ours.plan, recorded.session.spans
    assert plan is not None
    found = compare(step.graph, plan, spans, mark=MARK)
    return {
        "ordered": len(plan.chain),
        "needs": ours.report[0].unplanned_peak_bytes,
        "taken": sum(one.size for one in logged(spans, mark=MARK)),
        "unlike": [(one.type, one.op, one.expected, one.logged) for one in found],
    }


if __name__ == "__main__":
    # Few plans are tried, as in `tests.tf.worker`: nobody asks how fast they are.
    strategies.TUNING = replace(strategies.TUNING, search_tries=(4, 8))
    for asked in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        sys.stdout.write(json.dumps(unlike(*asked)) + "\n")
