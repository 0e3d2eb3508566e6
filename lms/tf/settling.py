"""Variables in memory of their own, before a step is planned around them.

Slots of an optimizer that begin as the same zeros share one buffer until they are
written. In the first step each would take its own memory, in the middle of what is
planned: more is persistent than was measured, and what is free lies in pieces.

    zeros <── m, v, ...      settle      m ──> its own    v ──> its own
"""

import tensorflow as tf

from lms.tf.specialising import TracedStep

__all__ = ["settle_variables"]


def settle_variables(step: TracedStep) -> None:
    """Copy each captured variable into memory of its own; values stay.

    Variables that hold nothing yet, or what has no copy, are left as they are.
    """
    for handle, dtype in step.variables.values():
        try:
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
            copy = tf.raw_ops.DeepCopy(x=value)
            tf.raw_ops.AssignVariableOp(resource=handle, value=copy)
        except tf.errors.OpError:
            continue
