"""Copies of variables on the host to the device and back, as TensorFlow's nodes.

    Empty ──> PyFunc: rows of the array into it ──> Identity       PyFunc: into the rows

They go through the host store, and so over the emulated link if there is one. What is
written over is noted first, to be put back if the step fails.

Known weakness: a copy to the host holds a thread until it has ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
import tensorflow as tf

from lms.ir.graph import GraphView, HostRows, HostUpdate, Op, op_of
from lms.tf import compat
from lms.tf.host_variables import HostVariable, Journal
from lms.tf.rewrite.host_store import HostStore, as_bytes, room_bytes
from lms.tf.rewrite.host_updating import HostUpdating
from lms.tf.rewrite.transports import CopyOps, made_node

__all__ = ["StateCopies"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCopies:
    """The transport of a step with variables on the host: they leave without a copy.

    Args:
        graph: The planned step.
        variables: Its variables on the host, by the names of their handles.
        store: What carries the copies.
        journal: Keeps what is written over.
    """

    takes_room_first: ClassVar[bool] = True

    graph: GraphView
    variables: Mapping[str, HostVariable]
    store: HostStore
    journal: Journal = field(default_factory=Journal)
    _left: dict[str, Op] = field(default_factory=dict[str, Op])

    def begin(self) -> None:
        """Before a step: variables have their arrays, and nothing is to be undone."""
        self.journal.forget()
        for variable in self.variables.values():
            variable.settle()

    def undo(self) -> None:
        """After a step that failed: variables are as before it."""
        self.journal.undo()

    def swap_out(
        self, name: str, source: str, spec: tf.TensorSpec, *, device: str, copies: int
    ) -> CopyOps:
        """What the host has anyhow leaves without a copy."""
        producer = self.graph.by_name[op_of(source)]
        if not producer.is_held:
            return self.store.swap_out(name, source, spec, device=device, copies=copies)
        self._left[name] = producer
        node = made_node(name, "NoOp", [f"^{producer.name}"], device)
        return CopyOps(nodes=(node,), start=node, end=node)

    def swap_in(
        self, name: str, out: CopyOps, spec: tf.TensorSpec, *, device: str
    ) -> CopyOps:
        """What the host has is copied from its rows."""
        producer = self._left.get(out.start.name)
        if producer is None:
            return self.store.swap_in(name, out, spec, device=device)
        return self._read(name, producer, [f"^{out.end.name}"], (), device)

    def host_peak_bytes(self) -> int | None:
        """The most bytes that swapped tensors took, and what was written over."""
        return self.store.host_peak_bytes() + self.journal.most_bytes

    def trouble(self) -> str | None:
        """Why a copy failed, as the store says it."""
        return self.store.trouble()

    def release(self) -> None:
        """Give back what is not the variables' own."""
        self.store.release()
        self.journal.release()

    def expanded(self, nodes: Sequence[compat.NodeDef]) -> list[compat.NodeDef]:
        """Nodes in which reads and writes of the host are ops of TensorFlow."""
        made: list[compat.NodeDef] = []
        for node in nodes:
            op = self.graph.by_name.get(node.name)
            if op is not None and op.host_read is not None:
                made += self._reading(op, node)
            elif op is not None and op.host_write is not None:
                made.append(self._writing(op, node))
            elif op is not None and op.host_update is not None:
                made.append(self._updating(op, op.host_update, node))
            else:
                made.append(node)
        return made

    def _reading(self, op: Op, node: compat.NodeDef) -> tuple[compat.NodeDef, ...]:
        data = [name for name in node.input if not name.startswith("^")]
        waits = [name for name in node.input if name.startswith("^")]
        types = [tf.as_dtype(self.graph.tensors[name].dtype) for name in op.inputs]
        index = tuple(zip(data, types, strict=True))
        return self._read(node.name, op, waits, index, node.device).nodes

    def _read(
        self,
        name: str,
        op: Op,
        waits: Sequence[str],
        index: Sequence[tuple[str, tf.DType]],
        device: str,
    ) -> CopyOps:
        tensor = op.outputs[0]
        assert op.host_read is not None
        part = self._part(op.host_read)
        return self.store.arriving(
            name,
            waits,
            tf.TensorSpec(tensor.shape, tf.as_dtype(tensor.dtype)),
            device=device,
            get=partial(self._get, name, tensor.name, part),
            chosen_by=index,
        )

    def _writing(self, op: Op, node: compat.NodeDef) -> compat.NodeDef:
        assert op.host_write is not None
        dtype = tf.as_dtype(self.graph.tensors[op.inputs[0]].dtype)
        part = self._part(op.host_write)
        put = partial(self._put, node.name, op.inputs[0], part)
        return self.store.call(node.name, list(node.input), [dtype], node.device, put)

    def _updating(
        self, op: Op, update: HostUpdate, node: compat.NodeDef
    ) -> compat.NodeDef:
        types = [tf.as_dtype(self.graph.tensors[name].dtype) for name in op.inputs]
        updating = HostUpdating(
            name=node.name,
            update=update,
            read={name: self._part(rows) for name, rows in update.read},
            written={name: self._part(rows) for name, rows in update.written},
            store=self.store,
            journal=self.journal,
        )
        inputs = list(node.input)
        return self.store.call(node.name, inputs, types, node.device, updating.run)

    def _part(self, rows: HostRows) -> np.ndarray:
        return self.variables[rows.variable].rows(rows)

    def _get(
        self, name: str, tensor: str, part: np.ndarray, room: np.ndarray, *index: object
    ) -> list[object]:
        chosen = _chosen(part, np.asarray(index[0])) if index else part
        into, source = room_bytes(room), as_bytes(chosen)
        self.store.carry(name, tensor, into, source, to_device=True)
        return []

    def _put(
        self, name: str, tensor: str, part: np.ndarray, value: np.ndarray
    ) -> list[object]:
        into = as_bytes(part)
        self.journal.note(into)
        self.store.carry(name, tensor, into, as_bytes(value), to_device=False)
        self.store.end(name)
        return []


def _chosen(part: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Rows that an index asks for; NumPy would count negative ones from the end."""
    if index.size and not 0 <= index.min() <= index.max() < len(part):
        raise ValueError(
            f"indices must be from 0 to {len(part) - 1}, the rows of a variable on the "
            f"host, got {index.min()} to {index.max()}"
        )
    return np.take(part, index, axis=0)
