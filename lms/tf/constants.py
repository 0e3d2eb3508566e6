"""Sums of large tensors without a large constant.

    before                                  after
    zeros (a constant, kept for good)       zeros (filled in when the sum begins)
        │                                      │
    Assign <── variable of that size        Assign <── variable without a size
        └──> AssignAdd, ...                    └──> AssignAdd, ...

Where a step adds up large tensors, TensorFlow's optimiser adds each to a temporary
variable as it comes, so that all need not be there at once (memory_optimizer.cc,
`SchedulingPass`). It begins with zeros: a constant that the runtime makes before the
first step and keeps (constant_op.cc), in a 3D U-Net of the size of its largest tensors.
Filled in anew, zeros become the variable's own memory: an assignment takes over what
nobody else reads if the variable has another size (assign_op.h, "try to reuse the rhs",
with the constraints of allocators relaxed). The sum is the same to the bit.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from lms.tf import compat
from lms.tf.loops import source_of
from lms.units import KIB

__all__ = ["takes_over", "without_constants"]

# Smaller constants stay, in bytes.
_LEAST = 64 * KIB

# There is a kernel that fills in these types on every device.
_TYPES = frozenset(t.as_datatype_enum for t in (tf.float32, tf.float16, tf.bfloat16))

_TAKES_OVER, _RELAXED = "_lms_takes_over", "_grappler_relax_allocator_constraints"


def takes_over(node: compat.NodeDef) -> bool:
    """Whether it is an assignment that takes its value's memory over."""
    return node.attr[_TAKES_OVER].b if _TAKES_OVER in node.attr else False


def without_constants(
    nodes: Sequence[compat.NodeDef], fixed: Collection[str]
) -> list[compat.NodeDef]:
    """Nodes that add up the same sums, in which no large constant begins one.

    Args:
        nodes: The nodes; they are not changed.
        fixed: Names of those in loops and branches, which stay as they are.
    """
    by_name = {node.name: node for node in nodes}
    reads = Counter(source_of(name) for node in nodes for name in node.input)
    changed: dict[str, list[compat.NodeDef]] = {}
    for node in nodes:
        if node.op != "Assign" or node.name in fixed:
            continue
        variable, value = (by_name.get(source_of(name)) for name in node.input[:2])
        if variable is None or value is None or reads[value.name] > 1:
            continue
        if variable.op == "TemporaryVariable" and _is_large_and_even(value):
            changed[variable.name] = [_without_size(variable)]
            changed[value.name] = _filled(value, after=variable.name)
            changed[node.name] = [_taking_over(node)]
    return [made for node in nodes for made in changed.get(node.name, [node])]


def _is_large_and_even(node: compat.NodeDef) -> bool:
    """Whether it is a constant of many equal numbers, written down as one."""
    if node.op != "Const" or node.attr["dtype"].type not in _TYPES:
        return False
    value = node.attr["value"].tensor
    size = math.prod(_shape(value)) * tf.as_dtype(value.dtype).size
    written = len(value.float_val) + len(value.half_val)
    return size >= _LEAST and written <= 1 and not value.tensor_content


def _shape(tensor: Any) -> list[int]:
    return [axis.size for axis in tensor.tensor_shape.dim]


def _filled(node: compat.NodeDef, *, after: str) -> list[compat.NodeDef]:
    """The shape, the value, and the op that fills in under the constant's name."""
    tensor = node.attr["value"].tensor
    dims = compat.constant(f"{node.name}/lms_shape", _shape(tensor), tf.int32)
    value = _copied(node)
    value.name = f"{node.name}/lms_value"
    del value.input[:]
    value.attr["value"].tensor.tensor_shape.Clear()
    filled = compat.NodeDef(name=node.name, op="Fill")
    dims.device = filled.device = node.device
    controls = [name for name in node.input if name != f"^{after}"]
    filled.input.extend([dims.name, value.name, *controls, f"^{after}"])
    filled.attr["T"].type = tensor.dtype
    filled.attr["index_type"].type = tf.int32.as_datatype_enum
    return [dims, value, filled]


def _without_size(variable: compat.NodeDef) -> compat.NodeDef:
    node = _copied(variable)
    node.attr["shape"].shape.Clear()  # a scalar's
    return node


def _taking_over(assign: compat.NodeDef) -> compat.NodeDef:
    node = _copied(assign)
    node.attr["validate_shape"].b = False
    node.attr[_RELAXED].b = True
    node.attr[_TAKES_OVER].b = True
    return node


def _copied(node: compat.NodeDef) -> compat.NodeDef:
    copy = compat.NodeDef()
    copy.CopyFrom(node)
    return copy
