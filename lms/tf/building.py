"""Build a step that runs from the plans of its devices: memory, rewrites, undo copies.

Each device obeys its own plan. The step has one commit point: no variable on any device
is written before the last op that may run out of memory, on any device, has ended.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lms.ir.graph import GraphView, op_of
from lms.ir.write_guard import WriteGuard, ends_among, guard_writes, may_fail
from lms.planning import addresses
from lms.planning.problem import PlannedStep, Reason
from lms.planning.spacers import Spaced, place_spacers
from lms.planning.tuning import THOROUGH
from lms.proof.prove import Proof
from lms.simulation.allocator import SmallPool
from lms.tf import compat
from lms.tf.attempts import Outcome, UnprovedError
from lms.tf.capture.loops import one_round_at_a_time
from lms.tf.capture.ops import CONSTANT
from lms.tf.failures import refused_in_words
from lms.tf.lowering import TracedStep
from lms.tf.measure.arena import Arena, seal
from lms.tf.measure.devices import Device
from lms.tf.measure.free_memory import host_budget
from lms.tf.measure.lone_op import forget_functions
from lms.tf.measure.workload import report_of, timeline_of
from lms.tf.proving import prove_step
from lms.tf.recovery import Part, PreparedStep
from lms.tf.rewriting import (
    Seal,
    guarded,
    planned_step,
    rebuild,
    rewrite,
    with_constants,
)
from lms.tf.undo import CommitFlag, CopiesInStep, KeptVariables, can_repeat, guard_of
from lms.tf.watch import Watch
from lms.units import Bytes

__all__ = ["UnsealedError", "build"]

# At most 4 packings of a step are tried until spacers make the allocator choose one.
_PACKINGS = 4

# A step that may write at any time has no late writes, barriers, or ops before these.
_NOTHING = WriteGuard(), dict[str, Sequence[str]](), frozenset[str]()


@refused_in_words("plan a step")
def build(founds: Sequence[Outcome], source: Any) -> PreparedStep:
    """Build the step that obeys the plans of its devices.

    Args:
        founds: A plan for each device, all of one graph.
        source: Prepares the step again.

    Raises:
        UnsealedError: If a device's plan must be made unsealed.
        UnprovedError: If values or order of the step are not proved.
    """
    first, plans = founds[0].step, list(map(_planned, founds))
    is_plain = all(planned.runs_plain for planned in plans)
    steps = [found.step.step for found in founds]
    if is_plain:
        steps = [step.own or step for step in steps]
    # A device without a plan may run out at any time, if its part barely fits.
    is_risky = any(p.runs_plain and p.reason is not Reason.FITS_EASILY for p in plans)
    guard, barriers, early = _NOTHING if is_risky else _guard(steps, plans)
    watches = _watches(founds, guard, early) if first.settings.check else {}
    flag, copies = CommitFlag(watches.values()), CopiesInStep(steps[0].variables)
    begun = flag.nodes(barriers if guard.late else {})
    # Predictions leave out the memory of loops with unknown trip counts.
    is_known = plans[0].budget.total is None or not steps[0].unknown_loops
    rewrites = [found.step.rewrites for found in founds]
    is_known &= not any(one.lists or one.guesses for one in rewrites)
    is_sure = is_known and all(p.reason is Reason.FITS_EASILY for p in plans)
    steps = _with_added(steps, plans)
    host = host_budget(first.settings, sum(step.input_bytes for step in steps))
    share = None if host is None else host // len(plans)
    undo = [
        copies.groups(planned, step, guard.kept, share)
        for planned, step in zip(plans, steps, strict=True)
    ]
    in_step = (group.handles for groups in undo for group in groups)
    variables, before = steps[0].variables, {*guard.kept}.difference(*in_step)
    every = is_risky or (is_plain and not is_sure)
    every |= bool(watches) and _is_partial(plans)
    names = [*variables] if every else sorted(before & variables.keys())
    kept = KeptVariables(tuple(variables[name] for name in names), copies)
    nodes, parts = steps[0].nodes, list[Part]()
    for number, (found, step) in enumerate(zip(founds, steps, strict=True)):
        try:
            here, known = replace(step, nodes=tuple(nodes)), (kept.small_sizes, number)
            part, nodes = _part(found, here, begun, *known, watches.get(number))
        except UnsealedError as error:
            error.number = number
            raise
        parts.append(part)
    groups = [(step.device, each) for step, each in zip(steps, undo, strict=True)]
    waits = [(begun, guard.late), *copies.nodes(groups), *flag.nodes_beside()]
    nodes = guarded(nodes, steps[0].graph, steps[0].device, waits)
    if not is_sure:
        nodes = one_round_at_a_time(nodes)
    if not is_plain or first.on_host.handles or any(one.lists for one in rewrites):
        before_writes = None if not (every or guard.late or guard.kept) else names
        taken = [(), *(group.handles for groups in undo for group in groups)]
        taken += [()] * (len(waits) - len(taken))
        hosts = zip((made for made, _ in waits), taken, strict=True)
        asked = (first.traced, steps[0], nodes, plans, hosts, before_writes)
        proof = _prove(asked, is_plain=is_plain)
        shown = {"proof": str(proof), "laws": "; ".join(proof.laws)}
        for part in parts:
            part.predicted = replace(part.predicted, **shown)
    held_back = next(filter(None, (found.step.held_back for found in founds)), None)
    return PreparedStep(
        rebuilt=rebuild(first.traced, steps[0], nodes, as_traced=is_sure),
        parts=tuple(parts),
        commit_flag=flag,
        kept=kept,
        is_sure=is_sure,
        can_be_planned=first.settings.thresholds is None and not held_back,
        can_repeat=(every or not _is_partial(plans)) and _can_repeat(plans, guard),
        source=source,
        held_back=held_back,
        searches=first.settings.replan and len(plans) == 1,
    )


def _prove(asked: tuple[Any, ...], *, is_plain: bool) -> Proof:
    """Prove a step; a plain one may run if the proof itself has a fault."""
    try:
        proof = prove_step(*asked)
    except Exception as error:
        proof = Proof(failed=f"the proof ended in {error!r}", is_fault=True)
    if proof.proved or (proof.is_fault and is_plain):
        return proof
    said = f"Could not prove the planned step: {proof.failed}."
    error = UnprovedError(f"{said} Report the model, or give another `budget`.")
    error.is_fault = proof.is_fault
    raise error


def _planned(found: Outcome) -> PlannedStep:
    assert found.planned is not None
    return found.planned


def _is_partial(plans: Sequence[PlannedStep]) -> bool:
    """Tell whether ops without order may run after a write."""
    return any(planned.plan.chain_is_partial for planned in plans)


def _can_repeat(plans: Sequence[PlannedStep], guard: WriteGuard) -> bool:
    """Tell whether no other worker can have received the step's numbers."""
    is_alone = len(plans) > 1 and compat.is_alone()
    return is_alone or all(can_repeat(planned, guard) for planned in plans)


