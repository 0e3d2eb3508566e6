"""From a Python step to the graph that TensorFlow would run, as plain data.

The graph is not rebuilt by imitation: the runtime itself is made to inline, place and
optimise the traced function, and its result is taken. For that the function is called
once with stand-ins for its variables - handles to which no value was ever assigned -
so that the call ends with an error at the first variable read, after the graph was
made and before anything was computed or written. Whatever TensorFlow would have run
is therefore what is planned, op by op, and the numbers stay the same.

      step, iterator ──trace──> ConcreteFunction ──instantiate──> optimised graph
      optimised graph + shapes of one batch ──specialise──> TracedStep (GraphView + nodes)

Assumptions
    - An iterator argument is cut off: what `IteratorGetNext` yields becomes arguments,
      so that their shapes are known and a last partial batch can be planned by itself.
    - Ops inside loops and branches (between Switch and Merge, Enter and Exit) are
      `fixed`. A control edge into or out of them would carry a dead branch's deadness.

Known weakness: a step that has side effects besides variables (printing, a
`py_function`) may run these once more while it is traced.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from lms.errors import UnsupportedError
from lms.graph import GraphView, Op, Tensor
from lms.tf import compat

__all__ = [
    "Argument",
    "TracedFunction",
    "TracedStep",
    "input_specs",
    "read_signature",
    "signature_key",
    "specialise",
    "trace",
]

# Ops whose outputs share their first input's buffer.
_ALIAS = frozenset(
    """Reshape Squeeze ExpandDims Identity StopGradient PreventGradient EnsureShape
    Switch Enter Exit NextIteration Merge""".split()
)

# Ops that may write into an input that nobody else will read: TensorFlow's
# element-wise kernels (`forward_input_or_allocate_output` in cwise_ops_common.h,
# relu_op.cc, aggregate_ops.cc, batch_norm_op.cc).
_INPLACE = frozenset(
    """Add AddV2 Sub Mul MulNoNan RealDiv Div DivNoNan Maximum Minimum Pow
    SquaredDifference Neg Abs Sqrt Rsqrt Square Exp Expm1 Log Log1p Tanh Sigmoid Sign
    Floor Round Reciprocal Inv Erf TanhGrad SigmoidGrad SqrtGrad RsqrtGrad InvGrad Relu
    Relu6 LeakyRelu Elu Selu Softplus Softsign ReluGrad Relu6Grad LeakyReluGrad EluGrad
    SeluGrad SoftplusGrad SoftsignGrad AddN BiasAdd LogicalNot LogicalAnd LogicalOr
    SelectV2 Softmax LogSoftmax ClipByValue _UnaryOpsComposition Xdivy Xlogy""".split()
)

_PERSISTENT = frozenset(
    """Const VarHandleOp ReadVariableOp Placeholder _Arg VariableShape HostConst""".split()
)

_CONTROL_FLOW = frozenset(
    """Switch RefSwitch _SwitchN Merge RefMerge Enter RefEnter Exit RefExit
    NextIteration RefNextIteration LoopCond""".split()
)

# Pairs that oneDNN's graph pass merges into one op when their control inputs agree
# (mkl_layout_pass.cc, CheckForNodeMerge), which changes bits if it is prevented.
_MERGED_BY_ONEDNN = (
    ("Conv2DBackpropFilter", "BiasAddGrad", False),
    ("Conv2D", "BiasAdd", True),
    ("Pad", "Conv2D", True),
    ("Pad", "_FusedConv2D", True),
)
"""(first, second, whether the second reads the first)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One flat argument of a step.

    Args:
        name: Name of its node.
        spec: Its type and static shape.
        variable: For a variable's handle: the variable's type and shape.
        captured: The captured tensor that is always passed; None for an input.
    """

    name: str
    spec: tf.TensorSpec
    variable: tf.TensorSpec | None = None
    captured: tf.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedFunction:
    """A traced step and the graph that the runtime made of it.

    Args:
        concrete: The traced function.
        graph_def: Its graph after inlining, placement and optimisation.
        captures: Captured tensors, in the order of the graph's last arguments.
        iterator_spec: Element of the iterator argument, None if there is none.
        seconds: What tracing took.
    """

    concrete: Any
    graph_def: compat.GraphDef
    captures: tuple[tf.Tensor, ...]
    iterator_spec: Any
    seconds: float

    def flat_inputs(self, args: Sequence[Any]) -> list[tf.Tensor]:
        """Arguments of one call as flat tensors; with an iterator, one element."""
        if self.iterator_spec is not None:
            return compat.flat_element(self.iterator_spec, args[0])
        return compat.flat_inputs(self.concrete, args)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """One signature of a traced function: all shapes known.

    Args:
        graph: What planners see.
        nodes: The same ops as TensorFlow's nodes, arguments and results excluded.
        library: Functions that the nodes call (loop bodies, data sets).
        arguments: Inputs first, then captures.
        outputs: Names of the tensors to return.
        device: Name of the device that memory is planned for.
    """

    graph: GraphView
    nodes: tuple[compat.NodeDef, ...]
    library: Any
    arguments: tuple[Argument, ...]
    outputs: tuple[str, ...]
    device: str

    @property
    def signature(self) -> str:
        """Shapes of the inputs, readable."""
        shapes = ["x".join(map(str, a.spec.shape)) for a in self._inputs]
        return ", ".join(shape or "scalar" for shape in shapes)

    @property
    def input_bytes(self) -> int:
        """Bytes of the inputs."""
        return sum(self.graph.tensors[f"{a.name}:0"].size for a in self._inputs)

    @property
    def captured_bytes(self) -> int:
        """Bytes of the variables and tensors that the step captures."""
        specs = (a.variable or a.spec for a in self.arguments if a.captured is not None)
        return sum(_described("capture", spec).size for spec in specs)

    @property
    def constant_bytes(self) -> int:
        """Bytes of the constants that the graph holds while it exists."""
        made = (op.outputs for op in self.graph.ops if op.type == "Const")
        return sum(tensor.size for outputs in made for tensor in outputs)

    @property
    def _inputs(self) -> list[Argument]:
        return [a for a in self.arguments if a.captured is None]


def read_signature(signature: Sequence[Any]) -> tuple[Any, ...]:
    """A signature's tensors as specs.

    Raises:
        UnsupportedError: If a dimension beyond the batch is unknown.
    """
    specs = tf.nest.map_structure(_as_spec, tuple(signature))
    for spec in tf.nest.flatten(specs):
        if isinstance(spec, tf.TensorSpec):
            _check_shape(spec.shape, spec.name or "an argument")
    return specs


def _as_spec(value: Any) -> Any:
    if isinstance(value, tf.TypeSpec):
        return value
    tensor = tf.convert_to_tensor(value)
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _check_shape(shape: tf.TensorShape, name: str) -> None:
    if shape.rank is None or None in shape[1:].as_list():
        raise UnsupportedError(
            "a signature must have known dimensions beyond the batch, got "
            f"{shape} for {name}. Pad or resize the data to one size."
        )


def signature_key(tensors: Sequence[Any]) -> str:
    """Text that is equal for tensors and specs of equal types and shapes."""
    return str(
        tf.nest.map_structure(
            lambda t: (t.dtype.name, str(t.shape)) if hasattr(t, "dtype") else str(t),
            list(tensors),
        )
    )


def input_specs(traced: "TracedFunction") -> list[tf.TensorSpec]:
    """Specs of the flat inputs, as they were traced."""
    return _specs(traced.concrete)


def trace(
    function: Callable[..., Any], args: Sequence[Any], *, iterator: Any = None
) -> TracedFunction:
    """Trace a step and let TensorFlow optimise it, without running it.

    Args:
        function: A Python function or a `tf.function`. With an iterator it takes the
            iterator and draws its own batch.
        args: Tensors, or specs with static shapes, in place of its arguments.
        iterator: A `tf.data` iterator that is passed instead of `args`. No element is
            drawn from it.

    Returns:
        The traced function with the graph that would run.
    """
    started = time.perf_counter()
    plain = _without_xla(function)
    if iterator is None:
        concrete = plain.get_concrete_function(*read_signature(args))
        stand_ins = [_zeros(tensor) for tensor in _specs(concrete)]
    else:
        for shape in compat.flat_shapes(iterator.element_spec):
            _check_shape(shape, "the data set's element")
        concrete = plain.get_concrete_function(iterator)
        stand_ins = [_empty_iterator(iterator.element_spec)]
    captures = tuple(concrete.captured_inputs)
    stand_ins += [_stand_in(tensor, i) for i, tensor in enumerate(captures)]
    graph_def = compat.collect_graph(lambda: _instantiate(concrete, stand_ins))
    return TracedFunction(
        concrete=concrete,
        graph_def=graph_def,
        captures=captures,
        iterator_spec=None if iterator is None else iterator.element_spec,
        seconds=time.perf_counter() - started,
    )


def _without_xla(function: Callable[..., Any]) -> Any:
    """The function for tracing; inside an XLA cluster device placement is lost."""
    python = getattr(function, "python_function", function)
    return tf.function(python, jit_compile=False)


def _specs(concrete: Any) -> list[tf.TensorSpec]:
    inputs = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
    return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros([1 if size is None else size for size in spec.shape], spec.dtype)


def _empty_iterator(element_spec: Any) -> tf.Tensor:
    """An iterator's handle without an iterator: drawing from it is an error."""
    return tf.raw_ops.AnonymousIteratorV3(
        output_types=compat.flat_types(element_spec),
        output_shapes=compat.flat_shapes(element_spec),
    )


