"""Lists of loops: the bytes that they hold, and their way to the host's memory.

A loop's gradient needs tensors of each round. TensorFlow keeps them in lists, which are
variants without a size of their own. Other lists are a loop's results, round by round.

    list ─> Enter ─> Merge ─> Switch ─> TensorListPushBack ─> NextIteration
            └ holds rounds x bytes of an element from here to the list's last reader

A list's `Enter` holds the bytes, as Grappler lets lists that begin empty share one op.
A list made of a tensor copies the tensor. An op that takes an element out shares it.

Each element is counted once: a tensor may be put into several lists, and a loop
variable is a tensor of the round before. Tensors that live anyway (variables, loop
invariants, elements of other lists) count 0 bytes. Elements of a list made of a tensor
count in the list that they are put into later. A list of zeros like another list has
elements of its own.

To offload a list, TensorFlow's swap op copies an element to pinned memory as soon as
the element is made. The round that takes the element out copies it back to the card,
once the round's loop variables are there:

    made ──────────> TensorListPushBack ··> TensorListPopBack ──────────> read
    made ──> copy ──> TensorListPushBack ··> TensorListPopBack ──> copy ──> read

Attributes of the nodes say that the element is in the host's memory, so that TensorFlow
passes it on uncopied. A loop that runs one round at a time holds at most one round's
elements on the card.

Known weaknesses: lists that are filled outside of loops count 0 bytes. A copy to the
card begins in the round that waits for it. Elements below 4 KiB, and lists that other
ops read, stay on the card.

Sources: list_ops.cc, list_kernels.h, while_v2.py, gpu_swapping_kernels.cc, and
`_input_hostmem` in memory_types.cc of TensorFlow.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from lms.simulation.allocator import rounded_up
from lms.tf import compat
from lms.tf.capture.bound_values import Values, known_shape
from lms.tf.capture.loops import Trips, frames_around
from lms.tf.capture.ops import ALIAS, PERSISTENT
from lms.tf.nodes import (
    COPY_IN,
    COPY_OUT,
    Nodes,
    bytes_of,
    data_of,
    index_of,
    source_of,
)
from lms.tf.passes import Pass, Step
from lms.units import KIB, Bytes

__all__ = ["LISTS_ON_HOST", "HostLists", "ListFinder", "Lists"]

# Elements below 4 KiB stay on the card: moving them frees too little.
_LEAST = 4 * KIB

_PUSHES, _POPS = "TensorListPushBack", "TensorListPopBack"
_FILLS = {_PUSHES: 1, "TensorListSetItem": 2}  # index of the element
_TAKES = frozenset({_POPS, "TensorListGetItem"})
_MOVED = ALIAS | {_PUSHES, _POPS}  # ops that a list on the host may pass
_PASSES_ON = ALIAS | _FILLS.keys() | _TAKES
_HANDS_ON = _PASSES_ON | {"AddN", "Add", "AddV2"}

# Attributes of inputs and outputs that lie in the host's memory.
_IN_HOST, _OUT_HOST = "_input_hostmem", "_output_hostmem"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """Lists of a step.

    Args:
        sizes: Bytes that a node's first output holds, by the node's name.
        shared: Names of the nodes whose outputs share the list that they read.
        unknown: Names of the loops whose lists have an unknown number of elements.
        movable: Lists that may move to the host.
    """

    sizes: Mapping[str, int]
    shared: frozenset[str]
    unknown: tuple[str, ...]
    movable: tuple[HostLists, ...] = ()


class ListFinder:
    """Finds the lists of a step and the bytes that they hold.

    Args:
        ordered: Nodes after their inputs, the edge back to Merge left out.
        specs: Types and shapes of the nodes' outputs.
        guesses: Whether trip counts may rest on upper bounds of shapes.
    """

    def __init__(
        self,
        ordered: Sequence[compat.NodeDef],
        specs: Mapping[str, Sequence[tf.TensorSpec]],
        *,
        guesses: bool,
    ) -> None:
        self._ordered = ordered
        self._specs = specs
        self._nodes = {node.name: node for node in ordered}
        self._frames = frames_around(ordered)
        values = Values(self._nodes, lambda name: known_shape(self._spec(name)))
        sizes = values.of if guesses else None
        self._trips = Trips(self._nodes, self._frames, sizes)
        self._counted: set[str] = set()
        self._unknown: dict[str, None] = {}

    def found(self) -> Lists:
        """Find all lists, first lists that ops push to, as these live longer."""
        made = {
            node.name: self._bytes(node.input[0])
            for node in self._ordered
            if node.op == "TensorListFromTensor"
        }
        sizes = dict(made)
        entries = self._entries()
        for kind in _FILLS:
            for node in self._ordered:
                enter = entries.get(node.name)
                if node.op == kind and enter is not None:
                    held = self._held(node, enter)
                    held += sizes.pop(self._emptied(node), 0)
                    sizes[enter.name] = sizes.get(enter.name, 0) + held
        sizes |= self._zeros(entries, made)
        shared = {
            node.name
            for node in self._ordered
            if node.op in _FILLS or (node.op in _TAKES and self._frames[node.name])
        }
        return Lists(
            sizes=sizes,
            shared=frozenset(shared),
            unknown=tuple(self._unknown),
            movable=self._movable(entries) if compat.has_op(COPY_IN) else (),
        )

    def _movable(self, entries: Mapping[str, compat.NodeDef]) -> tuple[HostLists, ...]:
        """Find lists that may move to the host; `entries` are as of `_entries`."""
        readers: dict[str, list[compat.NodeDef]] = defaultdict(list)
        held: dict[str, list[compat.NodeDef]] = defaultdict(list)
        begun: dict[tuple[str, ...], list[str]] = defaultdict(list)  # a round's Merges
        for node in self._ordered:
            for name in data_of(node):
                readers[name.removesuffix(":0")].append(node)
            if node.op == _PUSHES and node.name in entries:
                held[self._element(node) or ""].append(node)
        held.pop("", None)
        for node in self._ordered:
            for merge in readers[node.name] if node.op == "NextIteration" else ():
                begun[self._frames[merge.name]].append(merge.name)
        found: list[HostLists] = []
        for pushes in held.values():
            used = [list(_users(entries[push.name], readers)) for push in pushes]
            if all(map(_is_known, pushes, used)):
                pops = dict.fromkeys(n.name for u in used for n in u if n.op == _POPS)
                found.append(
                    HostLists(
                        pushes=tuple(push.name for push in pushes),
                        pops=tuple((n, tuple(begun[self._frames[n]])) for n in pops),
                        size=max(self._filled(p, entries[p.name]) for p in pushes),
                    )
                )
        return tuple(found)

    def _element(self, fill: compat.NodeDef) -> str | None:
        """Return the tensor that an op puts into a list, or None if unfit to move."""
        element = fill.input[_FILLS[fill.op]]
        name = self._made(element, self._frames[fill.name]) or self._emptied(fill)
        is_large = self._bytes(element) >= _LEAST
        if not (name and is_large and self._spec(element).dtype.is_floating):
            return None
        return None if self._nodes[source_of(name)].op == COPY_OUT else name

    def _filled(
        self, fill: compat.NodeDef, enter: compat.NodeDef, *, unknown: int = 1
    ) -> int:
        """Return bytes of all elements that `fill` puts in; of `unknown` if unknown."""
        rounds = self._elements(fill, enter) or unknown
        return rounds * rounded_up(self._bytes(fill.input[_FILLS[fill.op]]))

    def _emptied(self, fill: compat.NodeDef) -> str:
        """Return the list made of a tensor from which `fill` moves elements, or ""."""
        taken = self._origin(fill.input[_FILLS[fill.op]], ALIAS)
        if taken is None or taken.op not in _TAKES:
            return ""
        maker = self._origin(taken.name, _PASSES_ON)
        return maker.name if maker and maker.op == "TensorListFromTensor" else ""

    def _zeros(
        self, entries: Mapping[str, compat.NodeDef], made: Mapping[str, int]
    ) -> dict[str, int]:
        """Return bytes of lists of zeros, each as large as its `ZerosLike`'s input."""
        whole = dict(made)
        for fill, enter in entries.items():
            node = self._nodes[fill]
            filled = self._filled(node, enter, unknown=0)
            whole[enter.name] = max(whole.get(enter.name, 0), filled)
        found: dict[str, int] = {}
        for zeros in self._ordered:
            if zeros.op != "ZerosLike" or not self._is_list(zeros):
                continue
            node = self._nodes.get(source_of(zeros.input[0]))
            while node and node.name not in whole and node.op in ALIAS:
                node = self._nodes.get(source_of(node.input[0]))
            if node and whole.get(node.name):
                found[zeros.name] = whole[node.name]
        return found

    def _held(self, fill: compat.NodeDef, enter: compat.NodeDef) -> int:
        """Return bytes of all elements that `fill` puts into its list over the loop."""
        element = self._made(fill.input[_FILLS[fill.op]], self._frames[fill.name])
        if element is None or element in self._counted:
            return 0
        self._counted.add(element)
        on_host = self._nodes[source_of(element)].op == COPY_OUT
        size = 0 if on_host else self._bytes(element)
        if size == 0:
            return 0
        rounds = self._elements(fill, enter)
        if rounds is None:
            self._unknown[self._frames[fill.name][-1]] = None
            return 0
        return rounds * rounded_up(size)  # each is an allocation of its own

    def _elements(self, fill: compat.NodeDef, enter: compat.NodeDef) -> int | None:
        """Return the list's declared length, or the product of its loops' rounds."""
        maker = self._origin(enter.name, _PASSES_ON)
        most = None
        if maker is not None and maker.op in ("TensorListReserve", "EmptyTensorList"):
            most = self._trips.value(maker.input[1])
        if most is not None and most >= 0:
            return most
        frame = self._frames[fill.name]
        rounds = [self._trips.of(frame[: i + 1]) for i in range(len(frame))]
        known = [count for count in rounds if count is not None]
        return math.prod(known) if len(known) == len(rounds) else None

    def _entries(self) -> dict[str, compat.NodeDef]:
        """Map each op that puts elements into a list to the list's Enter."""
        entries: dict[str, compat.NodeDef] = {}
        for merge in self._ordered:
            data = [self._nodes.get(source_of(name)) for name in merge.input]
            enter = next((n for n in data if n and n.op == "Enter"), None)
            if merge.op != "Merge" or enter is None or not self._is_list(enter):
                continue
            pending = [name for name in merge.input if self._is_back_edge(name)]
            seen = {merge.name}
            while pending:
                node = self._nodes.get(source_of(pending.pop()))
                if node is None or node.name in seen:
                    continue
                seen.add(node.name)
                if node.op in _FILLS:
                    entries.setdefault(node.name, enter)
                pending += [name for name in node.input if self._hands_on(node, name)]
        return entries

    def _is_list(self, node: compat.NodeDef) -> bool:
        return self._specs[node.name][0].dtype == tf.variant

    def _hands_on(self, node: compat.NodeDef, name: str) -> bool:
        """Tell whether an input is a list that the op passes on."""
        if name[0] == "^" or node.op not in _HANDS_ON:
            return False
        return source_of(name) in self._specs and self._spec(name).dtype == tf.variant

    def _origin(self, name: str, passing: Collection[str]) -> compat.NodeDef | None:
        """Return the op before all `passing` ops on the way; None for an argument."""
        node = self._nodes.get(source_of(name))
        while node is not None and node.op in passing:
            node = self._nodes.get(source_of(node.input[0]))
        return node

    def _made(self, name: str, frame: tuple[str, ...]) -> str | None:
        """Return the tensor of this loop that `name` passes on; None if made before."""
        seen: set[str] = set()
        while (node := self._nodes.get(source_of(name))) is not None:
            if node.name in seen or self._frames[node.name] != frame:
                return None
            seen.add(node.name)
            if node.op in PERSISTENT or node.op in _TAKES or node.op == "Enter":
                return None
            if node.op == "Merge":
                after = [n for n in node.input if self._is_back_edge(n)]
                name = after[0] if after else node.input[0]
            elif node.op in ALIAS:
                name = node.input[0]
            else:
                return name
        return None

    def _is_back_edge(self, name: str) -> bool:
        node = self._nodes.get(source_of(name))
        return node is not None and node.op == "NextIteration"

    def _bytes(self, name: str) -> int:
        return bytes_of(self._spec(name))

    def _spec(self, name: str) -> tf.TensorSpec:
        return self._specs[source_of(name)][index_of(name)]


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
                if reader.op in _MOVED:
                    pending.append(reader)


