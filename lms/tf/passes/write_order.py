"""Writes to variables: the ops that write, their commit point, and their undo copies.

Any op with a variable's handle may write the variable, unless the op is known to only
read. A collective counts as a write that cannot be undone, since other workers read its
numbers. An op in a loop or branch cannot be ordered. The op that makes the branch's
predicate, or the loop's first value, can, and stands for the writes inside.

Known weaknesses: other side effects (printing, a data set's or table's state, random
state inside a kernel) happen again when a step is repeated.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf

from lms.ir.graph import GraphView, Op, op_of
from lms.ir.write_guard import WriteGuard
from lms.tf import compat
from lms.tf.capture.ops import ALIAS, COLLECTIVE, READS_VARIABLES
from lms.tf.passes.host_variables import (
    is_moved,
    move_to_host,
    take_mark_off,
    write_on_host,
)
from lms.units import KIB, Bytes

__all__ = ["CommitFlag", "KeptVariables", "with_writes"]

# Undo copies of variables up to 4 KiB stay on the device, larger ones go to the host.
_SMALL = 4 * KIB

_GATED = ("Switch", "RefSwitch", "_SwitchN", "Enter", "RefEnter")


def with_writes(graph: GraphView, handles: Sequence[str]) -> GraphView:
    """Return the graph with `Op.writes` filled in, by the names of handles."""
    known = {name: name for name in handles}
    writes: dict[str, dict[str, None]] = defaultdict(dict)
    for op in graph.ops:
        if op.alias is not None or op.type in READS_VARIABLES:
            continue
        roots = [graph.roots[name] for name in op.inputs]
        found = {known[name]: None for name in roots if name in known}
        if op.persistent and op.type in ALIAS:  # on another device, passes on a handle
            known |= {t.name: name for name in found for t in op.outputs}
            continue
        if op.type in COLLECTIVE:  # other workers take part: never recomputed
            found[op.name] = None
        gate = _gate(graph, op) if op.fixed and found else None
        if found:
            writes[gate or op.name].update(found)
    ops = (
        replace(op, writes=tuple(writes[op.name])) if op.name in writes else op
        for op in graph.ops
    )
    return GraphView(ops=tuple(ops), results=graph.results)


def _gate(graph: GraphView, inner: Op) -> str | None:
    """Return the op outside of loops and branches that a write inside must wait for.

    The search back stops at a Merge of branches, which waits for one of its inputs.
    """
    pending, seen = [inner], {inner.name}
    while pending:
        op = pending.pop()
        names = [*(op_of(name) for name in op.inputs), *op.controls]
        if op.type in _GATED:
            names = [op_of(op.inputs[-1])]
        for source in (graph.by_name[name] for name in names):
            if op.type in _GATED and not (source.fixed or source.persistent):
                return source.name
            merges = "Merge" in source.type and len(source.inputs) > 1
            if source.fixed and source.name not in seen and not merges:
                seen.add(source.name)
                pending.append(source)
    return None


@dataclass(slots=True)
class CommitFlag:
    """A flag that a host function raises at a step's commit point.

    The function runs once all ops that must end before deferred writes have ended.
    """

    begun: bool = False
    _functions: list[Callable[..., Any]] = field(default_factory=list)

    def nodes(self, guard: WriteGuard, device: str) -> tuple[compat.NodeDef, ...]:
        """Make the ops after the barrier; deferred writes wait for the last one.

        A token goes to the host and another comes back; both lie in the host's memory,
        on a GPU too. TensorFlow would carry a bare control edge between devices by a
        copy that waits until the GPU is idle.

        Returns:
            No ops if no write is deferred.
        """
        if not guard.late:
            return ()
        self._functions.append(self._note)
        ended = compat.constant("lms/writes_may_begin", 0, tf.int32, device)
        ended.input.extend(f"^{name}" for name in guard.barrier)
        host = compat.device_name("CPU:0")
        note = compat.made_node("lms/writes_noted", "PyFunc", [ended.name], host)
        token = compat.register_host_function(self._functions[-1])
        note.attr["token"].s = token.encode()
        for key in ("Tin", "Tout"):
            note.attr[key].list.type.append(tf.int32.as_datatype_enum)
        name = "lms/writes_begin"
        begin = compat.made_node(name, "Identity", [note.name], device, T=tf.int32)
        return ended, note, begin

    def _note(self, ended: np.ndarray) -> np.ndarray:
        self.begun = True
        return ended


@dataclass(frozen=True, slots=True)
class KeptVariables:
    """Undo copies of variables, made before a step and restored after a failure."""

    handles: tuple[tuple[tf.Tensor, tf.DType], ...]

    @classmethod
    def of(
        cls, names: Sequence[str], captured: Mapping[str, tuple[tf.Tensor, tf.DType]]
    ) -> "KeptVariables":
        """Take the variables of the named handles; collectives have none."""
        return cls(tuple(captured[name] for name in names if name in captured))

    @property
    def small_sizes(self) -> tuple[Bytes, ...]:
        """Bytes of each undo copy that stays on the device."""
        sizes = (_size(handle, dtype) for handle, dtype in self.handles)
        return tuple(size for size in sizes if size is not None and size <= _SMALL)

    def values(self) -> list[Any]:
        """Copy the values: large ones to the host, small ones where they lie.

        A copy from a GPU would wait for all queued kernels. A value that is held and
        not copied makes TensorFlow write the variable's next value elsewhere
        (`PrepareToUpdateVariable` in training_op_helpers.h): many small variables that
        lie side by side would leave a free fragment that large tensors fit.
        """
        return [_value(handle, dtype) for handle, dtype in self.handles]

    def put_back(self, values: Sequence[Any]) -> None:
        """Restore the values that `values` returned, of all variables that can be.

        Where the device has no memory for a copy, a variable frees its own memory
        first. TensorFlow waits ten seconds for memory, so all later variables do so at
        once. Variables of the host go first, and failed ones are tried a second time.

        Raises:
            BaseException: The first error, after all other variables are restored.
        """
        pairs = zip((handle for handle, _ in self.handles), values, strict=True)
        left = sorted(pairs, key=lambda each: not is_moved(each[0]))
        errors, is_full = list[BaseException](), False
        for _ in range(2):
            waiting, left, errors = left, [], []
            for handle, value in waiting:
                try:
                    if is_moved(handle) and write_on_host(handle, np.array(value)):
                        continue
                    is_full = _assign(handle, value, is_full=is_full)
                    if is_moved(handle):
                        move_to_host(handle)
                except BaseException as found:
                    errors.append(found)
                    left.append((handle, value))
                    is_full = True
        if errors:
            raise errors[0]


def _size(handle: tf.Tensor, dtype: tf.DType) -> Bytes | None:
    """Return a variable's bytes; None if its shape is open or its type has no size."""
    spec = compat.handle_spec(handle)
    elements = None if spec is None else spec.shape.num_elements()
    return None if elements is None or not dtype.size else elements * dtype.size


def _value(handle: tf.Tensor, dtype: tf.DType) -> Any:
    take_mark_off(handle)
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    size = _size(handle, dtype)
    if size is None or size > _SMALL:
        return np.array(value)
    with tf.device(value.backing_device):
        return tf.raw_ops.DeepCopy(x=value)


def _assign(handle: tf.Tensor, value: Any, *, is_full: bool) -> bool:
    """Assign a copy of a value; if memory is full, free the variable's own first.

    Returns:
        Whether memory was full.
    """
    on_host = isinstance(value, np.ndarray)
    own = compat.host_tensor(value) if on_host else tf.raw_ops.DeepCopy(x=value)
    take_mark_off(handle)
    if not is_full:
        with suppress(tf.errors.OpError):
            tf.raw_ops.AssignVariableOp(resource=handle, value=own)
            return False
    empty = compat.host_tensor(np.empty([0], own.dtype.as_numpy_dtype))
    tf.raw_ops.AssignVariableOp(resource=handle, value=empty)
    tf.raw_ops.AssignVariableOp(resource=handle, value=own)
    return True
