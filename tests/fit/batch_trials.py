"""Loops over single batches, with and without large model support."""

from contextlib import ExitStack
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import lms
from lms.errors import BudgetError
from lms.units import KIB
from tests.models import CASES
from tests.tf.training import different, memory, numbers_of

__all__ = ["same_numbers"]

# Part of a plain loop's memory that a planned one gets, beside what the models hold.
_SHARE = 0.65

_LOSS: Any = keras.losses.BinaryCrossentropy(from_logits=True)


def same_numbers(name: str, policy: str) -> dict[str, Any]:
    """Run a loop plainly, with all memory and with a share, and compare."""
    tf.config.experimental.enable_op_determinism()
    plain, _, peak, held = _run(name, policy)
    roomy, fitting, _, _ = _run(name, policy, None)
    budget = memory("current") + held + int(_SHARE * (peak - held))
    for _ in ("train", "test", "predict"):  # a refusal names one step's least budget
        try:
            tight, planned, _, _ = _run(name, policy, budget)
            break
        except BudgetError as error:  # a share of a small model can be too little
            budget = int(1.02 * (error.least_bytes or budget)) + 64 * KIB
    else:
        tight, planned, _, _ = _run(name, policy, budget)
    return {
        "different": different(plain, roomy) + different(plain, tight),
        "fitting": [report.swap_count for report in fitting],
        "swaps": {r.kind: r.swap_count for r in planned if r.swap_count},
        "within": all(r.predicted_peak_bytes <= budget for r in planned),
    }


def _run(name: str, policy: str, *budget: int | None) -> tuple[Any, Any, int, int]:
    """Return the loop's numbers and reports, and the bytes of its peak and models."""
    keras.backend.clear_session()
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(7)
    start = memory("current")
    tf.config.experimental.reset_memory_stats("GPU:0")
    models, loop = _LOOPS[name]()
    with ExitStack() as stack:
        planned = (lms.large_model(m, b, verbose=0) for b in budget for m in models)
        larges = [stack.enter_context(large) for large in planned]
        told = {f"outputs {i}": np.array(v) for i, v in enumerate(loop(*models))}
    numbers = {f"{m.name} {k}": v for m in models for k, v in numbers_of(m).items()}
    peak, held = memory("peak") - start, memory("current") - start
    return told | numbers, [r for large in larges for r in large.report], peak, held


def _adversaries(*, compiled_anew: bool) -> tuple[Any, Any]:
    """A discriminator, and a generator with the discriminator, in turns."""
    conv: Any = {"padding": "same", "activation": "leaky_relu"}
    parts = [layers.Conv2D(32, 3, **conv), layers.Conv2D(32, 3, **conv)]
    inner: list[Any] = [*parts, layers.Dropout(0.1), layers.GlobalMaxPooling2D()]
    last: Any = layers.Dense(1, dtype="float32")
    judge: Any = keras.Sequential([keras.Input((32, 32, 3)), *inner, last])
    judge.compile("adam", _LOSS)
    inner = [layers.Dense(8 * 8 * 16), layers.Reshape((8, 8, 16))]
    inner += [layers.Conv2DTranspose(16, 4, 4, "same"), layers.BatchNormalization()]
    last = layers.Conv2D(3, 3, padding="same", activation="tanh", dtype="float32")
    maker: Any = keras.Sequential([keras.Input((16,)), *inner, last])
    judge.trainable = False
    pair: Any = keras.Sequential([keras.Input((16,)), maker, judge])
    pair.compile("adam", _LOSS)
    judge.trainable = True

    def loop(judge: Any, pair: Any) -> Any:
        draw, ones = np.random.default_rng(0), np.ones((16, 1))
        both = np.concatenate([ones, 0 * ones])
        for _ in range(3):
            noise = draw.standard_normal((16, 16)).astype("float32")
            true = draw.standard_normal((16, 32, 32, 3)).astype("float32")
            x = np.concatenate([true, maker.predict_on_batch(noise)])
            if compiled_anew:
                judge.trainable = True
                judge.compile(judge.optimizer, _LOSS)
            yield judge.train_on_batch(x, both, class_weight={0: 1.0, 1: 0.5})
            if compiled_anew:
                judge.trainable = False
                pair.compile(pair.optimizer, _LOSS)
            yield pair.train_on_batch(noise, ones, return_dict=True)["loss"]
            yield judge.test_on_batch(x[:24], both[:24])

    return (judge, pair), loop


def _of(name: str) -> tuple[Any, Any]:
    """A model of a case, with batches of some sizes.

    They are even: on processors with AMX, oneDNN's filter gradients of odd batches end
    the process, without lms and without a card.
    """
    case: Any = CASES[name]
    data = case.data()
    rows = [np.asarray(data[part]) for part in ("x", "y")]

    def loop(model: Any) -> Any:
        size = data["batch_size"]
        for n in (size, size, size - 2, size):
            x, y = (part[:n] for part in rows)
            yield np.hstack(model.train_on_batch(x, y))
            yield np.hstack(model.test_on_batch(x, y))
            yield model.predict_on_batch(x)[0]

    return (case.build(),), loop


_LOOPS: dict[str, Any] = {
    "adversaries": lambda: _adversaries(compiled_anew=False),
    "adversaries that are compiled anew": lambda: _adversaries(compiled_anew=True),
    "a residual network": lambda: _of("a residual network"),
    "mixed_float16": lambda: _of("mixed_float16"),
}
