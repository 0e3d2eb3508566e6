"""Prepare a traced function as a step that runs: all stages in order.

    capture ──> measure ──> plan ──> rewrite ──> build ──> PreparedStep
                             ^                                  │
                             └──── out of memory (recovery) <───┘

The first two stages depend on the step and the device alone; after an out of memory the
other stages are repeated with a smaller budget.
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lms.errors import BudgetError, LMSError
from lms.ir.write_guard import WriteGuard, guard_writes
from lms.planning.candidates import check_scopes
from lms.planning.plan_step import without_plan
from lms.planning.problem import MemoryBudget, PlannedStep, Reason, Workload
from lms.planning.select import fits, plain_plan
from lms.planning.settings import Settings
from lms.report.progress import tell
from lms.tf.capture.loops import one_round_at_a_time
from lms.tf.capture.ops import COLLECTIVE
from lms.tf.capture.tracing import PREPARING, TracedFunction
from lms.tf.lowering import TracedStep, refuse_guesses, specialise
from lms.tf.means import NOTHING, Means, Refused, advice, further, least_of
from lms.tf.measure.bench import keep_measurements
from lms.tf.measure.compact_variables import settle_variables
from lms.tf.measure.devices import Device, find_device, say_what_is_not_planned
from lms.tf.measure.free_memory import measure_budget
from lms.tf.measure.lone_op import forget_functions
from lms.tf.measure.workload import (
    plan_here,
    report_of,
    timeline_of,
    with_measured_scratch,
    workload_here,
)
from lms.tf.measure.workspace import limit_workspace
from lms.tf.out_of_memory import refused_in_words
from lms.tf.passes.host_variables import (
    HostVariables,
    let_stay,
    move_to_host,
)
from lms.tf.passes.write_order import CommitFlag, KeptVariables
from lms.tf.recovery import PreparedStep
from lms.tf.rewrite.rebuilding import (
    planned_step,
    rebuild,
    run_without_inputs,
    with_constants,
)
from lms.tf.rewrite.rewriting import rewrite
from lms.tf.uninterrupted import uninterrupted
from lms.units import Seconds, format_bytes

__all__ = ["Captured", "capture", "prepare"]

_LOG = logging.getLogger("lms")

# Kinds of steps that have all ops of training; evaluation lacks some.
_TRAINING = ("train", "step")

# Variables return to the device before planning if, beside them, 60 % of the step's
# unplanned peak are free.
_AMPLE_PERCENT = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A traced step, lowered and measured on the present device.

    Recovery prepares the step again through this value (`lms.tf.recovery.StepSource`).

    Args:
        kind: `train`, `test`, `predict` or `step`.
        traced: The function that was traced.
        step: The step of one signature, with measured scratch.
        workload: The step as the planner's input.
        device: The device that runs the step.
        settings: The user's knobs.
        held_back: Why the step cannot be planned; None if it may be.
        is_said: Whether the user was warned that another signature cannot be planned.
        on_host: The step's variables on the host.
        means: The rewrites that were applied.
    """

    kind: str
    traced: TracedFunction
    step: TracedStep
    workload: Workload
    device: Device
    settings: Settings
    held_back: LMSError | None = None
    is_said: bool = False
    on_host: HostVariables
    means: Means = NOTHING

    def budget_now(self) -> MemoryBudget:
        """Measure the memory that the step may use now."""
        return measure_budget(self.step, self.settings, self.device)

    def prepare(
        self, budget: MemoryBudget, *, recompute: bool | None = None
    ) -> PreparedStep:
        """Plan, rewrite and build again; arguments as in `StepSource`.

        Raises:
            BudgetError: If no plan fits.
            HostMemoryError: If the host cannot hold what is swapped out.
        """
        settings = replace(self.settings, plan=None)  # a stored plan has failed
        if recompute is not None:
            settings = replace(settings, recompute=recompute)
        with PREPARING, refused_in_words("replan a step"):
            try:
                return _build(replace(self, settings=settings), budget)
            finally:
                forget_functions()

    def by_other_means(self, error: BudgetError, percent: int) -> PreparedStep | None:
        """Apply the next rewrite and plan; arguments as in `StepSource`."""
        settings = replace(self.settings, plan=None)  # a stored plan has failed
        captured = replace(self, settings=settings)
        with PREPARING, refused_in_words("replan a step"):
            try:
                return _fitted(captured, self.budget_now(), error, percent)[1]
            except BudgetError:
                return None
            finally:
                forget_functions()

    def by_guesses(self) -> PreparedStep | None:
        """Plan with guesses of dynamic shapes; result as in `StepSource`."""
        ops = self.step.graph.ops
        is_open = self.step.guessed or any(o.varies or o.from_host for o in ops)
        if self.means.guesses or not is_open:
            return None
        with PREPARING, refused_in_words("replan a step"):
            try:
                guessing = self.means + Means(guesses=True)
                prepared = _fitted(*self.again(means=guessing))[1]
            finally:
                forget_functions()
        return prepared

    def again(
        self, *, settle: bool = False, means: Means = NOTHING
    ) -> "tuple[Captured, MemoryBudget]":
        """Capture the step again with other rewrites; returns step and budget."""
        specs = [a.spec for a in self.step.arguments if a.captured is None]
        captured, budget = capture(
            self.traced,
            specs,
            self.settings,
            kind=self.kind,
            settle=settle,
            means=means,
        )
        return replace(captured, is_said=self.is_said), budget

    def without_plan(self, held_back: LMSError) -> PreparedStep | None:
        """Build the unplanned step; None where the user asked for a plan.

        Args:
            held_back: Why there is no plan: raised if the step runs out of memory.
        """
        if self.settings.asks_for_a_plan:
            return None
        if not self.is_said:
            said = "The %s step cannot be planned and runs as without LMS: %s"
            _LOG.warning(said, self.kind, held_back)
        # The error must not keep frames and their tensors alive.
        held_back.__cause__ = held_back.__context__ = held_back.__traceback__ = None
        planned = without_plan(self.workload, self.budget_now())
        return _built(replace(self, held_back=held_back), planned, 0.0)

    def run_without_batch(self) -> None:
        """Run the ops that need no batch, in TensorFlow's own graph."""
        run_without_inputs(self.step.own or self.step)


