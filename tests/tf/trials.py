"""Work of the test processes: trainings with and without large model support."""

import contextlib
import gc
import io
import logging
import os
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms import LMSCallback, fit_in_memory
from lms.errors import BudgetError, UnsupportedError
from lms.ir.plan import SwapPlan
from lms.storage.cache import VARIABLE
from lms.tf.measure.bench import Bench
from lms.tf.recovery import PreparedStep
from tests.models import CASES, SILENT, conv_net, pooled_net
from tests.tf.training import different, memory, numbers_of, planned_tightly, train

__all__ = ["fit_by_another_strategy", "fit_in_threads", "fit_on_two_replicas"]
__all__ += ["fit_recurrent", "larger_than_the_card", "left_behind"]
__all__ += ["same_numbers", "second_batch_size", "train_with_cache", "without_a_gpu"]


def same_numbers(name: str) -> dict[str, Any]:
    """Train a case plainly and planned into a share of its memory, and compare."""
    tf.config.experimental.enable_op_determinism()
    case, said = CASES[name], io.StringIO()
    logging.getLogger("lms").addHandler(logging.StreamHandler(said))
    plain = train(case)
    callback, planned = planned_tightly(case, plain)
    found = different(plain.numbers, planned)
    again = [train(case).numbers for _ in range(4 * bool(found))]
    # A race in Keras decides if a step that finds no batch counts: mostly it does.
    if again and not all(different(numbers, planned) for numbers in again):
        found = []
    return {
        "said": said.getvalue(),
        "different": found,
        # Where training differs from itself, a difference says nothing.
        "repeatable": not (found and any(different(plain.numbers, n) for n in again)),
        "reports": [
            {
                "kind": report.kind,
                "device": report.device,
                "swaps": report.swap_count,
                "again": len(report.plan.recomputed),
            }
            for report in callback.report
        ],
    }


def second_batch_size(budgets: Sequence[str]) -> dict[str, Any]:
    """Train with batches of 16, then of 8: plainly twice, and in some budgets."""
    tf.config.experimental.enable_op_determinism()
    plain, again = _two_fits(None)[0], _two_fits(None)[0]
    planned = {budget: _two_fits(budget) for budget in budgets}
    return {
        "repeatable": not different(plain, again),
        "different": {b: different(plain, found) for b, (found, _) in planned.items()},
        "swaps": {b: swaps for b, (_, swaps) in planned.items()},
    }


def _two_fits(budget: str | None) -> tuple[dict[str, np.ndarray], list[int]]:
    """The numbers that two fits end with, and the swaps of each signature's step.

    Each fit has a callback of its own, as in a user's loop.
    """
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    model = pooled_net()
    random = np.random.default_rng(0)
    x, y = random.standard_normal((32, 96, 96, 3)), random.integers(0, 5, 32)
    numbers: dict[str, np.ndarray] = {}
    swaps: list[int] = []
    for size in (16, 8):
        callbacks = [] if budget is None else [LMSCallback(budget=budget, verbose=0)]
        history = model.fit(
            x, y, batch_size=size, verbose=SILENT, callbacks=list(callbacks)
        )
        numbers[f"loss of {size}"] = np.array(history.history["loss"])
        swaps += [r.swap_count for callback in callbacks for r in callback.report]
    return numbers | numbers_of(model), swaps


def left_behind(budget: str | None) -> dict[str, Any]:
    """Return objects and bytes that outlive a model and its callback."""
    start = memory("current")
    things, swaps = _train_and_forget(budget)
    keras.backend.clear_session()
    gc.collect()
    return {
        "swaps": swaps,
        "alive": [name for name, thing in things.items() if thing() is not None],
        "bytes": memory("current") - start,
    }


def _train_and_forget(budget: str | None) -> tuple[dict[str, Any], int]:
    case = CASES["two steps per execution, averaged weights"]
    model = case.build()
    callbacks = [LMSCallback(budget, verbose=0)] if budget else []
    for _ in range(2):
        model.fit(**case.data(), verbose=SILENT, callbacks=[*callbacks])
        model.evaluate(**case.data(), verbose=SILENT, callbacks=[*callbacks])
        model.predict(case.data()["x"], 8, verbose=SILENT, callbacks=[*callbacks])
    things: dict[str, Any] = {"model": weakref.ref(model)}
    if callbacks:
        things["callback"] = weakref.ref(callbacks[0])
    return things, sum(r.swap_count for c in callbacks for r in c.report)


