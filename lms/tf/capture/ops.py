"""Facts of TensorFlow 2.21 about op types, and the arithmetic of ops.

A row of `_TABLE` names op types that behave alike: `facts | bound | split | types`.
`bound` is a rule of `bound_rules`, with the input that the rule looks at; `split` is a
rule of `lms.tf.passes.split_rules`. A type stands in one row: to teach an op, add its
type to the row of its kind. Facts and their sources:

alias       Outputs share the first input's buffer (a Bitcast's too: bitcast_op.cc).
inplace     May write its largest output into an input without other readers:
            element-wise kernels (`forward_input_or_allocate_output` in
            cwise_ops_common.h, relu_op.cc, aggregate_ops.cc), and a loss whose gradient
            overwrites the logits (sparse_xent_op.cc). The loss of dense labels
            (xent_op.cc) never overwrites labels, which are as large as the logits.
            `_ParallelConcatUpdate` always writes into its first (inplace_ops.cc).
cheap       About as fast as copying its tensors.
once        Stateless, but not recomputed. AddN adds three or more inputs in an order
            that depends on which input's memory it may overwrite (aggregate_ops.cc).
            A view keeps its input. oneDNN's poolings pass more to their gradients than
            their outputs.
view        A slice, which along the first axis may share its input's buffer
            (split_op.cc, unpack_op.cc, slice_op.cc, strided_slice_op.cc).
part, part1 Has at most as many elements as its first, or second, input, in any shape.
product     A library chooses the order of additions.
reduces     A reduction. Over no axis, or over axes of one, it shares its input's buffer
            (reduction_ops_common.h, "Reduces nothing"), as in gradients of broadcasts.
by_ref      Passes one buffer on and writes into it. Grappler replaces sums of large
            tensors by these ops, which add each tensor as soon as it is made: neither
            order nor buffer may change (memory_optimizer.cc, `SchedulingPass`).
persistent  Its outputs live outside of the step.
constant    The kernel keeps the output as long as the graph's executor exists
            (constant_op.cc).
reads       Never writes a variable whose handle it gets, as any other op may
            (resource_variable_ops.cc, gather ops).
reads_state Its output shares a variable's current memory; `replaces_state` makes its
            second input's memory the variable's (resource_variable_ops.cc).
collective  All workers run it together. It reduces in its input's memory if the input
            has no other reader (base_collective_executor.h).
control     Begins, ends or chooses between rounds of a loop, or branches.
loop        A loop of one op, whose rounds call a function (`tf.nn.ctc_loss` has two).
reserves    Its output `RESERVED` is for its gradient; cuDNN tells the size when it runs
            (cudnn_rnn_ops.cc).

An op that is not named here makes new buffers, reads its inputs, and is ordered and
swapped as usual.

Only convolutions and matrix products have arithmetic, computed from their shapes. All
other ops are as fast as their bytes move, and count 0 operations.

Any op with a variable's handle may write the variable, unless the op is known to only
read. A collective counts as a write that cannot be undone, since other workers read its
numbers. An op in a loop or branch cannot be ordered. The op that makes the branch's
predicate, or the loop's first value, can, and stands for the writes inside.

Known weaknesses: other side effects (printing, a data set's or table's state, random
state inside a kernel) happen again when a step is repeated.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from lms.ir.graph import GraphView, Op, op_of

__all__ = ["ALIAS", "BOUNDS", "BY_REFERENCE", "CHEAP", "COLLECTIVE", "CONSTANT"]
__all__ += ["CONTROL_FLOW", "INPLACE", "LOOPS", "LOSS", "NOT_REPEATABLE", "PERSISTENT"]
__all__ += ["PRODUCTS", "READS_STATE", "READS_VARIABLES", "REDUCTIONS"]
__all__ += ["REPLACES_STATE", "RESERVED", "RESERVES", "ROWS", "SPLITS", "flops_of"]
__all__ += ["VIEWS", "having", "with_flops", "with_writes"]

_TABLE = """
inplace cheap part | like 0 | element_wise | Neg Abs Sqrt Rsqrt Square Exp Expm1 Log
    Log1p Tanh Sigmoid Sign Floor Round Reciprocal Inv Erf Erfc Relu Relu6 LeakyRelu Elu
    Selu Softplus Softsign LogicalNot ClipByValue _UnaryOpsComposition
