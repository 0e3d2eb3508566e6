"""Prepare a traced function as a step that runs: all stages in order.

    capture ──> measure ──> plan ──> rewrite ──> build ──> PreparedStep
                             ^                                  │
                             └──── out of memory (recovery) <───┘

The first two stages depend on the step and the device alone; after an out of memory the
other stages are repeated with a smaller budget.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorflow as tf

from lms.errors import (
    BudgetError,
    LMSError,
    OutOfMemoryError,
    PlanError,
    UnsupportedError,
)
from lms.ir.liveness import with_late_writes
from lms.machine.ranks import joined
from lms.planning import select
from lms.planning.candidates import check_scopes
from lms.planning.problem import MemoryBudget, PlannedStep, Reason, Workload
from lms.planning.settings import Settings
from lms.report.page import Shown
from lms.report.progress import tell
from lms.tf.attempts import (
    NOTHING,
    Attempt,
    Offers,
    Outcome,
    Rewrites,
    UnprovedError,
    count_plans,
    first_plan,
    last_failure,
    refusal,
)
from lms.tf.building import UnsealedError, build
from lms.tf.capture.tracing import PREPARING, TracedFunction
from lms.tf.failures import given_up, refused_in_words
from lms.tf.lowering import TracedStep, refuse_guesses, specialise
from lms.tf.measure.bench import keep_measurements
from lms.tf.measure.compact_variables import settle_variables
from lms.tf.measure.devices import Device, find_device, find_devices
from lms.tf.measure.free_memory import host_budget, measure_budget, with_holes
from lms.tf.measure.lone_op import forget_functions
from lms.tf.measure.scratch import limit_workspace
from lms.tf.measure.workload import (
    report_of,
    timeline_of,
    with_measured_scratch,
    workload_here,
)
from lms.tf.offers import advice, floor_of, offers_of
from lms.tf.passes import host_variables
from lms.tf.recovery import PreparedStep
from lms.tf.several import StepOfDevices
from lms.tf.uninterrupted import uninterrupted
from lms.units import Seconds, format_bytes

__all__ = ["Captured", "capture", "prepare"]

_LOG = logging.getLogger("lms")

# Kinds of steps that have all ops of training; evaluation lacks some.
_TRAINING = ("train", "step", "plan")

# The least budget is not searched where a lower bound is above 2 times the budget.
_FAR = 2

# Variables return to the device if, beside them, 60 % of the unplanned peak are free.
_AMPLE_PERCENT = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A traced step, lowered and measured on the present device.

    Args:
        kind: `train`, `test`, `predict` or `step`.
        traced: The function that was traced.
        step: The step of one signature, with measured scratch.
        workload: The step as the planner's input.
        device: The device that runs the step.
        settings: The user's knobs.
        budget: The memory that the step may use.
        again: Captures the step with other settings and rewrites.
        is_here: Whether the step is planned for this device and host.
        held_back: Why the step cannot be planned; None if it may be.
        is_said: Whether the user was warned that another signature cannot be planned.
        on_host: The step's variables on the host.
        rewrites: The rewrites that were applied.
        devices: Number of devices that the step runs on; they share the host's memory.
    """

    kind: str
    traced: TracedFunction
    step: TracedStep
    workload: Workload
    device: Device
    settings: Settings
    budget: MemoryBudget
    again: "Callable[..., Captured] | None" = None
    is_here: bool = True
    held_back: LMSError | None = None
    is_said: bool = False
    on_host: host_variables.HostVariables
    rewrites: Rewrites = NOTHING
    devices: int = 1

    def prepare(self, tried: list[Outcome]) -> PreparedStep:
        """Prepare the step again after an out of memory.

        Args:
            tried: What was tried; ends with the failure. Outcomes are appended.

        Raises:
            LMSError: If there is no plan, and the step may not run unplanned.
        """
        again = self.measured_now()
        tried[-1] = replace(tried[-1], step=again)
        with PREPARING:
            try:
                return again.built(first_plan(again, tried, again.settings), tried)
            finally:
                forget_functions()

    def measured_now(self) -> "Captured":
        """The step with the budget that the device has now, free of a stored plan."""
        now = measure_budget(self.step, self.settings, self.device)
        now = replace(now, lost=self.budget.lost_since(now))
        return replace(self, budget=now, settings=replace(self.settings, plan=None))

    def built(self, found: Outcome | None, tried: list[Outcome]) -> PreparedStep:
        """Build the step by its first plan, or without one; raises as `prepare`."""
        prepared = None
        while prepared is None and found is not None and found.planned is not None:
            now: Outcome = found
            try:
                if found.planned.sealed and found.attempt.unsealed:
                    planned, seconds = found.step.plan(found.attempt)
                    now = replace(found, planned=planned, seconds=seconds)
                prepared = build([now], now.step)
            except UnsealedError as error:
                found = replace(now, attempt=replace(now.attempt, unsealed=str(error)))
            except LMSError as error:  # another plan, or none, may do
                error = error.with_traceback(None)
                _LOG.warning("Could not build a step, another plan is tried: %s", error)
                tried.append(replace(now, planned=None, error=error))
                found = first_plan(self, tried, self.settings)
        if prepared is None:
            handles = self.on_host.handles
            host_variables.HostVariables.of(self.step.variables, handles).come_back()
            error = self.refusal(tried)
            if isinstance(error, BudgetError):
                error.is_certain = self._never_fits()
            if found is None or getattr(error, "is_certain", False):
                raise error
            prepared = self._without_plan(error, found.attempt)
        before = [Outcome(attempt=e.attempt, failure=e.failure) for e in tried]
        prepared.parts[0].tried = before
        return prepared

    def sealed_again(self, found: Outcome) -> PreparedStep:
        """Build the step again in the memory that is free now; raises as `prepare`.

        The step is planned anew where its plan does not fit there.
        """
        planned, tried = found.planned, list[Outcome]()
        is_kept = planned and not (planned.sealed and found.attempt.unsealed)
        if is_kept and (built := self.built_as(found)) is not None:
            return built
        step = found.step.measured_now()
        with PREPARING:
            try:
                plan = first_plan(step, tried, step.settings, found.attempt)
                return step.built(plan, tried)
            finally:
                forget_functions()

    def built_as(self, found: Outcome) -> PreparedStep | None:
        """Build the step by a plan; None if it does not fit what is free now."""
        with PREPARING, suppress(LMSError, UnsealedError):
            try:
                step = found.step.measured_now()
                return build([replace(found, step=step)], step)
            finally:
                forget_functions()
        return None

    def offers(self, op_size: Any) -> Offers:
        """The rewrites that are left, after the smallest op size that was tried."""
        return offers_of(self.step, self.settings, op_size, is_here=self.is_here)

    def rewritten(self, rewrites: Rewrites) -> "Captured":
        """Capture the step again with other rewrites."""
        if rewrites is self.rewrites:
            return self
        assert self.again is not None
        with refused_in_words("plan a step"):
            for handle in rewrites.handles if self.kind != "plan" else ():
                if not host_variables.lies_on_host(handle):
                    with uninterrupted():
                        host_variables.move_to_host(handle)
            return self.again(self.settings, rewrites=rewrites)

    def plan(self, attempt: Attempt) -> tuple[PlannedStep, Seconds]:
        """Plan the step; returns the planner's seconds, too.

        Raises:
            BudgetError: If no plan fits.
            HostMemoryError: If the host cannot hold what is swapped out.
        """
        if self.held_back is not None:
            raise self.held_back
        started, budget = time.perf_counter(), attempt.budget(self.budget)
        settings = self.settings
        if attempt.recompute is not None:
            settings = replace(settings, recompute=attempt.recompute)
        host = host_budget(settings, 0)
        if host is not None and self.devices > 1:
            settings = replace(settings, host_memory=host // self.devices)
        if not self.is_here:
            host_memory = settings.host_memory
            planned = select.plan_step(self.workload, settings, budget, host_memory)
            return planned, time.perf_counter() - started
        if not attempt.unsealed:  # else it was told before
            _tell(self, budget)
        workload = self.workload
        given = (op for op in workload.graph.ops if op.type == "Placeholder")
        inputs = sum(out.size for op in given for out in op.outputs)
        room = host_budget(settings, inputs)
        with refused_in_words("plan a step"):
            if settings.thresholds is None and not select.fits(workload.plain, budget):
                budget = with_holes(budget, self.device, workload.graph)
            choose = select.choose_plan_once
            planned = select.plan_step(workload, settings, budget, room, choose=choose)
        if planned.reason is Reason.SMALL_HOST:
            _LOG.warning(
                "The host has %s for swapped tensors, less than the fastest plan "
                "moves: more is recomputed instead.",
                format_bytes(room or 0),
            )
        return planned, time.perf_counter() - started

    def refusal(self, tried: list[Outcome]) -> LMSError:
        """Return why the device has no plan, for the user."""
        failed, error = last_failure(tried), refusal(tried)
        is_refusal = isinstance(error, BudgetError)
        if error is None or (failed and failed.attempt.planned and is_refusal):
            assert failed is not None
            assert failed.planned is not None
            total, plans = failed.planned.budget.total, count_plans(tried)
            error = OutOfMemoryError(given_up(str(failed.failure), total, plans))
        is_invalid = isinstance(error, PlanError) and self.settings.plan is None
        if is_invalid and not isinstance(error, UnprovedError):
            said = f"Could not plan the step: {error}. Please report it."
            error = UnsupportedError(said)
        if is_refusal:
            said = advice(error, self.kind, self.step, self.settings, self.budget)
            error.args = (f"{error}{said}",)
        plain = select.without_plan(self.workload, self.budget)
        report = report_of(self.kind, self.step, plain, 0.0)
        line = timeline_of(self.kind, self.step, plain)
        error.shown = Shown(report=report, timeline=line)
        return error

    def above_floor(self) -> "Captured":
        """The step; held back, so that no plan is tried, if the floor is far above."""
        budget, rule = self.budget, "`budget`"
        is_known = self.held_back or self.settings.plan or self.settings.thresholds
        if is_known or budget.total is None:
            return self
        floor, name = floor_of(self.step)
        if floor <= budget.total * _FAR:
            return self
        if budget.limit is not None and budget.is_whole_device:
            rule = "the device's memory"
        error = BudgetError(
            f"{rule} must be at least {format_bytes(floor, at_least=True)} for op "
            f"{name!r}, which reads and makes as much at once, got "
            f"{format_bytes(budget.total)}. This is a lower bound: the least "
            "budget was not searched. Use a larger budget, or a smaller batch.",
            op_name=name,
        )
        error.is_final = True
        return replace(self, held_back=error)

    def _never_fits(self) -> bool:
        """Tell whether an op of known sizes exceeds the device in TensorFlow's step.

        Batches may have died by then. Other ops than products may share their input's
        memory, whatever the table of ops says, so the larger of both counts.
        """
        own, limit = self.step.own or self.step, self.device.limit
        if limit is None or own.guessed:
            return False
        graph, sure = own.graph, [0]
        unsure = [op for op in graph.ops if op.varies or op.fixed]
        made = {tensor.name for op in unsure for tensor in op.outputs}
        for op in graph.ops:
            if op.varies or op.fixed or not made.isdisjoint(op.inputs):
                continue
            roots = {graph.roots[name] for name in op.inputs}
            read = sum(graph.tensors[name].size for name in roots)
            written = sum(tensor.size for tensor in op.outputs)
            sure.append(read + written if op.flops else max(read, written))
        return own.captured_bytes + graph.constant_bytes + max(sure) > limit

    def _without_plan(self, held_back: LMSError, attempt: Attempt) -> PreparedStep:
        """Build the unplanned step; `held_back` is raised if memory runs out."""
        if not self.is_said:
            said = "The %s step cannot be planned and runs as without LMS: %s"
            _LOG.warning(said, self.kind, held_back)
        # The error must not keep frames and their tensors alive.
        held_back.__cause__ = held_back.__context__ = held_back.__traceback__ = None
        planned = select.without_plan(self.workload, self.budget)
        held = replace(self, held_back=held_back)
        return build([Outcome(attempt=attempt, step=held, planned=planned)], held)


def prepare(  # noqa: PLR0913 - what the caller knows of the step
    traced: TracedFunction,
    inputs: Sequence[Any],
    settings: Settings,
    *,
    kind: str,
    settle: bool,
    is_said: bool = False,
    before_batch: bool = False,
) -> PreparedStep | None:
    """Prepare a step for one signature; a step that cannot be planned runs unplanned.

    Args:
        traced: The traced function.
        inputs: Its flat inputs, tensors or specs.
        settings: The user's knobs.
        kind: `train`, `test`, `predict` or `step`.
        settle: Whether variables may move: not once a plan relies on their addresses.
        is_said: Whether the user was warned that another signature cannot be planned.
        before_batch: Whether no batch of several devices was drawn: batches that lie on
            the devices would make a plan void.

    Returns:
        The step; None if it is to be planned once a batch is drawn.

    Raises:
        LMSError: If the step cannot be planned, and the user asked for a plan.
    """
    started, tried = time.perf_counter(), list[Outcome]()
    try:
        specs = [tf.TensorSpec(each.shape, each.dtype) for each in inputs]
        first = partial(
            capture, traced, specs, kind=kind, settle=settle, is_said=is_said
        )
        devices = find_devices(node.device for node in traced.graph_def.node)
        for device in devices:
            device.make_ready(settings.budget)
        if len(devices) > 1:
            places = [getattr(each, "backing_device", "") for each in inputs]
            several = partial(first, places=places)
            step = StepOfDevices.of(several, devices, settings)
            if before_batch and not step.fits():
                return None
            prepared = step.built({})
        else:
            captured = first(settings, device=devices[0])
            if _can_come_back(captured):
                captured.on_host.come_back()
                captured = first(settings, device=devices[0])
            captured = captured.above_floor()
            prepared = captured.built(first_plan(captured, tried, settings), tried)
    finally:
        forget_functions()
        keep_measurements()
    seconds = traced.seconds + time.perf_counter() - started
    prepared.set_reports(preparation_seconds=seconds)
    return prepared


def capture(  # noqa: PLR0913 - a row of the table of attempts among them
    traced: TracedFunction,
    inputs: Sequence[Any],
    settings: Settings,
    *,
    kind: str,
    settle: bool = False,
    is_said: bool = False,
    rewrites: Rewrites = NOTHING,
    device: Device | None = None,
    others: Mapping[str, Rewrites] | None = None,
    behind: Sequence[Sequence[str]] = (),
    places: Sequence[str] = (),
) -> Captured:
    """Lower and measure a traced step on a device.

    Arguments as in `prepare`, and the rewrites to apply. For one of several devices:
    the device, the rewrites on other devices by full name, the orders of ops on devices
    that are planned already, and the devices on which the inputs lie.
    """
    device, of_all = device or find_device(), dict(others or {})
    of_all[device.full_name] = rewrites
    step = specialised(traced, inputs, device, of_all, behind)
    specs = [a.spec for a in step.arguments if a.captured is None]
    here = frozenset(i for i, at in enumerate(places) if at == device.full_name)
    own = step.own and replace(step.own, here=here)
    step = replace(step, own=own, here=here)
    on_host = host_variables.HostVariables.of(step.variables)
    for variable in traced.concrete.graph.variables if on_host.handles else ():
        host_variables.let_stay(variable)
    if on_host.handles or any(one.lists for one in of_all.values()):
        # TensorFlow's own step has none on the host.
        step = replace(step, own=None)
    if settings.thresholds is None:  # IBM's rule orders no writes
        step = replace(step, graph=with_late_writes(step.graph), own=step.own or step)
    if settle:
        settle_variables(step, device)
    budget = measure_budget(step, settings, device)
    if not select.fits(select.plain_plan((step.own or step).graph), budget):
        limit_workspace(step.graph, None if budget.total is None else budget.step)
    settings = replace(settings, replan=_may_replan(step, settings, kind))
    guesses = any(one.guesses for one in of_all.values())
    step, held_back = _measured(step, settings, device, guesses=guesses)
    if kind in _TRAINING:
        check_scopes(step.graph, settings.filters)
    return Captured(
        kind=kind,
        traced=traced,
        step=step,
        workload=workload_here(step, device),
        device=device,
        settings=settings,
        budget=budget,
        again=partial(
            capture,
            traced,
            specs,
            kind=kind,
            is_said=is_said,
            device=device,
            others=others,
            behind=behind,
            places=places,
        ),
        held_back=held_back,
        is_said=is_said,
        on_host=on_host,
        rewrites=rewrites,
        devices=len(of_all),
    )


def specialised(
    traced: TracedFunction,
    inputs: Sequence[Any],
    device: Device,
    rewrites: Mapping[str, Rewrites],
    behind: Sequence[Sequence[str]] = (),
) -> TracedStep:
    """Give a traced function the shapes of one call, and apply rewrites by device."""
    each = [rewrites[name] for name in sorted(rewrites)]
    sizes = [(name, one.op_size) for name, one in sorted(rewrites.items())]
    return specialise(
        traced,
        inputs,
        device=device.full_name,
        lists=[found for one in each for found in one.lists],
        on_host=[handle for one in each for handle in one.handles],
        sizes=[(name, size) for name, size in sizes if size is not None],
        guesses=any(one.guesses for one in each),
        behind=behind,
    )


def _can_come_back(captured: Captured) -> bool:
    """Tell whether all variables of a step may return to the device.

    Either the step fits then, or at least `_AMPLE_PERCENT` of its unplanned peak do:
    plans cost little there, and variables on the host cost copies in each step.
    """
    size, budget = captured.on_host.size, captured.budget
    beside = replace(budget, persistent=budget.persistent + size)
    plain = captured.workload.plain
    is_ample = beside.step * 100 >= plain.peak * _AMPLE_PERCENT
    return bool(size) and (select.fits(plain, beside) or is_ample)


def _measured(
    step: TracedStep, settings: Settings, device: Device, *, guesses: bool
) -> tuple[TracedStep, LMSError | None]:
    """The step with measured scratch, or why it cannot be planned."""
    is_limited = device.limit is not None or settings.budget is not None
    try:
        if is_limited and not guesses:
            refuse_guesses(step)
        with refused_in_words("measure a step"):
            return with_measured_scratch(step, device), None
    except LMSError as error:
        if settings.asks_for_a_plan:
            raise
        return step, error


def _may_replan(step: TracedStep, settings: Settings, kind: str) -> bool:
    """Tell whether another plan may take over between two steps.

    Workers' collectives come in one order, and kernels that draw random numbers begin
    with their seeds again when they are built.
    """
    is_alone = kind in _TRAINING and joined().size == 1
    return settings.replan and is_alone and not (settings.plan or step.draws_noise)


def _tell(captured: Captured, budget: MemoryBudget) -> None:
    """Report at once that a step does not fit and is being planned."""
    plain = captured.workload.plain
    if budget.total is None or select.fits(plain, budget):
        return
    needs = format_bytes(budget.persistent + plain.peak)
    tell(
        f"LMS {captured.kind} step: {len(captured.step.graph.ops):,} ops need {needs}, "
        f"more than the budget of {format_bytes(budget.total)}: planning."
    )