def larger_than_the_card() -> dict[str, Any]:
    """Fit where one op needs more than the card; return what is said, and whether."""
    said, ran = io.StringIO(), list[int]()
    logging.getLogger("lms").addHandler(logging.StreamHandler(said))
    model = keras.Sequential([keras.Input((64, 64, 3)), keras.layers.Conv2D(64, 3)])
    model.compile("adam", "mse", jit_compile=False)  # pyright: ignore[reportArgumentType]
    x, y = np.ones((32, 64, 64, 3), "float32"), np.ones((32, 62, 62, 64), "float32")
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda i, _: ran.append(i))
    own = PreparedStep.run
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, PreparedStep, "run", own)
        PreparedStep.run = lambda *_: ran.append(-1)  # pyright: ignore[reportAttributeAccessIssue]
        try:
            callbacks = [LMSCallback(verbose=0, slices="none"), note]
            model.fit(x, y, batch_size=32, verbose=SILENT, callbacks=callbacks)
            error = ""
        except BudgetError as refused:
            error = str(refused)
    return {"error": error, "ran": ran, "said": said.getvalue()}


def without_a_gpu() -> dict[str, Any]:
    """Fit with and without the callback, then with a budget, where there is no GPU."""
    x, y = np.ones((8, 4), "float32"), np.ones((8, 2), "float32")

    def losses(callbacks: Sequence[Any]) -> list[float]:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse", jit_compile=False)  # pyright: ignore[reportArgumentType]
        return model.fit(
            x, y, epochs=2, verbose=SILENT, callbacks=list(callbacks)
        ).history["loss"]

    callback, refused = LMSCallback(), ""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        found = losses([callback])
    try:
        losses([LMSCallback("1GiB")])
    except UnsupportedError as error:
        refused = str(error)
    loop = fit_in_memory(lambda x: x + 1.0, [tf.TensorSpec([2])])
    return {
        "losses": found,
        "plain": losses([]),
        "out": out.getvalue(),
        "summary": callback.summary(),
        "reports": len(callback.report),
        "refused": refused,
        "loop": loop(tf.ones([2])).numpy().tolist() == [2.0, 2.0],
    }


def fit_on_two_replicas() -> dict[str, Any]:
    """Fit with two replicas: plain, with ours where all fits, with a stored plan."""
    tf.config.experimental.enable_op_determinism()
    x, y = np.ones((8, 4)), np.ones((8, 2))
    ours, found = LMSCallback(verbose=0), dict[str, Any]()
    plan = SwapPlan(planner="budget", order=(), chain=())
    callbacks = {"plain": [], "ours": [ours], "asked": [LMSCallback(plan=plan)]}
    for name, given in callbacks.items():
        keras.utils.set_random_seed(7)
        with tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"]).scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
            model.compile("sgd", "mse", jit_compile=False)  # pyright: ignore[reportArgumentType]
        try:
            fitted = model.fit(x, y, epochs=2, verbose=SILENT, callbacks=given)
            found[name] = fitted.history["loss"]
        except UnsupportedError as error:
            found[name] = str(error)
    return found | {"summary": ours.summary()}


def fit_by_another_strategy() -> dict[str, Any]:
    """Fit under a strategy that is not planned: plain, and with ours."""
    tf.config.experimental.enable_op_determinism()
    x, y, found = np.ones((8, 4)), np.ones((8, 2)), dict[str, Any]()
    ours, asked = LMSCallback(verbose=0), LMSCallback("1GiB", verbose=0)
    cards = ["GPU:0", "GPU:1"]
    for name, given in {"plain": [], "ours": [ours], "asked": [asked]}.items():
        keras.utils.set_random_seed(7)
        with tf.distribute.experimental.CentralStorageStrategy(cards).scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
            model.compile("sgd", "mse")
        try:
            fitted = model.fit(x, y, epochs=2, verbose=SILENT, callbacks=given)
            found[name] = fitted.history["loss"]
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found | {"summary": ours.summary()}


