"""Writes to variables: which ops write.

Any op with a variable's handle may write the variable, unless the op is known to only
read. A collective counts as a write that cannot be undone, since other workers read its
numbers. An op in a loop or branch cannot be ordered. The op that makes the branch's
predicate, or the loop's first value, can, and stands for the writes inside.

Known weaknesses: other side effects (printing, a data set's or table's state, random
state inside a kernel) happen again when a step is repeated.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from lms.ir.graph import GraphView, Op, op_of
from lms.tf.capture.ops import ALIAS, COLLECTIVE, READS_VARIABLES

__all__ = ["with_writes"]

_GATED = ("Switch", "RefSwitch", "_SwitchN", "Enter", "RefEnter")


def with_writes(graph: GraphView, handles: Sequence[str]) -> GraphView:
    """Return the graph with `Op.writes` filled in, by the names of handles."""
    known = {name: name for name in handles}
    writes: dict[str, dict[str, None]] = defaultdict(dict)
    for op in graph.ops:
        if op.alias is not None or op.type in READS_VARIABLES:
            continue
        roots = [graph.roots[name] for name in op.inputs]
        found = {known[name]: None for name in roots if name in known}
        if op.persistent and op.type in ALIAS:  # on another device, passes on a handle
            known |= {t.name: name for name in found for t in op.outputs}
            continue
        if op.type in COLLECTIVE:  # other workers take part: never recomputed
            found[op.name] = None
        gate = _gate(graph, op) if op.fixed and found else None
        if found:
            writes[gate or op.name].update(found)
    ops = (
        replace(op, writes=tuple(writes[op.name])) if op.name in writes else op
        for op in graph.ops
    )
    return GraphView(ops=tuple(ops), results=graph.results)


def _gate(graph: GraphView, inner: Op) -> str | None:
    """Return the op outside of loops and branches that a write inside must wait for.

    The search back stops at a Merge of branches, which waits for one of its inputs.
    """
    pending, seen = [inner], {inner.name}
    while pending:
        op = pending.pop()
        names = [*(op_of(name) for name in op.inputs), *op.controls]
        if op.type in _GATED:
            names = [op_of(op.inputs[-1])]
        for source in (graph.by_name[name] for name in names):
            if op.type in _GATED and not (source.fixed or source.persistent):
                return source.name
            merges = "Merge" in source.type and len(source.inputs) > 1
            if source.fixed and source.name not in seen and not merges:
                seen.add(source.name)
                pending.append(source)
    return None
