"""Lists of loops that take no room on the card: their elements lie on the host.

What each round leaves to the gradient is copied to pinned memory as it is made, and
back to the card in the round that takes it out:

    made ──────────> TensorListPushBack ··> TensorListPopBack ──────────> read
    made ──> copy ──> TensorListPushBack ··> TensorListPopBack ──> copy ──> read

TensorFlow's swap ops copy. Attributes of the nodes say that the element is in the
host's memory, so that TensorFlow hands it on as it is. A loop in which one round begins
when the one before has ended holds no more than one round's elements on the card.

Known weaknesses: a copy to the card begins in the round that waits for it. Elements
below 4 KiB, and lists that something else looks into, stay on the card.

Sources: `_input_hostmem` in memory_types.cc, list_ops.cc, gpu_swapping_kernels.cc.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lms.tf import compat
from lms.tf.capture.loops import source_of
from lms.tf.capture.op_facts import ALIAS
from lms.units import KIB, Bytes

__all__ = ["COPY_OUT", "HostLists", "movable_lists", "with_lists_on_host"]

COPY_OUT, _COPY_IN = "_CopyFromGpuToHost", "_CopyFromHostToGpu"

# Smaller elements are not worth the way.
_LEAST = 4 * KIB

_PUSHES, _POPS = "TensorListPushBack", "TensorListPopBack"
_HAND_ON = ALIAS | {_PUSHES, _POPS, "TensorListLength"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLists:
    """Lists that hold the same elements, and move together.

    Args:
        pushes: Names of the ops that put elements in.
        pops: Names of those that take them out.
        size: Bytes of all elements.
    """

    pushes: tuple[str, ...]
    pops: tuple[str, ...]
    size: Bytes


def movable_lists(
    nodes: Sequence[compat.NodeDef],
    entries: Mapping[str, compat.NodeDef],
    element_of: Callable[[compat.NodeDef], tuple[str, Bytes] | None],
    size_of: Callable[[compat.NodeDef], Bytes],
) -> tuple[HostLists, ...]:
    """Lists that may move to the host, the largest first.

    Args:
        nodes: The step's nodes.
        entries: For each op that puts something into a list, the list's Enter.
        element_of: The tensor that such an op's element is, and its bytes.
        size_of: Bytes of all that it puts in.
    """
    if not compat.has_op(_COPY_IN):
        return ()
    readers: dict[str, list[compat.NodeDef]] = defaultdict(list)
    for node in nodes:
        for name in node.input:
            readers[name.removesuffix(":0")].append(node)
    held: dict[str, list[compat.NodeDef]] = defaultdict(list)
    kept: set[str] = set()
    for node in nodes:
        element = element_of(node) if node.name in entries else None
        if element is not None:
            held[element[0]].append(node)
            if element[1] < _LEAST:
                kept.add(element[0])
    found: list[HostLists] = []
    for name in held.keys() - kept:
        pushes = held[name]
        used = [list(_users(entries[push.name], readers)) for push in pushes]
        if all(map(_is_known, pushes, used)):
            pops = (n.name for one in used for n in one if n.op == _POPS)
            found.append(
                HostLists(
                    pushes=tuple(push.name for push in pushes),
                    pops=tuple(dict.fromkeys(pops)),
                    size=max(map(size_of, pushes)),
                )
            )
    return tuple(sorted(found, key=lambda lists: (-lists.size, lists.pushes)))


def _users(
    enter: compat.NodeDef, readers: Mapping[str, Sequence[compat.NodeDef]]
) -> Iterator[compat.NodeDef]:
    """All ops that get a list, or would."""
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
    """Tell whether elements are put in by one op, and only taken out."""
    pushes = [node.name for node in users if node.op == _PUSHES]
    return pushes == [push.name] and all(node.op in _HAND_ON for node in users)


def with_lists_on_host(
    nodes: Sequence[compat.NodeDef], lists: Collection[HostLists]
) -> list[compat.NodeDef]:
    """Nodes in which lists hold elements in the host's memory.

    Args:
        nodes: The step's nodes; they are not changed.
        lists: Those of them that move.
    """
    pushes = {name for one in lists for name in one.pushes}
    pops = {name for one in lists for name in one.pops}
    copies: dict[str, compat.NodeDef] = {}
    changed: list[compat.NodeDef] = []
    for node in nodes:
        new = compat.NodeDef()
        new.CopyFrom(node)
        if node.name in pushes:
            new.attr["_input_hostmem"].list.i.append(1)
            made = node.input[1]
            copy = copies.setdefault(made, _copy(COPY_OUT, made, node, "lms_out"))
            new.input[1] = copy.name
        if node.name in pops:
            new.attr["_output_hostmem"].list.i.append(1)
            made = f"{node.name}:1"
            copies[made] = _copy(_COPY_IN, made, node, "lms_in")
        for i, name in enumerate(node.input):
            if name[0] != "^" and name.endswith(":1") and source_of(name) in pops:
                new.input[i] = f"{source_of(name)}/lms_in"
        changed.append(new)
    return [*changed, *copies.values()]


def _copy(kind: str, source: str, node: compat.NodeDef, name: str) -> compat.NodeDef:
    copy = compat.NodeDef(name=f"{node.name}/{name}", op=kind, device=node.device)
    copy.input.append(source)
    copy.attr["T"].type = node.attr["element_dtype"].type
    return copy
