"""What the workers run: what users do with a model whose state is on the host."""

import tempfile
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import lms
from tests.models import SILENT
from tests.tf.state_trials import _BATCH as _ROWS
from tests.tf.state_trials import _data, _dense, _hash, _model, _values

__all__ = ["initial_values", "large_variable", "trained"]

_ITEMS, _WIDTH, _LENGTH, _BATCH = 60_000, 32, 8, 32
_HALF = "5MiB"  # of the device, for each of two threads


def initial_values(*, on_host: bool) -> list[str]:
    """Hashes of initial values of which each is larger than the device."""
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(1)
    with lms.on_host() if on_host else nullcontext():
        return [
            _hash([keras.Variable(initializer, (1500, 900), dtype).numpy()])
            for initializer in ("he_normal", "orthogonal", "random_normal", "identity")
            for dtype in ("float32", "bfloat16")
            if initializer != "orthogonal" or dtype == "float32"  # it takes no other
        ]


def large_variable(folder: str, *, on_host: bool) -> list[str]:
    """Hashes of the state as a variable larger than the device is used."""
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(1)
    callbacks = [lms.LMSCallback(verbose=0)] if on_host else []
    with lms.on_host() if on_host else nullcontext():
        model: Any = keras.Sequential(
            [
                keras.Input((_LENGTH,), dtype="int32"),
                keras.layers.Embedding(_ITEMS, _WIDTH),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(10),
            ]
        )
    model.compile("adam", "mse")
    if on_host:
        lms.keep_on_host(model)
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, _ITEMS, (_BATCH, _LENGTH)), draw.random((_BATCH, 10))
    found: list[str] = []

    def note() -> None:
        found.append(_hash(_values(model)))

    def fit() -> None:
        model.fit(x, y, epochs=2, verbose=SILENT, callbacks=callbacks)
        note()

    fit()
    model.save(f"{folder}/whole.keras")
    model.save_weights(f"{folder}/state.weights.h5")
    tf.train.Checkpoint(model=model).write(f"{folder}/checkpoint")
    model.set_weights([weight + 1 for weight in model.get_weights()])
    note()
    fit()
    model.layers[0].embeddings.assign(np.ones((_ITEMS, _WIDTH)))
    note()
    model.load_weights(f"{folder}/state.weights.h5")
    note()
    with lms.on_host() if on_host else nullcontext():
        model = keras.models.load_model(f"{folder}/whole.keras")
    if on_host:
        lms.keep_on_host(model)
    note()
    fit()
    return found


def trained(way: str, *, on_host: bool) -> list[str]:
    """Hashes of the state after trainings.

    Args:
        way: One of those below.
        on_host: Whether weights and slots are on the host.
    """
    tf.config.experimental.enable_op_determinism()
    return [_hash(_values(model)) for model in _WAYS[way](on_host)]


def _ready(body: Any, optimizer: Any, loss: Any, *, on_host: bool) -> Any:
    """A compiled model."""
    model = body()
    model.compile(optimizer, loss)
    if on_host:
        lms.keep_on_host(model)
    return model


def _train(model: Any, callbacks: list[Any], *, batch: int = _ROWS, **how: Any) -> None:
    x, y = _data()
    options: Any = {"shuffle": False, "verbose": SILENT, **how}
    model.fit(x, y, batch_size=batch, callbacks=callbacks, **options)


def _callbacks(on_host: bool, **knobs: Any) -> list[Any]:  # noqa: FBT001
    return [lms.LMSCallback(verbose=0, **knobs)] if on_host else []


def _recomputed(on_host: bool) -> list[Any]:  # noqa: FBT001
    model = _model("adam", on_host=on_host)
    _train(model, _callbacks(on_host, recompute=True, exclude_scopes=["dense_1"]))
    return [model]