def _stand_in(tensor: tf.Tensor, index: int) -> tf.Tensor:
    """A handle like a variable's, behind which there is no value."""
    variable = compat.handle_spec(tensor)
    if variable is None:
        return tensor
    return tf.raw_ops.VarHandleOp(
        dtype=variable.dtype,
        shape=variable.shape,
        shared_name=f"lms_stand_in_{id(tensor)}_{index}",
    )


def _instantiate(concrete: Any, stand_ins: Sequence[tf.Tensor]) -> None:
    try:
        compat.call_flat(concrete, stand_ins)
    except tf.errors.OpError:
        return  # expected: a stand-in has no value to read


def specialise(
    traced: TracedFunction, inputs: Sequence[Any], *, device: str
) -> TracedStep:
    """Give a traced function the shapes of one call.

    Args:
        traced: The traced function.
        inputs: The flat inputs or their specs, all shapes known.
        device: Full name of the device that memory is planned for.

    Returns:
        The step as plain data beside its nodes.

    Raises:
        UnsupportedError: If the size of a large tensor cannot be known.
    """
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
    nodes, arguments, outputs = _cut(traced, specs)
    shapes = compat.infer_shapes(
        compat.graph_def(nodes, traced.graph_def.library),
        [(a.name, a.spec, a.variable) for a in arguments],
    )
    ordered = _sorted(nodes, arguments)
    shapes = _bounded(ordered, shapes)
    fixed = _control_flow(ordered)
    groups = _merged_groups(ordered)
    ops = [_argument_op(argument) for argument in arguments]
    back_edges = frozenset(n.name for n in ordered if n.op == "NextIteration")
    ops += [_op(n, shapes, fixed, groups, back_edges, device) for n in ordered]
    return TracedStep(
        graph=GraphView(ops=tuple(ops), results=tuple(dict.fromkeys(outputs))),
        nodes=tuple(ordered),
        library=traced.graph_def.library,
        arguments=arguments,
        outputs=tuple(outputs),
        device=device,
    )