def _guard(
    steps: Sequence[TracedStep], plans: Sequence[PlannedStep]
) -> tuple[WriteGuard, Mapping[str, Sequence[str]], frozenset[str]]:
    """Split the writes of a step by when they come.

    The last device's order holds those of all devices.

    Returns:
        The split; by device the ops that end before late writes; names of all ops that
        come before.
    """
    guard = guard_of(plans[-1])
    if len(plans) == 1:
        order = plans[-1].plan.order
        stop = order.index(guard.late[0]) if guard.late else 0
        return guard, {steps[0].device: guard.barrier}, frozenset(order[:stop])
    if all(p.plan.is_empty or p.plan.chain_is_partial for p in plans):
        return WriteGuard(), {}, frozenset()
    last = plans[-1]
    order = steps[-1].graph.order if last.plan.is_empty else last.plan.order
    graph = (steps[-1].graph if last.plan.is_empty else last.graph).reordered(order)
    heavy = {name for planned in plans for name in _heavy(planned, graph)}
    curve = [int(name in heavy) for name in graph.order]
    guard = guard_writes(graph, curve, budget=1)
    stop = graph.position[guard.late[0]] if guard.late else 0
    before = frozenset(graph.order[:stop])
    barriers = {s.device: ends_among(s.graph, before) for s in steps}
    return guard, barriers, before


def _watches(
    founds: Sequence[Outcome], guard: WriteGuard, early: frozenset[str]
) -> dict[int, Watch]:
    """Return what compares the tensors that leave each device, by its number."""
    found = dict[int, Watch]()
    for number, each in enumerate(founds):
        planned, device = _planned(each), each.step.device.full_name
        before = early if guard.late else frozenset(planned.plan.order)
        found[number] = Watch.of(planned, device, number, before)
    return found


def _heavy(planned: PlannedStep, graph: GraphView) -> Iterator[str]:
    """Yield the ordered ops of a device that may fail, as ops of another graph."""
    plan, curve = planned.plan, planned.memory.device
    used = dict(zip(plan.order, curve, strict=True))
    is_heavy = False
    for name in plan.chain:
        is_heavy |= may_fail(used[name], planned.budget.step)
        if is_heavy and name in graph.by_name:
            yield name
            is_heavy = False


def _with_added(
    steps: Sequence[TracedStep], plans: Sequence[PlannedStep]
) -> list[TracedStep]:
    """The devices' steps with the ops that all plans add."""
    nodes, found = steps[0].nodes, list[TracedStep]()
    for step, planned in zip(steps, plans, strict=True):
        here = replace(step, nodes=tuple(nodes))
        if not planned.runs_plain:
            here = planned_step(here, planned.graph)
        nodes = here.nodes
        found.append(here)
    return [replace(step, nodes=tuple(nodes)) for step in found]


