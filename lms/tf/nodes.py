"""A graph of TensorFlow's nodes that passes edit, and the names of its edges.

An input `a:1` is output 1 of node `a`, `a` is output 0, and `^a` waits for `a` alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from lms.tf import compat

__all__ = ["COPY_IN", "COPY_OUT", "OPAQUE", "Nodes", "bytes_of", "data_of"]
__all__ += ["float_bytes", "full_name", "index_of", "source_of", "waits_of"]
__all__ += ["with_numbers"]

OPAQUE = ("resource", "variant", "string")  # types that count 0 bytes on the device

_FLOATS = (tf.float32, tf.float64, tf.float16, tf.bfloat16)

# TensorFlow's swap ops, which copy to pinned memory of the host and back.
COPY_OUT, COPY_IN = "_CopyFromGpuToHost", "_CopyFromHostToGpu"


class Nodes:
    """Copies of nodes, which may be edited; inputs only by the methods here.

    Args:
        nodes: The nodes; they are not changed.
        library: The functions that the nodes call.
    """

    def __init__(self, nodes: Iterable[compat.NodeDef], library: Any = None) -> None:
        self.library = library
        self._nodes: dict[str, compat.NodeDef] = {}
        self._place: dict[str, tuple[int, bool, int]] = {}
        self._followers: dict[str, dict[str, None]] = defaultdict(dict)
        for node in nodes:
            self.add(compat.copied(node))

    def __iter__(self) -> Iterator[compat.NodeDef]:
        return iter(sorted(self._nodes.values(), key=lambda n: self._place[n.name]))

    def __getitem__(self, name: str) -> compat.NodeDef:
        return self._nodes[name]

    def get(self, name: str) -> compat.NodeDef | None:
        """Return the node that an input comes from; None for an argument."""
        return self._nodes.get(source_of(name))

    def followers(self, name: str) -> list[compat.NodeDef]:
        """Return the nodes that read a node's outputs or wait for the node."""
        return [self._nodes[each] for each in self._followers.get(name, ())]

    def readers(self, tensor: str) -> list[compat.NodeDef]:
        """Return the nodes that read a tensor."""
        full = full_name(tensor)
        followers = self.followers(source_of(full))
        return [n for n in followers if full in map(full_name, n.input)]

    def add(
        self, node: compat.NodeDef, before: compat.NodeDef | None = None
    ) -> compat.NodeDef:
        """Add a node at the end, or before one that was there from the start."""
        count = len(self._place)
        place = (count, True, count)
        if before is not None:
            place = (self._place[before.name][0], False, count)
        self._nodes[node.name], self._place[node.name] = node, place
        self._follow(node)
        return node

    def make(
        self,
        name: str,
        op: str,
        inputs: Iterable[str],
        device: str,
        before: compat.NodeDef | None = None,
        /,
        **types: Any,
    ) -> compat.NodeDef:
        """Add a new node, as `add` does; `types` are its attributes."""
        return self.add(compat.made_node(name, op, inputs, device, **types), before)

    def copy_of(self, node: compat.NodeDef, name: str) -> compat.NodeDef:
        """Add a copy of a node under another name."""
        copy = compat.copied(node)
        copy.name = name
        return self.add(copy)

    def remove(self, node: compat.NodeDef) -> None:
        """Remove a node, which no other follows."""
        self.give(node, ())
        del self._nodes[node.name]

    def give(self, node: compat.NodeDef, inputs: Iterable[str]) -> None:
        """Give a node other inputs."""
        for name in node.input:
            self._followers[source_of(name)].pop(node.name, None)
        node.input[:] = list(inputs)
        self._follow(node)

    def redirect(
        self, new: Mapping[str, str], readers: Iterable[compat.NodeDef] | None = None
    ) -> None:
        """Let nodes, or only some readers, read other tensors.

        `new` has the new names by the full names of the old ones.
        """
        if readers is None:
            sources = dict.fromkeys(map(source_of, new))
            readers = {n.name: n for s in sources for n in self.followers(s)}.values()
        for node in readers:
            self.give(node, [new.get(full_name(name), name) for name in node.input])

    def wait(self, node: compat.NodeDef, names: Iterable[str]) -> None:
        """Let a node wait for the named nodes too."""
        waits = [*waits_of(node), *(f"^{name}" for name in names)]
        self.give(node, [*data_of(node), *dict.fromkeys(waits)])

    def replace_waits(self, old: str, names: Iterable[str]) -> None:
        """Let nodes that wait for `old` wait for the named ones instead."""
        new = {f"^{old}": [f"^{name}" for name in names]}
        for node in self.followers(old):
            waits = (each for name in waits_of(node) for each in new.get(name, [name]))
            self.give(node, [*data_of(node), *dict.fromkeys(waits)])

    def define(self, function: Any) -> None:
        """Let nodes call a function."""
        there = {known.signature.name for known in self.library.function}
        if function.signature.name not in there:
            larger = type(self.library)()
            larger.CopyFrom(self.library)
            larger.function.append(function)
            self.library = larger

    def _follow(self, node: compat.NodeDef) -> None:
        for name in node.input:
            self._followers[source_of(name)][node.name] = None


def source_of(name: str) -> str:
    """Return the node that an input comes from."""
    return name.removeprefix("^").partition(":")[0]


def full_name(name: str) -> str:
    """Return a tensor's name with its index; `^a` names an op and has no index."""
    return name if ":" in name or name.startswith("^") else f"{name}:0"


def index_of(name: str) -> int:
    """Return a tensor's index among its op's outputs."""
    return int(name.partition(":")[2] or 0)


def data_of(node: compat.NodeDef) -> list[str]:
    """Return the names of the tensors that a node reads."""
    return [name for name in node.input if not name.startswith("^")]


def waits_of(node: compat.NodeDef) -> list[str]:
    """Return a node's control inputs, each with its mark `^`."""
    return [name for name in node.input if name.startswith("^")]


def with_numbers(
    nodes: Iterable[compat.NodeDef], key: str, numbers: Mapping[str, int]
) -> list[compat.NodeDef]:
    """Return nodes of which the named ones have other numbers as an attribute."""
    changed = [compat.copied(n) if n.name in numbers else n for n in nodes]
    for node in changed:
        if node.name in numbers:
            node.attr[key].i = numbers[node.name]
    return changed


def bytes_of(spec: tf.TensorSpec) -> int:
    """Return a tensor's bytes; 0 for open shapes and for types without a size."""
    if spec.dtype.name in OPAQUE:
        return 0
    return spec.dtype.size * int(spec.shape.num_elements() or 0)


def float_bytes(spec: tf.TensorSpec) -> int:
    """Return the bytes of a tensor of floats; 0 for open shapes and other types."""
    return bytes_of(spec) if spec.dtype in _FLOATS else 0
