"""Offload lists of loops: their elements lie in the host's memory.

A loop's lists hold tensors of each round for the gradient. An element is copied to
pinned memory as soon as it is made. The round that takes it out copies it back to the
card, once the round's loop variables are there:

    made ──────────> TensorListPushBack ··> TensorListPopBack ──────────> read
    made ──> copy ──> TensorListPushBack ··> TensorListPopBack ──> copy ──> read

TensorFlow's swap ops copy. Attributes of the nodes say that the element is in the
host's memory, so that TensorFlow passes it on uncopied. A loop that runs one round at a
time holds at most one round's elements on the card.

Known weaknesses: a copy to the card begins in the round that waits for it. Elements
below 4 KiB, and lists that other ops read, stay on the card.

Sources: `_input_hostmem` in memory_types.cc, list_ops.cc, gpu_swapping_kernels.cc.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lms.tf import compat
from lms.tf.capture.op_facts import ALIAS
from lms.tf.nodes import source_of
from lms.units import Bytes

__all__ = ["COPY_OUT", "HostLists", "movable_lists", "with_lists_on_host"]

COPY_OUT, _COPY_IN = "_CopyFromGpuToHost", "_CopyFromHostToGpu"

_PUSHES, _POPS = "TensorListPushBack", "TensorListPopBack"
_HAND_ON = ALIAS | {_PUSHES, _POPS, "TensorListLength"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLists:
    """Lists that share their elements and move together.

    Args:
        pushes: Names of the ops that put elements in.
        pops: Names of the ops that take elements out, each with the names of the Merge
            ops that begin its round.
        size: Bytes of all elements.
    """

    pushes: tuple[str, ...]
    pops: tuple[tuple[str, tuple[str, ...]], ...]
    size: Bytes


def movable_lists(
    nodes: Sequence[compat.NodeDef],
    entries: Mapping[str, compat.NodeDef],
    element_of: Callable[[compat.NodeDef], str | None],
    size_of: Callable[[compat.NodeDef], Bytes],
    frames: Mapping[str, tuple[str, ...]],
) -> tuple[HostLists, ...]:
    """Find lists that may move to the host.

    Args:
        nodes: The step's nodes.
        entries: For each op that puts elements into a list, the list's Enter.
        element_of: Gives the tensor that such an op puts in; None if it must stay.
        size_of: Gives the bytes of all elements that such an op puts in.
        frames: The loops around each node's outputs.
    """
    if not compat.has_op(_COPY_IN):
        return ()
    readers: dict[str, list[compat.NodeDef]] = defaultdict(list)
    for node in nodes:
        for name in node.input:
            readers[name.removesuffix(":0")].append(node)
    held: dict[str, list[compat.NodeDef]] = defaultdict(list)
    for node in nodes:
        name = element_of(node) if node.op == _PUSHES and node.name in entries else None
        if name is not None:
            held[name].append(node)
    begun = _begun(nodes, readers, frames)
    found: list[HostLists] = []
    for pushes in held.values():
        used = [list(_users(entries[push.name], readers)) for push in pushes]
        if all(map(_is_known, pushes, used)):
            pops = dict.fromkeys(n.name for one in used for n in one if n.op == _POPS)
            found.append(
                HostLists(
                    pushes=tuple(push.name for push in pushes),
                    pops=tuple((name, tuple(begun[frames[name]])) for name in pops),
                    size=max(map(size_of, pushes)),
                )
            )
    return tuple(found)


def _begun(
    nodes: Sequence[compat.NodeDef],
    readers: Mapping[str, Sequence[compat.NodeDef]],
    frames: Mapping[str, tuple[str, ...]],
) -> dict[tuple[str, ...], list[str]]:
    """Map each loop to the Merge ops that begin its rounds."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node in nodes:
        for merge in readers[node.name] if node.op == "NextIteration" else ():
            found[frames[merge.name]].append(merge.name)
    return found


def _users(
    enter: compat.NodeDef, readers: Mapping[str, Sequence[compat.NodeDef]]
) -> Iterator[compat.NodeDef]:
    """Yield all ops that the list reaches from its Enter on."""
    seen, pending = {enter.name}, [enter]
    while pending:
        node = pending.pop()
        outputs = ("", ":1") if node.op == "Switch" else ("",)
        for reader in (r for end in outputs for r in readers[f"{node.name}{end}"]):
            if reader.name not in seen:
                seen.add(reader.name)
                yield reader
                if reader.op in _HAND_ON and reader.op != "TensorListLength":
                    pending.append(reader)


def _is_known(push: compat.NodeDef, users: Sequence[compat.NodeDef]) -> bool:
    """Tell whether `push` alone fills the list, and all others only take elements."""
    pushes = [node.name for node in users if node.op == _PUSHES]
    return pushes == [push.name] and all(node.op in _HAND_ON for node in users)


def with_lists_on_host(
    nodes: Sequence[compat.NodeDef], lists: Collection[HostLists]
) -> list[compat.NodeDef]:
    """Return nodes in which the given lists hold elements in the host's memory.

    Args:
        nodes: The step's nodes; they are not changed.
        lists: The lists that move.
    """
    pushes = {name for one in lists for name in one.pushes}
    pops = dict(pop for one in lists for pop in one.pops)
    copies: dict[str, compat.NodeDef] = {}
    changed: list[compat.NodeDef] = []
    for node in nodes:
        new = compat.copied(node)
        if node.name in pushes:
            new.attr["_input_hostmem"].list.i.append(1)
            made = node.input[1]
            copy = copies.setdefault(made, _copy(COPY_OUT, made, node, "lms_out"))
            new.input[1] = copy.name
        if node.name in pops:
            new.attr["_output_hostmem"].list.i.append(1)
            made = f"{node.name}:1"
            copies[made] = _copy(_COPY_IN, made, node, "lms_in")
            copies[made].input.extend(f"^{name}" for name in pops[node.name])
        for i, name in enumerate(node.input):
            if name[0] != "^" and name.endswith(":1") and source_of(name) in pops:
                new.input[i] = f"{source_of(name)}/lms_in"
        changed.append(new)
    return [*changed, *copies.values()]


def _copy(kind: str, source: str, node: compat.NodeDef, name: str) -> compat.NodeDef:
    name, dtype = f"{node.name}/{name}", node.attr["element_dtype"].type
    return compat.made_node(name, kind, [source], node.device, T=dtype)
