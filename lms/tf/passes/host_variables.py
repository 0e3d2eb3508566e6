"""Offload variables: their memory lies on the host.

    variable @GPU ──its tensor──> pinned memory of the host <──link──> kernels

A GPU reads and writes pinned memory at its host address (unified addressing). So the
tensor of a variable may lie in pinned memory. The variable keeps its handle, its device
and its bits, and updates write in place. Ops that read element by element, or some
rows, read over the link. Other ops read a copy on the card, which a plan may drop and
repeat.

    ReadVariableOp ──> AddV2, Mul ...                     ReadVariableOp ──> AddV2 ...
                └────> MatMul                ==>          Read ──> copy in ──> MatMul

TensorFlow's swap op allocates the pinned memory. An attribute of the assignment says
that its input lies in the host's memory, so the variable takes over this memory.

Variables that get another tensor, not a value in place, stay on the card.

Known weaknesses: an op outside of the step that gives a variable another tensor puts
the variable on the card until the next step moves it again. Ops in loops and branches
always read over the link. Variables of several workers stay on the card. A replaced
variable's old memory returns to TensorFlow's pool at once, whatever still runs.

Sources: `AssignVariableOp` in resource_variable_ops.cc, `_input_hostmem` in
memory_types.cc; unified virtual addressing in the CUDA driver API.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakValueDictionary, ref

import numpy as np
import tensorflow as tf

from lms.errors import HostMemoryError
from lms.ir.graph import GraphView
from lms.machine.host import PINNED_VARIABLE
from lms.tf import compat
from lms.tf.capture.ops import CHEAP, CONTROL_FLOW, READS_VARIABLES
from lms.tf.nodes import COPY_IN, COPY_OUT, Nodes, data_of, float_bytes, source_of
from lms.tf.passes import Pass, Step
from lms.tf.passes.compiled import OPEN_COMPILED
from lms.tf.passes.copy_on_read import COPY_OFF, PIECES, copying
from lms.units import Bytes, format_bytes

__all__ = ["COPY_HOST_VARIABLES", "HostVariables", "address_of", "bytes_on_host"]
__all__ += ["is_moved", "let_stay", "lies_on_host", "made_beside", "movable_to_host"]
__all__ += ["move_to_host", "take_mark_off", "write_on_host"]

# Ops that read each element about once, or a few rows: they read over the link.
_OVER_LINK = CHEAP | {"GatherV2", "GatherNd", COPY_IN}

# Ops that leave a variable's memory where it is. Other ops, such as calls, may not.
_KNOWN = (*READS_VARIABLES, *CONTROL_FLOW, *PIECES, "Assign")

# Variables below 64 KiB stay: moving them frees too little.
_LEAST = 64 * 1024

# Handles of moved variables by identity; addresses and types on the host.
_moved: WeakValueDictionary[int, Any] = WeakValueDictionary()
_places: dict[int, tuple[int, tf.DType]] = {}


def address_of(handle: Any, dtype: tf.DType) -> int:
    """Return the address of a variable's memory; ValueError if TensorFlow has none."""
    take_mark_off(handle)
    return compat.address_of(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype))


def take_mark_off(handle: Any) -> None:
    """Switch off a variable's copy-on-read mode, which ops on some rows switch on."""
    tf.raw_ops.DisableCopyOnRead(resource=handle)


def is_moved(handle: Any) -> bool:
    """Tell whether a variable was moved to the host, and not back."""
    return _moved.get(id(handle)) is handle


def lies_on_host(handle: Any) -> bool:
    """Tell whether a moved variable's memory still lies on the host."""
    if not is_moved(handle):
        return False
    address, dtype = _places[id(handle)]
    with suppress(ValueError):  # an empty variable has no address
        return address_of(handle, dtype) == address
    return False


def move_to_host(handle: Any) -> None:
    """Move a variable's memory to the host; its value stays.

    Raises:
        HostMemoryError: If the host has no pinned memory left.
    """
    spec = compat.handle_spec(handle)
    assert spec is not None
    take_mark_off(handle)
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=spec.dtype)
    try:
        with compat.planned_as_is():
            _mover(handle.device, spec.dtype).call_flat(handle, value)
    except tf.errors.ResourceExhaustedError as error:
        raise HostMemoryError(
            f"Could not pin {format_bytes(size_of(handle))} of host memory for a "
            "variable that does not fit on the card. Close other programs, raise "
            f"{PINNED_VARIABLE}, or use a larger card."
        ) from error
    _places[id(handle)] = address_of(handle, spec.dtype), spec.dtype
    _moved[id(handle)] = handle