def _cut(
    traced: TracedFunction, inputs: Sequence[tf.TensorSpec]
) -> tuple[list[compat.NodeDef], tuple[Argument, ...], list[str]]:
    """The inner nodes, the arguments and the results of the optimised graph."""
    args = {n.attr["index"].i: n for n in traced.graph_def.node if n.op == "_Arg"}
    results = {n.attr["index"].i: n for n in traced.graph_def.node if n.op == "_Retval"}
    inner = [n for n in traced.graph_def.node if n.op not in ("_Arg", "_Retval")]
    names = [args[i].name for i in range(len(args))]
    renamed: dict[str, str] = {}
    if traced.iterator_spec is not None:
        (draw,) = (n for n in inner if n.op == "IteratorGetNext")
        inner.remove(draw)
        names = [f"lms_input_{i}" for i in range(len(inputs))] + names[1:]
        renamed = {_tensor(draw.name, i): names[i] for i in range(len(inputs))}
        renamed[f"^{draw.name}"] = ""
    renamed |= {f"^{name}": "" for name in names}
    arguments = [
        Argument(name=name, spec=spec)
        for name, spec in zip(names[: len(inputs)], inputs, strict=True)
    ]
    arguments += [
        Argument(
            name=name,
            spec=tf.TensorSpec(capture.shape, capture.dtype),
            variable=compat.handle_spec(capture),
            captured=capture,
        )
        for name, capture in zip(names[len(inputs) :], traced.captures, strict=True)
    ]
    outputs = [
        renamed.get(_full(results[i].input[0]), _full(results[i].input[0]))
        for i in range(len(results))
    ]
    return (
        [_renamed(node, renamed) for node in inner],
        tuple(arguments),
        [_full(name) for name in outputs],
    )


