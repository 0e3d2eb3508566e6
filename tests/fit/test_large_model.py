"""`large_model`: loops over `train_on_batch` and its like are planned as `fit` is."""

import signal
from contextlib import ExitStack, suppress
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms import LMSCallback, large_model
from lms.errors import BudgetError, UnsupportedError
from tests.models import SILENT, conv_net
from tests.room import above_what_is_held
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf

KINDS = ("train", "test", "predict")
BY_RULE: Any = {"thresholds": {"swapout_threshold": 20}, "verbose": 0}

X = np.random.default_rng(0).standard_normal((8, 32, 32, 3)).astype("float32")
Y = np.arange(8) % 5


@pytest.fixture
def model() -> Any:
    return conv_net(jit_compile=False)


def is_replaced(model: Any) -> bool:
    """Return whether one of a model's functions, or a maker, is not Keras's."""
    functions = [getattr(model, f"{kind}_function") for kind in KINDS]
    owners = [type(getattr(f, "__self__", None)).__module__ for f in functions]
    makers = [name for name in vars(model) if name.startswith("make_")]
    return bool(makers) or any(owner.startswith("lms") for owner in owners)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("adversaries", "float32"),
        ("adversaries that are compiled anew", "float32"),
        ("a residual network", "float32"),
        ("mixed_float16", "mixed_float16"),
    ],
)
def test_loops_over_batches_have_keras_s_bits_in_less_memory(
    name: str, policy: str, worker: Worker
) -> None:
    trial = "tests.fit.batch_trials:same_numbers"
    found = worker.ask(trial, memory="1GiB", name=name, policy=policy)
    assert found["different"] == []
    assert not any(found["fitting"])
    assert found["swaps"].get("train", 0) > 0
    assert found["within"]


