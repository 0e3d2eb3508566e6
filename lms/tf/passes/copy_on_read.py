"""Variables that are used in pieces, as embeddings are: no op of a step copies them.

    Gather(v)   Read(v) ──> MatMul      Gather(v) ──^──> mark off ──^──> Read(v) ──> ...

An op that gathers rows of a variable, or writes some, marks it. From then on TensorFlow
copies it at each read, and makes each value that is written whole beside the old one:
a step needs room for one more, or two. The mark is there so that no rows change of a
value that somebody has read. But an op that writes rows sees by itself whether somebody
holds the old value, and a step's writes are ordered against its reads. So the mark is
taken off before each op that reads or writes all of it.

Left as they are, and counted so: variables that loops or branches use; those of which
rows are gathered after all was read, as a gather that finds a reader copies; and those
that fused optimizers write in rows: without room to copy they wait for their own lock.

Sources: `DisableCopyOnReadOp`, `ResourceGatherOp` in resource_variable_ops.cc,
`EnsureSparseVariableAccess`, `PrepareToUpdateVariable` in training_op_helpers.h.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from lms.ir.graph import Op
from lms.tf import compat
from lms.tf.capture.loops import control_flow, loop_ends, source_of
from lms.tf.capture.op_facts import CONTROL_FLOW, READS_STATE

__all__ = ["PIECES", "copying", "with_copies_counted", "without_copies"]

_MARK_OFF, _END = "DisableCopyOnRead", "/lms_mark_off"
_GATHER, _FUSED = "ResourceGather", "ResourceSparseApply"
PIECES = (_GATHER, _FUSED, "ResourceScatter", "ResourceStridedSlice")
_WHOLE = ("ReadVariableOp", "Assign", "ResourceApply")


def _users(
    nodes: Sequence[compat.NodeDef], handles: Collection[str]
) -> dict[str, list[compat.NodeDef]]:
    """The ops of each variable that some op uses in pieces, by its handle's node."""
    behind = {name: {name} for name in handles}  # into branches and loops too
    users: dict[str, list[compat.NodeDef]] = defaultdict(list)
    for last in (False, False, True):  # loops go back once
        for node in nodes:
            read = (behind.get(source_of(n), ()) for n in node.input if n[0] != "^")
            found = set[str]().union(*read)
            if found and node.op in CONTROL_FLOW | {"Identity"}:
                behind.setdefault(node.name, set()).update(found)
            for handle in sorted(found) if last else ():
                users[handle].append(node)
    return {k: v for k, v in users.items() if any(n.op.startswith(PIECES) for n in v)}


def without_copies(
    nodes: Sequence[compat.NodeDef],
    handles: Collection[str],
    ordered: Sequence[compat.NodeDef],
) -> list[compat.NodeDef]:
    """Nodes that take the mark off variables before all of them is read or written.

    Args:
        nodes: The step's nodes; they are not changed.
        handles: Names of the nodes of variables' handles.
        ordered: Those that it began with, in order: they have its loops and branches.
    """
    fixed, changed = control_flow(ordered), {node.name: node for node in nodes}
    followers: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for name in node.input:
            followers[source_of(name)].append(node.name)
    for end, names in loop_ends(ordered).items():
        for name in names:
            followers[name].append(end)
    for handle, users in _users(nodes, handles).items():
        gathers = {node.name for node in users if node.op.startswith(_GATHER)}
        reads = [node.name for node in users if node.op in READS_STATE]
        inside = any(node.name in fixed for node in users)
        fused = reads and any(node.op.startswith(_FUSED) for node in users)
        if inside or fused or gathers & _needing(reads, followers):
            continue
        for name in [node.name for node in users if node.op.startswith(_WHOLE)]:
            node = changed[name]  # of two variables it may have a mark already
            before = {source_of(n) for n in node.input} & changed.keys()
            before |= gathers if name in reads else set()
            inputs = [handle, *(f"^{n}" for n in sorted(before))]
            mark = f"{name}/{handle}{_END}"
            changed[mark] = compat.made_node(mark, _MARK_OFF, inputs, node.device)
            changed[name] = compat.copied(node, [*node.input, f"^{mark}"])
            for source in before:  # what comes later must close no circle
                followers[source].append(name)
    return [*changed.values()]


def _needing(names: Sequence[str], followers: Mapping[str, Sequence[str]]) -> set[str]:
    """Names of the nodes that need any of the named ones."""
    found, pending = set(names), [*names]
    while pending:
        new = set(followers.get(pending.pop(), ())) - found
        found |= new
        pending += new
    return found


def copying(
    nodes: Sequence[compat.NodeDef], handles: Collection[str]
) -> dict[str, list[str]]:
    """Names of the ops that copy variables, and of these variables' handles' nodes."""
    found: dict[str, list[str]] = defaultdict(list)
    for handle, users in _users(nodes, handles).items():
        mark = f"/{handle}{_END}"
        for node in users:
            if node.op.startswith(_WHOLE) and not any(
                n.endswith(mark) for n in node.input
            ):
                found[node.name].append(handle)
    return found


def with_copies_counted(ops: Sequence[Op], sizes: Mapping[str, int]) -> list[Op]:
    """Ops of which those that copy variables take `sizes` bytes, by their names."""

    def counted(op: Op) -> Op:
        if op.name not in sizes:
            return op
        if op.reads_state:
            return replace(op, persistent=False, reads_state=False)
        scratch = op.scratch + sizes[op.name]
        return replace(op, scratch=scratch, replaces_state=False)

    return [counted(op) for op in ops]