def _full(name: str) -> str:
    """A data input with its output index: `a` means `a:0`."""
    return name if ":" in name or name.startswith("^") else f"{name}:0"


def _tensor(op: str, index: int) -> str:
    return f"{op}:{index}"


def _renamed(node: compat.NodeDef, renamed: Mapping[str, str]) -> compat.NodeDef:
    """A copy whose inputs have new names, and without notes of earlier passes."""
    copy = compat.NodeDef()
    copy.CopyFrom(node)
    names = [renamed.get(_full(name), name) for name in node.input]
    del copy.input[:]
    copy.input.extend(name for name in names if name)
    for key in ("_output_shapes", "_class", "_XlaHasReferenceVars"):
        copy.attr.pop(key, None)
    copy.ClearField("experimental_debug_info")
    return copy


def _sorted(
    nodes: Sequence[compat.NodeDef], arguments: Sequence[Argument]
) -> list[compat.NodeDef]:
    """First come, first served: about the order of TensorFlow's ready queue.

    Edges from NextIteration back to Merge are left out.
    """
    by_name = {node.name: node for node in nodes}
    given = {argument.name for argument in arguments}
    waiting: dict[str, int] = {}
    followers: dict[str, list[str]] = {name: [] for name in by_name}
    for node in nodes:
        sources = {_source(name) for name in node.input} - given
        if node.op == "Merge":
            sources = {n for n in sources if by_name[n].op != "NextIteration"}
        waiting[node.name] = len(sources)
        for source in sources:
            followers[source].append(node.name)
    queue = deque(node.name for node in nodes if waiting[node.name] == 0)
    ordered: list[compat.NodeDef] = []
    while queue:
        name = queue.popleft()
        ordered.append(by_name[name])
        for follower in followers[name]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                queue.append(follower)
    if len(ordered) != len(nodes):
        raise UnsupportedError("the step's graph must have no cycles outside of loops")
    return ordered


def _source(name: str) -> str:
    """The node that an input comes from."""
    return name.removeprefix("^").partition(":")[0]


def _control_flow(ordered: Sequence[compat.NodeDef]) -> frozenset[str]:
    """Names of all ops inside loops and branches, their borders included.

    A loop is Enter, Merge, Switch, Exit; a branch is Switch, Merge. A Switch belongs to
    a loop when LoopCond is its predicate, a Merge when it closes a NextIteration.
    """
    types = {node.name: node.op for node in ordered}
    depth: dict[str, int] = {}
    for node in ordered:
        sources = [_source(name) for name in node.input]
        inside = max((depth.get(name, 0) for name in sources), default=0)
        kinds = {types.get(name) for name in sources}
        if node.op in ("Enter", "RefEnter"):
            inside += 1
        elif node.op in ("Switch", "RefSwitch", "_SwitchN"):
            inside += "LoopCond" not in kinds
        elif node.op in ("Exit", "RefExit"):
            inside -= 1
        elif node.op in ("Merge", "RefMerge"):
            inside -= "NextIteration" not in kinds
        depth[node.name] = inside
    return frozenset(
        node.name
        for node in ordered
        if depth[node.name] > 0 or node.op in _CONTROL_FLOW
    )