def _is_known(push: compat.NodeDef, users: Sequence[compat.NodeDef]) -> bool:
    """Tell whether `push` alone fills the list, and all others only take elements."""
    pushes = [node.name for node in users if node.op == _PUSHES]
    known = _MOVED | {"TensorListLength"}
    return pushes == [push.name] and all(node.op in known for node in users)


def _on_card(
    graph: Nodes, step: Step
) -> Iterator[tuple[compat.NodeDef, Sequence[str] | None]]:
    """Yield (push, None), and (pop, names of the Merge ops that begin its round)."""
    for node in graph:
        if node.name in step.pushes and not compat.attribute(node, _IN_HOST).list.i:
            yield node, None
        if node.name in step.pops and not compat.attribute(node, _OUT_HOST).list.i:
            yield node, step.pops[node.name]


def _move(
    graph: Nodes, _: Step, place: tuple[compat.NodeDef, Sequence[str] | None]
) -> None:
    """Let a push take an element from the host's memory, or a pop give one there."""
    node, begun = place
    dtype, device = node.attr["element_dtype"].type, node.device
    if begun is None:
        held, element, *rest = node.input
        copies = (n.name for n in graph.readers(element) if n.op == COPY_OUT)
        copy = next(copies, f"{node.name}/lms_out")
        if not graph.get(copy):
            graph.make(copy, COPY_OUT, [element], device, T=dtype)
        graph.give(node, [held, copy, *rest])
        node.attr[_IN_HOST].list.i.append(1)
    else:
        element, copy = f"{node.name}:1", f"{node.name}/lms_in"
        graph.redirect({element: copy})
        inputs = [element, *(f"^{name}" for name in begun)]
        graph.make(copy, COPY_IN, inputs, device, T=dtype)
        node.attr[_OUT_HOST].list.i.append(1)


LISTS_ON_HOST = Pass(find=_on_card, change=_move)
