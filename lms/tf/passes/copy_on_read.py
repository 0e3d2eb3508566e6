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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from lms.ir.graph import Op
from lms.tf import compat
from lms.tf.capture.ops import CONTROL_FLOW, READS_STATE
from lms.tf.nodes import Nodes, data_of, source_of
from lms.tf.passes import Pass, Step
from lms.tf.passes.compiled import OPEN_COMPILED

__all__ = ["COPY_OFF", "PIECES", "by_rows", "copying", "with_copies_counted"]

_MARK_OFF, _END = "DisableCopyOnRead", "/lms_mark_off"
_GATHER, _FUSED = "ResourceGather", "ResourceSparseApply"
PIECES = (_GATHER, _FUSED, "ResourceScatter", "ResourceStridedSlice")
_WHOLE = ("ReadVariableOp", "Assign", "ResourceApply")


def _users(
    nodes: Sequence[compat.NodeDef], handles: Collection[str]
) -> dict[str, list[compat.NodeDef]]:
    """Map handles' nodes of variables that some op uses by rows to all their users."""
    if not any(node.op.startswith(PIECES) for node in nodes):
        return {}
    behind = {name: {name} for name in handles}  # also in branches and loops
    users: dict[str, list[compat.NodeDef]] = defaultdict(list)
    for last in (False, False, True):  # a loop's back edge takes a second pass
        for node in nodes:
            read = (behind.get(source_of(n), ()) for n in data_of(node))
            found = set[str]().union(*read)
            if found and node.op in CONTROL_FLOW | {"Identity"}:
                behind.setdefault(node.name, set()).update(found)
            for handle in sorted(found) if last else ():
                users[handle].append(node)
    return {k: v for k, v in users.items() if any(n.op.startswith(PIECES) for n in v)}


def by_rows(nodes: Sequence[compat.NodeDef], handles: Collection[str]) -> set[str]:
    """Return the handles of variables that some op uses by rows."""
    return {*_users(nodes, handles)}


def _copied(graph: Nodes, step: Step) -> Iterator[tuple[str, compat.NodeDef, set[str]]]:
    """Yield (handle, whole read or write, gathers that must come before)."""
    later: dict[str, list[str]] = defaultdict(list)
    for end, names in step.ends.items():
        for name in names:
            later[name].append(end)
    for handle, users in _users([*graph], step.variables).items():
        gathers = {node.name for node in users if node.op.startswith(_GATHER)}
        reads = {node.name for node in users if node.op in READS_STATE}
        inside = any(node.name in step.fixed for node in users)
        fused = reads and any(node.op.startswith(_FUSED) for node in users)
        if inside or fused or gathers & _needing(graph, reads, later):
            continue
        for node in users:
            if _copies(node, handle):
                yield handle, node, gathers if node.name in reads else set()


def _needing(
    graph: Nodes, names: Collection[str], later: Mapping[str, Sequence[str]]
) -> set[str]:
    """Return the names of all nodes reachable from the given ones, these included."""
    found, pending = set(names), [*names]
    while pending:
        name = pending.pop()
        followers = (node.name for node in graph.followers(name))
        new = {*followers, *later.get(name, ())} - found
        found |= new
        pending += new
    return found


def _switch_off(
    graph: Nodes, _: Step, place: tuple[str, compat.NodeDef, set[str]]
) -> None:
    handle, node, before = place
    before = before | {source_of(name) for name in node.input if graph.get(name)}
    inputs = [handle, *(f"^{name}" for name in sorted(before))]
    mark = f"{node.name}/{handle}{_END}"
    graph.make(mark, _MARK_OFF, inputs, node.device)
    graph.wait(node, [mark])


COPY_OFF = Pass(find=_copied, change=_switch_off, requires=(OPEN_COMPILED,))


def _copies(node: compat.NodeDef, handle: str) -> bool:
    """Tell whether a user of a variable copies the variable as a whole."""
    mark = f"/{handle}{_END}"
    is_off = any(name.endswith(mark) for name in node.input)
    return node.op.startswith(_WHOLE) and not is_off


def copying(
    nodes: Sequence[compat.NodeDef], handles: Collection[str]
) -> dict[str, list[str]]:
    """Map ops that copy variables to the names of the variables' handles' nodes."""
    found: dict[str, list[str]] = defaultdict(list)
    for handle, users in _users(nodes, handles).items():
        for node in users:
            if _copies(node, handle):
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
