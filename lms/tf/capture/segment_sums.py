"""Rows of an embedding's gradient, summed alone: the whole table is never made.

    ids ──minus first──> those of other rows become -1 ──> UnsortedSegmentSum of rows

A negative id is dropped by TensorFlow. What is added to a row comes in the same order
as in the whole sum, so the bits are the same.
"""

from collections.abc import Sequence
from dataclasses import replace

import tensorflow as tf

from lms.ir.graph import Op, Tensor
from lms.tf import compat
from lms.tf.capture.graph_edit import GraphEdit, Rank, described, made

__all__ = ["SEGMENT_SUM", "sum_rows"]

SEGMENT_SUM = "UnsortedSegmentSum"


def sum_rows(
    edit: GraphEdit, whole: Op, ids: Tensor, output: Tensor, first: int, rank: Rank
) -> None:
    """Add the op that makes some rows of a sum.

    Args:
        edit: The step.
        whole: The op that makes all of it.
        ids: The tensor that says which row each part belongs to.
        output: The rows.
        first: The first of them.
        rank: Where the new ops come.
    """
    name, end = output.name.rpartition(":")[0], output.shape[0]
    node = edit.nodes[whole.name]
    dtype = tf.as_dtype(ids.dtype)

    def add(suffix: str, kind: str, inputs: Sequence[str], made_of: tf.DType) -> str:
        new = f"{name}/{suffix}"
        source = made(kind, node.device)
        source.attr["T"].type = dtype.as_datatype_enum
        tensor = described(f"{new}:0", ids.shape, made_of)
        op = Op(name=new, type=kind, inputs=tuple(inputs), outputs=(tensor,))
        edit.add(op, source, rank)
        return tensor.name

    def constant(suffix: str, value: int, of: tf.DType) -> str:
        new = f"{name}/{suffix}"
        source = compat.constant(new, value, of)
        source.device = node.device
        tensor = described(f"{new}:0", (), of)
        op = Op(
            name=new, type="Const", outputs=(tensor,), persistent=True, constant=True
        )
        edit.add(op, source, rank)
        return tensor.name

    counts = tf.as_dtype(compat.attribute(node, "Tnumsegments").type)
    shifted = add(
        "shifted", "Sub", (whole.inputs[1], constant("first", first, dtype)), dtype
    )
    inside = add("inside", "Less", (shifted, constant("end", end, dtype)), tf.bool)
    others = constant("others", -1, dtype)
    own = add("own", "SelectV2", (inside, shifted, others), dtype)
    inputs = (whole.inputs[0], own, constant("count", end, counts))
    edit.add(
        replace(whole, name=name, inputs=inputs, controls=(), outputs=(output,)),
        node,
        rank,
    )
