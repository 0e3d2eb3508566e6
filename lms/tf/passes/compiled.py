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

Source: `LowerFunctionalOpsPass` in lower_functional_ops.cc.

Known weakness: functions that write variables or call functions stay as they are, and
so do functions without XLA that ask not to be inlined.
"""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from lms.tf import compat
from lms.tf.nodes import Nodes, data_of, full_name, source_of, waits_of
from lms.tf.passes import Pass, Step

__all__ = ["OPEN_COMPILED", "is_compiled"]

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_MARK = "_XlaMustCompile"

# Ops that pass their input on.
_SAME = frozenset({"Identity", "StopGradient", "PreventGradient"})


def is_compiled(node: compat.NodeDef) -> bool:
    """Tell whether a node is a call that XLA compiles."""
    return node.op in _CALLS and compat.attribute(node, _MARK).b


def _calls(graph: Nodes, step: Step) -> Iterator[tuple[compat.NodeDef, "_Body"]]:
    """Yield (call, its function) of calls that do more than compute."""
    functions = {f.signature.name: f for f in graph.library.function}
    kept = {source_of(name) for name in step.outputs} | step.fixed
    for call in graph:
        function = functions.get(compat.attribute(call, "f").func.name)
        if is_compiled(call) and call.name not in kept and function is not None:
            body = _Body(function)
            taken_out = body.reads or not set(body.results).isdisjoint(body.arguments)
            if taken_out and body.can_be_opened:
                yield call, body


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
        reads = (node for node in function.node_def if node.op == "ReadVariableOp")
        self.reads = {node.name: node.input[0] for node in reads}

    @property
    def can_be_opened(self) -> bool:
        """Tell whether the function has no effects and only reads variables' values."""
        resource = tf.resource.as_datatype_enum
        handles = {name for name, kind in self.arguments.items() if kind == resource}
        others = (node for name, node in self.nodes.items() if name not in self.reads)
        if any(compat.is_stateful_or_calls(n) or handles & {*n.input} for n in others):
            return False
        reads_arguments = handles.issuperset(self.reads.values())
        return reads_arguments and handles.isdisjoint(self.results)

    def is_computed(self, result: str) -> bool:
        """Tell whether a result is neither an argument nor a variable's value."""
        return result not in self.arguments and source_of(result) not in self.reads

    def type_of(self, argument: str) -> int:
        """Return an argument's type; for a variable's handle, the value's type."""
        for name, handle in self.reads.items():
            if handle == argument:
                return compat.attribute(self.nodes[name], "dtype").type
        return self.arguments[argument]

    def needed(self) -> list[compat.NodeDef]:
        pending = [source_of(name) for name in self.results if self.is_computed(name)]
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name in self.nodes and name not in seen | self.reads.keys():
                seen.add(name)
                pending += map(source_of, data_of(self.nodes[name]))
        return [node for name, node in self.nodes.items() if name in seen]

    def _source(self, value: str) -> str:
        """Return the value that ops pass on to `value`, or `value` itself."""
        node = self.nodes.get(source_of(value))
        if node is None or node.op not in _SAME:
            return value
        return self._source(node.input[0])


def _open(graph: Nodes, _: Step, place: "tuple[compat.NodeDef, _Body]") -> None:
    """Take reads and passed-on tensors out of a call; remove a call of nothing else."""
    call, body = place
    given = dict(zip(body.arguments, data_of(call), strict=True))
    names: list[str] = []
    for number, handle in enumerate(dict.fromkeys(body.reads.values())):
        name, dtype = f"{call.name}/lms_read_{number}", body.type_of(handle)
        inputs = given[handle], *waits_of(call)
        graph.make(name, "ReadVariableOp", inputs, call.device, call, dtype=dtype)
        given[handle] = f"{name}:0"
        names.append(name)
    tensors: dict[str, str] = {}
    computed = 0
    for i, result in enumerate(body.results):
        tensors[f"{call.name}:{i}"] = f"{call.name}:{computed}"
        if body.is_computed(result):
            computed += 1
        else:
            argument = body.reads.get(source_of(result), result)
            tensors[f"{call.name}:{i}"] = full_name(given[argument])
    graph.redirect(tensors)
    if computed:
        function = _smaller(body)
        compat.define_function(function)
        graph.define(function)
        passed = [given[argument.name] for argument in function.signature.input_arg]
        graph.give(call, [*passed, *waits_of(call)])
        _call(call, function)
        graph.replace_waits(call.name, [*names, call.name])
    else:
        before = [source_of(name) for name in call.input if graph.get(name)]
        graph.replace_waits(call.name, names or before)
        graph.remove(call)


OPEN_COMPILED = Pass(find=_calls, change=_open)


def _smaller(body: _Body) -> Any:
    """Return a function of the computed results, which takes variables by value."""
    function = type(body.function)()
    signature = function.signature
    signature.name = f"{body.function.signature.name}_lms"
    values = {f"{name}:value:0": handle for name, handle in body.reads.items()}
    for node in body.needed():
        inputs = [values.get(name, name) for name in data_of(node)]
        function.node_def.append(compat.copied(node, inputs))
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


def _call(node: compat.NodeDef, function: Any) -> None:
    node.op = "PartitionedCall"
    signature = function.signature
    node.attr["f"].func.name = signature.name
    for key, args in (("Tin", signature.input_arg), ("Tout", signature.output_arg)):
        node.attr[key].list.type[:] = [arg.type for arg in args]
    for key in ("_read_only_resource_inputs", "_input_hostmem"):
        if key in node.attr:
            node.attr[key].list.ClearField("i")
