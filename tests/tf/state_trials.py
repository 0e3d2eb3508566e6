"""Work of the processes: trainings with variables on the host."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, optimizers

import lms
from lms import LMSCallback
from lms.errors import BudgetError, HostMemoryError
from lms.tf.passes.host_variables import bytes_on_host, lies_on_host, move_to_host
from lms.tf.undo import KeptVariables
from tests.models import Case
from tests.tf import training
from tests.tf.recovery_trials import fail

__all__ = ["deep", "full_host", "in_part", "loaded", "moved", "on_device"]

_WIDTH = 512

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adamw": optimizers.AdamW,
    "momentum": lambda: optimizers.SGD(0.01, momentum=0.9, nesterov=True),
    "rmsprop": lambda: optimizers.RMSprop(centered=True),
    "adagrad": optimizers.Adagrad,
    "lion": optimizers.Lion,
    "accumulation": lambda: optimizers.Adam(gradient_accumulation_steps=2),
    "averages": lambda: optimizers.Adam(use_ema=True, ema_overwrite_frequency=2),
    "scaled": lambda: optimizers.LossScaleOptimizer(optimizers.Adam()),
    "clipped": lambda: optimizers.AdamW(global_clipnorm=1.0),
}


def _compiled(optimizer: Callable[[], Any], *parts: Any) -> keras.Model:
    model = keras.Sequential([*parts])
    model.compile(optimizer(), "mse", jit_compile=False)  # pyright: ignore[reportArgumentType]
    return model


def _dense(
    depth: int, optimizer: Callable[[], Any], *, is_built: bool = True
) -> keras.Model:
    parts = [layers.Dense(_WIDTH, activation="relu") for _ in range(depth)]
    return _compiled(optimizer, *[keras.Input((_WIDTH,))][:is_built], *parts)


def _normalised(optimizer: Callable[[], Any]) -> keras.Model:
    parts: list[Any] = []
    for strides in (1, 2, 2):
        parts += [layers.Conv2D(256, 3, strides, "same", use_bias=False)]
        parts += [layers.BatchNormalization(), layers.ReLU()]
    ends = [layers.GlobalAveragePooling2D(), layers.Dense(_WIDTH, dtype="float32")]
    return _compiled(optimizer, keras.Input((6, 6, 256)), *parts, *ends)


def _recurrent(optimizer: Callable[[], Any]) -> keras.Model:
    layer = {"filters": 16, "kernel_size": 3, "padding": "same"}
    parts = [layers.ConvLSTM2D(**layer, return_sequences=True) for _ in range(2)]
    ends = [layers.GlobalAveragePooling3D(), layers.Dense(_WIDTH)]
    return _compiled(optimizer, keras.Input((8, 24, 24, 1)), *parts, *ends)


def _embedded(optimizer: Callable[[], Any]) -> keras.Model:
    ids = [layers.Rescaling(1000), layers.ReLU()]
    ends = [layers.GlobalAveragePooling1D(), layers.Dense(_WIDTH)]
    rows = layers.Embedding(1 << 13, 256)
    return _compiled(optimizer, keras.Input((8,)), *ids, rows, *ends)


def _data(*shape: int) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((64, *shape)).astype("float32")
    y = draw.standard_normal((64, _WIDTH)).astype("float32")
    return {"x": x, "y": y, "batch_size": 16, "validation_data": (x[:16], y[:16])}


def deep(*, depth: int, planned: bool, failures: int = 0) -> dict[str, Any]:
    """Train a deep network of 1 MiB a layer, in all memory that there is.

    Args:
        depth: Layers.
        planned: Whether large model support is used.
        failures: How often the second batch runs out of memory.
    """
    tf.config.experimental.enable_op_determinism()
    callback = LMSCallback(verbose=0)

    def trouble(batch: int, logs: Any) -> None:
        del logs
        if batch == 1 and failures and callback.report[0].replans == 0:
            (step,) = callback._hooks["train"].fitted._steps.values()
            fail(step, failures)

    failing = keras.callbacks.LambdaCallback(on_train_batch_begin=trouble)

    def build() -> keras.Model:
        with lms.on_host():
            return _dense(depth, optimizers.AdamW)

    case = Case(build=build, fit=_data(_WIDTH), epochs=2)
    trained = training.train(case, [failing, callback] if planned else [])
    replans = [r.replans for r in callback.report if r.kind == "train"]
    return {
        "numbers": training.hashes(trained.numbers),
        "replans": replans,
        "bytes": sum(value.nbytes for value in trained.numbers.values()),
    }


KINDS: dict[str, tuple[Callable[[Any], keras.Model], tuple[int, ...]]] = {
    "dense": (partial(_dense, 5), (_WIDTH,)),
    "not built": (partial(_dense, 5, is_built=False), (_WIDTH,)),
    "normalised": (_normalised, (6, 6, 256)),
    "embedded": (_embedded, (8,)),
    "recurrent": (_recurrent, (8, 24, 24, 1)),
}


def in_part(
    *, optimizer: str, policy: str, kind: str, share: float = 0.45
) -> dict[str, Any]:
    """Train in a part of what plain Keras takes.

    Args:
        optimizer: A name in `OPTIMIZERS`.
        policy: Keras's dtype policy.
        kind: A name in `KINDS`.
        share: The part.

    Returns:
        Names of the numbers that `differ`, whether variables lay `on_host`, whether the
        peak was `within` the budget, and how many are `left` there after training.
    """
    tf.config.experimental.enable_op_determinism()
    made = OPTIMIZERS[optimizer]
    build, shape = KINDS[kind]
    case = Case(build=lambda: build(made), fit=_data(*shape), epochs=2, policy=policy)
    plain = training.train(case)
    budget = training.memory("current") + int(share * plain.peak)
    callback, peak = LMSCallback(budget=budget, verbose=0, replan=False), _Peak()
    trained = training.train(case, [callback, peak])
    return {
        "differ": training.different(plain.numbers, trained.numbers),
        "on_host": peak.on_host > 0,
        "within": peak.bytes <= budget,
        "left": peak.left,
    }


class _Peak(keras.callbacks.Callback):
    """Memory and variables on the host at the end of an epoch's steps."""

    bytes = on_host = left = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        del epoch, logs
        self.bytes = training.memory("peak")
        self.on_host = self._count()

    def on_train_end(self, logs: Any = None) -> None:
        del logs
        self.left = self._count()

    def _count(self) -> int:
        model: Any = self.model
        variables = (*model.variables, *model.optimizer.variables)
        return sum(lies_on_host(variable.value.handle) for variable in variables)


