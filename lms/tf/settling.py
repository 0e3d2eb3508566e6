"""Variables side by side in the device's memory, before a step is planned around them.

    |v|..|v|....|v|.|v|......|        settle        |v|v|v|v|.................|

Two things are in the way of a plan otherwise. What is free lies in pieces between
variables, in chunks that may be up to twice as large as they need be; how large a
tensor fits there is not known. And slots of an optimizer that begin as the same zeros
share one buffer until they are written: in the first step each would take its own, in
the middle of what is planned.

Known weakness: for a moment the variables are on the host alone, and whoever else
reads them then finds nothing in them.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from lms.tf.specialising import TracedStep

__all__ = ["settle_variables"]


def settle_variables(step: TracedStep) -> None:
    """Move each captured variable to memory of its own, large ones first; values stay.

    Variables that hold nothing yet, or what has no copy, are left as they are.
    """
    held: list[tuple[Any, np.ndarray]] = []
    try:
        for handle, dtype in step.variables.values():
            try:
                value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
            except tf.errors.OpError:
                continue
            held.append((handle, np.array(value.numpy())))
            del value
            nothing = tf.zeros([0], dtype)
            tf.raw_ops.AssignVariableOp(resource=handle, value=nothing)
    finally:
        for handle, value in sorted(held, key=lambda pair: -pair[1].nbytes):
            # NumPy's memory may be taken as it is: the copy is the device's own.
            copy = tf.raw_ops.DeepCopy(x=tf.constant(value))
            tf.raw_ops.AssignVariableOp(resource=handle, value=copy)
