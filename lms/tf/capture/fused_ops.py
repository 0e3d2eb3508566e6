"""Fused ops that the runtime makes, but does not take back.

Grappler's remapper fuses a convolution with its bias and activation. On a CPU with
oneDNN it does so in bfloat16 too, although the op `_FusedConv2D` is not registered for
it: the runtime does not check its own graphs, but refuses one that is handed to it.

    _FusedConv2D(bfloat16)  ──>  _MklNativeFusedConv2D(bfloat16)

The second is what oneDNN's pass makes of the first just before it runs: the same
attributes, inputs and kernel, and so the same bits. Splitting the op into its parts
would round in between.

Sources: remapper.cc (`IsCpuCompatibleDataType`), mkl_layout_pass.cc (`fused_conv2d`,
`CopyAttrsFusedConv2D`) and nn_ops.cc, mkl_nn_ops.cc (`REGISTER_OP`) of TensorFlow.
Where oneDNN is off, or on a GPU, the remapper makes no such op.
"""

import tensorflow as tf

from lms.tf import compat

__all__ = ["take_back"]

# The types for which `_FusedConv2D` is fused, but not registered.
_UNREGISTERED = frozenset({tf.bfloat16.as_datatype_enum})

# How oneDNN's kernels are told from those of the ops that they stand for.
_LABEL = b"MklNameChangeOp"


def take_back(graph: compat.GraphDef) -> None:
    """Name the ops, functions' included, as they are run where they cannot be imported.

    Args:
        graph: The runtime's graph; it is changed.
    """
    bodies = (function.node_def for function in graph.library.function)
    for nodes in (graph.node, *bodies):
        for node in nodes:
            if (
                node.op == "_FusedConv2D"
                and compat.attribute(node, "T").type in _UNREGISTERED
            ):
                node.op = "_MklNativeFusedConv2D"
                node.attr["_kernel"].s = _LABEL