def loaded(*, planned: bool) -> dict[str, str]:
    """Train, write checkpoints, load one in the middle of a fit, and train on."""
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(7)
    model = _dense(12, optimizers.Adam)
    others = [LMSCallback(verbose=0, replan=False)] if planned else []
    with TemporaryDirectory() as folder:
        file = str(Path(folder) / "kept.weights.h5")
        saved = keras.callbacks.ModelCheckpoint(file, save_weights_only=True)

        def load(epoch: int, logs: Any) -> None:
            del logs
            if epoch == 1:
                model.load_weights(file)
                model.set_weights([0.5 * weight for weight in model.get_weights()])

        loading = keras.callbacks.LambdaCallback(on_epoch_end=load)
        data = _data(_WIDTH)
        model.fit(**data, epochs=3, verbose="0", callbacks=[saved, loading, *others])
        numbers = training.numbers_of(model)
        model.load_weights(file)
        numbers |= {f"saved {w.path}": np.array(w) for w in model.weights}
    again = model.predict(data["x"], verbose="0", callbacks=[*others])
    return training.hashes(numbers | {"predicted": again})


def on_device() -> bool:
    """Tell whether a step is refused that may not have variables on the host."""
    model = _dense(12, optimizers.Adam)
    callback = LMSCallback(state="device", verbose=0, budget="20MiB")
    try:
        model.fit(**_data(_WIDTH), verbose="0", callbacks=[callback])
    except (BudgetError, lms.OutOfMemoryError):
        return True
    return False


def given_back() -> dict[str, Any]:
    """Bytes of variables on the host after an error, plain training, and a refusal."""

    def trouble(batch: int, logs: Any) -> None:
        del logs
        if batch == 1:
            raise RuntimeError("as the test wants it")

    model, data = _dense(12, optimizers.Adam), _data(_WIDTH)
    failing = keras.callbacks.LambdaCallback(on_train_batch_end=trouble)
    callbacks = [failing, LMSCallback("20MiB", verbose=0, replan=False)]
    with suppress(RuntimeError):
        model.fit(**data, verbose="0", callbacks=callbacks)
    found: dict[str, Any] = {"error": bytes_on_host() > 0}
    model.fit(**data, verbose="0")
    found["plain"] = bytes_on_host()
    other = _dense(12, optimizers.Adam)
    try:
        other.fit(**data, verbose="0", callbacks=[LMSCallback("3MiB", verbose=0)])
    except BudgetError:
        found["refused"] = bytes_on_host()
    return found


def moved() -> dict[str, Any]:
    """Offload a variable, write all rows, then one row; restore it, and assign it."""
    start, shape = training.memory("current"), (256, 256)
    variable = tf.Variable(tf.random.stateless_normal(shape, (1, 2)))
    before = variable.numpy()
    move_to_host(variable.handle)
    found: dict[str, Any] = {"left": training.memory("current") - start}
    held = KeptVariables(((variable.handle, variable.dtype),))
    values = held.values()
    variable.assign_add(tf.ones(shape))
    variable.scatter_sub(tf.IndexedSlices(tf.ones([1, 256]), tf.constant([3])))
    found["in_place"] = lies_on_host(variable.handle)
    written = before + 1
    written[3] -= 1
    found["written"] = np.array_equal(written, variable.numpy())
    variable.assign(tf.zeros(shape))  # it lies on the card then
    held.put_back(values)
    found["put_back"] = np.array_equal(before, variable.numpy())
    found["stays"] = lies_on_host(variable.handle)
    variable.assign(tf.zeros(shape))
    found["after_assign"] = lies_on_host(variable.handle)
    return found


def full_host() -> dict[str, Any]:
    """Move a variable where the host may pin less than it needs."""
    variable = tf.Variable(tf.ones([1024, 4096]))
    try:
        move_to_host(variable.handle)
    except HostMemoryError as error:
        said = str(error)
    else:
        said = ""
    return {
        "names_size": "16.00 MiB" in said,
        "equal": float(tf.reduce_sum(variable)) == 1024 * 4096,
        "on_host": lies_on_host(variable.handle),
    }
