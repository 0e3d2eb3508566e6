"""Where nobody asks for a plan, what Keras trains is trained, and a line says why."""

import copy
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from lms import LMSCallback
from lms.errors import LMSError, OutOfMemoryError, UnsupportedError
from lms.fit import fitted
from tests.models import SILENT

pytestmark = pytest.mark.tf

X = np.random.default_rng(0).standard_normal((16, 8, 8, 3)).astype("float32")
DATA: Any = {"x": X, "y": np.arange(16) % 5, "batch_size": 8, "verbose": SILENT}


def _net(kind: type[keras.Model] = keras.Model, **compiled: Any) -> Any:
    inputs = keras.Input((8, 8, 3))
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3)(inputs))
    model = kind(inputs, layers.Dense(5, activation="softmax")(x))
    loss = "sparse_categorical_crossentropy"
    model.compile(
        **{"optimizer": "adam", "loss": loss, "jit_compile": False} | compiled
    )
    return model


class OfItself(keras.Model):
    """A model that makes its train function."""

    def make_train_function(self, force: bool = False) -> Any:  # noqa: FBT001, FBT002
        self.train_function = lambda batches: {"loss": tf.reduce_sum(next(batches)[1])}


def _fit(model: Any, callbacks: list[Any], **more: Any) -> list[float]:
    found = model.fit(**DATA | {"epochs": 2} | more, callbacks=callbacks)
    return found.history["loss"]


def _within(
    callbacks: list[Any], act: Callable[[Any], Any], hook: str = "on_epoch_end"
) -> list[Any]:
    """Fit a model, which another callback uses at the same time."""
    other, done = keras.callbacks.Callback(), list[Any]()
    setattr(other, hook, lambda *_, **__: done.append(act(other.model)))
    return [_fit(_net(), [*callbacks, other]), done]


def _in_scope_of(make: Callable[[], Any], callbacks: list[Any]) -> list[float]:
    with make().scope():
        model = _net()
    return _fit(model, callbacks)


def _in_a_list(callbacks: list[Any]) -> list[float]:
    model = _net()
    known: Any = {"model": model, "add_history": True, "epochs": 2, "steps": 2}
    return _fit(model, keras.callbacks.CallbackList(callbacks, **known))  # type: ignore[arg-type]


def _with_functions_run_eagerly(callbacks: list[Any]) -> list[float]:
    tf.config.run_functions_eagerly(run_eagerly=True)
    try:
        return _fit(_net(), callbacks)
    finally:
        tf.config.run_functions_eagerly(run_eagerly=False)


ONCE: Any = {"epochs": 1}
KINDS: dict[str, Callable[[list[Any]], Any]] = {
    "two callbacks": lambda c: _fit(_net(), [*c, *copy.deepcopy(c)]),
    "a list of callbacks": _in_a_list,
    "a second model": lambda c: [_fit(_net(), c), _fit(_net(), c)],
    "predictions while training": lambda c: _within(
        c, lambda m: (m.evaluate(**DATA), float(m.predict(X, verbose=SILENT).sum()))
    ),
    "an evaluation by the callback": lambda c: _within(
        c, lambda m: m.evaluate(**DATA, callbacks=c)
    ),
    "a fit within": lambda c: _within(c, lambda m: _fit(m, [], **ONCE)),
    "a fit by the callback between two batches": lambda c: _within(
        c, lambda m: _fit(m, c, **ONCE), "on_train_batch_end"
    ),
    "another model within": lambda c: _within(c, lambda _: _fit(_net(), c)),
    "a strategy of one GPU": lambda c: _in_scope_of(
        lambda: tf.distribute.OneDeviceStrategy("GPU:0"), c
    ),
    "a strategy of the CPU": lambda c: _in_scope_of(
        lambda: tf.distribute.OneDeviceStrategy("CPU:0"), c
    ),
    "functions that run eagerly": _with_functions_run_eagerly,
    "a train function of its own": lambda c: _fit(_net(OfItself), c),
}


@pytest.mark.filterwarnings("ignore:.*does not apply to tf.data:UserWarning")
@pytest.mark.parametrize("name", KINDS)
def test_a_callback_without_knobs_trains_what_keras_trains(name: str) -> None:
    losses: list[Any] = []
    for callbacks in ([], [LMSCallback(verbose=0)]):
        keras.utils.set_random_seed(7)
        losses.append(np.hstack(keras.tree.flatten(KINDS[name](callbacks))))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


@pytest.mark.parametrize("name", ["a fit within", "a second model"])
def test_a_step_is_planned_again_after_another_fit(name: str) -> None:
    callback = LMSCallback(thresholds={"swapout_threshold": 5}, verbose=0)
    seen: list[bool] = []

    def note(batch: int, logs: Any = None) -> None:
        seen.append("make_train_function" in vars(noting.model))

    noting: Any = keras.callbacks.Callback()
    noting.on_train_batch_begin = note
    KINDS[name]([callback, noting])
    assert seen[0]
    assert seen[-1]


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: _net(run_eagerly=True), "`run_eagerly` must be False"),
        (lambda: _net(OfItself), "must have Keras's `make_train_function`"),
    ],
    ids=["eager", "its own function"],
)
def test_what_is_not_planned_says_why_once_and_is_refused_with_a_budget(
    make: Callable[[], Any], rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = LMSCallback()
    _fit(make(), [callback], validation_data=(X, DATA["y"]))
    said = capsys.readouterr().out
    assert said.count("LMS: Nothing is planned, Keras trains as ever: ") == 1
    assert rule in said
    assert rule in callback.summary()
    asked: list[Any] = [{"budget": "1GiB"}, {"thresholds": {}}, {"host_memory": "1GiB"}]
    for knobs in asked:
        with pytest.raises(UnsupportedError, match=rule):
            _fit(make(), [LMSCallback(**knobs, verbose=0)])


@pytest.mark.parametrize("error", [OutOfMemoryError("no room"), KeyError("unforeseen")])
def test_an_error_of_planning_leaves_the_step_unplanned_unless_a_budget_is_given(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    keras.utils.set_random_seed(7)
    plain = _fit(_net(), [])
    monkeypatch.setattr(fitted, "prepare", fail)
    keras.utils.set_random_seed(7)
    assert _fit(_net(), [LMSCallback(verbose=0)]) == pytest.approx(plain, rel=1e-5)
    said = "The train step cannot be planned and runs as without LMS: "
    assert caplog.text.count(said) == 1
    is_known = isinstance(error, LMSError)
    assert ("Please report it" in caplog.text) is not is_known
    with pytest.raises(type(error), match=str(error.args[0])):
        _fit(_net(), [LMSCallback("1GiB", verbose=0)])


def test_an_error_of_the_model_is_told_as_keras_tells_it() -> None:
    def loss(labels: Any, predictions: Any) -> Any:
        raise RuntimeError("of the user")

    for callbacks in ([], [LMSCallback(verbose=0)]):
        with pytest.raises(RuntimeError, match="of the user"):
            _fit(_net(loss=loss), callbacks)
