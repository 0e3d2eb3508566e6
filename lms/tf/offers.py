"""Rewrites that a traced step still offers, for `lms.tf.attempts`."""

from collections.abc import Iterator
from dataclasses import replace

from lms.ir.liveness import working_sets
from lms.machine.ranks import joined
from lms.planning.placement import certain_need
from lms.planning.settings import Settings
from lms.tf import compat
from lms.tf.attempts import Offers
from lms.tf.lowering import TracedStep
from lms.tf.measure.same_bits import keeps_bits
from lms.tf.passes.host_variables import movable_to_host, size_of
from lms.tf.passes.splitting import OpSize, regions

__all__ = ["advice", "offers_of"]

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


def advice(settings: Settings) -> str:
    """Advice on a rewrite that may change last bits; empty where there is none."""
    exact = compat.ops_are_deterministic() and settings.slices is None
    if not (exact and settings.cuts_ops):
        return ""
    return ' `slices="any"` cuts more products; their last bits may differ then.'


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
