"""`fit_in_memory`: a step of a custom loop, planned for each signature it gets.

Budgets are bytes above what the card of this process holds already.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lms import fit_in_memory
from lms.errors import BudgetError, LMSError, PlanError, UnsupportedError
from lms.fit import fitted as fit_module
from lms.tf import building as stages
from tests.room import above_what_is_held

pytestmark = pytest.mark.tf

KIB = 1024


def make_step() -> tuple[Callable[..., Any], Any]:
    """A step of gradient descent through six layers, and its weights."""
    start = np.linspace(-0.5, 0.5, 6 * 16 * 16, dtype="float32").reshape(6, 16, 16)
    weights = tf.Variable(tf.constant(start))

    def step(x: tf.Tensor, y: tf.Tensor, *, summed: bool = False) -> dict[str, Any]:
        assert not summed
        with tf.GradientTape() as tape:
            for layer in tf.unstack(weights):
                x = tf.nn.tanh(tf.linalg.matmul(x, layer))
            loss = tf.reduce_mean(tf.square(x - y))
        gradient: Any = tape.gradient(loss, weights)
        weights.assign_sub(0.5 * gradient)
        return {"loss": loss, "prediction": x}

    return step, weights


@pytest.fixture
def batch() -> list[Any]:
    x = np.random.default_rng(0).standard_normal((1024, 16)).astype("float32")
    return [tf.constant(x), tf.constant(np.roll(x, 1, axis=0))]


def specs(batch: int | None) -> list[Any]:
    return [tf.TensorSpec([batch, 16]), tf.TensorSpec([batch, 16])]


def numbers(run: Callable[..., Any], batch: list[Any], weights: Any) -> list[Any]:
    results = [run(*batch) for _ in range(3)]
    values = [result[name].numpy() for result in results for name in sorted(result)]
    return [*values, weights.numpy()]


def budget() -> int:
    """Return bytes for ten tensors of 64 KiB; the step makes about twenty."""
    return above_what_is_held(640 * KIB)


def knobs() -> dict[str, Any]:
    """Return knobs without recomputation, which measured times may choose or not."""
    return {"budget": budget(), "recompute": False}


@pytest.mark.parametrize("kind", ["python function", "tf.function"])
def test_a_loop_has_the_same_numbers_with_and_without_it(
    kind: str, batch: list[Any]
) -> None:
    plain, weights = make_step()
    expected = numbers(tf.function(plain), batch, weights)
    step, weights = make_step()
    function = step if kind == "python function" else tf.function(step)
    fitted = fit_in_memory(function, specs(1024), **knobs())
    (report,) = fitted.report
    assert report.swap_count > 0
    assert (report.kind, report.signature) == ("step", "1024x16, 1024x16")
    assert report.predicted_seconds is not None
    (timeline,) = fitted.timelines
    assert timeline.lanes is not None
    assert timeline.lanes.seconds == report.predicted_seconds
    for one, other in zip(expected, numbers(fitted, batch, weights), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_loop_by_a_stored_plan_has_plain_numbers_and_no_other_step_takes_it(
    batch: list[Any], tmp_path: Path
) -> None:
    plain, weights = make_step()
    expected = numbers(tf.function(plain), batch, weights)
    step, _ = make_step()
    (report,) = fit_in_memory(step, specs(1024), **knobs()).report
    assert report.plan is not None
    path = tmp_path / "plan.json"
    path.write_text(report.plan.to_json())
    step, weights = make_step()
    fitted = fit_in_memory(step, specs(1024), budget=budget(), plan=path)
    assert fitted.report[0].plan == report.plan
    for one, other in zip(expected, numbers(fitted, batch, weights), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(PlanError, match=r"`plan` must be a plan of this very step"):
        fit_in_memory(step, specs(512), budget=budget(), plan=path)
    with pytest.raises(BudgetError, match="for the stored `plan`, whose predicted"):
        fit_in_memory(
            step, specs(1024), budget=above_what_is_held(320 * KIB), plan=path
        )


def test_a_step_may_keep_what_it_is_given(batch: list[Any]) -> None:
    kept = tf.Variable(tf.zeros([1024, 16]))
    fitted = fit_in_memory(
        lambda x: tf.identity(kept.assign(x)), specs(1024)[:1], budget="1GiB"
    )
    fitted(batch[0])
    np.testing.assert_array_equal(kept.numpy(), batch[0].numpy())


def test_example_tensors_are_a_signature_too(batch: list[Any]) -> None:
    step, weights = make_step()
    before = weights.numpy()
    fitted = fit_in_memory(step, batch, budget=budget())
    assert fitted.report[0].signature == "1024x16, 1024x16"
    np.testing.assert_array_equal(before, weights.numpy())


def test_an_open_batch_is_planned_when_it_comes_and_once_for_each_size(
    batch: list[Any],
) -> None:
    step, _ = make_step()
    fitted = fit_in_memory(step, specs(None), **knobs())
    assert fitted.report == ()
    for size in (1024, 96, 1024, 96):
        fitted(*(tensor[:size] for tensor in batch))
    signatures = [report.signature for report in fitted.report]
    assert signatures == ["1024x16, 1024x16", "96x16, 96x16"]
    assert [report.swap_count > 0 for report in fitted.report] == [True, False]


@tf.function(experimental_attributes={"_noinline": True})
def apart(x: Any) -> Any:
    return tf.square(x)


def test_a_shape_that_is_not_understood_leaves_the_others_planned(
    batch: list[Any],
) -> None:
    weights = tf.Variable(tf.ones([16, 16]))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            error = x @ weights - y
            square = apart if x.shape[0] == 96 else tf.square
            loss = tf.reduce_mean(square(error))
        gradient: Any = tape.gradient(loss, weights)
        weights.assign_sub(0.1 * gradient)
        return loss

    fitted = fit_in_memory(step, specs(None))
    losses = [
        float(fitted(*(tensor[:size] for tensor in batch))) for size in (96, 1024, 96)
    ]
    assert losses[2] < losses[0]
    assert [report.signature for report in fitted.report] == ["1024x16, 1024x16"]


@pytest.mark.parametrize(
    "error", [UnsupportedError("no way"), tf.errors.ResourceExhaustedError]
)
def test_a_step_that_cannot_be_built_runs_unplanned_unless_a_plan_is_asked_for(
    error: Any, batch: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    if not isinstance(error, UnsupportedError):
        error = error(None, None, "OOM when allocating tensor")
    built, failures = stages.rebuild, [error]

    def failing(*args: Any, **known: Any) -> Any:
        if failures:
            raise failures.pop()
        return built(*args, **known)

    monkeypatch.setattr(stages, "rebuild", failing)
    plain, weights = make_step()
    expected = numbers(plain, batch, weights)
    step, weights = make_step()
    found = numbers(fit_in_memory(step, specs(1024)), batch, weights)
    assert all(map(np.array_equal, found, expected))
    assert caplog.text.count("runs as without LMS") == 1
    failures.append(error)
    step, weights = make_step()
    with pytest.raises(LMSError, match=r"no way|out of memory"):
        fit_in_memory(step, specs(1024), **knobs())(*batch)


def test_a_plan_that_is_not_valid_is_followed_by_another(
    batch: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    built, failures = stages.rebuild, [PlanError("no way")]

    def failing(*args: Any, **known: Any) -> Any:
        if failures:
            raise failures.pop()
        return built(*args, **known)

    plain, weights = make_step()
    expected = numbers(plain, batch, weights)
    monkeypatch.setattr(stages, "rebuild", failing)
    step, weights = make_step()
    fitted = fit_in_memory(step, specs(1024), **knobs())
    assert all(map(np.array_equal, numbers(fitted, batch, weights), expected))
    assert failures == []
    assert "runs as without LMS" not in caplog.text


def test_a_step_that_stacks_in_parallel_is_refused_with_the_next_step() -> None:
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.parallel_stack([tf.tanh(x), tf.tanh(y)]))

    with pytest.raises(UnsupportedError, match=r"Use `tf\.stack`"):
        fit_in_memory(step, specs(1024), **knobs())


def test_what_fits_is_run_as_it_is(batch: list[Any]) -> None:
    step, _ = make_step()
    fitted = fit_in_memory(step, specs(1024), budget="1GiB")
    assert fitted.fits_unplanned()
    assert fitted.report[0].plan.planner == "none"
    assert float(fitted(*batch)["loss"]) > 0


def test_two_threads_that_call_a_new_signature_make_one_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    prepare, both = fit_module.prepare, threading.Barrier(2)

    def noted(*args: Any, **options: Any) -> Any:
        made.append(args)
        return prepare(*args, **options)

    monkeypatch.setattr(fit_module, "prepare", noted)
    spec = tf.TensorSpec([None, 2])
    step = fit_in_memory(lambda x: 2.0 * x, [spec], budget="1GiB")
    results: list[float] = []

    def call() -> None:
        both.wait()
        results.append(float(tf.reduce_sum(step(tf.ones([3, 2])))))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [12.0, 12.0]
    assert len(made) == len(step.report) == 1


def test_the_knobs_of_the_callback_are_taken() -> None:
    step, _ = make_step()
    rule = {"swapout_threshold": 2, "swapin_ahead": 1}
    fitted = fit_in_memory(step, specs(1024), thresholds=rule)
    assert fitted.report[0].plan.planner == "threshold"
    with pytest.raises(TypeError, match="swap_branches"):
        fit_in_memory(step, specs(1024), swap_branches=True)  # type: ignore[call-arg]


def test_arguments_may_be_named_but_not_for_a_keyword_alone(batch: list[Any]) -> None:
    x, y = batch
    plain, _ = make_step()
    expected = [tf.function(plain)(x, y)["loss"] for _ in range(2)]
    step, _ = make_step()
    fitted = fit_in_memory(step, specs(1024), **knobs())
    assert [fitted(x, y=y)["loss"], fitted(y=y, x=x)["loss"]] == expected
    assert len(fitted.report) == 1
    with pytest.raises(TypeError, match="'summed' must not be for a keyword alone"):
        fitted(x, y, summed=False)
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        fitted(x, y, z=y)


def test_arguments_behind_one_that_is_left_out_may_be_named() -> None:
    def step(x: Any, rate: Any = None, scale: Any = None) -> Any:
        assert rate is None
        return tf.reduce_sum(x) * scale

    fitted = fit_in_memory(step, [tf.TensorSpec([4]), None, tf.TensorSpec([])])
    assert float(fitted(tf.ones([4]), scale=tf.constant(2.0))) == 8.0
