"""The callback from the side of Keras: what it reports, and what it leaves behind.

Budgets are bytes above what the card of this process holds already, the model included.
"""

import copy
import gc
import io
import logging
import pickle
import re
import traceback
import weakref
import zipfile
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from lms import LMSCallback
from lms.errors import (
    BudgetError,
    HostMemoryError,
    OutOfMemoryError,
    UnsupportedError,
)
from lms.fit import fitted
from lms.ir.plan import SwapPlan
from lms.tf import prepare
from lms.tf.measure import free_memory
from tests.models import SILENT, conv_net
from tests.report.test_page import data_of
from tests.room import above_what_is_held
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf

# A step of `model` needs about 3 MiB as it is, and less than 2 MiB at least.
TIGHT = "2MiB"


@pytest.fixture
def model() -> Any:
    return conv_net()


@pytest.fixture
def data() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((16, 32, 32, 3)).astype("float32")
    y = draw.integers(0, 5, size=(16,))
    return {"x": x, "y": y, "batch_size": 8, "verbose": SILENT}


def lms_callback(*budget: int | str | None, **knobs: Any) -> Any:
    """Return a callback with a budget, by default a tight one for a built model."""
    (given,) = budget or (above_what_is_held(TIGHT),)
    return LMSCallback(given, verbose=knobs.pop("verbose", 0), **knobs)


def planned_quickly(**knobs: Any) -> Any:
    """Return a callback that swaps by a rule, without measurement or search."""
    return lms_callback(None, thresholds={"swapout_threshold": 20}, **knobs)


def at(hook: str, function: Callable[[Any], None]) -> Any:
    """Return a callback that calls a function of the model at a hook."""
    callback = keras.callbacks.Callback()
    setattr(callback, hook, lambda *args, **kwargs: function(callback.model))
    return callback


def is_replaced(model: Any) -> bool:
    """Return whether one of a model's functions, or a maker, is not Keras's."""
    makers = [name for name in vars(model) if name.startswith("make_")]
    functions = [getattr(model, f"{kind}_function") for kind in KINDS]
    owners = [type(getattr(f, "__self__", None)).__module__ for f in functions]
    return bool(makers) or any(owner.startswith("lms") for owner in owners)


KINDS = ("train", "test", "predict")

FOUR: Any = {"steps_per_epoch": 4, "verbose": SILENT}


def in_batches(data: dict[str, Any], sizes: list[int]) -> tf.data.Dataset:
    """Return the data in batches of `sizes`, which TensorFlow does not know."""
    ends = np.cumsum([0, *sizes])
    spec = (tf.TensorSpec([None, 32, 32, 3]), tf.TensorSpec([None], tf.int64))
    return tf.data.Dataset.from_generator(
        lambda: ((data["x"][a:b], data["y"][a:b]) for a, b in pairwise(ends)),
        output_signature=spec,
    )


# ------------------------------------------------------------------------- as callbacks


def test_without_a_gpu_keras_trains_as_ever_and_a_budget_is_refused(
    worker: Worker,
) -> None:
    found = worker.ask("tests.tf.trials:without_a_gpu", memory=None)
    said = "TensorFlow sees no GPU: nothing is planned, Keras trains as ever."
    assert found["out"].count(f"LMS: {said}") == 1
    assert found["summary"] == said
    assert found["losses"] == found["plain"]
    assert found["reports"] == 0
    assert found["loop"]
    assert "`budget` must be left out where there is no GPU" in found["refused"]
    assert "python -m lms emulate --memory SIZE -- COMMAND" in found["refused"]


def test_keras_s_function_runs_what_fits_with_xla_and_without(worker: Worker) -> None:
    found = worker.ask("tests.tf.card_trials:whose_steps", memory="256MiB")
    assert found == ["NoneType", "NoneType"]


