"""Prepare a traced function as a step that runs: all stages in order.

    capture ──> measure ──> plan ──> rewrite ──> build ──> PreparedStep
                             ^                                  │
                             └──── out of memory (recovery) <───┘

The first two stages depend on the step and the device alone; after an out of memory the
other stages are repeated with a smaller budget.
"""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lms.errors import BudgetError, LMSError, OutOfMemoryError
from lms.ir.graph import op_of
from lms.ir.liveness import with_late_writes
from lms.machine.ranks import joined
from lms.planning.addresses import Placed, place, why_variables_move
from lms.planning.candidates import check_scopes
from lms.planning.plan_step import plan_step, without_plan
from lms.planning.problem import MemoryBudget, PlannedStep, Reason, Workload
from lms.planning.select import fits, plain_plan
from lms.planning.settings import Settings
from lms.planning.spacers import Spaced, place_spacers
from lms.planning.tuning import THOROUGH
from lms.report.progress import tell
from lms.simulation.allocator import SmallPool
from lms.simulation.turns import Turn, comes_first, find_turns
from lms.tf.attempts import (
    NOTHING,
    Attempt,
    Offers,
    Outcome,
    Rewrites,
    count_plans,
    first_plan,
    last_failure,
    refusal,
)
from lms.tf.capture.loops import one_round_at_a_time
from lms.tf.capture.ops import CONSTANT
from lms.tf.capture.tracing import PREPARING, TracedFunction
from lms.tf.failures import given_up, refused_in_words
from lms.tf.lowering import TracedStep, refuse_guesses, specialise
from lms.tf.measure.arena import Arena, seal
from lms.tf.measure.bench import keep_measurements
from lms.tf.measure.compact_variables import settle_variables
from lms.tf.measure.devices import Device, find_device, say_what_is_not_planned
from lms.tf.measure.free_memory import host_budget, measure_budget
from lms.tf.measure.lone_op import forget_functions
from lms.tf.measure.scratch import limit_workspace
from lms.tf.measure.workload import (
    plan_here,
    report_of,
    timeline_of,
    with_measured_scratch,
    workload_here,
)
from lms.tf.offers import advice, offers_of
from lms.tf.passes.host_variables import (
    HostVariables,
    let_stay,
    lies_on_host,
    move_to_host,
)
from lms.tf.recovery import PreparedStep
from lms.tf.rewrite.rebuilding import (
    planned_step,
    rebuild,
    with_constants,
)
from lms.tf.rewrite.rewriting import Seal, rewrite
from lms.tf.undo import CommitFlag, CopiesInStep, KeptVariables, can_repeat, guard_of
from lms.tf.uninterrupted import uninterrupted
from lms.units import Bytes, Seconds, format_bytes

__all__ = ["Captured", "capture", "prepare"]

_LOG = logging.getLogger("lms")

# Kinds of steps that have all ops of training; evaluation lacks some.
_TRAINING = ("train", "step")

# Variables return to the device if, beside them, 60 % of the unplanned peak are free.
_AMPLE_PERCENT = 60

