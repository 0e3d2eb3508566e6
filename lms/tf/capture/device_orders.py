"""One order for the plans of several devices: no two plans can wait for each other.

    planned before:   GPU:0  a0 ──> b0 ──> c0        an order of its ops, and of the
                               │           ^          tensors that it receives
    planned now:      GPU:1    └─> a1 ──> b1          keeps that order

Devices are planned one after the other. The graph of a device has the orders of those
before as edges, so every order that the planner may choose goes with theirs.

A collective ends on no device before it has begun on all. So its ops count as one: the
op of the device to plan waits for what any of them waits for, and the others wait for
that op. Then what follows on any device comes behind it, too.

Other processes plan their own devices, and know nothing of the orders here. So the
collectives of a group with other processes come in the order of their keys, in every
process: a strategy counts the keys up while a step is traced, and the step captures
them. Workers of `lms.workers` have constant keys, and order their collectives already.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import tensorflow as tf

from lms.errors import UnsupportedError
from lms.ir.graph import GraphView
from lms.tf import compat
from lms.tf.capture.ops import COLLECTIVE
from lms.tf.nodes import source_of

__all__ = ["always_true", "devices_of", "edges_between", "numbers_in", "order_on"]


_ENDS = {"Max", "Min"}  # ops whose equal outputs say that all lengths are equal
_PASSED = frozenset({"Identity", "Switch", "Enter"})  # into a branch or a loop


def devices_of(nodes: Iterable[compat.NodeDef]) -> tuple[str, ...]:
    """Return the full names of the GPUs of this process that nodes are placed on."""
    here = compat.device_name("GPU")
    return tuple(sorted({n.device for n in nodes if n.device.startswith(here)}))


def numbers_in(captured: Mapping[str, tf.Tensor | None]) -> dict[str, int]:
    """Return the captured numbers of the host, by the names of their nodes."""
    return {
        name: int(tensor.numpy())
        for name, tensor in captured.items()
        if tensor is not None
        and tensor.dtype == tf.int32
        and tensor.shape.rank == 0
        and "CPU" in tensor.device
    }


def edges_between(
    nodes: Sequence[compat.NodeDef],
    device: str,
    numbers: Mapping[str, int],
    orders: Sequence[Sequence[str]],
) -> dict[str, tuple[str, ...]]:
    """Map ops to ops that come before them, by the orders of other devices.

    Args:
        nodes: The step's nodes.
        device: Full name of the device to plan for.
        numbers: Values of captured numbers, by the names of their nodes: two
            collectives with equal keys are one.
        orders: Names of ops in their order, for each device that is planned already.

    Raises:
        UnsupportedError: If the keys of a collective are not known.
    """
    there = {node.name for node in nodes}
    edges: dict[str, list[str]] = defaultdict(list)
    for order in orders:
        for before, after in pairwise(name for name in order if name in there):
            edges[after].append(before)
    met = list[tuple[Sequence[int], str]]()
    counted = set(numbers.values())
    for keys, group in _collectives(nodes, numbers).items():
        first, *others = sorted(group, key=lambda node: node.device != device)
        for other in others:
            sources = map(source_of, other.input)
            edges[first.name] += filter(there.__contains__, sources)
            edges[first.name] += edges.pop(other.name, [])
            edges[other.name] = [first.name]
        if len(group) < keys[0] and keys[-1] in counted:  # other processes take part
            met.append((keys[1:], first.name))
    for (one, before), (other, after) in pairwise(sorted(met)):
        if one[0] == other[0]:
            edges[after].append(before)
    return {name: tuple(dict.fromkeys(b)) for name, b in edges.items() if b}


def always_true(
    nodes: Sequence[compat.NodeDef], numbers: Mapping[str, int]
) -> Iterator[str]:
    """Yield comparisons of gathered lengths that are equal on all devices.

    Gradients of an embedding are padded where their lengths differ between replicas:
    `all_reduce_indexed_slices` in cross_device_utils.py, tensorflow/python/distribute.
    """
    by_name = {node.name: node for node in nodes}

    def source(name: str) -> compat.NodeDef:
        return by_name.get(source_of(name), compat.NodeDef())

    equal = set[str]()
    compared = [node for node in nodes if node.op == "Equal"]
    compared = [n for n in compared if {source(i).op for i in n.input[:2]} == _ENDS]
    groups = _collectives(nodes, numbers) if compared else {}
    for (size, *_), group in groups.items():
        lengths = [source(node.input[0]) for node in group]
        if len(group) == size and {node.op for node in lengths} == {"Const"}:
            found = (compat.attribute(node, "value").tensor for node in lengths)
            values = [tf.make_ndarray(value).ravel().tolist() for value in found]
            if all(len(value) == 1 and value == values[0] for value in values):
                equal |= {node.name for node in group}
    for node in compared:
        read = {source_of(source(name).input[0]) for name in node.input[:2]}
        if len(read) == 1 and read <= equal:
            yield node.name


def _collectives(
    nodes: Sequence[compat.NodeDef], numbers: Mapping[str, int]
) -> Mapping[tuple[int, ...], Sequence[compat.NodeDef]]:
    """Map (devices, group, instance) to a collective's ops, one for each device."""
    by_name = {node.name: node for node in nodes}
    is_alone = len(devices_of(nodes)) <= 1

    def value(name: str) -> int | None:
        node = by_name.get(source_of(name))
        if node is not None and node.op in _PASSED:
            return value(node.input[0])
        if node is None or node.op != "Const":
            return numbers.get(source_of(name))
        number = tf.make_ndarray(compat.attribute(node, "value").tensor)
        return int(number) if number.size == 1 else None

    groups: dict[tuple[int, ...], list[compat.NodeDef]] = defaultdict(list)
    for node in nodes:
        if node.op in COLLECTIVE:
            found = [value(name) for name in node.input[1:4]]
            keys = tuple(key for key in found if key is not None)
            if len(keys) < len(found) and is_alone:
                continue  # one device, whose collectives are not grouped
            if len(keys) < len(found):
                raise UnsupportedError(
                    f"Could not plan the step: collective {node.name!r} has keys that "
                    "are not known before the step runs. Leave `budget` out."
                )
            groups[keys].append(node)
    return groups


def order_on(graph: GraphView, chain: Iterable[str]) -> tuple[str, ...]:
    """Return the ops that a device orders, and the ops that send tensors to it.

    Args:
        graph: The device's graph, in the order that was planned.
        chain: Names of the ops that are made to run in this order.
    """
    ordered = {*chain}
    received = {op.name for op in graph.ops if op.from_host and not op.fixed}
    return tuple(name for name in graph.order if name in ordered | received)