def _two_batch_sizes(on_host: bool) -> list[Any]:  # noqa: FBT001
    model, callbacks = _model("adam", on_host=on_host), _callbacks(on_host)
    _train(model, callbacks)
    _train(model, callbacks, batch=_ROWS // 2)
    _train(model, callbacks, batch=100)  # the last batch is smaller
    return [model]


def _by_a_stored_plan(on_host: bool) -> list[Any]:  # noqa: FBT001
    model = _model("adam", on_host=on_host)
    found: Any = _callbacks(on_host)
    _train(model, found)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        for callback in found:
            path.write_text(callback.plan.to_json())
        _train(model, _callbacks(on_host, plan=path))
    return [model]


def _of_shared_layers(on_host: bool) -> list[Any]:  # noqa: FBT001
    keras.utils.set_random_seed(1)
    with lms.on_host() if on_host else nullcontext():
        body = _dense()
        inner = body.layers[-2].output
        other = keras.Model(body.inputs, keras.layers.Dense(1)(inner))
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    momentum = keras.optimizers.SGD(0.01, momentum=0.9)
    models = [
        _ready(lambda: body, keras.optimizers.Adam(), entropy, on_host=on_host),
        _ready(lambda: other, momentum, "mse", on_host=on_host),
    ]
    callbacks = [_callbacks(on_host) for _ in models]
    for _ in range(2):
        for model, own in zip(models, callbacks, strict=True):
            _train(model, own)
    return models


def _compiled_again(on_host: bool) -> list[Any]:  # noqa: FBT001
    model: Any = _model("adam", on_host=on_host)
    _train(model, _callbacks(on_host))
    loss = model.loss
    _ready(lambda: model, keras.optimizers.RMSprop(), loss, on_host=on_host)
    _train(model, _callbacks(on_host))
    model.layers[0].trainable = False
    _ready(lambda: model, keras.optimizers.Adam(), loss, on_host=on_host)
    _train(model, _callbacks(on_host))
    return [model]


def _cloned(on_host: bool) -> list[Any]:  # noqa: FBT001
    model: Any = _model("adam", on_host=on_host)
    callbacks = _callbacks(on_host)
    _train(model, callbacks)
    with lms.on_host() if on_host else nullcontext():
        twin: Any = keras.models.clone_model(model)
    twin.set_weights(model.get_weights())
    optimizer = keras.optimizers.Lion()
    _ready(lambda: twin, optimizer, model.loss, on_host=on_host)
    _train(twin, _callbacks(on_host))
    _train(model, callbacks)
    return [model, twin]


def _in_a_loop_of_ones_own(on_host: bool) -> list[Any]:  # noqa: FBT001
    model: Any = _model("adam", on_host=on_host)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = model.loss(y, model(x, training=True))
        weights = model.trainable_variables
        model.optimizer.apply_gradients(
            zip(tape.gradient(value, weights), weights, strict=True)
        )
        return value

    x, y = _data()
    signature = [tf.TensorSpec([_ROWS, x.shape[1]]), tf.TensorSpec([_ROWS], tf.int64)]
    run = lms.fit_in_memory(step, signature) if on_host else tf.function(step)
    for first in (0, _ROWS, 0):
        part = slice(first, first + _ROWS)
        run(tf.constant(x[part]), tf.constant(y[part]))
    return [model]


def _in_threads(on_host: bool) -> list[Any]:  # noqa: FBT001
    models = [_model("adam", on_host=on_host) for _ in range(2)]
    trainings = [
        threading.Thread(target=_train, args=(model, _callbacks(on_host, budget=_HALF)))
        for model in models
    ]
    for training in trainings:
        training.start()
        if not on_host:
            training.join()
    for training in trainings:
        training.join()
    return models


_WAYS: dict[str, Any] = {
    "by a stored plan": _by_a_stored_plan,
    "cloned": _cloned,
    "compiled again": _compiled_again,
    "in a loop of one's own": _in_a_loop_of_ones_own,
    "in threads": _in_threads,
    "of shared layers": _of_shared_layers,
    "recomputed": _recomputed,
    "two batch sizes": _two_batch_sizes,
}