def write_on_host(handle: Any, value: np.ndarray) -> bool:
    """Write a value into a variable's memory on the host; takes no device memory.

    Returns:
        Whether the variable lies on the host, so that the value was written.
    """
    if not lies_on_host(handle):
        return False
    tf.test.experimental.sync_devices()  # kernels may still read the old value
    value = np.ascontiguousarray(value)
    ctypes.memmove(_places[id(handle)][0], value.ctypes.data, value.nbytes)
    return True


def _move_to_device(handle: Any) -> None:
    """Move a variable's memory back to its device."""
    spec = compat.handle_spec(handle)
    assert spec is not None
    with tf.device(handle.device):
        take_mark_off(handle)
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=spec.dtype)
        own = tf.raw_ops.DeepCopy(x=value)
        tf.raw_ops.AssignVariableOp(resource=handle, value=own)
    _moved.pop(id(handle), None)
    _places.pop(id(handle), None)


def let_stay(variable: Any) -> None:
    """Let a moved variable stay on the host when a value is assigned to it.

    Host tensors are copied before: TensorFlow keeps a tensor's copy on the card as long
    as the tensor exists, and a loaded checkpoint need not fit there.
    """
    if compat.ASSIGNS[0] in vars(variable):
        return
    known = ref(variable)  # a strong reference would keep the variable alive

    def followed(name: str) -> Callable[..., Any]:
        def assign(*args: Any, **how: Any) -> Any:
            own = known()
            assert own is not None
            if tf.executing_eagerly():
                args = tf.nest.map_structure(_of_its_own, args)
            assigned = getattr(type(own), name)(own, *args, **how)
            if tf.executing_eagerly() and is_moved(own.handle):
                move_to_host(own.handle)
            return assigned

        return assign

    for name in compat.ASSIGNS:
        setattr(variable, name, followed(name))


def _of_its_own(value: Any) -> Any:
    """Copy a host tensor; return other values as they are."""
    on_host = isinstance(value, tf.Tensor) and value.device.endswith("CPU:0")
    return compat.host_tensor(value.numpy()) if on_host else value


@cache
def _mover(device: str, dtype: tf.DType) -> Any:
    """Build a function of (handle, value) that moves the value to pinned memory."""
    pinned = compat.made_node("pinned", COPY_OUT, ["value"], device, T=dtype)
    assign = compat.made_node(
        "assign", "AssignVariableOp", ["handle", pinned.name], device, dtype=dtype
    )
    assign.attr["_input_hostmem"].list.i.append(1)
    done = compat.constant("done", 0, tf.int32, compat.device_name("CPU:0"))
    done.input.append(f"^{assign.name}")
    unknown: Any = None  # `TensorSpec` takes None, though its types do not say so
    any_shape = tf.TensorSpec(unknown, dtype)
    inputs = (
        ("handle", tf.TensorSpec([], tf.resource), any_shape),
        ("value", any_shape, None),
    )
    graph_def = compat.graph_def([pinned, assign, done], None)
    return compat.build_function(graph_def, inputs, [f"{done.name}:0"])


@dataclass(frozen=True, slots=True)
class HostVariables:
    """The variables on the host that a step was planned with."""

    handles: tuple[Any, ...] = ()

    @classmethod
    def of(
        cls, variables: Mapping[str, tuple[Any, tf.DType]], besides: Sequence[Any] = ()
    ) -> "HostVariables":
        """Find the captured variables that lie on the host now, without `besides`."""
        left_out = set(map(id, besides))
        there = (h for h, _ in variables.values() if lies_on_host(h))
        return cls(tuple(h for h in there if id(h) not in left_out))

    @property
    def size(self) -> Bytes:
        """Bytes that the variables would take on the card."""
        return sum(size_of(handle) for handle in self.handles)

    def settle(self) -> None:
        """Move variables again that were given other memory since."""
        for handle in self.handles:
            if not lies_on_host(handle):
                move_to_host(handle)

    def come_back(self) -> None:
        """Move the variables back to their device, until its memory is full."""
        with suppress(tf.errors.OpError):
            for handle in self.handles:
                _move_to_device(handle)


def bytes_on_host() -> Bytes:
    """Return the bytes of all variables that were moved to the host."""
    return sum(size_of(handle) for handle in _moved.values())


def size_of(handle: Any) -> Bytes:
    """Return the bytes of a variable's value; 0 for open shapes and other types."""
    spec = compat.handle_spec(handle)
    return 0 if spec is None else float_bytes(spec)