def _merged_groups(ordered: Sequence[compat.NodeDef]) -> dict[str, str]:
    """Group names of ops that oneDNN's pass may merge, by op name."""
    by_name = {node.name: node for node in ordered}
    firsts = {first for first, _, _ in _MERGED_BY_ONEDNN}
    groups: dict[str, str] = {}
    by_gradient = {
        node.input[2]: node for node in ordered if node.op == "Conv2DBackpropFilter"
    }
    for node in ordered:
        for first, second, reads in _MERGED_BY_ONEDNN:
            if node.op != second:
                continue
            key = node.input[0]
            partner = by_name.get(_source(key)) if reads else by_gradient.get(key)
            if partner is None or partner.op != first or partner.op not in firsts:
                continue
            if partner.name not in groups and node.name not in groups:
                groups[partner.name] = groups[node.name] = partner.name
    return groups


def _bounded(
    ordered: Sequence[compat.NodeDef], specs: Mapping[str, list[tf.TensorSpec]]
) -> dict[str, list[tf.TensorSpec]]:
    """Specs with the shapes filled in that TensorFlow's inference leaves open.

    `BroadcastGradientArgs` yields as many axes as the broadcast reduced: at most the
    length of its inputs, which is taken. `_UnaryOpsComposition` has its input's shape.
    """
    known = dict(specs)
    for node in ordered:
        if node.op not in ("BroadcastGradientArgs", "_UnaryOpsComposition"):
            continue
        source, _, index = _full(node.input[0]).rpartition(":")
        shape = known[source][int(index)].shape
        known[node.name] = [tf.TensorSpec(shape, s.dtype) for s in known[node.name]]
    return known


def _argument_op(argument: Argument) -> Op:
    return Op(
        name=argument.name,
        type="Placeholder",
        outputs=(_described(_tensor(argument.name, 0), argument.spec),),
        persistent=True,
    )


def _op(
    node: compat.NodeDef,
    specs: Mapping[str, Sequence[tf.TensorSpec]],
    fixed: frozenset[str],
    groups: Mapping[str, str],
    back_edges: frozenset[str],
    device: str,
) -> Op:
    data = [_full(name) for name in node.input if not name.startswith("^")]
    data = [name for name in data if _source(name) not in back_edges]
    controls = [name[1:] for name in node.input if name.startswith("^")]
    elsewhere = bool(node.device) and node.device != device
    return Op(
        name=node.name,
        type=node.op,
        inputs=tuple(data),
        controls=tuple(dict.fromkeys(controls)),
        outputs=tuple(
            _described(_tensor(node.name, i), spec, counted=not elsewhere)
            for i, spec in enumerate(specs[node.name])
        ),
        alias=data[0] if node.op in _ALIAS else None,
        inplace=node.op in _INPLACE,
        persistent=node.op in _PERSISTENT or elsewhere,
        fixed=node.name in fixed,
        group=groups.get(node.name),
    )


def _described(name: str, spec: tf.TensorSpec, *, counted: bool = True) -> Tensor:
    """A tensor in the graph's words; handles and variants have no bytes of their own.

    Raises:
        UnsupportedError: If its size is unknown.
    """
    opaque = spec.dtype in (tf.resource, tf.variant, tf.string)
    if not (opaque or spec.shape.is_fully_defined()):
        raise UnsupportedError(
            f"every tensor must have a known shape to be planned, got {spec.shape} "
            f"for {name!r}. Give the inputs static shapes."
        )
    shape = tuple(spec.shape) if spec.shape.is_fully_defined() else ()
    size = 0 if opaque or not counted else spec.dtype.size * math.prod(shape)
    return Tensor(name=name, size=size, shape=shape, dtype=spec.dtype.name)
