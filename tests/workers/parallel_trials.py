"""Functions that workers run: `python -m tests.workers.parallel_trials NAME DIR`.

Each worker writes its result to `DIR/RANK.json`.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms import DataParallel, LMSCallback, join
from lms.errors import WorkersError
from lms.workers.averaging import average_statistics
from lms.workers.collectives import Workers
from tests.models import SILENT
from tests.tf.training import digest
from unet3d.model import build_unet

__all__ = ["joined", "late", "main"]

_STEPS, _BATCH = 4, 6


def main(name: str, folder: str) -> int:
    """Join, run a function of this module, and write what it returns."""
    workers = join(timeout=60)

    tf.config.experimental.enable_op_determinism()
    found = globals()[name](workers)
    path = Path(folder) / f"{workers.rank}.json"
    path.write_text(json.dumps(found))
    return 0


def joined(timeout: float) -> str:
    """Return the error of joining, in words."""
    try:
        join(timeout=timeout)
    except WorkersError as error:
        return f"WorkersError: {error}"
    return "joined"


def late() -> str:
    """Return the error of joining after an op ran."""
    tf.constant(1)
    return joined(1)


def numbers(workers: Workers) -> dict[str, Any]:
    """Return digests of trainings that must agree, and refusals.

    All in one cluster, one after the other; weights begin unlike on each worker.
    """

    def model() -> Any:
        return _model(workers)

    def ours(**knobs: Any) -> list[Any]:
        return [DataParallel(workers), LMSCallback(verbose=0, **knobs)]

    plain = [DataParallel(workers)]
    half = ours(budget="1200KiB")
    unlike = half if workers.is_chief else plain
    found = {
        "plain": _fit(model(), workers, plain),
        "planned": _fit(model(), workers, half),
        "one planned": _fit(model(), workers, unlike),
        "two at a time": _fit(model(), workers, plain, at_a_time=2),
        "alone": _fit(model(), workers, [], joint=True),
        "accumulated": _fit(model(), workers, plain, accumulated=2),
        "accumulated alone": _fit(model(), workers, [], joint=True, accumulated=2),
    }
    swaps = [report.swap_count for report in half[1].report]
    again = model()
    _fit(again, workers, plain)
    validated = {"validation_data": _data(workers)} if workers.is_chief else {}

    def refused(own: Any = plain, *, like: bool = True, **how: Any) -> str:
        try:
            _fit(_model(workers, like=like), workers, own, **how)
        except WorkersError as error:
            return str(error)
        return ""

    return {
        **found,
        "swaps": swaps,
        "put back": _is_put_back(again),
        "infinity": _with_an_infinity(workers),
        "refused": {
            "steps": refused(missing=1),
            "model": refused(like=False),
            "order": refused([*reversed(half)]),
            "validation": refused(more=validated),
            "epoch": refused(more={"initial_epoch": workers.rank}),
            "compiled anew": refused([*half, CompilingAnew()]),
            "chief stops": refused([*half, Stopping(if_is=workers.is_chief)]),
            "other stops": refused([*plain, Stopping(if_is=not workers.is_chief)]),
        },
        "after": _fit(model(), workers, plain),
    }


def collectives(workers: Workers) -> dict[str, Any]:
    """Sums and broadcasts of many types and shapes, inside a function and outside."""
    own = float(workers.rank + 1)
    many = [tf.fill([i % 5 + 1, 3], own * i) for i in range(40)]
    many += [None, tf.fill([2], tf.cast(own, tf.float16)), tf.fill([1500, 1000], own)]

    @tf.function
    def summed() -> Any:
        first, second = workers.sum(many[:40]), workers.sum(many[41:])
        return [*first, *second]

    @tf.function
    def sparse(words: Any) -> Any:
        places = tf.constant([1, 1]), tf.constant([3, 2])
        return workers.mean([tf.IndexedSlices(words, *places)])[0]

    total = sum(range(1, workers.size + 1))
    inside = [float(tf.reduce_max(one)) for one in summed()]
    expected = [float(total * i) for i in range(40)] + [float(total)] * 2
    kinds = ("float32", "float16", "float64", "int32", "int64", "uint32", "bfloat16")
    kinds += ("bool", "uint8", "int8")
    own_rank = tf.fill([2, 3], workers.rank + 1)
    variables: list[Any] = [tf.Variable(tf.cast(own_rank, kind)) for kind in kinds]
    values = [-0.0, np.nan, np.inf] if workers.is_chief else [1.0, 2.0, 3.0]
    special: Any = tf.Variable(tf.constant(values))
    workers.take_chiefs([*variables, special])
    return {
        "statistics": _averaged(workers),
        "sums": inside == expected,
        "outside": [one is None for one in workers.sum(many)].index(True),
        "sparse": sparse(tf.fill([2, 2], own)).numpy().tolist(),
        "chief's": [kind for kind, v in zip(kinds, variables, strict=True) if _ones(v)],
        "special": special.numpy().tobytes().hex(),
        "said": workers.gather(f"hello of {workers.rank}", "greeting"),
    }


def limited(workers: Workers) -> dict[str, Any]:
    """The U-Net in half of its plain memory; the environment says how."""
    keras.utils.set_random_seed(1 + workers.rank)
    model = build_unet(32, filters=8, depth=3, seed=3 + workers.rank)
    model.compile(keras.optimizers.Adam(5e-4), model.loss)
    values = np.random.default_rng(10 + workers.rank)
    x = values.normal(size=(_STEPS, 32, 32, 32, 4)).astype(np.float32)
    y = (values.random((_STEPS, 32, 32, 32, 3)) > 0.7).astype(np.float32)

    def batches() -> Any:
        for i in range(_STEPS):
            yield x[i : i + 1], y[i : i + 1]

    specs = tuple(tf.TensorSpec((1, *part.shape[1:])) for part in (x, y))
    data = tf.data.Dataset.from_generator(batches, output_signature=specs)
    data = data.apply(tf.data.experimental.assert_cardinality(_STEPS))
    callback = LMSCallback(verbose=0)
    own = [callback] if os.environ["PLANNED"] == "1" else []
    callbacks = [DataParallel(workers), *own, _Watch(workers)]
    model.fit(data, epochs=1, shuffle=False, verbose=SILENT, callbacks=callbacks)
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    reports = [
        (r.swap_count, r.replans, r.predicted_peak_bytes, r.measured_peak_bytes)
        for r in callback.report
    ]
    return {"weights": digest(model.weights), "peak": peak, "reports": reports}


class _Watch(keras.callbacks.Callback):
    """Before the second step of worker 1: memory is taken, or a signal sent."""

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._is_mine = workers.rank == 1
        self._taken: list[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        model: Any = self.model
        if batch == 1 and self._is_mine and "STOP" in os.environ:
            model.stop_training = True

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch != 1 or not self._is_mine:
            return
        if number := int(os.environ.get("SIGNAL", "0")):
            os.kill(os.getpid(), number)
        if taken := int(os.environ.get("TAKEN", "0")):
            one = tf.raw_ops.Empty(shape=[taken, 1024], dtype=tf.uint8, init=True)
            self._taken.append(one)


def _model(workers: Workers, *, like: bool = True) -> Any:
    """Its weights are small; they begin otherwise on each worker."""
    keras.utils.set_random_seed(1 + workers.rank)
    model = keras.Sequential([keras.Input((24, 24, 3))])
    for _ in range(6):
        model.add(keras.layers.Conv2D(8, 3, padding="same", activation="gelu"))
    model.add(keras.layers.GlobalAveragePooling2D())
    model.add(keras.layers.Dense(1 if like else 1 + workers.rank, dtype="float32"))
    return model


def _data(workers: Workers, *, joint: bool = False) -> tuple[Any, Any]:
    """This worker's part of each joint batch."""
    values = np.random.default_rng(0)
    shape = (_STEPS, workers.size, _BATCH, 24, 24, 3)
    x = values.normal(size=shape).astype(np.float32)
    own = x if joint else x[:, workers.rank]
    own = own.reshape(-1, 24, 24, 3)
    return own, own.mean((1, 2, 3))[:, None]