def test_a_copy_has_the_knobs_and_plans_of_its_own(
    model: Any, data: dict[str, Any]
) -> None:
    callback = lms_callback("1GiB")
    model.fit(**data, callbacks=[callback])
    for copied in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert copied.report == ()
        model.fit(**data, callbacks=[copied])
        assert copied.report[0].budget_bytes == 2**30
    assert len(callback.report) == 1


def test_two_in_a_list_are_refused_where_both_ask_for_plans_that_differ(
    model: Any, data: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="must hold one LMSCallback with a budget"):
        model.fit(**data, callbacks=[lms_callback("1GiB"), lms_callback("2GiB")])
    assert not is_replaced(model)


def test_of_two_in_a_list_one_plans_and_the_other_says_so(
    model: Any, data: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    validation = {"validation_data": (data["x"], data["y"])}
    for asked, other in (("1GiB", "1GiB"), ("1GiB", None), (None, None)):
        for first, second in ((asked, other), (other, asked)):
            both = [lms_callback(first, verbose=1), lms_callback(second, verbose=1)]
            model.fit(**data, **validation, callbacks=both)
            told = [callback.report for callback in both]
            planned = 1 if first is None and second else 0
            assert [report.kind for report in told[planned]] == ["train", "test"]
            assert told[1 - planned] == ()
            said = "Another LMSCallback plans this model: this one plans nothing."
            assert capsys.readouterr().out.count(f"LMS: {said}") == 1
            assert not is_replaced(model)


@pytest.mark.parametrize("verbose", [7, -1, None, "auto"])
def test_verbose_is_checked(verbose: Any) -> None:
    with pytest.raises(ValueError, match="`verbose` must be 0"):
        lms_callback(verbose=verbose)


# ------------------------------------------------------------------------- the reports


@pytest.mark.slow
def test_there_is_a_line_and_a_report_for_fit_evaluate_and_predict(
    model: Any, data: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    callback = lms_callback(verbose=1)
    assert callback.report == ()
    assert callback.plan is None
    assert callback.summary().startswith("Nothing was planned yet")
    model.fit(**data, callbacks=[callback])
    first, line = capsys.readouterr().out.splitlines()
    size = r"\d\.\d\d MiB"
    said = rf"LMS train step: \d+ ops need {size}, more than the budget of {size}: plan"
    assert re.match(said, first)
    assert line.startswith("LMS train step (8x32x32x3, 8): needs ")
    assert "planned into " in line
    model.evaluate(**data, callbacks=[callback])
    features = {name: data[name] for name in ("x", "batch_size", "verbose")}
    model.predict(**features, callbacks=[callback])
    train, test, predict = callback.report
    assert (train.kind, test.kind, predict.kind) == KINDS
    assert callback.plan == train.plan
    assert (train.signature, predict.signature) == ("8x32x32x3, 8", "8x32x32x3")
    for report in callback.report:
        assert SwapPlan.from_json(report.plan.to_json()) == report.plan
        assert report.predicted_peak_bytes >= report.persistent_bytes
        assert report.predicted_peak_bytes <= report.budget_bytes
        assert report.swap_count == len(report.plan.swaps)
        assert report.swapped_out_bytes == report.plan.swapped_out_bytes
        assert report.swapped_in_bytes >= report.swapped_out_bytes
        assert 0 < report.measured_peak_bytes <= report.budget_bytes
        assert report.planning_seconds <= report.preparation_seconds
    assert train.swap_count > 0
    assert train.unplanned_peak_bytes > train.budget_bytes
    assert train.host_peak_bytes >= max(swap.size for swap in train.plan.swaps)
    with pytest.raises(FrozenInstanceError):
        train.swap_count = 0
    text = callback.summary()
    for words in ("train 8x32x32x3, 8", "peak, measured", "peak, predicted"):
        assert words in text


def test_a_step_is_traced_and_planned_once(data: dict[str, Any]) -> None:
    """Without the callback twice: first to find what variables it makes."""
    traces: list[int] = []

    class Loss(keras.losses.SparseCategoricalCrossentropy):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            traces.append(1)
            return super().call(y_true, y_pred)

    model: Any = conv_net(loss=Loss(), metrics=[])
    callback = planned_quickly()
    for _ in range(2):
        model.fit(**data, callbacks=[callback])
    assert len(traces) == len(callback.report) == 1


def test_an_optimizer_of_no_weights_is_not_built(model: Any, data: Any) -> None:
    model.trainable = False
    model.compile(
        keras.optimizers.SGD(), "sparse_categorical_crossentropy", jit_compile=False
    )
    with pytest.warns(UserWarning, match="any trainable weights"):
        model.fit(**data, callbacks=[lms_callback(None)])
    assert not model.optimizer.built


def test_compiling_anew_plans_anew(model: Any, data: dict[str, Any]) -> None:
    callback = planned_quickly()
    model.fit(**data, callbacks=[callback])
    assert any("adam" in name for name in callback.plan.order)
    model.compile(
        optimizer="sgd", loss="sparse_categorical_crossentropy", jit_compile=False
    )
    model.fit(**data, callbacks=[callback])
    assert not any("adam" in name for name in callback.plan.order)


def test_the_thresholds_of_tflms_plan_whatever_memory_there_is(
    model: Any, data: dict[str, Any]
) -> None:
    thresholds = {"swapout_threshold": 20, "swapin_ahead": 3, "swapin_groupby": 5}
    callback = lms_callback(None, thresholds=thresholds)
    model.fit(**data, callbacks=[callback])
    assert callback.plan.planner == "threshold"
    assert callback.report[0].swap_count > 0


def test_the_outputs_below_an_excluded_layer_stay(
    model: Any, data: dict[str, Any]
) -> None:
    def moved(**filters: Any) -> set[str]:
        rule = {"swapout_threshold": 1}
        callback = lms_callback(None, thresholds=rule, filters=filters)
        model.fit(**data, callbacks=[callback])
        return {swap.tensor for swap in callback.plan.swaps}

    everything = moved()
    first = {name for name in everything if "/first_1/" in name}
    assert first
    assert moved(exclude_scopes=["first"]) == everything - first
    assert moved(include_scopes=["first"]) == first


# ------------------------------------------------------------------ what is left behind


def test_after_fit_the_model_has_keras_s_functions(
    model: Any, data: dict[str, Any]
) -> None:
    seen: list[bool] = []
    watch = at("on_train_batch_end", lambda model: seen.append(is_replaced(model)))
    model.fit(
        **data,
        validation_data=(data["x"], data["y"]),
        callbacks=[planned_quickly(), watch],
    )
    assert seen == [True, True]
    assert not is_replaced(model)


def test_when_everything_fits_keras_s_own_function_runs_after_the_first_batch(
    data: dict[str, Any],
) -> None:
    model: Any = conv_net(jit_compile=False)
    own: list[Any] = []
    note = at("on_train_begin", lambda model: own.append(model.train_function))
    then = at("on_train_batch_end", lambda model: own.append(model.train_function))
    callback = lms_callback("1GiB")
    rows = tf.data.Dataset.from_tensor_slices((data["x"], data["y"]))
    rows = rows.batch(8, drop_remainder=True)
    model.fit(rows, shuffle=False, verbose=SILENT, callbacks=[note, callback, then])
    assert callback.plan.swaps == ()
    assert own == [own[0]] * 3
    assert not is_replaced(model)


@pytest.mark.parametrize(
    ("sizes", "budget", "planned"),
    [([1, 8, 1, 6], TIGHT, ["1", "8", "6"]), ([4, 3, 5, 1], "1GiB", ["4", "5"])],
    ids=["swapped", "smaller than one that fits"],
)
def test_a_batch_that_is_larger_than_all_before_it_is_planned_when_it_comes(
    sizes: list[int], budget: str, planned: list[str], model: Any, data: dict[str, Any]
) -> None:
    callback = lms_callback(above_what_is_held(budget))
    model.fit(in_batches(data, sizes), shuffle=False, **FOUR, callbacks=[callback])
    found = [report.signature.partition("x")[0] for report in callback.report]
    assert found == planned
    swapped = [report.swap_count > 0 for report in callback.report]
    assert swapped[:2] == [False, budget == TIGHT]


def test_an_error_in_the_step_leaves_keras_s_functions(data: dict[str, Any]) -> None:
    def loss(labels: Any, predictions: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_less(labels, 5.0)]):
            return tf.reduce_mean(tf.square(predictions))

    model = conv_net(loss=loss, metrics=[])
    broken = np.where(np.arange(16) == 12, 9, data["y"])
    for _ in range(2):  # shuffled: the first or the second batch
        with pytest.raises(tf.errors.InvalidArgumentError):
            model.fit(**{**data, "y": broken}, callbacks=[planned_quickly()])
        assert not is_replaced(model)
    model.fit(**data, callbacks=[planned_quickly()])


def test_after_another_callback_s_error_a_plain_fit_is_keras_s(
    model: Any, data: dict[str, Any]
) -> None:
    def fail(error: type[BaseException]) -> Any:
        raise error("on purpose")

    callback = planned_quickly()
    replaced: list[bool] = []
    note = at("on_train_batch_begin", lambda model: replaced.append(is_replaced(model)))
    ends = {"on_train_batch_end": KeyboardInterrupt, "on_epoch_end": RuntimeError}
    for hook, error in ends.items():
        failing = at(hook, lambda _, error=error: fail(error))
        with pytest.raises(error, match="on purpose"):
            model.fit(**data, callbacks=[callback, failing])
        replaced.clear()
        model.fit(**data, callbacks=[note])
        assert replaced == [False, False]
        assert not is_replaced(model)
    model.fit(**data, callbacks=[callback])
    assert len(callback.report) == 1, "the plan still holds"


def test_after_an_error_a_model_is_trained_as_it_is_compiled_anew(
    model: Any, data: dict[str, Any]
) -> None:
    callback = lms_callback("1GiB")  # Keras's own step runs
    failing = at("on_train_batch_end", lambda model: model.has_none_of_that_name)
    with pytest.raises(AttributeError):
        model.fit(**data, callbacks=[callback, failing])
    model.compile(
        keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy", jit_compile=False
    )
    gc.collect()  # the optimizer that was there
    before = [variable.numpy() for variable in model.trainable_variables]
    model.fit(**data, callbacks=[callback])
    for one, other in zip(before, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(one, other.numpy())


def test_targets_that_are_absent_are_no_part_of_a_prediction(
    model: Any, data: dict[str, Any]
) -> None:
    x = tf.data.Dataset.from_tensor_slices(data["x"])
    absent: Any = x.batch(8).map(lambda x: (x, None))
    found = model.predict(absent, verbose=SILENT, callbacks=[lms_callback("1GiB")])
    np.testing.assert_array_equal(found, model.predict(absent, verbose=SILENT))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_saved_model_knows_nothing_of_it(
    model: Any, data: dict[str, Any], tmp_path: Path
) -> None:
    path, told = tmp_path / "model.keras", list[str]()  # numbers may spell any word
    during = keras.callbacks.ModelCheckpoint(tmp_path / "during.keras")
    model.fit(**data, callbacks=[planned_quickly(), during])
    model.save(path)
    for saved in (path, tmp_path / "during.keras"):
        with zipfile.ZipFile(saved) as archive:
            (weights,) = (n for n in archive.namelist() if n.endswith(".h5"))
            for name in {*archive.namelist()} - {weights}:
                assert b"lms" not in archive.read(name)
            with h5py.File(io.BytesIO(archive.read(weights))) as file:
                file.visititems(lambda name, held: told.extend([name, *held.attrs]))
            assert told
            assert not any("lms" in name for name in told)
        again: Any = keras.saving.load_model(saved)
        for one, other in zip(model.get_weights(), again.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
        again.fit(**data)


def test_an_interrupt_while_a_step_is_planned_gives_its_memory_back(
    model: Any, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[Any]] = []

    def interrupted(*_: Any) -> None:
        measured = tf.zeros([1 << 20])
        held.append(weakref.ref(measured))
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare, "first_plan", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        model.fit(**data, callbacks=[lms_callback()])
    gc.collect()
    assert held[0]() is None
    assert caught.traceback  # a notebook keeps it as the last one
    monkeypatch.undo()
    model.fit(**data, callbacks=[lms_callback()])


@pytest.mark.slow
def test_an_op_that_is_larger_than_the_card_is_refused_before_a_step_runs(
    worker: Worker,
) -> None:
    found = worker.ask("tests.tf.trials:larger_than_the_card", memory="40MiB")
    assert "the device's memory must be at least" in found["error"]
    assert "/lms_" not in found["error"]
    assert found["ran"] == []
    assert "runs as without LMS" not in found["said"]


@pytest.mark.slow
def test_no_more_memory_is_left_behind_than_by_keras(worker: Worker) -> None:
    plain = worker.ask("tests.tf.trials:left_behind", memory="1GiB", budget=None)
    planned = worker.ask("tests.tf.trials:left_behind", memory="1GiB", budget="3MiB")
    assert planned["swaps"] > 0
    assert planned["alive"] == []
    # Keras keeps the weights of a model that was trained; a kept tensor of the step
    # would be 512 KiB.
    assert planned["bytes"] <= plain["bytes"] + 128 * 1024


def test_a_page_shows_the_steps_of_a_training_by_the_model_s_layers(
    model: Any, data: dict[str, Any], tmp_path: Path
) -> None:
    callback = lms_callback()
    assert "Nothing was planned yet" in callback._repr_html_()
    model.fit(**data, callbacks=[callback])
    callback.page(tmp_path / "run.html")
    (drawn,) = data_of((tmp_path / "run.html").read_text())
    (report,) = callback.report
    assert drawn["report"]["measured_peak_bytes"] == report.measured_peak_bytes
    assert drawn["source"] == "measured"
    assert {layer.name for layer in model.layers if layer.weights} <= {*drawn["layers"]}
    said = callback._repr_html_()
    assert "peak, measured" in said
    assert "<iframe" in said


def test_the_peak_is_logged_for_later_callbacks_unless_a_metric_has_its_name(
    model: Any, data: dict[str, Any], tmp_path: Path
) -> None:
    callback, file = lms_callback(), tmp_path / "log.csv"
    later = keras.callbacks.CSVLogger(file)
    found = model.fit(**data, epochs=2, callbacks=[callback, later]).history
    (report,) = callback.report
    assert found["lms_peak"][-1] == report.measured_peak_bytes
    assert f"{found['lms_peak'][-1]}" in file.read_text()
    easily = lms_callback("1GiB")  # Keras's own function runs
    found = model.fit(**data, epochs=2, callbacks=[easily]).history
    assert found["lms_peak"][-1] == easily.report[0].measured_peak_bytes > 0

    def lms_peak(*_: object) -> Any:
        return keras.ops.ones(())

    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[lms_peak])
    found = model.fit(**data, callbacks=[lms_callback("1GiB")]).history
    assert found["lms_peak"] == [1.0]


def test_a_page_shows_a_step_that_was_refused_and_the_next_one_that_is_not(
    model: Any, data: dict[str, Any], tmp_path: Path
) -> None:
    callback, page = lms_callback("1MiB"), tmp_path / "run.html"
    with pytest.raises(BudgetError) as no:
        model.fit(**data, callbacks=[callback])
    callback.page(page)
    (drawn,) = data_of(page.read_text())
    assert drawn["why"] == str(no.value)
    assert drawn["times"] is None  # no op was timed
    callback.budget = above_what_is_held(TIGHT)
    model.fit(**data, callbacks=[callback])
    callback.page(page)
    assert [step["why"] for step in data_of(page.read_text())] == [""]


def test_a_page_shows_the_plan_of_a_step_that_ran_out_of_memory(
    model: Any, data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object) -> None:
        raise OutOfMemoryError("no room")

    callback = lms_callback()
    monkeypatch.setattr(fitted, "run_recovering", run)
    with pytest.raises(OutOfMemoryError) as no:
        model.fit(**data, callbacks=[callback])
    callback.page(tmp_path / "run.html")
    (drawn,) = data_of((tmp_path / "run.html").read_text())
    assert drawn["why"] == str(no.value) == "no room"
    assert drawn["times"] is not None
    assert any(swaps or again for *_, swaps, again, _, _ in drawn["tensors"])


# ---------------------------------------------------------------------------- bad input


def test_a_budget_that_is_too_small_names_the_op_and_the_least_that_works(
    model: Any, data: dict[str, Any]
) -> None:
    with pytest.raises(BudgetError, match=r"must be at least .* for op") as no:
        model.fit(**data, callbacks=[lms_callback("1MiB")])
    assert not is_replaced(model)
    frames = traceback.extract_tb(no.value.__traceback__)
    assert not [frame for frame in frames if "planning" in frame.filename]
    assert no.value.__suppress_context__
    least = no.value.least_bytes
    assert least is not None
    assert no.value.shown is None
    assert no.value.op_name is not None
    assert no.value.op_name in str(no.value)
    del no, frames  # frames hold tensors
    callback = lms_callback(least)
    model.fit(**data, callbacks=[callback])
    assert callback.report[0].predicted_peak_bytes <= least


def test_an_unknown_scope_is_refused_with_some_that_exist(
    model: Any, data: dict[str, Any]
) -> None:
    for knob in ("include_scopes", "exclude_scopes"):
        with pytest.raises(ValueError, match=r"match an op .* got 'sixth'. Scopes"):
            model.fit(**data, callbacks=[lms_callback(filters={knob: ["sixth"]})])
        assert not is_replaced(model)


def test_a_model_that_is_not_compiled_is_refused(data: dict[str, Any]) -> None:
    model = keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten()])
    with pytest.raises(ValueError, match="compile"):
        model.fit(**data, callbacks=[lms_callback()])
    assert not is_replaced(model)