def prepare(
    traced: TracedFunction,
    inputs: Sequence[Any],
    settings: Settings,
    *,
    kind: str,
    settle: bool,
    is_said: bool = False,
) -> PreparedStep:
    """Prepare a step for one signature; a step that cannot be planned runs unplanned.

    Args:
        traced: The traced function.
        inputs: Its flat inputs, tensors or specs.
        settings: The user's knobs.
        kind: `train`, `test`, `predict` or `step`.
        settle: Whether variables may be compacted: only before the first plan, since
            plans rely on the addresses of variables.
        is_said: Whether the user was warned that another signature cannot be planned.

    Raises:
        LMSError: If the step cannot be planned, and the user asked for a plan.
    """
    started = time.perf_counter()
    try:
        captured, budget = capture(traced, inputs, settings, kind=kind, settle=settle)
        captured = replace(captured, is_said=is_said)
        if _can_come_back(captured, budget):
            captured.on_host.come_back()
            captured, budget = captured.again(settle=settle)
        try:
            with refused_in_words("plan a step"):
                captured, prepared = _fitted(captured, budget)
        except LMSError as error:  # runs unplanned unless the user asked for a plan
            if (plain := captured.without_plan(error)) is None:
                error.args = (f"{error}{_whose(captured)}",)
                raise
            prepared = plain
    finally:
        forget_functions()
        keep_measurements()
    seconds = traced.seconds + time.perf_counter() - started
    prepared.predicted = replace(prepared.predicted, preparation_seconds=seconds)
    return prepared


