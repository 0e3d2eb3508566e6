"""Signs of floats, told on the device: Keras's `argmax` asks for them in integers.

    Bitcast ──> BitwiseAnd with the sign's bit ──> Less than 0

A GPU compares integers in the host's memory: each step would send all that `argmax`
reads there. With a float in the place of the bit the answers are the same:

    BitwiseAnd ──> BitwiseOr with 1.0's bits ──> Bitcast: 1.0 or -1.0 ──> Less than 0.0
"""

from collections.abc import Collection, Sequence

import numpy as np
import tensorflow as tf

from lms.tf import compat

__all__ = ["with_signs_on_device"]

_SIGN = np.iinfo(np.int32).min
_ONE = int(np.float32(1).view(np.int32))


def with_signs_on_device(
    nodes: Sequence[compat.NodeDef], fixed: Collection[str], device: str
) -> list[compat.NodeDef]:
    """Nodes in which a GPU compares signs itself.

    Args:
        nodes: The nodes of a step; they are not changed.
        fixed: Names of those in loops and branches, which are left alone.
        device: Full name of the device.
    """
    by_name = {node.name: node for node in nodes}
    found: list[compat.NodeDef] = []
    for node in nodes:
        asks = "GPU" in device and node.name not in fixed
        found += _on_device(node) if asks and _asks_sign(node, by_name) else [node]
    return found


def _asks_sign(node: compat.NodeDef, by_name: dict[str, compat.NodeDef]) -> bool:
    if node.op != "Less" or _int(by_name.get(node.input[1])) != 0:
        return False
    bit = by_name.get(node.input[0])
    masks = () if bit is None or bit.op != "BitwiseAnd" else bit.input
    return any(_int(by_name.get(name)) == _SIGN for name in masks)


def _int(node: compat.NodeDef | None) -> int | None:
    """The value of an int32 constant; None if a node is another."""
    if node is None or node.op != "Const" or node.attr["dtype"].type != tf.int32:
        return None
    value = tf.make_ndarray(node.attr["value"].tensor)
    return int(value) if value.shape == () else None


def _on_device(less: compat.NodeDef) -> list[compat.NodeDef]:
    one = compat.constant(f"{less.name}/one", _ONE, tf.int32)
    zero = compat.constant(f"{less.name}/zero", 0.0, tf.float32)
    bits = compat.NodeDef(name=f"{less.name}/bits", op="BitwiseOr")
    bits.input.extend([less.input[0], one.name])
    bits.attr["T"].type = tf.int32.as_datatype_enum
    sign = compat.NodeDef(name=f"{less.name}/sign", op="Bitcast", input=[bits.name])
    sign.attr["T"].type = tf.int32.as_datatype_enum
    sign.attr["type"].type = tf.float32.as_datatype_enum
    made = compat.NodeDef()
    made.CopyFrom(less)
    made.input[0], made.input[1] = sign.name, zero.name
    made.attr["T"].type = tf.float32.as_datatype_enum
    for node in (one, zero, bits, sign):
        node.device = less.device
    return [one, zero, bits, sign, made]
