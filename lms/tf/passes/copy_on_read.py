"""Switch off copy-on-read of variables that ops use by rows, such as embeddings.

    Gather(v)   Read(v) ──> MatMul      Gather(v) ──^──> mode off ──^──> Read(v) ──> ...

An op that gathers or writes rows of a variable switches its copy-on-read mode on. From
then on TensorFlow copies the variable at each read, and allocates each newly written
value beside the old one: a step needs memory for one or two copies more. The mode keeps
a value that was read from changing by rows. But an op that writes rows checks for other
holders of the old value itself, and a step's writes are ordered against its reads. So
the mode is switched off before each op that reads or writes all of the variable.

Left in this mode, and counted so: variables that loops or branches use; variables whose
rows are gathered after a read, as a gather that finds a reader copies; and variables
that fused optimizers write by rows, which without memory to copy wait for their own
lock.

Sources: `DisableCopyOnReadOp`, `ResourceGatherOp` in resource_variable_ops.cc,
`EnsureSparseVariableAccess`, `PrepareToUpdateVariable` in training_op_helpers.h.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from lms.ir.graph import Op
from lms.tf import compat
from lms.tf.capture.loops import control_flow, loop_ends
from lms.tf.capture.op_facts import CONTROL_FLOW, READS_STATE
from lms.tf.nodes import source_of

__all__ = ["PIECES", "copying", "with_copies_counted", "without_copies"]

_MARK_OFF, _END = "DisableCopyOnRead", "/lms_mark_off"
_GATHER, _FUSED = "ResourceGather", "ResourceSparseApply"
PIECES = (_GATHER, _FUSED, "ResourceScatter", "ResourceStridedSlice")
_WHOLE = ("ReadVariableOp", "Assign", "ResourceApply")


def _users(
    nodes: Sequence[compat.NodeDef], handles: Collection[str]
) -> dict[str, list[compat.NodeDef]]:
    """Map handles' nodes of variables that some op uses by rows to all their users."""
    behind = {name: {name} for name in handles}  # also in branches and loops
    users: dict[str, list[compat.NodeDef]] = defaultdict(list)
    for last in (False, False, True):  # a loop's back edge takes a second pass
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
    """Return nodes that switch copy-on-read off before whole reads and writes.

    Args:
        nodes: The step's nodes; they are not changed.
        handles: Names of the nodes of variables' handles.
        ordered: The step's original nodes in order, which tell loops and branches.
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
            node = changed[name]  # may already wait for another variable's mode
            before = {source_of(n) for n in node.input} & changed.keys()
            before |= gathers if name in reads else set()
            inputs = [handle, *(f"^{n}" for n in sorted(before))]
            mark = f"{name}/{handle}{_END}"
            changed[mark] = compat.made_node(mark, _MARK_OFF, inputs, node.device)
            changed[name] = compat.copied(node, [*node.input, f"^{mark}"])
            for source in before:  # later edges must close no cycle
                followers[source].append(name)
    return [*changed.values()]


def _needing(names: Sequence[str], followers: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the names of all nodes reachable from the given ones, these included."""
    found, pending = set(names), [*names]
    while pending:
        new = set(followers.get(pending.pop(), ())) - found
        found |= new
        pending += new
    return found


def copying(
    nodes: Sequence[compat.NodeDef], handles: Collection[str]
) -> dict[str, list[str]]:
    """Map ops that copy variables to the names of the variables' handles' nodes."""
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
    """Add the bytes of copied variables, by op name, to the ops that copy them."""

    def counted(op: Op) -> Op:
        if op.name not in sizes:
            return op
        if op.reads_state:
            return replace(op, persistent=False, reads_state=False)
        scratch = op.scratch + sizes[op.name]
        return replace(op, scratch=scratch, replaces_state=False)

    return [counted(op) for op in ops]