def _whose(captured: Captured) -> str:
    """Sentence that names the step of evaluation; empty for other steps."""
    if captured.kind != "test":
        return ""
    return (
        " This is the step of evaluation or validation, with a batch "
        f"{captured.step.signature}: give a smaller `validation_batch_size`, or "
        "`batch_size` of `evaluate`."
    )


def capture(
    traced: TracedFunction,
    inputs: Sequence[Any],
    settings: Settings,
    *,
    kind: str,
    settle: bool = False,
    means: Means = NOTHING,
) -> tuple[Captured, MemoryBudget]:
    """Lower and measure a traced step on the present device; returns its budget too.

    Arguments as in `prepare`, and the rewrites to apply.
    """
    device = find_device()
    step = specialise(
        traced,
        inputs,
        device=device.full_name,
        lists=means.lists,
        on_host=means.handles,
        size=means.op_size,
        guesses=means.guesses,
    )
    on_host = HostVariables.of(step.variables)
    for variable in traced.concrete.graph.variables if on_host.handles else ():
        let_stay(variable)
    if on_host.handles or means.lists:  # TensorFlow's own step has none on the host
        step = replace(step, own=None)
    if settle:
        settle_variables(step, device)
    budget = measure_budget(step, settings, device)
    if not fits(plain_plan((step.own or step).graph), budget):
        limit_workspace(step.graph, None if budget.total is None else budget.step)
    step, held_back = _measured(step, settings, device, guesses=means.guesses)
    if kind in _TRAINING:
        check_scopes(step.graph, settings.filters)
        say_what_is_not_planned(device, (node.device for node in step.nodes))
    captured = Captured(
        kind=kind,
        traced=traced,
        step=step,
        workload=workload_here(step, device),
        device=device,
        settings=settings,
        held_back=held_back,
        on_host=on_host,
        means=means,
    )
    return captured, budget


def _can_come_back(captured: Captured, budget: MemoryBudget) -> bool:
    """Tell whether all variables of a step may return to the device.

    Either the step fits then, or at least `_AMPLE_PERCENT` of its unplanned peak do:
    plans cost little there, and variables on the host cost copies in each step.
    """
    size = captured.on_host.size
    beside = replace(budget, persistent=budget.persistent + size)
    plain = captured.workload.plain
    is_ample = beside.step * 100 >= plain.peak * _AMPLE_PERCENT
    return bool(size) and (fits(plain, beside) or is_ample)


def _fitted(
    captured: Captured,
    budget: MemoryBudget,
    error: BudgetError | None = None,
    percent: int = 100,
) -> tuple[Captured, PreparedStep]:
    """Plan the step; while no plan fits, apply the next rewrite and try again.

    Args:
        captured: The step.
        budget: The memory that the step may use.
        error: The refusal of the step as it is; None if it was not planned yet.
        percent: Percent of the budget that a rewritten step is planned into.

    Raises:
        BudgetError: If no plan fits with any rewrite.
    """
    variables, before = captured.step.variables, captured.on_host.handles
    refusals, more, whole = list[BudgetError](), NOTHING, (captured, budget)
    try:
        while True:
            try:
                if error is not None:
                    raise error
                return captured, _build(captured, budget)
            except BudgetError as refusal:
                refusals.append(refusal)
                if more.sizes and _is_worse(*refusals[-2:]):
                    means, (captured, budget) = captured.means, whole
                    captured = replace(captured, means=means.without_last_size())
                    refusals[-2:] = reversed(refusals[-2:])
                refused = Refused(
                    step=captured.step,
                    means=captured.means,
                    settings=captured.settings,
                    error=refusals[-1],
                    budget=budget,
                )
                more, whole = further(refused), (captured, budget)
                if more == NOTHING:
                    least = least_of(refusals)
                    least.args = (f"{least}{advice(captured.settings)}",)
                    raise least from None
            for handle in more.handles:
                with uninterrupted():
                    move_to_host(handle)
            captured, now = captured.again(means=captured.means + more)
            budget = now if percent == 100 else now.tighter(now, percent)
            error = None
    except LMSError:
        HostVariables.of(variables, before).come_back()
        raise


