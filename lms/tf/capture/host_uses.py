"""How a step uses a variable: which value each read reads, and what it writes.

    read ──> write ──> read ──> write            values 0, 1 and 2

A variable can live on the host only if it is known of each read whether it comes before
or after each write.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import tensorflow as tf

from lms.ir.graph import GraphView, HostRows, Op
from lms.ir.host_state import readers_of
from lms.tf import compat
from lms.tf.capture.graph_edit import GraphEdit, ancestors_among

__all__ = ["WRITES", "UsedVariable", "gathers_known_rows", "uses_of"]

WRITES = {
    "AssignVariableOp": None,
    "AssignAddVariableOp": "AddV2",
    "AssignSubVariableOp": "Sub",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedVariable:
    """How a step uses a variable.

    Args:
        handle: Name of its handle.
        value: Its type and shape.
        reads: The reads of each value: the one before the step, and after each write.
        gathers: Reads of rows, before the first write.
        writes: The writes, in their order.
    """

    handle: str
    value: tf.TensorSpec
    reads: tuple[tuple[Op, ...], ...]
    gathers: tuple[Op, ...]
    writes: tuple[Op, ...]

    @property
    def rows(self) -> HostRows:
        """All of it."""
        end = int(self.value.shape[0] or 1) if self.value.shape.rank else 1
        return HostRows(variable=self.handle, first=0, end=end)


def uses_of(
    edit: GraphEdit, graph: GraphView, values: Mapping[str, Any]
) -> list[tuple[str, UsedVariable | None]]:
    """How each variable is used; None if it cannot live on the host."""
    users: dict[str, list[Op]] = defaultdict(list)
    for op in edit.ops.values():
        for name in dict.fromkeys(op.inputs):
            if name in values:
                users[name].append(op)
    names = (op.name for ops in users.values() for op in ops)
    before = ancestors_among(graph, names)
    return [
        (h, _used(edit, graph, h, spec, users[h], before)) for h, spec in values.items()
    ]


def _used(
    edit: GraphEdit,
    graph: GraphView,
    handle: str,
    value: tf.TensorSpec,
    users: Sequence[Op],
    before: Mapping[str, set[str]],
) -> UsedVariable | None:
    reads = [op for op in users if op.type == "ReadVariableOp"]
    gathers = [op for op in users if op.type == "ResourceGather"]
    writes = [op for op in users if op.type in WRITES]
    others = len(users) - len(reads) - len(gathers) - len(writes)
    if (
        others
        or any(op.fixed for op in users)
        or not all(map(gathers_known_rows, gathers))
    ):
        return None
    if any(compat.attribute(edit.nodes[op.name], "batch_dims").i for op in gathers):
        return None
    if any(graph.by_name[n].fixed for op in reads for n in readers_of(graph, op)):
        return None
    writes.sort(key=lambda op: sum(other.name in before[op.name] for other in writes))
    if not all(first.name in before[then.name] for first, then in pairwise(writes)):
        return None
    versions: list[list[Op]] = [[] for _ in range(len(writes) + 1)]
    for read in [*reads, *gathers]:
        version = sum(write.name in before[read.name] for write in writes)
        if not all(read.name in before[write.name] for write in writes[version:]):
            return None  # nobody says which value it reads
        if read.type == "ResourceGather" and version:
            return None
        if read.type == "ReadVariableOp":
            versions[version].append(read)
    return UsedVariable(
        handle=handle,
        value=value,
        reads=tuple(map(tuple, versions)),
        gathers=tuple(gathers),
        writes=tuple(writes),
    )


def gathers_known_rows(gather: Op) -> bool:
    """Whether rows are gathered whose number is known."""
    return not gather.varies and gather.outputs[0].size > 0
