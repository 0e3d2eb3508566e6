"""Variables that are used in pieces, as embeddings are: no op of a step copies them.

    Gather(v)   Read(v) ──> MatMul      Gather(v) ──^──> mark off ──^──> Read(v) ──> ...

An op that gathers rows of a variable, or writes some, marks it. From then on TensorFlow
copies it at each read, and makes each value that is written whole beside the old one:
of an embedding a step needs room for one more, or two. The mark protects who reads from
rows that change below him. But an op that writes rows sees by itself whether somebody
holds the old value, and a step's writes are ordered against its reads. So the mark is
taken off before each op that reads or writes all of it.

Left as they are, and counted so: variables that are used in pieces in loops or
branches, and those of which rows are gathered after all of it was read, as a gather
that finds a reader copies.

Sources: `DisableCopyOnReadOp`, `ResourceGatherOp` in resource_variable_ops.cc,
`EnsureSparseVariableAccess`, `PrepareToUpdateVariable` in training_op_helpers.h.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from lms.ir.graph import Op
from lms.tf import compat
from lms.tf.capture.loops import source_of
from lms.tf.capture.op_facts import READS_STATE

__all__ = ["copying", "with_copies_counted", "without_copies"]

_MARK_OFF, _END = "DisableCopyOnRead", "/lms_mark_off"
_GATHER = "ResourceGather"
_IN_PIECES = (_GATHER, "ResourceScatter", "ResourceSparseApply")
_WHOLE = ("ReadVariableOp", "Assign", "ResourceApply")


def _users(
    nodes: Sequence[compat.NodeDef], handles: Collection[str]
) -> dict[str, list[compat.NodeDef]]:
    """Ops that use variables which some use in pieces, by the handles' nodes."""
    sources = [(n, {source_of(name) for name in n.input}) for n in nodes]
    found = {name for n, read in sources if _is(n, _IN_PIECES) for name in read}
    return {
        handle: [node for node, read in sources if handle in read]
        for handle in sorted(found.intersection(handles))
    }


def _is(node: compat.NodeDef, kinds: str | tuple[str, ...]) -> bool:
    return node.op.startswith(kinds)


def without_copies(
    nodes: Sequence[compat.NodeDef], handles: Collection[str], fixed: Collection[str]
) -> list[compat.NodeDef]:
    """Nodes that take the mark off variables before all of them is read or written.

    Args:
        nodes: The step's nodes; they are not changed.
        handles: Names of the nodes of variables' handles.
        fixed: Names of nodes in loops and branches.
    """
    changed = {node.name: node for node in nodes}
    followers: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for name in node.input:
            followers[source_of(name)].append(node.name)
    for handle, users in _users(nodes, handles).items():
        gathers = {node.name for node in users if _is(node, _GATHER)}
        reads = [node.name for node in users if node.op in READS_STATE]
        inside = any(node.name in fixed for node in users)
        if inside or gathers & _needing(reads, followers):
            continue
        for name in [node.name for node in users if _is(node, _WHOLE)]:
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
) -> dict[str, str]:
    """Names of the ops that copy a variable, and of its handle's node."""
    return {
        node.name: handle
        for handle, users in _users(nodes, handles).items()
        for node in users
        if _is(node, _WHOLE) and not any(n.endswith(_END) for n in node.input)
    }


def with_copies_counted(ops: Sequence[Op], sizes: Mapping[str, int]) -> list[Op]:
    """Ops of which those that copy a variable take its size.

    Args:
        ops: The step's ops.
        sizes: Bytes of the variables, by the names of the ops that copy them.
    """

    def counted(op: Op) -> Op:
        if op.name not in sizes:
            return op
        if op.reads_state:
            return replace(op, persistent=False, reads_state=False)
        scratch = op.scratch + sizes[op.name]
        return replace(op, scratch=scratch, replaces_state=False)

    return [counted(op) for op in ops]
