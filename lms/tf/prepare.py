"""From a traced function to a step that runs: the stages in order, the library's map.

    capture ──> measure ──> plan ──> rewrite ──> build ──> PreparedStep
                             ^                                  │
                             └──── out of memory (recovery) <───┘

The first two stages depend on the step and the device alone; a step that ran out of
memory is prepared from the third on, into less.
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
from lms.tf.measure.compact_variables import settle_variables
from lms.tf.measure.devices import Device, find_device, say_what_is_not_planned
from lms.tf.measure.free_memory import measure_budget
from lms.tf.measure.measurements import keep_measurements
from lms.tf.measure.microbenchmark import forget_functions
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

# Variables are back on the card before a step is planned if so many percent of the
# step's plain peak are left beside them.
_AMPLE_PERCENT = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A step on the device that is here, measured: what any plan of it starts from.

    It is what recovery asks for another step (`lms.tf.recovery.StepSource`).

    Args:
        kind: `train`, `test`, `predict` or `step`.
        traced: The function that was traced.
        step: One signature of it, with measured scratch.
        workload: The same for the planner.
        device: Where it runs.
        settings: The user's knobs.
        held_back: Why it cannot be planned; None if it may be.
        is_said: Whether it was said of another signature that it cannot be planned.
        on_host: Its variables that lie on the host.
        means: Means by which it needs less than any plan of it.
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
        """Measure what the step may use now."""
        return measure_budget(self.step, self.settings, self.device)

    def prepare(
        self, budget: MemoryBudget, *, recompute: bool | None = None
    ) -> PreparedStep:
        """The stages from the plan on; the arguments are those of `StepSource`.

        Raises:
            BudgetError: If no plan fits.
            HostMemoryError: If the host cannot hold what is swapped out.
        """
        settings = replace(self.settings, plan=None)  # a stored one has failed
        if recompute is not None:
            settings = replace(settings, recompute=recompute)
        with PREPARING, refused_in_words("planning a step anew"):
            try:
                return _build(replace(self, settings=settings), budget)
            finally:
                forget_functions()

    def by_other_means(self, error: BudgetError, percent: int) -> PreparedStep | None:
        """The arguments are those of `StepSource`."""
        settings = replace(self.settings, plan=None)  # a stored one has failed
        captured = replace(self, settings=settings)
        with PREPARING, refused_in_words("planning a step anew"):
            try:
                return _fitted(captured, self.budget_now(), error, percent)[1]
            except BudgetError:
                return None
            finally:
                forget_functions()

    def by_guesses(self) -> PreparedStep | None:
        """The arguments are those of `StepSource`."""
        ops = self.step.graph.ops
        is_open = self.step.guessed or any(o.varies or o.from_host for o in ops)
        if self.means.guesses or not is_open:
            return None
        with PREPARING, refused_in_words("planning a step anew"):
            try:
                guessing = self.means + Means(guesses=True)
                prepared = _fitted(*self.again(means=guessing))[1]
            finally:
                forget_functions()
        return prepared

    def again(
        self, *, settle: bool = False, means: Means = NOTHING
    ) -> "tuple[Captured, MemoryBudget]":
        """The same step as it is by other means, and its memory budget."""
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
        """The step as TensorFlow runs it, where nobody insists on a plan.

        Args:
            held_back: Why there is no plan: raised if it runs out of memory.
        """
        if self.settings.asks_for_a_plan:
            return None
        if not self.is_said:
            said = "The %s step cannot be planned and runs as without LMS: %s"
            _LOG.warning(said, self.kind, held_back)
        # The error must not keep what it refers to.
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
    """All stages for one signature; what cannot be planned runs as it is.

    Args:
        traced: The traced function.
        inputs: Its flat inputs, tensors or specs.
        settings: The user's knobs.
        kind: `train`, `test`, `predict` or `step`.
        settle: Whether variables may be moved together: only before any other plan,
            which would rely on where they lie.
        is_said: Whether it was said of another signature that it cannot be planned.

    Raises:
        LMSError: If it cannot be planned, and a plan is insisted on.
    """
    started = time.perf_counter()
    try:
        captured, budget = capture(traced, inputs, settings, kind=kind, settle=settle)
        captured = replace(captured, is_said=is_said)
        if _can_come_back(captured, budget):
            captured.on_host.come_back()
            captured, budget = captured.again(settle=settle)
        try:
            with refused_in_words("planning a step"):
                captured, prepared = _fitted(captured, budget)
        except LMSError as error:  # it runs as it is, if nobody insists on a plan
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
    """Sentence that says which step it is, where it is not the one of training."""
    if captured.kind != "test":
        return ""
    return (
        " It is the step of evaluation or validation, of a batch "
        f"{captured.step.signature}: give `validation_batch_size`, or the `batch_size` "
        "of `evaluate`."
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
    """The step on the device that is here, measured, and its memory budget.

    The arguments are those of `prepare`, and the means by which it is to need less.
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
    if on_host.handles or means.lists:  # nobody else keeps them there
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
    """Tell whether a step fits with all its variables on the card, or is soon planned.

    In a good part of its plain peak plans cost little, and what lies on the host costs
    the link's time in each step.
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
    """The step as it is planned by as few other means as it must have.

    Args:
        captured: The step.
        budget: What it may use.
        error: What it was refused with as it is; None if it was not planned yet.
        percent: Percent of its room that it is planned into by other means.

    Raises:
        BudgetError: If there is no plan by any means.
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
    """Tell whether a step needs more than before."""
    return (after.least_bytes or 0) > (before.least_bytes or math.inf)


def _measured(
    step: TracedStep, settings: Settings, device: Device, *, guesses: bool
) -> tuple[TracedStep, LMSError | None]:
    """The step with measured scratch, or why it cannot be planned."""
    is_limited = device.limit is not None or settings.budget is not None
    try:
        if is_limited and not guesses:
            refuse_guesses(step)
        with refused_in_words("measuring a step"):
            return with_measured_scratch(step, device), None
    except LMSError as error:
        if settings.asks_for_a_plan:
            raise
        return step, error


def _build(captured: Captured, budget: MemoryBudget) -> PreparedStep:
    """Plan, rewrite and build."""
    if captured.held_back is not None:
        raise captured.held_back
    started = time.perf_counter()
    _tell(captured, budget)
    planned = plan_here(captured.workload, captured.settings, captured.device, budget)
    return _built(captured, planned, time.perf_counter() - started)


def _built(
    captured: Captured, planned: PlannedStep, planning_seconds: Seconds
) -> PreparedStep:
    """Rewrite and build."""
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
    """Say at once what a step waits for that does not fit as it is."""
    plain = captured.workload.plain
    if budget.total is None or fits(plain, budget):
        return
    needs = format_bytes(budget.persistent + plain.peak)
    tell(
        f"LMS {captured.kind} step: {len(captured.step.graph.ops):,} ops need {needs}, "
        f"there is {format_bytes(budget.total)}: a plan is made."
    )


def _step_of(captured: Captured, planned: PlannedStep) -> TracedStep:
    """The step that is rewritten: TensorFlow's own, or one with what the plan adds."""
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
    """Tell whether a step runs as it is and cannot run out of memory.

    Predictions do not count what loops keep if nobody knows how often they run.
    """
    is_limited = planned.budget.total is not None
    if step.unknown_loops and is_limited:
        return False
    return planned.reason is Reason.FITS_EASILY