@pytest.mark.slow
def test_there_is_a_line_and_a_report_for_each_kind_of_step(
    model: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    loss, accuracy = 0.0, -1.0
    given: Any = large_model(model, above_what_is_held("2MiB"))
    with given as large:
        assert large.summary().startswith("Nothing was planned yet")
        for _ in range(2):
            loss, accuracy = model.train_on_batch(X, Y)
            model.test_on_batch(X, Y, return_dict=True)
            assert model.predict_on_batch(X).shape == (8, 5)
        assert loss > 0
        assert 0 <= accuracy <= 1
    assert not is_replaced(model)
    lines = capsys.readouterr().out
    for kind, report in zip(KINDS, large.report, strict=True):
        assert report.kind == kind
        assert lines.count(f"LMS {kind} step (8x32x32x3") == 1
        assert 0 < report.measured_peak_bytes <= report.budget_bytes
    assert large.plan is not None
    assert large.plan.swaps
    assert "train 8x32x32x3, 8" in large.summary()


@pytest.mark.slow
def test_batches_of_each_kind_of_array_are_one_signature(model: Any) -> None:
    with large_model(model, **BY_RULE) as large:
        for kind in (np.asarray, tf.constant, keras.ops.convert_to_tensor):
            model.train_on_batch(kind(X), kind(Y))
        model.train_on_batch(X, Y, class_weight=dict.fromkeys(range(5), 0.5))
        with pytest.raises(ValueError, match="cannot be specified at the same time"):
            model.train_on_batch(X, Y, sample_weight=Y, class_weight={0: 1.0})
    assert [r.signature for r in large.report] == ["8x32x32x3, 8", "8x32x32x3, 8, 8"]


def test_a_step_that_fits_is_keras_s_own_from_the_first_batch_on() -> None:
    class Noisy(keras.Model):
        def train_step(self, data: Any) -> dict[str, Any]:
            return {"noise": tf.random.normal([]) + 0.0 * tf.reduce_sum(data[0])}

    def drawn(*larges: Any) -> list[float]:
        keras.utils.set_random_seed(0)
        model: Any = Noisy()
        model.compile(jit_compile=False)
        with ExitStack() as stack:
            for large in larges:
                stack.enter_context(large(model, verbose=0))
            steps = [model.train_on_batch(X, return_dict=True) for _ in range(4)]
        return [float(step["noise"]) for step in steps]

    assert drawn() == drawn(large_model)
    assert len({*drawn()}) == 4


@pytest.mark.parametrize("error", [KeyboardInterrupt, BudgetError, tf.errors.OpError])
def test_every_way_out_restores_keras_s_functions(model: Any, error: Any) -> None:
    def loop() -> None:
        with large_model(model, "1GiB", verbose=0) as large:
            model.train_on_batch(X, Y)
            assert is_replaced(model)
            if error is KeyboardInterrupt:
                signal.raise_signal(signal.SIGINT)
            large.budget = 1024 if error is BudgetError else "1GiB"
            model.train_on_batch(X, np.full(8, 9))

    with pytest.raises(error):
        loop()
    assert not is_replaced(model)
    model.train_on_batch(X, Y)


def test_after_an_error_that_a_loop_catches_the_plan_still_holds(model: Any) -> None:
    with large_model(model, **BY_RULE) as large:
        model.train_on_batch(X, Y)
        with pytest.raises(tf.errors.InvalidArgumentError):
            model.train_on_batch(X, np.full(8, 9))
        model.train_on_batch(X, Y)
        assert is_replaced(model)
        assert len(large.report) == 1


def test_a_model_that_is_compiled_anew_is_planned_anew(model: Any) -> None:
    given: Any = large_model(model, **BY_RULE)
    with given as large:
        model.train_on_batch(X, Y)
        assert any("adam" in name for name in large.plan.order)
        model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
        model.train_on_batch(X, Y)
        assert not any("adam" in name for name in large.plan.order)
    assert not is_replaced(model)


def test_a_model_may_be_compiled_and_built_within() -> None:
    model: Any = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    with large_model(model, verbose=0) as large:
        with pytest.raises(ValueError, match="compile"):
            model.train_on_batch(X, Y)
        model.predict_on_batch(np.ones((2, 3)))
        model.compile("adam", "mse", jit_compile=False)
        model.train_on_batch(np.ones((2, 3)), np.ones((2, 1)))
    assert [report.kind for report in large.report] == ["train"]
    assert "LMS predict step: with XLA" in large.summary(), "none was turned off yet"
    assert not is_replaced(model)


@pytest.mark.slow
def test_fit_within_is_planned_once_by_one_of_both(
    model: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    data: Any = {"x": X, "y": Y, "batch_size": 4, "verbose": SILENT}
    with large_model(model, **BY_RULE) as large:
        model.fit(**data)
        model.train_on_batch(X, Y)
        callback = LMSCallback()
        model.fit(**data, callbacks=[callback])
        assert callback.report == ()
        assert capsys.readouterr().out.count("Another LMSCallback plans") == 1
        with pytest.raises(ValueError, match="got two that differ"):
            model.fit(**data, callbacks=[LMSCallback("1GiB")])
        model.train_on_batch(X, Y)
    assert [r.signature for r in large.report] == ["4x32x32x3, 4", "8x32x32x3, 8"]
    with large_model(model, verbose=0) as large:
        callback = LMSCallback(**BY_RULE)
        model.fit(**data, callbacks=[callback])
        model.evaluate(X, Y, verbose=SILENT)
        model.train_on_batch(X, Y)
    assert [report.swap_count > 0 for report in callback.report] == [True]
    assert [report.kind for report in large.report] == ["train", "test"]
    assert not is_replaced(model)


@pytest.mark.slow
def test_contexts_of_one_model_and_of_several_may_nest(model: Any) -> None:
    other = conv_net(jit_compile=False)
    with large_model(model, verbose=0) as outer:
        model.train_on_batch(X, Y)
        with (
            large_model(model, **BY_RULE) as inner,
            large_model(other, **BY_RULE) as far,
        ):
            for each in (model, other):
                each.train_on_batch(X, Y)
            with large_model(model, verbose=0) as innermost:
                model.train_on_batch(X, Y)
        assert not is_replaced(other)
        model.train_on_batch(X[:4], Y[:4])
        assert is_replaced(model)
    assert not is_replaced(model)
    swaps = [[report.swap_count for report in each.report] for each in (outer, inner)]
    assert swaps[0] == [0, 0]
    assert swaps[1][0] > 0
    assert len(far.report) == 1
    assert innermost.report == ()


@pytest.mark.slow
def test_a_budget_may_change_within(model: Any) -> None:
    given: Any = large_model(model, verbose=0)
    with given as large:
        model.train_on_batch(X, Y)
        large.budget = above_what_is_held("2MiB")
        model.train_on_batch(X, Y)
        assert large.plan.swaps


def test_what_cannot_be_planned_runs_as_keras_s_unless_a_budget_is_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = conv_net(run_eagerly=True)
    with large_model(model) as large:
        for _ in range(2):
            model.train_on_batch(X, Y)
    assert capsys.readouterr().out.count("Keras trains as ever: `run_eagerly`") == 1
    assert large.report == ()
    with suppress(UnsupportedError), large_model(model, "1GiB"):
        model.train_on_batch(X, Y)
        pytest.fail("a budget is refused")
    assert not is_replaced(model)