def _is_worse(before: BudgetError, after: BudgetError) -> bool:
    """Tell whether a rewrite raised the least budget."""
    return (after.least_bytes or 0) > (before.least_bytes or math.inf)


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


def _build(captured: Captured, budget: MemoryBudget) -> PreparedStep:
    if captured.held_back is not None:
        raise captured.held_back
    started = time.perf_counter()
    _tell(captured, budget)
    planned = plan_here(captured.workload, captured.settings, captured.device, budget)
    return _built(captured, planned, time.perf_counter() - started)


def _built(
    captured: Captured, planned: PlannedStep, planning_seconds: Seconds
) -> PreparedStep:
    settings, device = captured.settings, captured.device
    step = _step_of(captured, planned)
    guard, commit_flag = _guard(planned), CommitFlag()
    begun = commit_flag.nodes(guard, step.device)
    nodes = rewrite(step, planned.plan, begun, guard.late)
    means = captured.means
    is_sure = _is_sure(step, planned) and not (means.lists or means.guesses)
    if not is_sure:
        nodes = one_round_at_a_time(nodes)
    kept = KeptVariables.of(
        tuple(step.variables) if planned.runs_plain and not is_sure else guard.kept,
        step.variables,
    )
    pool = with_constants(planned.small_pool, step.nodes, nodes)
    if pool.sizes:
        pool = replace(pool, sizes=pool.sizes + kept.small_sizes)
    return PreparedStep(
        rebuilt=rebuild(captured.traced, step, nodes, as_traced=is_sure),
        memory=device.memory,
        predicted=replace(
            report_of(captured.kind, step, planned, planning_seconds),
            not_planned=captured.held_back and str(captured.held_back),
        ),
        timeline=timeline_of(captured.kind, step, planned),
        small_pool=device.keep_pool(pool),
        commit_flag=commit_flag,
        kept=kept,
        on_host=captured.on_host,
        is_sure=is_sure,
        can_be_planned=settings.thresholds is None and not captured.held_back,
        can_repeat=_can_repeat(planned, guard),
        budget=planned.budget,
        source=captured,
        held_back=captured.held_back,
        other_ways=(True, False) if settings.recompute is None else (),
    )


def _tell(captured: Captured, budget: MemoryBudget) -> None:
    """Report at once that a step does not fit and is being planned."""
    plain = captured.workload.plain
    if budget.total is None or fits(plain, budget):
        return
    needs = format_bytes(budget.persistent + plain.peak)
    tell(
        f"LMS {captured.kind} step: {len(captured.step.graph.ops):,} ops need {needs}, "
        f"more than the budget of {format_bytes(budget.total)}: planning."
    )


def _step_of(captured: Captured, planned: PlannedStep) -> TracedStep:
    """The step to rewrite: TensorFlow's own, or one with the ops that a plan adds."""
    step = captured.step
    if planned.runs_plain:
        return step.own or step
    return planned_step(step, planned.graph)


def _guard(planned: PlannedStep) -> WriteGuard:
    if planned.plan.is_empty or planned.plan.chain_is_partial:
        return WriteGuard()
    ordered = planned.graph.reordered(planned.plan.order)
    return guard_writes(ordered, planned.memory.device, planned.budget.step)


def _can_repeat(planned: PlannedStep, guard: WriteGuard) -> bool:
    """Tell whether all collectives wait until memory can no longer run out."""
    late = () if planned.runs_plain else guard.late
    collectives = {op.name for op in planned.graph.ops if op.type in COLLECTIVE}
    return collectives <= set(late)


def _is_sure(step: TracedStep, planned: PlannedStep) -> bool:
    """Tell whether a step runs unplanned and cannot run out of memory.

    Predictions leave out the memory of loops with unknown trip counts.
    """
    is_limited = planned.budget.total is not None
    if step.unknown_loops and is_limited:
        return False
    return planned.reason is Reason.FITS_EASILY
