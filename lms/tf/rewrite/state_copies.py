"""Copies of variables on the host to the device and back, as TensorFlow's nodes.

    Empty ──> PyFunc: rows of the array into it ──> Identity       PyFunc: into the rows

They go through the host store, and so over the emulated link if there is one. What is
written over is noted first, to be put back if the step fails.

Known weakness: a copy holds a thread until it has ended, and none is begun ahead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import tensorflow as tf

from lms.ir.graph import GraphView, HostRows, Op
from lms.tf import compat
from lms.tf.host_variables import HostVariable, Journal
from lms.tf.rewrite.host_store import HostStore
from lms.tf.rewrite.transports import CopyOps, made_node

__all__ = ["StateCopies"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCopies:
    """Makes the nodes that read and write variables on the host.

    Args:
        variables: The variables, by the names of their handles.
        store: What carries the copies.
        journal: Keeps what is written over.
    """

    variables: Mapping[str, HostVariable]
    store: HostStore
    journal: Journal = field(default_factory=Journal)

    def expanded(
        self, graph: GraphView, nodes: Sequence[compat.NodeDef]
    ) -> list[compat.NodeDef]:
        """Nodes in which reads and writes of the host are ops of TensorFlow."""
        made: list[compat.NodeDef] = []
        for node in nodes:
            op = graph.by_name.get(node.name)
            if op is not None and op.host_read is not None:
                made += self._reading(op, node)
            elif op is not None and op.host_write is not None:
                made.append(self._writing(graph, op, node))
            else:
                made.append(node)
        return made

    def leave(self, name: str, producer: str, *, device: str) -> CopyOps:
        """What stands for the swap-out of a tensor that the host has anyhow."""
        node = made_node(name, "NoOp", [f"^{producer}"], device)
        return CopyOps(nodes=(node,), start=node, end=node)

    def come(self, name: str, op: Op, *, device: str, after: str) -> CopyOps:
        """The ops that copy once more what an op has read."""
        made = self._read(name, op, [], [f"^{after}"], device)
        _, room, _, filled = made
        return CopyOps(nodes=tuple(made), start=room, end=filled, settled=room)

    def _reading(self, op: Op, node: compat.NodeDef) -> list[compat.NodeDef]:
        data = [name for name in node.input if not name.startswith("^")]
        waits = [name for name in node.input if name.startswith("^")]
        return self._read(node.name, op, data, waits, node.device)

    def _read(
        self,
        name: str,
        op: Op,
        data: Sequence[str],
        waits: Sequence[str],
        device: str,
    ) -> list[compat.NodeDef]:
        rows, tensor = op.host_read, op.outputs[0]
        assert rows is not None
        dtype = tf.as_dtype(tensor.dtype)
        shape = compat.constant(f"{name}/shape", list(tensor.shape), tf.int32)
        shape.device = device
        room = made_node(f"{name}/room", "Empty", [shape.name, *waits], device)
        room.attr["dtype"].type = dtype.as_datatype_enum
        part = self._part(rows)
        get = self.store.call(
            f"{name}/get",
            [room.name, *data],
            [dtype, *[self._index_type(op)] * len(data)],
            device,
            partial(self._gather if data else self._get, tensor.name, part),
        )
        filled = made_node(
            name, "Identity", [room.name, f"^{get.name}"], device, T=dtype
        )
        return [shape, room, get, filled]

    def _writing(
        self, graph: GraphView, op: Op, node: compat.NodeDef
    ) -> compat.NodeDef:
        assert op.host_write is not None
        dtype = tf.as_dtype(graph.tensors[op.inputs[0]].dtype)
        part = self._part(op.host_write)
        put = partial(self._put, op.inputs[0], part)
        return self.store.call(node.name, list(node.input), [dtype], node.device, put)
