"""What the workers run: steps with variables that are not on the device."""

import hashlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import lms
from lms.tf import host_variables
from lms.tf.capture.specialising import specialise
from lms.tf.capture.tracing import trace
from lms.tf.rewrite.host_store import observed_copies
from tests.models import SILENT

__all__ = ["fail_in_the_middle", "read_from_another_device", "train", "use_between"]

_LOCAL = "/job:localhost/replica:0/task:0"
_WIDTH, _LAYERS, _BATCH = 512, 6, 64
_TOKENS, _VOCABULARY, _DEPTH, _ITEMS = 32, 2048, 192, 40_000

_OPTIMIZERS: dict[str, Any] = {
    "adam": keras.optimizers.Adam,
    "adamw": keras.optimizers.AdamW,
    "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "rmsprop": keras.optimizers.RMSprop,
    "lion": keras.optimizers.Lion,
    "clipped by norm": lambda: keras.optimizers.Adam(clipnorm=0.1),
    "clipped by the norm of all": lambda: keras.optimizers.Adam(global_clipnorm=0.1),
    "averaged": lambda: keras.optimizers.Adam(use_ema=True),
    "adafactor": keras.optimizers.Adafactor,
    "accumulating": lambda: keras.optimizers.Adam(gradient_accumulation_steps=2),
}


def read_from_another_device() -> dict[str, Any]:
    """Bytes of the tensors of a step on one device whose weights lie on another."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    with tf.device("CPU:1"):
        weights = tf.Variable(tf.ones([64, 32]))
    x = tf.ones([8, 64])

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.device("CPU:0"):
            return tf.matmul(x, weights)

    traced = trace(step, [x])
    found = specialise(traced, traced.flat_inputs([x]), device=f"{_LOCAL}/device:CPU:0")
    reads = [op for op in found.graph.ops if op.type == "ReadVariableOp"]
    return {
        "read": [tensor.size for op in reads for tensor in op.outputs],
        "moves": [not op.varies for op in reads],
        "captured": found.captured_bytes,
    }


def train(
    *,
    on_host: bool,
    optimizer: str = "adam",
    budget: str | None = None,
    kind: str = "dense",
    state: str | None = "host",
    update: str | None = "device",
) -> dict[str, Any]:
    """Train three epochs of two batches with op determinism.

    Args:
        on_host: Whether weights and slots begin on the host.
        optimizer: One of those above.
        budget: What a step may use; None for all of the device.
        kind: Of the model: `dense`, `transformer` or `recommender`.
        state: Where they live while it trains.
        update: Who updates them there.

    Returns:
        `numbers`, a hash of losses, weights and slots; `state`, the bytes of weights
        and slots; with state on the host `predicted` and `measured` peak, `moved`, the
        bytes that were copied in a step, `expected`, what the report says of them, and
        how many variables are `held` there.
    """
    model = _model(optimizer, kind, on_host=on_host)
    knobs: dict[str, Any] = {"state": state, "update": update}
    callbacks = [lms.LMSCallback(budget, **knobs, verbose=0)] if on_host else []
    moved: list[int] = []
    with observed_copies(lambda *copy: moved.append(copy[-1])):
        history = _fit(model, callbacks, kind)
    variables = _variables(model)
    values = [np.array(history.history["loss"]), *(v.numpy() for v in variables)]
    found: dict[str, Any] = {
        "numbers": _hash(values),
        "state": sum(v.nbytes for v in values),
        "held": sum(
            host_variables.host_variable(v.value.handle) is not None for v in variables
        ),
    }
    for callback in callbacks:
        report = callback.report[0]
        found["predicted"] = report.predicted_peak_bytes
        found["measured"] = report.measured_peak_bytes
        found["moved"] = sum(moved) // len(history.epoch) // 2
        found["expected"] = report.swapped_in_bytes + report.swapped_out_bytes
        found["expected"] += report.state_in_bytes + report.state_out_bytes
    return found


def fail_in_the_middle(
    writes: int, raised: str, update: str = "device"
) -> dict[str, Any]:
    """Train; one step fails when it has written so often.

    Args:
        writes: After so many writes of the third step a copy fails.
        raised: Name of the exception: a `MemoryError` runs out of memory.
        update: Who updates the state.

    Returns:
        `numbers` as of `train`; `replans`; and where the training ended with an error,
        its name and whether all was `as_before` the step.
    """
    model = _model("adam", on_host=True)
    who: Any = update
    callback = lms.LMSCallback(state="host", update=who, verbose=0)
    trouble = _Trouble(writes, getattr(__import__("builtins"), raised))
    try:
        history = _fit(model, [trouble, callback])
    except Exception as error:
        as_before = _hash(_values(model)) == trouble.before
        return {"raised": type(error).__name__, "as_before": as_before}
    finally:
        trouble.end()
    losses = np.array(history.history["loss"])
    return {
        "numbers": _hash([losses, *_values(model)]),
        "replans": callback.report[0].replans,
        "failed": trouble.failed,
    }


def use_between(folder: str, *, on_host: bool) -> dict[str, str]:
    """Hashes of what is seen, saved and loaded between steps."""
    model = _model("adam", on_host=on_host)
    callbacks = [lms.LMSCallback(verbose=0)] if on_host else []
    path = str(Path(folder) / f"{on_host}.weights.h5")
    each_step: Any = 1  # Keras's annotation says text
    save = keras.callbacks.ModelCheckpoint(
        path, save_weights_only=True, save_freq=each_step, verbose=0
    )
    x, y = _data()
    found: dict[str, str] = {}
    history = _fit(model, [save, *callbacks], validation_data=(x, y))
    found["validation"] = _hash([np.array(history.history["val_loss"])])
    found["weights"] = _hash(model.get_weights())
    found["evaluated"] = str(model.evaluate(x, y, verbose=SILENT, callbacks=callbacks))
    found["evaluated plainly"] = str(model.evaluate(x, y, verbose=SILENT))
    found["predicted"] = _hash([model.predict(x, verbose=SILENT, callbacks=callbacks)])
    for variable in model.trainable_variables:
        variable.assign(np.zeros(variable.shape, "float32"))
    model.load_weights(path)
    found["loaded"] = _hash(_values(model))
    _fit(model, callbacks)
    found["after"] = _hash(_values(model))
    return found


class _Trouble(keras.callbacks.Callback):
    """Lets the third step fail after some of its writes."""

    def __init__(self, writes: int, error: type[BaseException]) -> None:
        super().__init__()
        self.before = ""
        self.failed = False
        self._left, self._error = writes, error
        self._own = host_variables.Journal.note
        self._steps = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Take note of the state; the third step is the one that fails."""
        model: Any = self.model
        self._steps += 1
        self.before = _hash(_values(model))
        if self._steps == 3:
            own = self._own

            def note(journal: Any, part: Any) -> None:
                own(journal, part)
                self._left -= 1
                if self._left == 0:
                    self.failed = True
                    raise self._error("on purpose")

            setattr(host_variables.Journal, "note", note)  # noqa: B010 - as it takes

    def end(self) -> None:
        """Let nothing fail any more."""
        host_variables.Journal.note = self._own


