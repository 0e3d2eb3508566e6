"""State on the host: a step reads it before it writes it.

    read rows ──> ops that read the copy ──> write rows

A copy may be made again, from the host, as long as somebody reads it. So nobody may
write the rows before the last of those has ended, whatever order the runtime takes:
not the plan's order alone must say so, but the graph.
"""

from collections import defaultdict
from collections.abc import Mapping

from lms.errors import PlanError
from lms.ir.graph import GraphView, Op, op_of

__all__ = [
    "check_host_state",
    "has_host_state",
    "read_bytes",
    "readers_of",
    "sent_bytes",
    "written_bytes",
]


def has_host_state(graph: GraphView) -> bool:
    """Whether a step reads or writes variables that live on the host."""
    return any(op.host_read or op.written_rows for op in graph.ops)


def written_bytes(graph: GraphView) -> int:
    """Bytes on the host that a step writes: so much is kept to undo it."""
    return sum(
        op.host_update.size * len(op.host_update.written)
        if op.host_update is not None
        else _sent(graph, op)
        for op in graph.ops
    )


def sent_bytes(graph: GraphView) -> int:
    """Bytes that a step copies to the host for its state."""
    return sum(_sent(graph, op) for op in graph.ops)


def _sent(graph: GraphView, op: Op) -> int:
    sizes = (graph.tensors[name].size for name in op.inputs)
    if op.host_update is not None:
        return sum(size for size in sizes if size >= op.host_update.size)
    return 0 if op.host_write is None else next(sizes)


def read_bytes(graph: GraphView) -> int:
    """Bytes that the ops of a step read from the host; each may be copied again."""
    reads = (op for op in graph.ops if op.host_read is not None)
    return sum(tensor.size for op in reads for tensor in op.outputs)


def check_host_state(graph: GraphView, position: Mapping[str, int]) -> None:
    """Check that rows on the host are written after all have read them.

    Args:
        graph: The graph, in any execution order.
        position: The position of each op in the plan's order.

    Raises:
        PlanError: Names a write and who still reads what it writes over.
    """
    reads: dict[str, list[Op]] = defaultdict(list)
    for op in graph.ops:
        if op.host_read is not None:
            reads[op.host_read.variable].append(op)
    for write in graph.ops:
        for rows in write.written_rows:
            for read in reads[rows.variable]:
                assert read.host_read is not None
                if read.host_read.overlap(rows):
                    _check_pair(graph, read, write, position)


def _check_pair(
    graph: GraphView, read: Op, write: Op, position: Mapping[str, int]
) -> None:
    waits = {*write.controls, *map(op_of, write.inputs)}
    after = [name for name in readers_of(graph, read) if name not in waits]
    if after:
        before = _ancestors(graph, write)
        after = [name for name in after if name not in before and name != write.name]
    late = [name for name in after if position[name] < position[write.name]]
    if after:
        how = "not made to come before it" if late else "after it"
        raise PlanError(
            f"{write.name!r} must write the host's {write.written_rows[0]} when all "
            f"have read them, got {after[0]!r}, which reads {read.name!r}, {how}"
        )


def readers_of(graph: GraphView, read: Op) -> dict[str, None]:
    """The op itself and those that read what it makes, through any alias."""
    found = {read.name: None}
    pending = [tensor.name for tensor in read.outputs]
    while pending:
        for op in graph.consumers[pending.pop()]:
            if op.alias is None or op.fixed:
                found[op.name] = None
            else:
                pending.extend(tensor.name for tensor in op.outputs)
    return found


def _ancestors(graph: GraphView, op: Op) -> set[str]:
    found: set[str] = set()
    pending = [op]
    while pending:
        current = pending.pop()
        for name in {*current.controls, *map(op_of, current.inputs)} - found:
            found.add(name)
            pending.append(graph.by_name[name])
    return found
