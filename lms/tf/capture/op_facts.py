"""Facts of TensorFlow 2.21 about op types, each with its source, and ops' arithmetic.

An op that is not named here makes new buffers, reads its inputs, and is ordered and
swapped as usual.

Only convolutions and matrix products have arithmetic, computed from their shapes. All
other ops are as fast as their bytes move, and count 0 operations.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lms.ir.graph import GraphView, Op

__all__ = ["ALIAS", "BY_REFERENCE", "CHEAP", "COLLECTIVE", "CONSTANT", "CONTROL_FLOW"]
__all__ += ["INPLACE", "LOOPS", "LOSS", "NOT_REPEATABLE", "PERSISTENT", "READS_STATE"]
__all__ += ["READS_VARIABLES", "REDUCTIONS", "REPLACES_STATE", "RESERVED", "RESERVES"]
__all__ += ["flops_of", "with_flops", "words"]


def words(text: str) -> frozenset[str]:
    """Return the set of op types in a text, separated by white space."""
    return frozenset(text.split())


# Ops whose outputs share their first input's buffer (a Bitcast's too: bitcast_op.cc).
ALIAS = words(
    """Reshape Squeeze ExpandDims Identity StopGradient PreventGradient EnsureShape
    Bitcast Switch Enter Exit NextIteration Merge Assign AssignAdd
    DestroyTemporaryVariable"""
)

# Reductions. A reduction over no axis, or over axes of one, shares its input's buffer
# (reduction_ops_common.h, "Reduces nothing"), as in gradients of broadcasts.
REDUCTIONS = words("Sum Mean Prod Max Min All Any")

# Loops of one op, whose rounds call a function (`tf.nn.ctc_loss` has two).
LOOPS = words("While StatelessWhile")

# Ops that pass one buffer on and write into it. Grappler replaces sums of large tensors
# by these ops, which add each tensor as soon as it is made (memory_optimizer.cc,
# `SchedulingPass`): neither order nor buffer may change.
BY_REFERENCE = words("TemporaryVariable Assign AssignAdd DestroyTemporaryVariable")

# Ops that may write their largest output into an input without other readers:
# TensorFlow's element-wise kernels (`forward_input_or_allocate_output` in
# cwise_ops_common.h, relu_op.cc, aggregate_ops.cc), and a loss whose gradient
# overwrites the logits (sparse_xent_op.cc). The loss of dense labels (xent_op.cc) is
# left out: its labels are as large as the logits, and are never overwritten.
INPLACE = words(
    """Add AddV2 Sub Mul MulNoNan RealDiv Div DivNoNan Maximum Minimum Pow
    SquaredDifference Neg Abs Sqrt Rsqrt Square Exp Expm1 Log Log1p Tanh Sigmoid Sign
    Floor Round Reciprocal Inv Erf Erfc TanhGrad SigmoidGrad SqrtGrad RsqrtGrad InvGrad
    Relu Relu6 LeakyRelu Elu Selu Softplus Softsign ReluGrad Relu6Grad LeakyReluGrad
    EluGrad SeluGrad SoftplusGrad SoftsignGrad AddN BiasAdd LogicalNot LogicalAnd
    LogicalOr SelectV2 Softmax LogSoftmax ClipByValue _UnaryOpsComposition Xdivy Xlogy
    BitwiseAnd BitwiseOr BitwiseXor Invert LeftShift RightShift CollectiveReduceV2
    SparseSoftmaxCrossEntropyWithLogits"""
)

# This loss may write only its second output, and only into its first input, the logits.
LOSS = "SparseSoftmaxCrossEntropyWithLogits"

# Ops that all workers run together. They reduce in their input's memory if the input
# has no other reader (base_collective_executor.h).
COLLECTIVE = words("CollectiveReduceV2")

# Ops about as fast as copying their tensors: element-wise ops, and ops that move
# elements.
CHEAP = (
    INPLACE
    - words(
        """Softmax LogSoftmax AddN CollectiveReduceV2
        SparseSoftmaxCrossEntropyWithLogits"""
    )
    | words("Reshape Squeeze ExpandDims Identity StopGradient PreventGradient Bitcast")
    | words(
        """Cast ConcatV2 Pack Tile BroadcastTo Pad PadV2 MirrorPad Transpose ReverseV2
        ResizeNearestNeighbor DepthToSpace SpaceToDepth Greater GreaterEqual Less
        LessEqual Equal NotEqual"""
    )
)

# Stateless ops that are not recomputed. AddN adds three or more inputs in an order that
# depends on which input's memory it may overwrite (aggregate_ops.cc). Slices may be
# views that keep the whole input (split_op.cc). oneDNN's poolings pass more to their
# gradients than their outputs.
NOT_REPEATABLE = words(
    """AddN Slice StridedSlice Split SplitV Unpack MaxPool MaxPool3D LRN"""
)

PERSISTENT = words(
    "Const VarHandleOp ReadVariableOp Placeholder _Arg VariableShape HostConst"
)

# Ops whose outputs the kernel keeps as long as the graph's executor exists
# (constant_op.cc).
CONSTANT = words("Const")

# Ops whose output shares a variable's current memory; and ops that make their second
# input's memory the variable's (resource_variable_ops.cc).
READS_STATE = words("ReadVariableOp")
REPLACES_STATE = words("AssignVariableOp")

# Ops that never write a variable whose handle they get (resource_variable_ops.cc,
# gather ops). Any other op with a variable's handle may write it.
READS_VARIABLES = words(
    """ReadVariableOp _ReadVariablesOp VariableShape VarIsInitializedOp ResourceGather
    ResourceGatherNd DisableCopyOnRead"""
)

# Ops with an output for their gradients whose size cuDNN tells when they run
# (cudnn_rnn_ops.cc), and that output's index.
RESERVES, RESERVED = words("CudnnRNN CudnnRNNV2 CudnnRNNV3"), 3

CONTROL_FLOW = words(
    """Switch RefSwitch _SwitchN Merge RefMerge Enter RefEnter Exit RefExit
    NextIteration RefNextIteration LoopCond"""
)


def with_flops(graph: GraphView, nodes: Iterable[Any] = ()) -> GraphView:
    """Return the graph with `Op.flops` filled in; `nodes` give einsums' equations."""
    sums = (node for node in nodes if node.op == "Einsum")
    told = {node.name: node.attr["equation"].s.decode() for node in sums}
    ops = ((op, flops_of(graph, op, told.get(op.name, ""))) for op in graph.ops)
    made = tuple(replace(op, flops=count) for op, count in ops)
    return GraphView(ops=made, results=graph.results)