def fit_in_threads(budget: str | None) -> dict[str, Any]:
    """Fit two models in two threads, and one after the other, and compare.

    A third thread meanwhile calls new functions, as plain Keras does for a new model.
    """
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(7)
    x, y = np.ones([12, 32, 32, 3], "float32"), np.arange(12) % 5
    models = [conv_net(), conv_net()]
    weights = [model.get_weights() for model in models]
    callbacks = [LMSCallback(budget, verbose=0) for _ in models]
    ended = threading.Event()

    def fit(model: Any, callbacks: Sequence[Any]) -> None:
        model.fit(
            x, y, 4, epochs=2, shuffle=False, verbose=SILENT, callbacks=[*callbacks]
        )

    def call_new_functions() -> None:
        while not ended.is_set():
            tf.function(lambda x: x + 1, autograph=False)(tf.ones([2]))

    threads = [
        threading.Thread(target=fit, args=(model, [callback]))
        for model, callback in zip(models, callbacks, strict=True)
    ]
    other = threading.Thread(target=call_new_functions)
    for thread in (*threads, other):
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    other.join()
    again = [conv_net(), conv_net()]
    for model, values in zip(again, weights, strict=True):
        model.set_weights(values)
        fit(model, [])
    return {
        "swaps": [r.swap_count for c in callbacks for r in c.report],
        "equal": [
            all(map(np.array_equal, one.get_weights(), other.get_weights()))
            for one, other in zip(models, again, strict=True)
        ],
    }


def fit_recurrent() -> dict[str, Any]:
    """Fit recurrent layers in a loop; what was predicted and what was measured."""
    keras.utils.set_random_seed(1)
    layers: Any = keras.layers
    model = keras.Sequential(
        [
            keras.Input((60, 32)),
            layers.Bidirectional(layers.LSTM(96, return_sequences=True)),
            layers.Bidirectional(layers.LSTM(96)),
            layers.Dense(4),
        ]
    )
    x, y = np.ones([128, 60, 32]), np.ones([128, 4])
    return _foreseen(model, "adam", x, y)


def fit_decayed() -> dict[str, Any]:
    """Fit layers whose weights decay before any gradient is there."""
    layer: Any = partial(keras.layers.Dense, 512, activation="relu")
    model = keras.Sequential([keras.Input((512,)), *(layer() for _ in range(6))])
    return _foreseen(model, "adamw", *np.ones([2, 4096, 512]))


def _foreseen(model: keras.Model, optimizer: str, x: Any, y: Any) -> dict[str, Any]:
    model.compile(optimizer, "mse", jit_compile=False)  # pyright: ignore[reportArgumentType]
    callback = LMSCallback(verbose=0)
    model.fit(x, y, len(x) // 4, verbose=SILENT, callbacks=[callback])
    (report,) = callback.report
    return {
        "predicted": report.unplanned_peak_bytes,
        "measured": report.measured_peak_bytes,
        "unknown": list(report.unknown_memory),
        "swaps": report.swap_count,
    }


def train_with_cache(folder: str) -> dict[str, Any]:
    """Train into little memory with a cache in a folder.

    Returns:
        How many ops were timed, the plan, and the losses.
    """
    os.environ[VARIABLE] = folder
    timed: list[str] = []
    own = Bench.time

    def noted(bench: Bench, op: Any) -> None:
        timed.append(op.key)
        own(bench, op)

    Bench.time = noted  # type: ignore[method-assign]
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(1)
    callback = LMSCallback("8MiB", verbose=0, replan=False)
    draw = np.random.default_rng(0)
    history = conv_net().fit(
        draw.standard_normal((64, 32, 32, 3)).astype("float32"),
        draw.integers(0, 5, 64),
        batch_size=32,
        verbose=SILENT,
        shuffle=False,
        callbacks=[callback],
    )
    (report,) = callback.report
    return {
        "timed": len(timed),
        "plan": report.plan.to_json(),
        "losses": [loss.hex() for loss in history.history["loss"]],
    }