# At most 4 packings of a step are tried until spacers make the allocator choose one.
_PACKINGS = 4


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
    on_host: HostVariables
    rewrites: Rewrites = NOTHING

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
                prepared = _built(now)
            except _UnsealedError as error:
                found = replace(now, attempt=replace(now.attempt, unsealed=str(error)))
            except LMSError as error:  # another plan, or none, may do
                error = error.with_traceback(None)
                tried.append(replace(now, planned=None, error=error))
                found = first_plan(self, tried, self.settings)
        if prepared is None:
            handles = self.on_host.handles
            HostVariables.of(self.step.variables, handles).come_back()
            error = self._refusal(tried)
            if found is None:
                raise error
            prepared = self._without_plan(error, found.attempt)
        prepared.tried = [Outcome(attempt=e.attempt, failure=e.failure) for e in tried]
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
        with PREPARING, suppress(LMSError, _UnsealedError):
            try:
                return _built(replace(found, step=found.step.measured_now()))
            finally:
                forget_functions()
        return None

    def offers(self, op_size: Any) -> Offers:
        """The rewrites that are left, after the smallest op size that was tried."""
        is_here = self.kind != "plan"
        return offers_of(self.step, self.settings, op_size, is_here=is_here)

    def rewritten(self, rewrites: Rewrites) -> "Captured":
        """Capture the step again with other rewrites."""
        if rewrites is self.rewrites:
            return self
        assert self.again is not None
        with refused_in_words("plan a step"):
            for handle in rewrites.handles if self.kind != "plan" else ():
                if not lies_on_host(handle):
                    with uninterrupted():
                        move_to_host(handle)
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
        if not self.is_here:
            planned = plan_step(self.workload, settings, budget, None)
            return planned, time.perf_counter() - started
        if not attempt.unsealed:  # else it was told before
            _tell(self, budget)
        with refused_in_words("plan a step"):
            planned = plan_here(self.workload, settings, self.device, budget)
        return planned, time.perf_counter() - started

    def _refusal(self, tried: list[Outcome]) -> LMSError:
        failed, error = last_failure(tried), refusal(tried)
        is_refusal = isinstance(error, BudgetError)
        if error is None or (failed and failed.attempt.planned and is_refusal):
            assert failed is not None
            assert failed.planned is not None
            total, plans = failed.planned.budget.total, count_plans(tried)
            return OutOfMemoryError(given_up(str(failed.failure), total, plans))
        if is_refusal:
            error.args = (f"{error}{advice(self.settings)}",)
        return error

    def _without_plan(self, held_back: LMSError, attempt: Attempt) -> PreparedStep:
        """Build the unplanned step; `held_back` is raised if memory runs out."""
        if not self.is_said:
            said = "The %s step cannot be planned and runs as without LMS: %s"
            _LOG.warning(said, self.kind, held_back)
        # The error must not keep frames and their tensors alive.
        held_back.__cause__ = held_back.__context__ = held_back.__traceback__ = None
        planned = without_plan(self.workload, self.budget)
        held = replace(self, held_back=held_back)
        return _built(Outcome(attempt=attempt, step=held, planned=planned))


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
        settle: Whether variables may move: not once a plan relies on their addresses.
        is_said: Whether the user was warned that another signature cannot be planned.

    Raises:
        LMSError: If the step cannot be planned, and the user asked for a plan.
    """
    started, tried = time.perf_counter(), list[Outcome]()
    try:
        first = partial(
            capture, traced, inputs, settings, kind=kind, settle=settle, is_said=is_said
        )
        captured = first()
        if _can_come_back(captured):
            captured.on_host.come_back()
            captured = first()
        try:
            prepared = captured.built(first_plan(captured, tried, settings), tried)
        except LMSError as error:
            if kind == "test":
                whose = (
                    "This is the step of evaluation or validation, with a batch "
                    f"{captured.step.signature}: give a smaller "
                    "`validation_batch_size`, or `batch_size` of `evaluate`."
                )
                error.args = (f"{error} {whose}",)
            raise
    finally:
        forget_functions()
        keep_measurements()
    seconds = traced.seconds + time.perf_counter() - started
    prepared.predicted = replace(prepared.predicted, preparation_seconds=seconds)
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
) -> Captured:
    """Lower and measure a traced step on the present device.

    Arguments as in `prepare`, and the rewrites to apply.
    """
    device = find_device()
    step = specialised(traced, inputs, device, rewrites)
    specs = [a.spec for a in step.arguments if a.captured is None]
    on_host = HostVariables.of(step.variables)
    for variable in traced.concrete.graph.variables if on_host.handles else ():
        let_stay(variable)
    if on_host.handles or rewrites.lists:  # TensorFlow's own step has none on the host
        step = replace(step, own=None)
    if settings.thresholds is None:  # IBM's rule orders no writes
        step = replace(step, graph=with_late_writes(step.graph), own=step.own or step)
    if settle:
        settle_variables(step, device)
    budget = measure_budget(step, settings, device)
    if not fits(plain_plan((step.own or step).graph), budget):
        limit_workspace(step.graph, None if budget.total is None else budget.step)
    settings = replace(settings, replan=_may_replan(step, settings, kind))
    step, held_back = _measured(step, settings, device, guesses=rewrites.guesses)
    if kind in _TRAINING:
        check_scopes(step.graph, settings.filters)
        say_what_is_not_planned(device, (node.device for node in step.nodes))
    return Captured(
        kind=kind,
        traced=traced,
        step=step,
        workload=workload_here(step, device),
        device=device,
        settings=settings,
        budget=budget,
        again=partial(capture, traced, specs, kind=kind, is_said=is_said),
        held_back=held_back,
        is_said=is_said,
        on_host=on_host,
        rewrites=rewrites,
    )


def specialised(
    traced: TracedFunction, inputs: Sequence[Any], device: Device, rewrites: Rewrites
) -> TracedStep:
    """Give a traced function the shapes of one call, and apply rewrites."""
    return specialise(
        traced,
        inputs,
        device=device.full_name,
        lists=rewrites.lists,
        on_host=rewrites.handles,
        size=rewrites.op_size,
        guesses=rewrites.guesses,
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
    return bool(size) and (fits(plain, beside) or is_ample)


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


@refused_in_words("plan a step")
def _built(found: Outcome) -> PreparedStep:
    captured: Captured = found.step
    planned, settings, device = found.planned, captured.settings, captured.device
    assert planned is not None
    step = captured.step.own or captured.step
    if not planned.runs_plain:  # with the ops that the plan adds
        step = planned_step(captured.step, planned.graph)
    guard, commit_flag = guard_of(planned), CommitFlag()
    begun = commit_flag.nodes(guard, step.device)
    # Predictions leave out the memory of loops with unknown trip counts.
    is_known = planned.budget.total is None or not step.unknown_loops
    is_known &= not (captured.rewrites.lists or captured.rewrites.guesses)
    is_sure = is_known and planned.reason is Reason.FITS_EASILY
    copies = CopiesInStep(step.variables)
    host = host_budget(settings, step.input_bytes)
    undo = copies.groups(planned, step, guard.kept, host)
    before = {*guard.kept}.difference(*(group.handles for group in undo))
    every = planned.runs_plain and not is_sure
    names = [*step.variables] if every else sorted(before & step.variables.keys())
    kept = KeptVariables(tuple(step.variables[name] for name in names), copies)
    pool = with_constants(planned.small_pool, begun)
    if pool.sizes:
        pool = replace(pool, sizes=pool.sizes + kept.small_sizes)
    arena = sealed = None
    if planned.sealed:
        arena, sealed, peak = _sealed(step, planned, device, pool)
        whole = planned.budget
        if settings.budget is None and whole.total is not None:
            whole = replace(whole, total=whole.limit, margin=0)
        planned = replace(planned, step_bytes=peak, budget=whole)
    nodes = rewrite(
        step, planned.plan, begun, guard.late, sealed, copies.nodes(undo, step.device)
    )
    if not is_sure:
        nodes = one_round_at_a_time(nodes)
    return PreparedStep(
        rebuilt=rebuild(captured.traced, step, nodes, as_traced=is_sure),
        device=device,
        predicted=replace(
            report_of(captured.kind, step, planned, found.seconds),
            not_planned=captured.held_back and str(captured.held_back),
        ),
        timeline=timeline_of(captured.kind, step, planned),
        small_pool=device.keep_pool(pool) if arena is None else None,
        arena=arena,
        seal=sealed,
        commit_flag=commit_flag,
        kept=kept,
        on_host=captured.on_host,
        is_sure=is_sure,
        can_be_planned=settings.thresholds is None and not captured.held_back,
        can_repeat=can_repeat(planned, guard),
        source=captured,
        found=found,
        held_back=captured.held_back,
        searches=settings.replan,
    )


def _may_replan(step: TracedStep, settings: Settings, kind: str) -> bool:
    """Tell whether another plan may take over between two steps.

    Workers' collectives come in one order, and kernels that draw random numbers begin
    with their seeds again when they are built.
    """
    is_alone = kind in _TRAINING and joined().size == 1
    return settings.replan and is_alone and not (settings.plan or step.draws_noise)


class _UnsealedError(Exception):
    """A step cannot be sealed; the message says why. It never leaves this file."""


def _refuse_to_seal(
    step: TracedStep, planned: PlannedStep, first: Collection[str], below: Bytes
) -> None:
    """Refuse a step in which some memory is taken at a time that is not known.

    Args:
        step: The planned step's nodes.
        planned: Its plan.
        first: Ops that come before the ordered ones, with large outputs.
        below: Bytes of the smallest large chunk.

    Raises:
        _UnsealedError: Names the op.
    """
    if not planned.plan.chain:
        raise _UnsealedError("no op is ordered")
    for size, dtype in step.inputs_of_types:
        if dtype == "int32" and size >= below:
            raise _UnsealedError("an input of int32 comes from the host at any time")
    graph, chain = planned.graph, set(planned.plan.chain) - set(first)
    if reason := why_variables_move(graph.reordered(planned.plan.order), below):
        raise _UnsealedError(reason)
    ops = (op for op in graph.ops if op.name in first)
    made = (tensor for op in ops if not op.constant for tensor in op.outputs)
    sizes = {tensor.name: tensor.size for tensor in made if tensor.size >= below}
    behind = set[str]()
    for op in graph.ops:
        if op.reusing and op.reusing.size in (
            sizes.get(graph.roots[n]) for n in op.inputs
        ):
            raise _UnsealedError(f"op {op.name!r} may write over a tensor that stays")
        before = {*map(op_of, op.inputs), *op.controls}
        if op.name in chain or not behind.isdisjoint(before):
            behind.add(op.name)
            if op.name in first:
                raise _UnsealedError(f"op {op.name!r} is not ordered")


def _sealed(
    step: TracedStep, planned: PlannedStep, device: Device, pool: SmallPool
) -> tuple[Arena, Seal, Bytes]:
    """The arena of a sealed step, what the rewriter needs, and the step's peak.

    Raises:
        _UnsealedError: If the step must be planned unsealed.
    """
    forget_functions()  # what is freed later would be free memory in pieces
    chain = frozenset(planned.plan.chain)
    made = [
        (op, tensor)
        for op in step.graph.ops
        for tensor in op.outputs
        if tensor.size >= pool.below and comes_first(op, chain)
    ]
    _refuse_to_seal(step, planned, [op.name for op, _ in made], pool.below)
    sizes = [tensor.size for _, tensor in made]
    inputs = [size for size, _ in step.inputs_of_types]
    arena = seal(device, pool, [*inputs, *sizes])
    if arena is None:
        raise _UnsealedError("the device's free memory is in pieces")
    turns = find_turns(planned.graph, planned.plan, pool.below, pool.spacer)
    if not {size for turn in turns for _, size in turn.takes}.isdisjoint(pool.sizes):
        raise _UnsealedError("small scratch has a chunk of a large tensor's size")
    budget, fixed = planned.budget, arena.used + sum(arena.chunks)
    room = arena.capacity
    if not budget.is_whole_device and budget.total is not None:
        room = min(room, budget.total - fixed)
    placed, spaced = _placed(planned, pool, turns, arena.capacity, room)
    arena.needed = placed.height
    spacers = [(turn, spaced.before.get(i, ())) for i, turn in enumerate(turns)]
    names = [tensor.name for op, tensor in made if op.type not in CONSTANT]
    sealed = Seal(
        spacers=spacers, apart=names, addresses=placed.addresses, below=pool.below
    )
    return arena, sealed, fixed + spaced.peak - budget.persistent


def _placed(
    planned: PlannedStep,
    pool: SmallPool,
    turns: Sequence[Turn],
    capacity: Bytes,
    room: Bytes,
) -> tuple[Placed, Spaced]:
    """Find addresses in an arena of `capacity` bytes, of which `room` may be used.

    Raises:
        _UnsealedError: If the allocator cannot be made to choose any that were tried.
    """
    reason = "its tensors do not fit side by side"
    for again in range(_PACKINGS):
        placed = place(
            planned.graph, planned.plan, pool, room, THOROUGH.packings, again
        )
        if placed is None:
            continue
        spaced = place_spacers(turns, placed.addresses, capacity, room)
        if spaced is not None and spaced.peak <= room:
            return placed, spaced
        reason = "two tensors of one op cannot be told apart"
        if spaced is not None:
            reason = "`budget` is a large part of the device, not all of it"
    raise _UnsealedError(reason)


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