def flops_of(graph: GraphView, op: Op, equation: str = "") -> int:
    """Return floating-point operations of a convolution or matrix product, else 0.

    A convolution has two for each element of its output and of the kernel above it, and
    each of its two gradients has as many. An einsum has two for each element of the
    space that its labels span; one with an ellipsis counts 0.

    Example:
        >>> from lms.ir.graph import Tensor
        >>> def made(name, *shape):
        ...     tensor = Tensor(name=f"{name}:0", size=4, shape=shape)
        ...     return Op(name=name, type="Const", outputs=(tensor,))
        >>> out = (Tensor(name="y:0", size=4, shape=(1, 8, 8, 16)),)
        >>> conv = Op(name="y", type="Conv2D", inputs=("x:0", "w:0"), outputs=out)
        >>> graph = GraphView(ops=(made("x", 1, 8, 8, 4), made("w", 3, 3, 4, 16), conv))
        >>> flops_of(graph, conv) == 2 * (8 * 8 * 16) * (3 * 3 * 4)
        True
        >>> einsum = replace(conv, type="Einsum")
        >>> flops_of(graph, einsum, "bijc, hwcn -> bijn") == flops_of(graph, conv)
        True
    """
    made = op.outputs[0].shape if op.outputs else ()
    first, second, third = _input_shapes(graph, op)
    kind = op.type.removeprefix("_Fused")
    if kind.startswith(("Conv2DBackpropFilter", "Conv3DBackpropFilter")):
        return _convolution(made, third)
    if kind.startswith(("Conv2DBackpropInput", "Conv3DBackpropInput")):
        return _convolution(second, third)
    if kind.startswith("DepthwiseConv2dNative"):
        return 2 * math.prod(made) * math.prod(second[:2])
    if kind.startswith(("Conv2D", "Conv3D")):
        return _convolution(second, made)
    if kind == "Einsum" and "." not in equation:
        return _einsum(equation, first, second)
    if "MatMul" in kind and first and made:
        return 2 * math.prod(made) * _contracted(first, made)
    return 0


def _input_shapes(graph: GraphView, op: Op) -> list[tuple[int, ...]]:
    """Return shapes of the first three inputs, () for absent ones."""
    shapes = [graph.tensors[name].shape for name in op.inputs[:3]]
    return shapes + [()] * (3 - len(shapes))


def _convolution(kernel: tuple[int, ...], made: tuple[int, ...]) -> int:
    """Count operations of a kernel (*window, input, output channels) over `made`.

    Only the elements of `made` count, so channels may be first or last.
    """
    return 2 * math.prod(kernel[:-1]) * math.prod(made)


def _einsum(equation: str, first: tuple[int, ...], second: tuple[int, ...]) -> int:
    told = equation.replace(" ", "").partition("->")[0].split(",")
    if [len(labels) for labels in told] != [len(first), len(second)]:
        return 0
    return 2 * math.prod(dict(zip("".join(told), first + second, strict=True)).values())


def _contracted(left: tuple[int, ...], made: tuple[int, ...]) -> int:
    """Return the length of the axis that a matrix product sums over."""
    rows = made[-2] if len(made) > 1 else 1
    return math.prod(left[-2:]) // max(1, rows)