inplace cheap | broadcast | element_wise | Add AddV2 Sub Mul MulNoNan RealDiv Div
    DivNoNan Maximum Minimum Pow SquaredDifference Xdivy Xlogy LogicalAnd LogicalOr
    SelectV2 TanhGrad SigmoidGrad SqrtGrad RsqrtGrad InvGrad ReluGrad Relu6Grad
    LeakyReluGrad EluGrad SeluGrad SoftplusGrad SoftsignGrad
inplace cheap | | element_wise | BitwiseAnd BitwiseOr BitwiseXor Invert LeftShift
    RightShift
inplace cheap part | like 0 | with_bias | BiasAdd
inplace part | like 0 | by_rows | Softmax LogSoftmax
inplace once | broadcast | added | AddN
inplace once cheap | like 0 | | _ParallelConcatUpdate
once cheap | | | Empty
inplace | entropy | loss | SparseSoftmaxCrossEntropyWithLogits
inplace collective | | | CollectiveReduceV2
collective | gathered | | CollectiveGatherV2
cheap part | like 0 | element_wise | Cast
cheap | broadcast | element_wise | Greater GreaterEqual Less LessEqual Equal NotEqual
part | like 0 | element_wise | ZerosLike OnesLike Sin Cos Ceil Rint IsNan IsInf IsFinite
part | like 0 | | CheckNumerics Cumprod Cumsum DataFormatDimMap DataFormatVecPermute
    DeepCopy Snapshot
| broadcast | element_wise | FloorDiv FloorMod
| broadcast | | Atan2 BroadcastGradientArgs ReciprocalGrad
| | element_wise | Erfinv Tan Atan Sinh Cosh Asinh Acosh Xlog1py
| like 1 | chosen | Select
| entropy | loss | SoftmaxCrossEntropyWithLogits

alias cheap part | like 0 | element_wise | Identity StopGradient PreventGradient
alias cheap part | given 1 | reshaped | Reshape
alias cheap part | | reshaped | ExpandDims Squeeze
alias cheap | | | Bitcast
alias part | like 0 | | EnsureShape
cheap | given 1 | broadcast | BroadcastTo
cheap | concat | joined | ConcatV2
cheap | pack | packed | Pack
cheap | tile | padded | Tile
cheap | | padded | Pad PadV2 MirrorPad
cheap | | resized | ResizeNearestNeighbor
cheap part | transpose | transposed | Transpose
cheap part | like 0 | | ReverseV2
cheap | | | DepthToSpace SpaceToDepth
once part view | cut | sliced | Slice
once part view | slice | | StridedSlice
once part view | | unpacked | Unpack
once part view | | split | SplitV
once part1 view | | split | Split
part | | | DynamicPartition
| gather | | GatherV2
| rows_of | | Gather GatherNd
| | resized | ResizeBilinear
| | rolled | Roll

reduces part | reduce | reduced | Sum Mean Prod Max Min All Any
part | | reduced | ArgMax ArgMin
| segments | | UnsortedSegmentSum UnsortedSegmentProd UnsortedSegmentMax
    UnsortedSegmentMin
| sorted_segments | | SegmentSum SegmentMean SegmentProd SegmentMax SegmentMin
product | product | product | MatMul _FusedMatMul BatchMatMul BatchMatMulV2
product | | product | BatchMatMulV3
product | | einsum | Einsum
product | | convolved | Conv2D Conv3D DepthwiseConv2dNative _FusedConv2D _FusedConv3D
product | given 0 | gradient_of_input | Conv2DBackpropInput Conv3DBackpropInputV2
product | | gradient_of_input | DepthwiseConv2dNativeBackpropInput
product | | pooled | AvgPool AvgPool3D
product | | average_gradient | AvgPoolGrad AvgPool3DGrad
product | | resized | ResizeBilinearGrad
once | | pooled | MaxPool MaxPool3D
once | | | LRN
| | pooled | MaxPoolGrad MaxPool3DGrad
reserves | recurrent | | CudnnRNN CudnnRNNV2 CudnnRNNV3

| given 0 | filled | Fill
| given 0 | | RandomUniform RandomStandardNormal TruncatedNormal StridedSliceGrad
| given 2 | | ScatterNd
| | random | StatelessRandomUniformV2
| range | | Range
| where | | Where
| unique | | Unique UniqueWithCounts
part | unique | | UniqueV2
| like 0 | | ListDiff
| suppressed | | NonMaxSuppressionV2 NonMaxSuppressionV3 NonMaxSuppressionV4
    NonMaxSuppressionV5 NonMaxSuppressionWithOverlaps