def test_xla_is_turned_off_aloud(
    data: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    model = conv_net(jit_compile=True)
    callback = planned_quickly()
    with caplog.at_level(logging.WARNING, logger="lms"):
        model.fit(**data, callbacks=[callback])
    assert "XLA is turned off" in caplog.text
    assert callback.report[0].swap_count > 0


def test_a_host_without_room_for_what_is_swapped_is_an_error(
    model: Any, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(free_memory, "free_host_bytes", lambda: 1024)
    with pytest.raises(HostMemoryError, match="0 B are free"):
        model.fit(**data, callbacks=[lms_callback()])
    assert not is_replaced(model)


# ---------------------------------------------------------------------- unknown sizes


def test_batches_may_differ_in_every_dimension() -> None:
    def trained(callbacks: list[Any]) -> list[float]:
        keras.utils.set_random_seed(1)
        sentences = [np.arange(1, 2 + i % 5) for i in range(12)]
        data = tf.data.Dataset.from_generator(
            lambda: ((words, len(words)) for words in sentences),
            output_signature=(tf.TensorSpec([None], tf.int32), tf.TensorSpec([])),
        ).padded_batch(4)
        data = data.apply(tf.data.experimental.assert_cardinality(3))
        model = keras.Sequential([keras.Input((None,)), layers.Embedding(9, 4)])
        model.add(layers.GlobalMaxPooling1D())
        model.add(layers.Dense(1))
        model.compile("adam", "mse", jit_compile=False)  # pyright: ignore[reportArgumentType]
        given: dict[str, Any] = {"x": data, "shuffle": False, "verbose": SILENT}
        return model.fit(**given, callbacks=callbacks).history["loss"]

    callback = lms_callback("1GiB")
    assert trained([callback]) == trained([])
    assert [report.signature for report in callback.report] == ["4x4, 4", "4x5, 4"]


def test_text_that_a_model_splits_trains_where_nobody_gives_a_budget() -> None:
    """No shape says into how many words."""
    texts = [["one two three"], ["four five"]] * 4

    def trained(callbacks: list[Any]) -> list[float]:
        keras.utils.set_random_seed(1)
        split = layers.TextVectorization(max_tokens=9, output_sequence_length=4)
        split.adapt([text for (text,) in texts])
        inputs = keras.Input((1,), dtype="string")
        x = layers.Flatten()(layers.Embedding(9, 4)(split(inputs)))
        model = keras.Model(inputs, layers.Dense(1)(x))
        model.compile("adam", "mse", jit_compile=False)  # pyright: ignore[reportArgumentType]
        x, y = tf.constant(texts), np.arange(8.0)
        found = model.fit(x, y, batch_size=4, verbose=SILENT, callbacks=callbacks)
        return found.history["loss"]

    assert trained([lms_callback(None)]) == trained([])
    with pytest.raises(UnsupportedError, match=r"StringSplit.* input pipeline"):
        trained([lms_callback("1GiB")])


def test_a_validation_that_needs_more_than_the_budget_is_named(
    data: dict[str, Any],
) -> None:
    x, y = np.zeros([256, 32, 32, 3], "float32"), np.zeros([256])
    callback = lms_callback()
    validation = {"validation_data": (x, y), "validation_batch_size": 256}
    with pytest.raises(BudgetError, match=r"validation.*256x32x32x3.*validation_batch"):
        conv_net().fit(**data, **validation, callbacks=[callback])


def test_a_model_that_a_callback_compiles_anew_is_planned_from_the_next_step_on(
    model: Any, data: dict[str, Any]
) -> None:
    def unfreeze(model: Any) -> None:
        if not model.layers[1].trainable:
            model.layers[1].trainable = True
            model.compile("adam", loss, jit_compile=False)
            model.make_train_function(force=True)

    loss = "sparse_categorical_crossentropy"
    model.layers[1].trainable = False
    model.compile("sgd", loss, jit_compile=False)
    callback, replaced = lms_callback(), list[bool]()
    note = at("on_train_batch_begin", lambda model: replaced.append(is_replaced(model)))
    other = at("on_train_batch_end", unfreeze)
    model.fit(**data, callbacks=[other, callback, note])
    assert replaced == [True, True]
    (report,) = callback.report  # of the model as it was compiled last
    assert report.swap_count > 0
    assert not is_replaced(model)


def test_a_prediction_that_needs_more_than_the_budget_is_named() -> None:
    x = np.zeros([256, 32, 32, 3], "float32")
    model, callback = conv_net(), lms_callback()
    said = r"step of prediction, with a batch 256x32x32x3: give a smaller `batch_size`"
    with pytest.raises(BudgetError, match=said):
        model.predict(x, batch_size=256, verbose=SILENT, callbacks=[callback])


def test_arrays_that_take_the_room_of_a_step_are_named_with_the_cure(
    model: Any, data: dict[str, Any]
) -> None:
    callback = lms_callback()
    x, y = (np.repeat(data[name], 64, axis=0) for name in ("x", "y"))
    said = r"Tensors beside the model take 1\d\.\d\d MiB.*give a `tf.data.Dataset`"
    with pytest.raises(BudgetError, match=said):
        model.fit(**data | {"x": x, "y": y}, callbacks=[callback])
    with tf.device("CPU:0"):
        rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).take(2)
    model.fit(rows, shuffle=False, verbose=SILENT, callbacks=[lms_callback()])


def test_what_cannot_be_planned_is_said_once_whatever_sizes_come(
    model: Any, data: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def any_size(y: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.numpy_function(lambda y: y, [y], tf.int64))

    model.compile(
        "adam", "sparse_categorical_crossentropy", metrics=[any_size], jit_compile=False
    )
    callback = lms_callback(None)
    rows = in_batches(data, [4, 5, 6, 1])
    model.fit(rows, shuffle=False, **FOUR, callbacks=[callback])
    assert all(report.not_planned for report in callback.report)
    assert len(callback.report) == len({r.signature for r in callback.report}) == 4
    assert caplog.text.count("cannot be planned") == 1


@tf.function(experimental_attributes={"_noinline": True})
def _squared(x: tf.Tensor) -> tf.Tensor:
    return tf.square(tf.nn.relu(x))


class Apart(keras.Model):
    """The gradient of a function that TensorFlow keeps to itself."""

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(_squared(self(data[0], training=True)))
        gradients: Any = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def test_a_step_that_is_not_understood_runs_as_keras_s_where_nobody_gives_a_budget(
    data: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    rows = tf.data.Dataset.from_tensor_slices((data["x"], data["y"]))
    rows = rows.batch(8, drop_remainder=True)

    def trained(callbacks: list[Any]) -> list[float]:
        keras.utils.set_random_seed(1)
        x = inputs = keras.Input((32, 32, 3))
        x = layers.GlobalMaxPooling2D()(layers.Dense(8)(x))
        model: Any = Apart(inputs, x)
        model.compile("adam", jit_compile=False)
        given: dict[str, Any] = {"shuffle": False, "verbose": SILENT, "epochs": 2}
        model.fit(rows, callbacks=callbacks, **given)
        return [float(weight.sum()) for weight in model.get_weights()]

    assert trained([lms_callback(None)]) == trained([])
    assert caplog.text.count("cannot be planned") == 1
    with pytest.raises(UnsupportedError, match="_noinline"):
        trained([lms_callback("1GiB")])


class Cell(layers.Layer):
    """A recurrence whose weights are made when it first runs."""

    state_size = 8

    def __init__(self) -> None:
        super().__init__()
        self.dense: Any = layers.Dense(8, activation="tanh")

    def call(self, x: Any, states: Any) -> Any:
        made = self.dense(keras.ops.concatenate([x, states[0]], -1))
        return made, [made]


@pytest.mark.filterwarnings("ignore:.*does not have a `build\\(\\)`:UserWarning")
def test_weights_that_the_first_step_makes_are_trained() -> None:
    def trained(callbacks: list[Any]) -> list[float]:
        keras.utils.set_random_seed(1)
        parts = [keras.Input((5, 4)), layers.RNN(Cell()), layers.Dense(1)]
        model: Any = keras.Sequential(parts)
        model.compile("adam", "mse", jit_compile=False)
        x, y = np.ones([8, 5, 4]), np.ones([8, 1])
        model.fit(x, y, 4, verbose=SILENT, callbacks=callbacks)
        return [float(weight.sum()) for weight in model.get_weights()]

    assert trained([lms_callback(None)]) == trained([])


def test_predictions_are_made_of_sparse_rows() -> None:
    model = keras.Sequential([keras.Input((40,), sparse=True), layers.Dense(3)])
    rows = tf.sparse.from_dense(np.eye(8, 40, dtype="float32"))
    data = tf.data.Dataset.from_tensor_slices((rows,)).batch(3)
    plain = model.predict(data, verbose=SILENT)
    planned = model.predict(data, verbose=SILENT, callbacks=[lms_callback(None)])
    assert planned.tobytes() == plain.tobytes()
