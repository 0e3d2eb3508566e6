"""Work of the processes: trainings whose plan changes between steps."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import keras
import tensorflow as tf

from lms import LMSCallback
from lms.machine.host import Beside
from lms.planning.select import choose_plan
from lms.tf import recovery
from lms.tf.prepare import Captured
from lms.tf.recovery import PreparedStep
from tests.models import Case
from tests.tf import recovery_trials, training

__all__ = ["change_budgets", "change_each_step", "draw_noise", "search_on"]

_LONGEST = 120  # seconds of a search
_NEVER = 10**9  # percent of a plan's seconds: none is that much faster


def search_on(
    *, planned: bool, percent: int = 102, fails: bool = False
) -> dict[str, Any]:
    """Train, and let each search end before the next step.

    Args:
        fails: Whether steps cannot be built by the first plan that is found, nor again
            by the plan before; what is found later is no faster.
        planned: Whether large model support is used.
        percent: Of the found plan's seconds, which the first plan must take to be
            replaced; 0 replaces it always.
    """
    watch, built_as = _Watch(), Captured.built_as

    def refused(*_: Any) -> None:
        recovery._FASTER_PERCENT = _NEVER

    built = refused if fails else built_as
    faster = patch.object(recovery, "_FASTER_PERCENT", percent)
    with faster, patch.object(Captured, "built_as", built):
        return _trained(LMSCallback(verbose=0, replan=True) if planned else None, watch)


def change_each_step(*, planned: bool) -> dict[str, Any]:
    """Train by another plan in each step: plans for more and for less memory."""
    if not planned:
        return _trained(None, _Watch())
    with patch.object(recovery, "_FASTER_PERCENT", 0):
        return _trained(LMSCallback(verbose=0, replan=False), _Change())


def change_budgets(*, budgets: Sequence[str]) -> dict[str, Any]:
    """Train by the next budget after each second step: the first one measures none."""
    watch = _Budgets(budgets)
    trained = _trained(LMSCallback(budget=budgets[-1], verbose=0), watch)
    return trained | {"reports": watch.reports}


def draw_noise() -> dict[str, Any]:
    """Search for a plan of a step whose kernels draw random numbers."""

    def loss(targets: Any, made: Any) -> Any:
        return tf.reduce_mean(tf.square(targets - made), -1) + tf.random.normal([])

    tf.random.set_seed(1)  # noise without a seed may begin anew
    callback = LMSCallback(verbose=0, replan=True)
    model, data = recovery_trials._model(loss), recovery_trials._data()
    model.fit(data, epochs=2, verbose="0", callbacks=[callback])
    (step,) = callback._hooks["train"].fitted._steps.values()
    return {
        "planner": step.parts[0].found.planned.plan.planner
        if step.parts[0].found.planned
        else None,
        "draws": step.source.step.draws_noise,
        "searched": step.search is not None,
    }


def _trained(callback: LMSCallback | None, watch: Any) -> dict[str, Any]:
    tf.config.experimental.enable_op_determinism()
    case = Case(
        build=lambda: recovery_trials._model("mse"),
        fit=lambda: {"x": recovery_trials._data()},
        epochs=4,
    )
    watch.ours = callback
    trained = training.train(case, [watch, callback] if callback else [])
    return {
        "numbers": training.hashes(trained.numbers),
        "replans": [one.replans for one in callback.report] if callback else [],
        "plans": watch.plans,
        "seconds": watch.seconds,
        "arenas": watch.arenas,
    }


class _Watch(keras.callbacks.Callback):
    """Counts the plans by which steps ran; waits for each search."""

    def __init__(self) -> None:
        super().__init__()
        self.ours: Any = None
        self.seen: list[PreparedStep] = []
        self.seconds: list[float] = []
        self.arenas: list[int] = []

    @property
    def plans(self) -> int:
        found = (step.parts[0].found.planned for step in self.seen)
        return len({id(planned) for planned in found if planned is not None})

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        (step,) = self.ours._hooks["train"].fitted._steps.values()
        if not self.seen or self.seen[-1] is not step:
            self.seen.append(step)
            self.seconds.append(step.parts[0].predicted.predicted_seconds)
            self.arenas.append(
                step.parts[0].arena.capacity if step.parts[0].arena else 0
            )
        if isinstance(step.search, Beside) and step.search._process is not None:
            step.search._process.wait(_LONGEST)


class _Budgets(_Watch):
    """Sets budgets in turn; keeps their reports' budgets, peaks, and who ran steps."""

    def __init__(self, budgets: Sequence[str]) -> None:
        super().__init__()
        self.budgets = budgets
        self.calls = 0
        self.reports: list[tuple[int, int | None, bool]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.calls += 1
        if self.calls % 2:
            return
        self.ours._hooks["train"].fitted.note_peak()
        (one,) = self.ours.report
        row = one.budget_bytes, one.measured_peak_bytes, one.fits_unplanned
        self.reports.append(row)
        steps = self.ours._hooks["train"].fitted._steps
        before = dict(steps)
        self.ours.budget = self.ours.budget
        assert steps == before, "another budget was asked for"
        self.ours.budget = self.budgets[len(self.reports) % len(self.budgets)]


class _Found:
    """A search that has found a plan."""

    is_running = False

    def __init__(self, found: Any) -> None:
        self.wait = lambda: found


class _Change(_Watch):
    """Gives each step another plan, for another part of the budget."""

    percents: Sequence[int] = (100, 96, 92, 98, 94)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)
        step = self.seen[-1]
        planned, source = step.parts[0].found.planned, step.source
        assert planned is not None
        percent = self.percents[len(self.seen) % len(self.percents)]
        less = planned.budget.step * (100 - percent) // 100
        budget = replace(planned.budget, persistent=planned.budget.persistent + less)
        fitted = choose_plan(planned.workload, source.settings, budget)
        step.search = _Found(fitted)  # pyright: ignore[reportAttributeAccessIssue]
