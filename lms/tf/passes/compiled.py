"""Take reads of variables and passed-on tensors out of functions that XLA compiles.

TensorFlow does not inline a function marked with `jit_compile=True`: the call is one op
of a step's graph, and its bits are XLA's. Keras marks grouped convolutions in this way,
whose gradients have no kernel on a CPU.

    before                                     after
    call(variable, x)                          read <── variable
      ├──> convolution of both                 call(read, x) ──> convolution
      ├──> the variable's value                the value is `read`
      └──> x, once more                        x is x

An output that a function only passes on shares its argument's buffer, as XLA's option
`alias_passthrough_params` says. A call that reads a variable looks like a call that may
write the variable. Outside of the call, both are ordinary tensors that can be swapped.
All computed outputs stay compiled as they were.

XLA allocates its scratch as one block, which may be many times the call's inputs and
outputs: the filter gradient of a grouped convolution holds, twice, the gradient of a
filter between all channels. XLA's compiler tells the bytes without a run.

Sources: `LowerFunctionalOpsPass` in lower_functional_ops.cc, `BufferAllocationProto` in
xla/service/hlo.proto.

Known weakness: functions that write variables or call functions stay as they are, and
so do functions without XLA that ask not to be inlined.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from lms.tf import compat
from lms.tf.nodes import full_name, source_of

__all__ = ["compiled_scratch", "is_compiled", "opened"]

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_MARK = "_XlaMustCompile"

# Ops that pass their input on.
_SAME = frozenset({"Identity", "StopGradient", "PreventGradient"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A call's replacement.

    Args:
        nodes: The nodes in place of the call.
        function: The function that the last node calls; None if nothing is computed.
        tensors: New names of the call's outputs, by the old ones.
    """

    nodes: tuple[compat.NodeDef, ...]
    function: Any
    tensors: Mapping[str, str]


def is_compiled(node: compat.NodeDef) -> bool:
    """Tell whether a node is a call that XLA compiles."""
    return node.op in _CALLS and compat.attribute(node, _MARK).b


def compiled_scratch(
    node: compat.NodeDef, inputs: Sequence[tf.TensorSpec], device: str
) -> int | None:
    """Ask XLA for the bytes that a call needs beside its inputs and outputs.

    Args:
        node: The call.
        inputs: Types and shapes of the call's inputs.
        device: Full name of the call's device.

    Returns:
        None if XLA does not tell: an argument is a variable, or XLA needs its value.
    """
    if any(spec.dtype == tf.resource for spec in inputs):
        return None
    return compat.compiled_scratch(_called(node), tuple(inputs), device)


def opened(
    nodes: Sequence[compat.NodeDef],
    library: Any,
    fixed: Collection[str],
    outputs: Sequence[str] = (),
) -> tuple[list[compat.NodeDef], Any]:
    """Return nodes whose XLA functions are reduced to computing, and their library.

    Args:
        nodes: A step's nodes; they are not changed.
        library: The functions that the nodes call.
        fixed: Names of the nodes in loops and branches, which stay as they are.
        outputs: Names of the tensors that the step returns.
    """
    functions = {f.signature.name: f for f in library.function}
    kept = {source_of(name) for name in outputs} | set(fixed)
    found: dict[str, _Opened] = {}
    for node in nodes:
        if not is_compiled(node) or node.name in kept:
            continue
        function = functions.get(_called(node))
        body = None if function is None else _Body(function)
        if body is not None and body.can_be_opened and body.hands_on:
            found[node.name] = _opened(node, body)
    if not found:
        return list(nodes), library
    made = {
        one.function.signature.name: one.function
        for one in found.values()
        if one.function is not None
    }
    compat.define_functions(made.values())
    larger = type(library)()
    larger.CopyFrom(library)
    larger.function.extend(made.values())
    given = (
        one
        for node in nodes
        for one in (found[node.name].nodes if node.name in found else [node])
    )
    return [_reading(node, found) for node in given], larger


def _called(node: compat.NodeDef) -> str:
    return compat.attribute(node, "f").func.name


class _Body:
    """A function's nodes, and the source of each of its outputs."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.nodes = {node.name: node for node in function.node_def}
        self.arguments = {a.name: a.type for a in function.signature.input_arg}
        self.results = [
            self._source(function.ret[out.name])
            for out in function.signature.output_arg
        ]
        self.reads = {
            node.name: node.input[0]
            for node in function.node_def
            if node.op == "ReadVariableOp"
        }

    @property
    def can_be_opened(self) -> bool:
        """Tell whether the function has no effects and only reads variables' values."""
        resource = tf.resource.as_datatype_enum
        handles = {name for name, kind in self.arguments.items() if kind == resource}
        if not handles.isdisjoint(self.results):
            return False
        for node in self.nodes.values():
            if node.name in self.reads:
                if node.input[0] not in handles:
                    return False
            elif compat.is_stateful_or_calls(node) or handles & set(node.input):
                return False
        return True

    @property
    def hands_on(self) -> bool:
        """Tell whether there is anything to take out."""
        return bool(self.reads) or any(name in self.arguments for name in self.results)

    def is_computed(self, result: str) -> bool:
        """Tell whether a result is neither an argument nor a variable's value."""
        return result not in self.arguments and _node(result) not in self.reads

    def type_of(self, argument: str) -> int:
        """Return an argument's type; for a variable's handle, the value's type."""
        for name, handle in self.reads.items():
            if handle == argument:
                return compat.attribute(self.nodes[name], "dtype").type
        return self.arguments[argument]

    def needed(self) -> list[compat.NodeDef]:
        """Return the nodes that the computed results need."""
        pending = [_node(value) for value in self.results if self.is_computed(value)]
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name in self.nodes and name not in seen | self.reads.keys():
                seen.add(name)
                pending += [_node(value) for value in _data(self.nodes[name])]
        return [node for name, node in self.nodes.items() if name in seen]

    def _source(self, value: str) -> str:
        """Return the value that ops pass on to `value`, or `value` itself."""
        while (node := self.nodes.get(_node(value))) is not None and node.op in _SAME:
            value = node.input[0]
        return value