def movable_to_host(
    graph: GraphView,
    nodes: Sequence[compat.NodeDef],
    variables: Mapping[str, tuple[Any, tf.DType]],
    device: str,
) -> list[Any]:
    """Return handles of the variables on a device that may move, the best ones first.

    Variables that no op needs a copy of, as an optimizer's slots, come before others,
    large ones before small ones.
    """
    copies = copying(nodes, {source_of(name) for name in variables}).values()
    copied = {f"{name}:0" for names in copies for name in names}
    copied |= {
        graph.roots[name]
        for op in graph.ops
        if op.alias is None and not op.type.startswith(_KNOWN)
        for name in op.inputs
    }
    copied |= {  # a new tensor would lie on the card; what is written in place has none
        graph.roots[op.inputs[0]]
        for op in graph.ops
        if op.type == "AssignVariableOp"
        and graph.tensors[graph.roots[op.inputs[1]]].size > 0
    }
    on_card = {
        op.inputs[0]
        for op in graph.ops
        if op.reads_state
        and any(r.type not in _OVER_LINK for r in graph.consumers[f"{op.name}:0"])
    }
    found = [
        (name in on_card, -size_of(handle), name)
        for name, (handle, _) in variables.items()
        if handle.device == device
        and compat.has_op(COPY_IN)
        and name not in copied
        and size_of(handle) >= _LEAST
        and not lies_on_host(handle)
    ]
    return [variables[name][0] for *_, name in sorted(found)]


def _read_often(
    graph: Nodes, step: Step
) -> Iterator[tuple[compat.NodeDef, compat.NodeDef]]:
    """Yield (read of a host variable, op that reads each element often)."""
    copied = copying([*graph], step.on_host)
    for node in graph:
        if node.name in step.fixed or node.op in _OVER_LINK:
            continue
        for name in dict.fromkeys(data_of(node)):
            read = graph.get(name)
            if read is None or read.op != "ReadVariableOp" or read.name in copied:
                continue
            if source_of(read.input[0]) in step.on_host:
                yield read, node


def _copy_in(
    graph: Nodes, _: Step, place: tuple[compat.NodeDef, compat.NodeDef]
) -> None:
    """Let an op read a copy on the card; updates wait for both reads."""
    read, reader = place
    host, copy = f"{read.name}/lms_host", f"{read.name}/lms_copy"
    if not graph.get(copy):
        graph.copy_of(read, host).attr["_output_hostmem"].list.i.append(0)
        dtype = read.attr["dtype"].type
        graph.make(copy, COPY_IN, [host], read.device, T=dtype)
        graph.replace_waits(read.name, [read.name, host])
    graph.redirect({f"{read.name}:0": copy}, [reader])


COPY_HOST_VARIABLES = Pass(
    find=_read_often, change=_copy_in, requires=(OPEN_COMPILED, COPY_OFF)
)


@contextmanager
def made_beside(device: str, room: Bytes | None, used: Bytes) -> Iterator[None]:
    """Within the context, move new variables to the host once the card is full.

    Args:
        device: Full name of the card.
        room: Bytes of the card that variables may take; None for no limit.
        used: Bytes that are in use.

    Known weakness: an initial value that runs out of the card's memory is made again on
    the CPU, where random values differ.
    """
    taken = used
    late = list[Any]()

    def move(made: Any) -> bool:
        # Where the host has no pinned memory either, the variable stays on the card.
        with suppress(HostMemoryError), tf.init_scope():
            move_to_host(made.handle)
            let_stay(made)
            return True
        return False

    def create(following: Any, **how: Any) -> Any:
        nonlocal taken
        made = None
        with suppress(tf.errors.ResourceExhaustedError):  # by the initial value
            made = following(**how)
        if made is None:  # outside of `with`: the error holds on to tensors
            value = how["initial_value"]
            with tf.device("CPU:0"):
                value = value() if callable(value) else value
            made = following(**how | {"initial_value": value})
        size = size_of(made.handle) if made.handle.device == device else 0
        taken += size
        is_full = room is not None and taken > room and compat.has_op(COPY_IN)
        if is_full and size >= _LEAST:
            with tf.init_scope():
                if not tf.raw_ops.VarIsInitializedOp(resource=made.handle):
                    late.append(made)
                elif move(made):
                    taken -= size
        return made

    with tf.variable_creator_scope(create), compat.initialised_late(late, move):
        yield