| most_axes | | TensorListElementShape
| | by_rows | TopKV2 OneHot

persistent | | | VarHandleOp Placeholder _Arg HostConst
persistent constant | | | Const
persistent reads | | | VariableShape
persistent reads reads_state | | | ReadVariableOp
reads | | | _ReadVariablesOp VarIsInitializedOp DisableCopyOnRead
reads | rows_of | | ResourceGather ResourceGatherNd
replaces_state | | | AssignVariableOp
alias by_ref | | | Assign AssignAdd DestroyTemporaryVariable
by_ref | | | TemporaryVariable
alias control | | | Enter Exit NextIteration
alias control | merge | | Merge
alias control part | like 0 | | Switch
control | | | RefSwitch _SwitchN RefMerge RefEnter RefExit RefNextIteration LoopCond
loop | | | While StatelessWhile
"""

ROWS = [
    [cell.split() for cell in row.split("|")]
    for row in _TABLE.replace("\n    ", " ").splitlines()
    if row
]


def having(fact: str) -> frozenset[str]:
    """Return the op types of all rows with a fact."""
    return frozenset(op for facts, *_, ops in ROWS if fact in facts for op in ops)


BOUNDS = {op: " ".join(bound) for _, bound, _, ops in ROWS if bound for op in ops}
SPLITS = {op: split[0] for _, _, split, ops in ROWS if split for op in ops}

ALIAS, INPLACE, CHEAP = having("alias"), having("inplace"), having("cheap")
NOT_REPEATABLE, BY_REFERENCE = having("once"), having("by_ref")
REDUCTIONS, PRODUCTS, COLLECTIVE = map(having, ("reduces", "product", "collective"))
PERSISTENT, CONSTANT, VIEWS = map(having, ("persistent", "constant", "view"))
READS_VARIABLES, READS_STATE = having("reads"), having("reads_state")
REPLACES_STATE, LOOPS = having("replaces_state"), having("loop")
CONTROL_FLOW = having("control")
RESERVES, RESERVED = having("reserves"), 3

# This loss may write only its second output, and only into its first input, the logits.
LOSS = "SparseSoftmaxCrossEntropyWithLogits"

# Ops that begin a branch or a loop.
_GATED = ("Switch", "RefSwitch", "_SwitchN", "Enter", "RefEnter")


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
    read = [graph.tensors[name].shape for name in op.inputs[:3]]
    first, second, third = read + [()] * (3 - len(read))
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
        rows = made[-2] if len(made) > 1 else 1
        return 2 * math.prod(made) * (math.prod(first[-2:]) // max(1, rows))
    return 0


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


def with_writes(graph: GraphView, handles: Sequence[str]) -> GraphView:
    """Return the graph with `Op.writes` filled in, by the names of handles."""
    known = {name: name for name in handles}
    writes: dict[str, dict[str, None]] = defaultdict(dict)
    for op in graph.ops:
        if op.alias is not None or op.type in READS_VARIABLES:
            continue
        roots = [graph.roots[name] for name in op.inputs]
        found = {known[name]: None for name in roots if name in known}
        if op.persistent and op.type in ALIAS:  # on another device, passes on a handle
            known |= {t.name: name for name in found for t in op.outputs}
            continue
        if op.type in COLLECTIVE:  # other workers take part: never recomputed
            found[op.name] = None
        gate = _gate(graph, op) if op.fixed and found else None
        if found:
            writes[gate or op.name].update(found)
    ops = (
        replace(op, writes=tuple(writes[op.name])) if op.name in writes else op
        for op in graph.ops
    )
    return GraphView(ops=tuple(ops), results=graph.results)


def _gate(graph: GraphView, inner: Op) -> str | None:
    """Return the op outside of loops and branches that a write inside must wait for.

    The search back stops at a Merge of branches, which waits for one of its inputs.
    """
    pending, seen = [inner], {inner.name}
    while pending:
        op = pending.pop()
        names = [*(op_of(name) for name in op.inputs), *op.controls]
        if op.type in _GATED:
            names = [op_of(op.inputs[-1])]
        for source in (graph.by_name[name] for name in names):
            if op.type in _GATED and not (source.fixed or source.persistent):
                return source.name
            merges = "Merge" in source.type and len(source.inputs) > 1
            if source.fixed and source.name not in seen and not merges:
                seen.add(source.name)
                pending.append(source)
    return None
