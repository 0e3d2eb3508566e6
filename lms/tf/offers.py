"""Rewrites that a traced step still offers, for `lms.tf.attempts`."""

from collections.abc import Iterator
from dataclasses import replace

from lms.errors import BudgetError, LMSError
from lms.ir.liveness import buffers, working_sets
from lms.machine.ranks import joined
from lms.planning.placement import certain_need
from lms.planning.problem import MemoryBudget
from lms.planning.settings import Settings
from lms.tf import compat
from lms.tf.attempts import Offers
from lms.tf.lowering import TracedStep
from lms.tf.measure.same_bits import keeps_bits
from lms.tf.passes.host_variables import movable_to_host, size_of
from lms.tf.passes.splitting import MOST_PARTS, Cuts, OpSize, regions
from lms.units import Bytes, format_bytes

__all__ = ["advice", "floor_of", "offers_of"]

# Steps that a user may not have in mind, and where their batches' sizes are given.
_WHOSE = {
    "test": (
        "evaluation or validation",
        "`validation_batch_size`, or `batch_size` of `evaluate`",
    ),
    "predict": ("prediction", "`batch_size` of `predict`"),
}

_CALLS = {"test": "evaluate", "predict": "predict"}

# Op sizes to try in turn: 1/4, 1/8 and 1/16 of the largest op's working set.
_PARTS = (4, 8, 16)


def offers_of(
    step: TracedStep, settings: Settings, last: OpSize | None, *, is_here: bool
) -> Offers:
    """The rewrites that a step still offers, after op size `last` was tried."""
    graph = step.graph
    there = {id(a.captured) for a in step.arguments if a.lies_on_host}
    handles = movable_to_host(graph, step.nodes, step.variables, step.device)
    if joined().size > 1:  # the variables of several workers stay on their cards
        handles = []
    return Offers(
        lists=step.lists,
        variables=[(h, size_of(h)) for h in handles if id(h) not in there],
        op_sizes=_op_sizes(step, settings, last, is_here=is_here),
        largest_op=certain_need(graph),
        is_open=bool(step.guessed) or any(o.varies or o.from_host for o in graph.ops),
    )


def floor_of(step: TracedStep) -> tuple[Bytes, str]:
    """Return a lower bound on a step's bytes in all plans and rewrites, and the op.

    The op is the largest product without a cut: its inputs and outputs lie on the
    device at once, and share no memory. All other tensors are taken to be out, and all
    variables. 0 if each product has a cut.
    """
    graph, found = step.graph, list[tuple[Bytes, str]]()
    live = {buffer.root: buffer.size for buffer in buffers(graph)}
    moving = [op for op in graph.ops if op.varies or op.fixed]
    unsure = {tensor.name for op in moving for tensor in op.outputs}
    for op in graph.ops:
        if op.flops and not op.fixed and not op.varies and unsure.isdisjoint(op.inputs):
            roots = {graph.roots[name] for name in op.inputs}
            touched = (*roots, *(tensor.name for tensor in op.outputs))
            found.append((sum(live.get(root, 0) for root in touched), op.name))
    cuts = Cuts(graph, step.nodes, OpSize(most=1, rows=True))
    whole = (
        (size, name)
        for size, name in sorted(found, reverse=True)
        if not any(
            cuts.of(graph.by_name[name], parts) for parts in range(2, MOST_PARTS + 1)
        )
    )
    return next(whole, (0, ""))


def advice(
    error: LMSError,
    kind: str,
    step: TracedStep,
    settings: Settings,
    budget: MemoryBudget,
) -> str:
    """Return what else may help where a step does not fit; empty where nothing may."""
    said, most = "", budget.limit if budget.is_whole_device else budget.total
    others = budget.persistent - step.held_bytes
    refusal = error if isinstance(error, BudgetError) else BudgetError("")
    if most and refusal.exceeds(0) and not refusal.exceeds(most + others):
        said = (
            f" Tensors beside the model take {format_bytes(others)}, such as arrays "
            f"given to `{_CALLS.get(kind, 'fit')}`, which lie on the device whole: "
            "give a `tf.data.Dataset` of them instead, made within "
            '`tf.device("CPU:0")`.'
        )
    may_cut = settings.cuts_ops and settings.slices is None and not refusal.is_final
    if may_cut and compat.ops_are_deterministic():
        said += ' `slices="any"` cuts more products; their last bits may differ then.'
    if kind in _WHOSE:
        whose, knob = _WHOSE[kind]
        said += f" This is the step of {whose}, with a batch {step.signature}: give a "
        said += f"smaller {knob}."
    else:
        said += " `python -m lms plan FILE.py:function --largest` finds the largest."
    return said


def _op_sizes(
    step: TracedStep, settings: Settings, last: OpSize | None, *, is_here: bool
) -> Iterator[OpSize]:
    """Yield untried op sizes, as parts of the largest unsplit op's working set."""
    rows = settings.slices == "any"
    if last is None:
        whole = max(working_sets(step.graph), default=0)
        last = OpSize(
            most=whole,
            sums=rows or not compat.ops_are_deterministic(),
            rows=rows,
            whole=whole,
            scratch={op.name: op.scratch for op in step.graph.ops if op.scratch},
            proved=keeps_bits if is_here and not rows else None,
        )
    for parts in _PARTS:  # without the budget: so the least one is independent
        size = replace(last, most=last.whole // parts)
        if size.most < last.most and regions(step.graph, step.nodes, size):
            yield size
