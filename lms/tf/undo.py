"""Writes to variables: when they begin, and what undoes them after a failure.

    before the step    small copies on the device, and copies of variables on the host
    in the step        copies of large variables to pinned memory, before the writes
    commit point       a host function raises a flag: nothing can fail any more

A step that runs out of memory before its commit point is undone and repeated.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import tensorflow as tf

from lms.ir.graph import op_of
from lms.ir.write_guard import WriteGuard, guard_writes
from lms.planning.problem import PlannedStep
from lms.planning.undo_copies import UndoGroup, undo_groups
from lms.tf import compat
from lms.tf.capture.ops import COLLECTIVE
from lms.tf.lowering import TracedStep
from lms.tf.nodes import COPY_OUT
from lms.tf.passes.copy_on_read import by_rows
from lms.tf.passes.host_variables import (
    is_moved,
    move_to_host,
    take_mark_off,
    write_on_host,
)
from lms.tf.watch import Watch
from lms.units import KIB, Bytes

__all__ = ["CommitFlag", "CopiesInStep", "KeptVariables", "can_repeat", "guard_of"]

# Undo copies of variables up to 4 KiB stay on the device, larger ones go to the host.
_SMALL = 4 * KIB


def guard_of(planned: PlannedStep) -> WriteGuard:
    """Return which writes of a planned step are deferred, and which need undo."""
    if planned.plan.is_empty or planned.plan.chain_is_partial:
        return WriteGuard()
    ordered = planned.graph.reordered(planned.plan.order)
    return guard_writes(ordered, planned.memory.device, planned.budget.step)


def can_repeat(planned: PlannedStep, guard: WriteGuard) -> bool:
    """Tell whether all collectives wait until memory can no longer run out."""
    late = () if planned.runs_plain else guard.late
    collectives = {op.name for op in planned.graph.ops if op.type in COLLECTIVE}
    return collectives <= set(late)


@dataclass(slots=True)
class CommitFlag:
    """A flag that a host function raises at a step's commit point.

    The function runs once all ops that must end before deferred writes have ended. It
    fails if a tensor has come back from the host with other bytes.

    Args:
        watches: What compares moved tensors, of each device; empty to compare none.
        begun: Whether deferred writes may have begun.
    """

    watches: Collection[Watch] = ()
    begun: bool = False
    _functions: list[Callable[..., Any]] = field(default_factory=list)

    def lower(self) -> None:
        """Forget the last call."""
        self.begun = False
        for watch in self.watches:
            watch.changed.clear()

    def go_on(self, before: "CommitFlag") -> None:
        """Count on from what an earlier build of the step has compared."""
        for watch, old in zip(self.watches, before.watches, strict=False):
            watch.go_on(old)

    @property
    def changed(self) -> list[str]:
        """Words about each tensor that came back with other bytes in the last call."""
        return [words for watch in self.watches for words in watch.changed]

    def nodes(self, barriers: Mapping[str, Sequence[str]]) -> list[compat.NodeDef]:
        """Make the ops after the barriers; late writes wait for their device's last.

        Tokens go to the host and others come back; all lie in the host's memory, on a
        GPU too. TensorFlow would carry a bare control edge between devices by a copy
        that waits until the GPU is idle.

        Args:
            barriers: By device the ops that must have ended.
        """
        made, tokens = list[compat.NodeDef](), dict[str, tf.DType]()
        for device, names in barriers.items():
            label = f"lms/writes_may_begin{len(made) or ''}"
            made.append(compat.constant(label, 0, tf.int32, device))
            made[-1].input.extend(f"^{name}" for name in names)
            tokens[label] = tf.int32
        parts = [(watch, watch.at_commit) for watch in self.watches]
        return made + self._call("lms/writes", tokens, parts, [*barriers])

    def _note(self) -> None:
        self.begun = True

    def nodes_beside(self) -> Iterator[tuple[list[compat.NodeDef], tuple[str, ...]]]:
        """Yield (ops beside the commit point, for which no write waits).

        These choose the second run that is compared, on each device, and compare the
        tensors that come back for late writes.
        """
        for watch in self.watches:
            if watch.again:
                turn, name = watch.turn, watch.turns.removesuffix("/end")
                self._functions.append(turn)
                yield [*_host_call(name, turn, {}, [watch.device])], ()
        parts = [(watch, watch.late) for watch in self.watches]
        yield self._call("lms/watch", {}, parts, ()), ()

    def _call(
        self,
        name: str,
        tokens: Mapping[str, tf.DType],
        parts: Sequence[tuple[Watch, Sequence[Any]]],
        devices: Sequence[str],
    ) -> list[compat.NodeDef]:
        """Make a call that compares moved tensors, unless there is nothing to do."""
        given = [watch.inputs(part) for watch, part in parts]
        inputs = dict(tokens) | dict.fromkeys(chain.from_iterable(given), tf.int64)
        if not inputs:
            return []
        ends = [*accumulate(map(len, given), initial=len(tokens))]

        def compare(*arrays: np.ndarray) -> np.ndarray:
            spans = pairwise(ends)
            for (watch, part), (start, end) in zip(parts, spans, strict=True):
                if end > start:
                    watch.compare(part, arrays[start:end])
            if self.changed:
                raise RuntimeError(f"changed on the way: {self.changed[0]}")
            if tokens:
                self._note()
            return np.zeros([], np.int32)

        self._functions.append(compare)
        return [*_host_call(name, compare, inputs, devices)]


@dataclass(slots=True)
class CopiesInStep:
    """Undo copies that a step itself makes, before it writes the variables.

    Args:
        captured: Handles and types of the step's variables, by the names of handles.
    """

    captured: Mapping[str, tuple[tf.Tensor, tf.DType]]
    _made: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    _functions: list[Callable[..., Any]] = field(default_factory=list)

    def groups(
        self,
        planned: PlannedStep,
        step: TracedStep,
        names: Sequence[str],
        host: Bytes | None,
    ) -> list[UndoGroup]:
        """Choose the named variables that the step can copy, and time the copies.

        Copied before the step are small variables, variables on the host, variables
        that TensorFlow copies at each read, and variables that an op of another device
        writes, since an edge between devices waits until the device is idle. So are all
        where `host` bytes do not hold the copies beside the swapped tensors.
        """
        if planned.timeline is None or not names:
            return []
        graph = planned.graph.reordered(planned.plan.order)
        here = {n.name for n in step.nodes if n.device in ("", step.device)}
        others = (op for op in graph.ops if op.fixed or op.name not in here)
        left_out = {handle for op in others for handle in op.writes}
        rows = by_rows(step.nodes, [op_of(name) for name in names])
        known = ((n, *self.captured[n]) for n in names if n in self.captured)
        sizes = {n: _size(h, t) or 0 for n, h, t in known if not is_moved(h)}
        large = {
            name: size
            for name, size in sizes.items()
            if size > _SMALL and not (name in left_out or op_of(name) in rows)
        }
        if host is not None and planned.memory.host_peak + sum(large.values()) > host:
            return []
        rate = planned.workload.speeds().hardware.d2h
        return undo_groups(graph, {*planned.plan.chain}, large, planned.timeline, rate)

    def nodes(
        self, groups: Iterable[tuple[str, Iterable[UndoGroup]]]
    ) -> Iterator[tuple[Sequence[compat.NodeDef], Sequence[str]]]:
        """Yield (ops that copy a group, of which the last one ends it, its writers).

        A host function takes the copies; they lie in pinned memory.

        Args:
            groups: Groups of each device, by its full name.
        """
        every = ((device, group) for device, some in groups for group in some)
        for number, (device, group) in enumerate(every):
            prefix = f"lms/undo{number}"
            behind = [] if group.trigger is None else [f"^{group.trigger}"]
            made, copies = list[compat.NodeDef](), dict[str, tf.DType]()
            for i, handle in enumerate(group.handles):
                read, out = f"{prefix}/read{i}", f"{prefix}/out{i}"
                dtype = copies[out] = self.captured[handle][1]
                reading = ("ReadVariableOp", [handle, *behind], device)
                made.append(compat.made_node(read, *reading, dtype=dtype))
                made.append(compat.made_node(out, COPY_OUT, [read], device, T=dtype))
            self._functions.append(partial(self._take, group.handles))
            made += _host_call(prefix, self._functions[-1], copies, [device])
            yield made, group.writers

    def _take(self, handles: Sequence[str], *copies: np.ndarray) -> np.ndarray:
        self._made.update(zip(handles, copies, strict=True))
        return np.zeros([], np.int32)

    def forget(self) -> None:
        """Free the copies of the last call."""
        self._made.clear()

    def made(self) -> list[tuple[tuple[tf.Tensor, tf.DType], np.ndarray]]:
        """Return the last call's copies: only these variables may be written."""
        return [(self.captured[name], value) for name, value in self._made.items()]


