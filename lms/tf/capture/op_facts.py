"""Facts about ops by their type: what TensorFlow does with them, and their arithmetic.

They are those of TensorFlow 2.21, each with its source. An op that is not named here
makes new buffers, reads its inputs, and is ordered and swapped as usual.

Arithmetic is that of convolutions and matrix products, by their shapes. All other ops
are as fast as their bytes are moved, so theirs counts as none.
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
    """Types of ops that are written in a row."""
    return frozenset(text.split())


# Ops whose outputs share their first input's buffer (a Bitcast's too: bitcast_op.cc).
ALIAS = words(
    """Reshape Squeeze ExpandDims Identity StopGradient PreventGradient EnsureShape
    Bitcast Switch Enter Exit NextIteration Merge Assign AssignAdd
    DestroyTemporaryVariable"""
)

# Reductions. One that reduces nothing, such as the sum over the axes that a gradient
# was not broadcast along, shares its input's buffer (reduction_ops_common.h, "Reduces
# nothing").
REDUCTIONS = words("Sum Mean Prod Max Min All Any")

# Loops that are one op, whose rounds call a function (`tf.nn.ctc_loss` has two).
LOOPS = words("While StatelessWhile")

# Ops that pass one buffer on and write into it. Grappler makes them of sums of large
# tensors, to add up the parts as they come (memory_optimizer.cc, `SchedulingPass`):
# neither their order nor their buffer may change.
BY_REFERENCE = words("TemporaryVariable Assign AssignAdd DestroyTemporaryVariable")

# Ops that may write their largest output into an input that nobody else will read:
# TensorFlow's element-wise kernels (`forward_input_or_allocate_output` in
# cwise_ops_common.h, relu_op.cc, aggregate_ops.cc), and a loss whose gradient takes
# the place of the logits (sparse_xent_op.cc). With dense labels (xent_op.cc) labels
# are as large and are never written over: that loss is left out.
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

# Its second output may take the place of its first input, the logits, alone.
LOSS = "SparseSoftmaxCrossEntropyWithLogits"

# Ops that all workers run together, each with the others' numbers. They reduce in their
# input's memory if nobody else reads it (base_collective_executor.h).
COLLECTIVE = words("CollectiveReduceV2")

# Ops that take about as long as copying their tensors: they work on each element by
# itself, or move it to another place.
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

# Ops without state that are not recomputed all the same. AddN adds up more than
# two inputs in an order that depends on whose memory it may write into
# (aggregate_ops.cc). Slices may be views that keep the whole input (split_op.cc).
# oneDNN's poolings leave their gradients more than their outputs.
NOT_REPEATABLE = words(
    """AddN Slice StridedSlice Split SplitV Unpack MaxPool MaxPool3D LRN"""
)

PERSISTENT = words(
    "Const VarHandleOp ReadVariableOp Placeholder _Arg VariableShape HostConst"
)

# Ops whose outputs the kernel keeps as long as the graph's executor exists
# (constant_op.cc).
CONSTANT = words("Const")

# Ops whose output shares the memory that a variable has then; and ops that make their
# second input's memory the variable's (resource_variable_ops.cc).
READS_STATE = words("ReadVariableOp")
REPLACES_STATE = words("AssignVariableOp")

# Ops that leave a variable whose handle they get as it is (resource_variable_ops.cc,
# gather ops); any other op with a variable's handle may write it.
READS_VARIABLES = words(
    """ReadVariableOp _ReadVariablesOp VariableShape VarIsInitializedOp ResourceGather
    ResourceGatherNd DisableCopyOnRead"""
)

# Ops of which an output is as large as cuDNN says when they run: it is left to their
# gradients (cudnn_rnn_ops.cc). The number of that output.
RESERVES, RESERVED = words("CudnnRNN CudnnRNNV2 CudnnRNNV3"), 3

CONTROL_FLOW = words(
    """Switch RefSwitch _SwitchN Merge RefMerge Enter RefEnter Exit RefExit
    NextIteration RefNextIteration LoopCond"""
)


def with_flops(graph: GraphView, nodes: Iterable[Any] = ()) -> GraphView:
    """The graph with `Op.flops` filled in; TensorFlow's nodes tell equations."""
    sums = (node for node in nodes if node.op == "Einsum")
    told = {node.name: node.attr["equation"].s.decode() for node in sums}
    ops = ((op, flops_of(graph, op, told.get(op.name, ""))) for op in graph.ops)
    made = tuple(replace(op, flops=count) for op, count in ops)
    return GraphView(ops=made, results=graph.results)


def flops_of(graph: GraphView, op: Op, equation: str = "") -> int:
    """Floating-point operations of a convolution or matrix product; 0 for others.

    A convolution makes two for each element of its output and of the kernel above it,
    and its two gradients as many each; an einsum, by its equation, two for each element
    of the space that its labels span, and none that are counted with an ellipsis.

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
    """Shapes of the first three inputs; those that are not there have no axes."""
    shapes = [graph.tensors[name].shape for name in op.inputs[:3]]
    return shapes + [()] * (3 - len(shapes))


def _convolution(kernel: tuple[int, ...], made: tuple[int, ...]) -> int:
    """Kernel (*window, input channels, output channels) over `made`, channels last.

    The channels' axis of `made` is counted within the kernel, so that channels first,
    with as many elements, come to the same.
    """
    return 2 * math.prod(kernel[:-1]) * math.prod(made)


def _einsum(equation: str, first: tuple[int, ...], second: tuple[int, ...]) -> int:
    told = equation.replace(" ", "").partition("->")[0].split(",")
    if [len(labels) for labels in told] != [len(first), len(second)]:
        return 0
    return 2 * math.prod(dict(zip("".join(told), first + second, strict=True)).values())


def _contracted(left: tuple[int, ...], made: tuple[int, ...]) -> int:
    """Length of the axis that a matrix product sums over, either way transposed."""
    rows = made[-2] if len(made) > 1 else 1
    return math.prod(left[-2:]) // max(1, rows)