class Stopping(keras.callbacks.Callback):
    """Stops one worker after an epoch, as `EarlyStopping` on one worker does."""

    def __init__(self, *, if_is: bool) -> None:
        super().__init__()
        self._stops = if_is

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        model: Any = self.model
        model.stop_training = self._stops


class CompilingAnew(keras.callbacks.Callback):
    """Compiles the model anew within `fit`, as to unfreeze layers."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        model: Any = self.model
        if batch == 0:
            model.compile("sgd", "mse", jit_compile=False)
            model.make_train_function(force=True)


def _fit(  # noqa: PLR0913 - ways to train
    model: Any,
    workers: Workers,
    callbacks: list[Any],
    *,
    joint: bool = False,
    at_a_time: int = 1,
    missing: int = 0,
    accumulated: int | None = None,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:

    optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=accumulated)
    model.compile(optimizer, "mse", steps_per_execution=at_a_time)
    if joint and not workers.is_chief:  # it begins as the chief's does
        return {}
    if joint:
        chief = Workers(placement=workers.placement)
        keras.utils.set_random_seed(1 + chief.rank)
    x, y = _data(workers, joint=joint)
    batch = _BATCH * (workers.size if joint else 1)
    kept = len(x) - batch * missing * workers.rank
    known: dict[str, Any] = {"epochs": 2, "shuffle": False, "verbose": SILENT, **more}
    fitted = model.fit(x[:kept], y[:kept], batch, callbacks=callbacks, **known)
    variables = [*model.weights, *model.optimizer.variables]
    total = float(sum(abs(v.numpy()).sum() for v in model.trainable_variables))
    losses = fitted.history["loss"]
    return {"digest": digest(variables), "total": total, "losses": losses}


def _with_an_infinity(workers: Workers) -> dict[str, Any]:
    """In the first worker's second batch alone, with dynamic loss scaling."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = _model(workers)
    finally:
        keras.config.set_dtype_policy(before)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    x, y = _data(workers)
    if workers.is_chief:
        x[_BATCH] = np.inf
    known: dict[str, Any] = {"shuffle": False, "verbose": SILENT}
    for _ in range(2):
        model.fit(x, y, _BATCH, callbacks=[DataParallel(workers)], **known)
    inner = model.optimizer.inner_optimizer
    names = [one.name for one in model.optimizer.variables]
    return {
        "digest": digest(model.weights),
        "finite": all(np.isfinite(v.numpy()).all() for v in model.weights),
        "updates": int(inner.iterations.numpy()),
        "scales": names.count("dynamic_scale"),
    }


def _averaged(workers: Workers) -> dict[str, Any]:
    """Of statistics that differ, and of weights that do not."""
    frozen = keras.Variable(np.linspace(0.1, 0.9, 999), trainable=False)
    moving = keras.Variable(np.full(3, workers.rank), trainable=False, dtype="float32")
    before = frozen.numpy()
    model = SimpleNamespace(non_trainable_variables=[frozen, moving])
    average_statistics(workers, model)
    same = bool(np.array_equal(before, frozen.numpy()))
    return {"same": same, "mean": moving.numpy().tolist()}


def _is_put_back(model: Any) -> bool:
    own = {*vars(model.optimizer), *vars(model)}
    return not own & {"apply", "make_train_function"}


def _ones(variable: Any) -> bool:
    return bool((variable.numpy().astype("float32") == 1).all())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