def _host_call(
    name: str,
    function: Callable[..., Any],
    inputs: Mapping[str, tf.DType],
    devices: Sequence[str],
) -> Iterator[compat.NodeDef]:
    """Make an op that calls a function with arrays, and one a device for its int32."""
    host = compat.device_name("CPU:0")
    call = compat.made_node(f"{name}/call", "PyFunc", inputs, host)
    call.attr["token"].s = compat.register_host_function(function).encode()
    for key, types in (("Tin", inputs.values()), ("Tout", [tf.int32])):
        call.attr[key].list.SetInParent()
        call.attr[key].list.type.extend(dtype.as_datatype_enum for dtype in types)
    yield call
    for number, device in enumerate(devices):
        end = f"{name}/end{number or ''}"
        yield compat.made_node(end, "Identity", [call.name], device, T=tf.int32)


@dataclass(frozen=True, slots=True)
class KeptVariables:
    """Undo copies of variables, made before a step and restored after a failure.

    Args:
        handles: Handles and types of the variables that are copied before the step.
    """

    handles: tuple[tuple[tf.Tensor, tf.DType], ...]
    in_step: CopiesInStep = field(default_factory=lambda: CopiesInStep({}))

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
        pairs = [*zip(self.handles, values, strict=True), *self.in_step.made()]
        pairs = [(handle, value) for (handle, _), value in pairs]
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
