"""One order for the plans of several devices: no two plans can wait for each other.

    planned before:   GPU:0  a0 ──> b0 ──> c0        an order of its ops, and of the
                               │           ^          tensors that it receives
    planned now:      GPU:1    └─> a1 ──> b1          keeps that order

Devices are planned one after the other. The graph of a device has the orders of those
before as edges, so every order that the planner may choose goes with theirs.

A collective ends on no device before it has begun on all. So its ops count as one: the
op of the device to plan waits for what any of them waits for, and the others wait for
that op. Then what follows on any device comes behind it, too.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import tensorflow as tf

from lms.errors import UnsupportedError
from lms.ir.graph import GraphView
from lms.tf import compat
from lms.tf.capture.ops import COLLECTIVE
from lms.tf.nodes import source_of

__all__ = ["devices_of", "edges_between", "numbers_in", "order_on"]


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
    for group in _collectives(nodes, numbers):
        first, *others = sorted(group, key=lambda node: node.device != device)
        for other in others:
            sources = map(source_of, other.input)
            edges[first.name] += filter(there.__contains__, sources)
            edges[first.name] += edges.pop(other.name, [])
            edges[other.name] = [first.name]
    return {name: tuple(dict.fromkeys(before)) for name, before in edges.items()}


def _collectives(
    nodes: Sequence[compat.NodeDef], numbers: Mapping[str, int]
) -> Iterable[Sequence[compat.NodeDef]]:
    """Group the ops of each collective: one for each device, with equal keys."""
    constants = {n.name: n for n in nodes if n.op == "Const"}

    def value(name: str) -> object:
        name = source_of(name)
        if name in constants and constants[name].attr["dtype"].type == tf.int32:
            return tf.make_ndarray(constants[name].attr["value"].tensor).tolist()
        return numbers.get(name)

    groups: dict[object, list[compat.NodeDef]] = defaultdict(list)
    for node in nodes:
        if node.op in COLLECTIVE:
            keys = tuple(value(name) for name in node.input[1:4])
            if None in keys:
                raise UnsupportedError(
                    f"Could not plan the step: collective {node.name!r} has keys that "
                    "are not known before the step runs."
                )
            groups[keys].append(node)
    return groups.values()


def order_on(graph: GraphView, chain: Iterable[str]) -> tuple[str, ...]:
    """Return the ops that a device orders, and the ops that send tensors to it.

    Args:
        graph: The device's graph, in the order that was planned.
        chain: Names of the ops that are made to run in this order.
    """
    ordered = {*chain}
    received = {op.name for op in graph.ops if op.from_host and not op.fixed}
    return tuple(name for name in graph.order if name in ordered | received)