def _model(optimizer: str, kind: str = "dense", *, on_host: bool) -> keras.Model:
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(1)
    with lms.on_host() if on_host else nullcontext():
        model = _MODELS[kind]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(_OPTIMIZERS[optimizer](), loss)
    if on_host:
        lms.keep_on_host(model)
    return model


def _dense() -> keras.Model:
    dense = keras.layers.Dense
    hidden = [dense(_WIDTH, activation="relu") for _ in range(_LAYERS)]
    return keras.Sequential([keras.Input((_WIDTH,)), *hidden, dense(10)])


def _transformer() -> keras.Model:
    tokens = keras.Input((_TOKENS,), dtype="int32")
    x = layers.Embedding(_VOCABULARY, _DEPTH)(tokens)
    for _ in range(4):
        normal = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(4, _DEPTH // 4, dropout=0.1)
        x = x + attention(normal, normal, use_causal_mask=True)
        normal = layers.LayerNormalization()(x)
        wide = layers.Dense(4 * _DEPTH, activation="gelu")(normal)
        x = x + layers.Dense(_DEPTH)(wide)
    outputs = layers.Dense(_VOCABULARY)(layers.LayerNormalization()(x))
    return keras.Model(tokens, outputs)


def _recommender() -> keras.Model:
    items = keras.Input((8,), dtype="int32")
    x = layers.Flatten()(layers.Embedding(_ITEMS, 64)(items))
    return keras.Model(items, layers.Dense(10)(layers.Dense(64, "relu")(x)))


_MODELS: dict[str, Any] = {
    "dense": _dense,
    "transformer": _transformer,
    "recommender": _recommender,
}


def _data(kind: str = "dense") -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    if kind == "transformer":
        shape = (16, _TOKENS)
        return draw.integers(0, _VOCABULARY, shape), draw.integers(0, 99, shape)
    n = 2 * _BATCH
    if kind == "recommender":
        return draw.integers(0, _ITEMS, (n, 8)), draw.integers(0, 10, n)
    x = draw.random((n, _WIDTH), "float32")
    return x, draw.integers(0, 10, n)


def _fit(
    model: keras.Model, callbacks: list[Any], kind: str = "dense", **others: Any
) -> Any:
    x, y = _data(kind)
    return model.fit(
        x,
        y,
        batch_size=len(x) // 2,
        epochs=3,
        verbose=SILENT,
        callbacks=list(callbacks),
        **others,
    )


def _variables(model: keras.Model) -> list[Any]:
    return [*model.variables, *model.optimizer.variables]


def _values(model: keras.Model) -> list[np.ndarray]:
    return [variable.numpy() for variable in _variables(model)]


def _hash(values: list[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for value in values:
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
