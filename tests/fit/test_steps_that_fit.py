"""Steps that fit, or cannot be planned, run in Keras's own function from the start."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms import LMSCallback, fit_in_memory
from lms.errors import UnsupportedError
from tests.models import SILENT, conv_net
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf


class Noisy(keras.Model):
    """A model whose step draws a number by a kernel that keeps a state."""

    def train_step(self, data: Any) -> dict[str, Any]:
        return {"noise": tf.random.normal([]) + 0.0 * tf.reduce_sum(data)}

    test_step = train_step

    def predict_step(self, data: Any) -> Any:
        return tf.random.normal([1]) + 0.0 * tf.reduce_sum(data)


def test_a_step_that_fits_draws_the_noise_that_keras_s_own_step_draws() -> None:
    drawn: list[list[float]] = []
    for callbacks in ([], [LMSCallback(verbose=0)]):
        keras.utils.set_random_seed(0)
        made = Noisy()
        made.compile()
        known = {"batch_size": 4, "epochs": 3, "verbose": SILENT}
        history = made.fit(np.ones((8, 4)), **known, callbacks=callbacks)
        drawn.append(history.history["noise"])
    assert drawn[0] == drawn[1]
    assert len({*drawn[0]}) == len(drawn[0])


def batches(*sizes: int) -> tf.data.Dataset:
    """Batches of these sizes; the data set does not tell them."""
    spec = tf.TensorSpec([None, 4])
    made = [np.ones((size, 4), "float32") for size in sizes]
    data = tf.data.Dataset.from_generator(lambda: iter(made), output_signature=spec)
    return data.apply(tf.data.experimental.assert_cardinality(len(sizes)))


def partial_last() -> dict[str, Any]:
    return {"x": np.ones((10, 4)), "batch_size": 4}


def whole() -> dict[str, Any]:
    return {"x": np.ones((8, 4)), "batch_size": 4}


CASES: dict[str, tuple[int, list[Callable[[], dict[str, Any]]]]] = {
    "a smaller last batch": (1, [partial_last]),
    "batches that grow": (1, [lambda: {"x": batches(2, 4, 4, 2, 8)}]),
    "batches of unknown, then of known shape": (1, [partial_last, whole]),
    "batches of known, then of unknown shape": (1, [whole, partial_last]),
    "two steps per execution": (2, [partial_last]),
    "two growing steps per execution": (2, [lambda: {"x": batches(2, 4, 8)}]),
}


def noise_of(case: str, callbacks: list[Any]) -> list[float]:
    """Train, evaluate and predict by each data set; return all noise in turn."""
    steps, data = CASES[case]
    keras.utils.set_random_seed(0)
    made, seen = Noisy(), list[float]()
    made.compile(steps_per_execution=steps, jit_compile=False)  # pyright: ignore[reportArgumentType]

    def note(_: int, logs: Any) -> None:
        seen.append(float(logs["noise"]))

    noting = keras.callbacks.LambdaCallback(
        on_train_batch_end=note, on_test_batch_end=note
    )
    both: Any = {"verbose": SILENT, "callbacks": [noting, *callbacks]}
    for given in data:
        made.fit(**given(), shuffle=False, **both)
        made.evaluate(**given(), **both)
        seen.extend(made.predict(**given(), **both).tolist())
    return seen


@pytest.mark.parametrize("case", CASES)
def test_batches_of_any_shape_draw_the_noise_that_keras_draws(case: str) -> None:
    drawn = noise_of(case, [LMSCallback("1GiB", verbose=0)])
    assert drawn == noise_of(case, [])
    assert len({*drawn}) > 1


def test_noise_goes_on_where_a_model_is_trained_with_the_callback_and_without() -> None:
    drawn: list[list[float]] = []
    for ours in ([], [LMSCallback(verbose=0)]):
        keras.utils.set_random_seed(0)
        made = Noisy()
        made.compile(jit_compile=False)  # pyright: ignore[reportArgumentType]
        both: Any = {"verbose": SILENT, "shuffle": False}
        told = [
            made.fit(**whole(), **both, callbacks=callbacks).history["noise"]
            for callbacks in ([], ours, [], ours)
        ]
        drawn.append([noise for each in told for noise in each])
    assert drawn[0] == drawn[1]
    assert len({*drawn[0]}) == len(drawn[0])


@pytest.mark.parametrize(
    ("sizes", "seed", "said"),
    [((8,), 0, 0), ((6,), 0, 1), ((6,), None, 0), ((4, 2), 0, 0)],
    ids=["equal", "a smaller last batch", "no seed", "Keras traces again too"],
)
def test_noise_that_begins_again_in_another_plan_is_said(
    sizes: Sequence[int], seed: int | None, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Augmented(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            x, y = data
            return super().train_step((x + tf.random.normal(tf.shape(x)), y))

    tf.random.set_seed(seed)  # pyright: ignore[reportArgumentType]
    made, own = Augmented(conv_net().layers), {"verbose": SILENT, "shuffle": False}
    made.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)  # pyright: ignore[reportArgumentType]
    callback = LMSCallback(thresholds={"swapout_threshold": 5}, verbose=0)
    with caplog.at_level(logging.WARNING, logger="lms"):
        for size in sizes:
            x, y = np.zeros((size, 32, 32, 3), "float32"), np.zeros(size)
            batch = size if len(sizes) > 1 else 4
            made.fit(x, y, batch_size=batch, callbacks=[callback], **own)
    assert any(report.swap_count for report in callback.report)
    assert caplog.text.count("draws from its seed") == said


def test_a_step_of_unknown_memory_draws_the_noise_that_keras_draws() -> None:
    class Looped(Noisy):
        def train_step(self, data: Any) -> dict[str, Any]:
            def draw(row: tf.Tensor) -> tf.Tensor:
                return tf.random.normal([]) + 0.0 * row

            drawn: Any = tf.map_fn(draw, data[:, 0], parallel_iterations=1)
            return {"noise": tf.reduce_sum(drawn)}

        test_step = train_step

    drawn: list[list[float]] = []
    for callbacks in ([], [LMSCallback(verbose=0)]):
        keras.utils.set_random_seed(0)
        made, seen = Looped(), list[float]()
        made.compile(jit_compile=False)  # pyright: ignore[reportArgumentType]

        def note(_: int, logs: Any, seen: list[float] = seen) -> None:
            seen.append(float(logs["noise"]))

        noting = keras.callbacks.LambdaCallback(
            on_train_batch_end=note, on_test_batch_end=note
        )
        both: Any = {"verbose": SILENT, "callbacks": [noting, *callbacks]}
        made.fit(batches(2, 4, 2, 8), shuffle=False, **both)
        made.evaluate(batches(2, 4, 2, 8), **both)
        drawn.append(seen)
    assert drawn[0] == drawn[1]
    assert len({*drawn[0][:4]}) == 4


def test_a_loop_of_one_s_own_draws_the_noise_of_its_function() -> None:
    spec, drawn = [tf.TensorSpec([None, 4])], list[list[float]]()
    for is_ours in (False, True):
        tf.random.set_seed(0)

        @tf.function(input_signature=spec)
        def step(x: tf.Tensor) -> tf.Tensor:
            return tf.random.normal([]) + 0.0 * tf.reduce_sum(x)

        run = fit_in_memory(step, spec, budget="1GiB") if is_ours else step
        drawn.append([float(run(tf.ones([size, 4]))) for size in (2, 4, 2, 8, 4)])
    assert drawn[0] == drawn[1]
    assert len({*drawn[0]}) == len(drawn[0])


def test_a_model_that_runs_eagerly_is_trained_as_without_lms(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x, y = np.ones((8, 32, 32, 3), "float32"), np.arange(8) % 5
    data: Any = {"x": x, "y": y, "batch_size": 4, "verbose": SILENT}
    ours, losses = LMSCallback(), list[Any]()
    for callbacks in ([], [ours]):
        keras.utils.set_random_seed(7)
        model = conv_net(run_eagerly=True)
        losses.append(model.fit(**data, callbacks=callbacks).history["loss"])
        assert not any(name.startswith("make_") for name in vars(model))
        for function in (model.train_function, model.test_function):
            owner = type(getattr(function, "__self__", None))
            assert not owner.__module__.startswith("lms")
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    said = "Nothing is planned, Keras trains as ever: `run_eagerly` must be False"
    assert capsys.readouterr().out.count(f"LMS: {said}") == 1
    assert ours.summary().startswith(said)
    with pytest.raises(UnsupportedError, match="`run_eagerly` must be False"):
        model.fit(**data, callbacks=[LMSCallback("1GiB")])


@pytest.mark.slow
def test_two_replicas_that_fit_are_trained_as_by_keras_and_take_no_stored_plan(
    worker: Worker,
) -> None:
    trial = "tests.tf.trials:fit_on_two_replicas"
    found = worker.ask(trial, memory="64MiB", card={"cards": 2})
    assert len(found["plain"]) == 2
    assert found["ours"] == found["plain"]
    assert "fits" in found["summary"] or "budget" in found["summary"]
    assert "`plan` must be left out for a step of 2 devices" in found["asked"]


@pytest.mark.slow
def test_a_strategy_that_is_not_planned_ends_as_without_lms(worker: Worker) -> None:
    trial = "tests.tf.trials:fit_by_another_strategy"
    found = worker.ask(trial, memory="64MiB", card={"cards": 2})
    assert found["ours"] == found["plain"]
    said = "a strategy of several replicas must be tf.distribute.MirroredStrategy"
    assert said in found["summary"]
    assert said in found["asked"]