def _node(value: str) -> str:
    """Return the node, or the argument, of a function's value `node:output:0`."""
    return value.partition(":")[0]


def _data(node: compat.NodeDef) -> list[str]:
    return [name for name in node.input if not name.startswith("^")]


def _opened(call: compat.NodeDef, body: _Body) -> _Opened:
    given = dict(zip(body.arguments, _data(call), strict=True))
    controls = [name for name in call.input if name.startswith("^")]
    reads: dict[str, compat.NodeDef] = {}
    for number, handle in enumerate(dict.fromkeys(body.reads.values())):
        read = compat.NodeDef(
            name=f"{call.name}/lms_read_{number}",
            op="ReadVariableOp",
            input=[given[handle], *controls],
            device=call.device,
        )
        read.attr["dtype"].type = tf.as_dtype(body.type_of(handle)).as_datatype_enum
        reads[handle] = read
        given[handle] = f"{read.name}:0"
    tensors: dict[str, str] = {}
    computed = 0
    for i, result in enumerate(body.results):
        tensors[f"{call.name}:{i}"] = f"{call.name}:{computed}"
        if body.is_computed(result):
            computed += 1
        else:
            argument = body.reads.get(_node(result), result)
            tensors[f"{call.name}:{i}"] = full_name(given[argument])
    if not computed:
        return _Opened(nodes=tuple(reads.values()), function=None, tensors=tensors)
    function = _smaller(body)
    passed = [given[argument.name] for argument in function.signature.input_arg]
    less = _call(call, function, [*passed, *controls])
    return _Opened(nodes=(*reads.values(), less), function=function, tensors=tensors)


def _smaller(body: _Body) -> Any:
    """Return a function of the computed results, which takes variables by value."""
    function = type(body.function)()
    signature = function.signature
    signature.name = f"{body.function.signature.name}_lms"
    values = {f"{name}:value:0": handle for name, handle in body.reads.items()}
    for node in body.needed():
        copy = function.node_def.add()
        copy.CopyFrom(node)
        del copy.input[:]
        copy.input.extend(values.get(name, name) for name in _data(node))
    used = {name for node in function.node_def for name in node.input}
    for argument in body.arguments:
        if argument in used:
            signature.input_arg.add(name=argument, type=body.type_of(argument))
    results = zip(body.function.signature.output_arg, body.results, strict=True)
    for output, result in results:
        if body.is_computed(result):
            signature.output_arg.add(name=output.name, type=output.type)
            function.ret[output.name] = result
    for key, value in body.function.attr.items():
        if not key.endswith("_function_name"):  # gradients exist already
            function.attr[key].CopyFrom(value)
    return function


def _call(call: compat.NodeDef, function: Any, inputs: Sequence[str]) -> compat.NodeDef:
    """Return a copy of a call that calls a function without variables."""
    node = compat.copied(call, inputs)
    node.op = "PartitionedCall"
    node.attr["f"].func.name = function.signature.name
    for key, args in (
        ("Tin", function.signature.input_arg),
        ("Tout", function.signature.output_arg),
    ):
        node.attr[key].list.ClearField("type")
        node.attr[key].list.type.extend(arg.type for arg in args)
    for key in ("_read_only_resource_inputs", "_input_hostmem"):
        if key in node.attr:
            node.attr[key].list.ClearField("i")
    return node


def _reading(node: compat.NodeDef, found: Mapping[str, _Opened]) -> compat.NodeDef:
    """Return a node whose inputs are renamed to the calls' replacements."""
    if not any(source_of(name) in found for name in node.input):
        return node
    data = (_followed(full_name(name), found) for name in _data(node))
    copy = compat.copied(node, data)
    waits = (name for name in node.input if name.startswith("^"))
    copy.input.extend(dict.fromkeys(_waited_for(waits, found)))
    return copy


def _waited_for(controls: Iterable[str], found: Mapping[str, _Opened]) -> Iterable[str]:
    for name in controls:
        one = found.get(source_of(name))
        yield from [name] if one is None else (f"^{n.name}" for n in one.nodes)


def _followed(name: str, found: Mapping[str, _Opened]) -> str:
    """Return a tensor's new name, followed through calls that pass on other calls'."""
    one = found.get(source_of(name))
    following = name if one is None else one.tensors.get(name, name)
    if one is None or source_of(following) in {node.name for node in one.nodes}:
        return following
    return _followed(following, found)