def _part(
    found: Outcome,
    step: TracedStep,
    begun: Sequence[Any],
    kept_sizes: tuple[Bytes, ...],
    number: int,
    watch: Watch | None,
) -> tuple[Part, list[Any]]:
    """Return (a device's part of the step, the step's nodes with its plan).

    Raises:
        UnsealedError: If its plan must be made unsealed.
    """
    captured, planned = found.step, _planned(found)
    device = captured.device
    pool = with_constants(planned.small_pool, [n for n in begun if _is_on(n, device)])
    if pool.sizes:
        watched = watch.sizes() if watch else []
        pool = replace(pool, sizes=(*pool.sizes, *kept_sizes, *watched))
    arena = sealed = None
    if planned.sealed:
        arena, sealed, peak = _sealed(step, planned, device, pool)
        planned = replace(planned, step_bytes=peak)
    nodes = [*step.nodes]
    if not planned.runs_plain:
        nodes = rewrite(step, planned.plan, sealed, number=number, watch=watch)
    part = Part(
        device=device,
        predicted=replace(
            report_of(captured.kind, step, planned, found.seconds),
            not_planned=captured.held_back and str(captured.held_back),
            device=device.name * (captured.devices > 1),
        ),
        timeline=timeline_of(captured.kind, step, planned),
        small_pool=device.keep_pool(pool) if arena is None else None,
        arena=arena,
        seal=sealed,
        on_host=captured.on_host,
        found=found,
        received=step.received,
    )
    return part, nodes


def _is_on(node: Any, device: Device) -> bool:
    return node.device == device.full_name


class UnsealedError(Exception):
    """A device's part of a step cannot be sealed; the message says why."""

    number: int = 0


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
        UnsealedError: Names the op.
    """
    if not planned.plan.chain:
        raise UnsealedError("no op is ordered")
    if any(len(a.readers) > 1 for a in step.arguments if a.captured is None):
        raise UnsealedError("an input is read on several devices")
    for size, dtype in step.inputs_of_types:
        if dtype == "int32" and size >= below:
            raise UnsealedError("an input of int32 comes from the host at any time")
    graph, chain = planned.graph, set(planned.plan.chain) - set(first)
    ordered = graph.reordered(planned.plan.order)
    if reason := addresses.why_variables_move(ordered, below):
        raise UnsealedError(reason)
    ops = (op for op in graph.ops if op.name in first)
    made = (tensor for op in ops if not op.constant for tensor in op.outputs)
    sizes = {tensor.name: tensor.size for tensor in made if tensor.size >= below}
    behind = set[str]()
    for op in graph.ops:
        if op.reusing and op.reusing.size in (
            sizes.get(graph.roots[n]) for n in op.inputs
        ):
            raise UnsealedError(f"op {op.name!r} may write over a tensor that stays")
        before = {*map(op_of, op.inputs), *op.controls}
        if op.name in chain or not behind.isdisjoint(before):
            behind.add(op.name)
            if op.name in first:
                raise UnsealedError(f"op {op.name!r} is not ordered")


def _sealed(
    step: TracedStep, planned: PlannedStep, device: Device, pool: SmallPool
) -> tuple[Arena, Seal, Bytes]:
    """The arena of a sealed step, what the rewriter needs, and the step's peak.

    Raises:
        UnsealedError: If the step must be planned unsealed.
    """
    forget_functions()  # what is freed later would be free memory in pieces
    chain = frozenset(planned.plan.chain)
    made = [
        (op, tensor)
        for op in step.graph.ops
        for tensor in op.outputs
        if tensor.size >= pool.below and addresses.comes_first(op, chain)
    ]
    _refuse_to_seal(step, planned, [op.name for op, _ in made], pool.below)
    sizes = [tensor.size for _, tensor in made]
    inputs = [size for size, _ in step.inputs_of_types]
    arena = seal(device, pool, [*inputs, *sizes])
    if arena is None:
        raise UnsealedError("the device's free memory is in pieces")
    turns = addresses.find_turns(planned.graph, planned.plan, pool.below, pool.spacer)
    if not {size for turn in turns for _, size in turn.takes}.isdisjoint(pool.sizes):
        raise UnsealedError("small scratch has a chunk of a large tensor's size")
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
    turns: Sequence[addresses.Turn],
    capacity: Bytes,
    room: Bytes,
) -> tuple[addresses.Placed, Spaced]:
    """Find addresses in an arena of `capacity` bytes, of which `room` may be used.

    Raises:
        UnsealedError: If the allocator cannot be made to choose any that were tried.
    """
    reason = "its tensors do not fit side by side"
    for again in range(_PACKINGS):
        placed = addresses.place(
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
    raise UnsealedError(reason)
