"""Trace a Python step, and take the graph that TensorFlow would run.

The runtime itself inlines, places and optimises the traced function. For that the
function is called once, and the call is cancelled beforehand: the runtime makes the
graph, then finds the cancellation and runs no op. So the plan is for exactly the ops
that TensorFlow would have run, and the numbers stay the same.

      step, iterator ──trace──> ConcreteFunction ──instantiate──> optimised graph

The graph and its bits depend on the shapes known while tracing: Grappler optimises in
another way where the batch size is open. A `tf.function` with `reduce_retracing`, as
Keras's own are, leaves dimensions open that changed from the first call to the second.
So the function that would run without this library is asked for its traced shapes, and
the step is traced with these.

TensorFlow collects graphs of all threads together. Threads that prepare steps wait for
each other. If another thread calls a new function meanwhile, the step is traced again.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any

import tensorflow as tf

from lms.errors import UnsupportedError
from lms.tf import compat

__all__ = ["PREPARING", "TracedFunction", "again", "as_function", "called_signature"]
__all__ += ["draws_for_several", "flat_specs", "input_specs", "is_open"]
__all__ += ["read_signature", "signature_key", "trace"]

# Held by the thread that traces, measures the device or plans for it.
PREPARING = RLock()

# A step is traced at most 20 times, until no other thread calls a new function.
_TRIES = 20

# Grappler's prefix for the names of ops in a function that a step calls.
_CALLED = "StatefulPartitionedCall/"

# Attribute of a `tf.function` with the specs of its first call, which is traced later.
_FIRST = "_lms_first_specs"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedFunction:
    """A traced step, and the graph that the runtime made of the step.

    Args:
        concrete: The traced function.
        graph_def: Its graph after inlining, placement and optimisation.
        captures: Captured tensors, in the order of the graph's last arguments.
        iterator_spec: Element of the iterator argument, None if there is none.
        seconds: Seconds that tracing took.
    """

    concrete: Any
    graph_def: compat.GraphDef
    captures: tuple[tf.Tensor, ...]
    iterator_spec: Any
    seconds: float

    def flat_inputs(self, args: Sequence[Any]) -> list[tf.Tensor]:
        """Flatten one call's arguments; with an iterator, `args` is one drawn batch."""
        if self.iterator_spec is not None:
            return compat.flat_element(self.iterator_spec, args[0])
        return compat.flat_inputs(self.concrete, args)


def read_signature(signature: Sequence[Any]) -> tuple[Any, ...]:
    """Return a signature with its tensors as specs.

    Raises:
        UnsupportedError: If a dimension beyond the batch is unknown.
    """
    specs = tf.nest.map_structure(_as_spec, tuple(signature))
    dense = [s for s in tf.nest.flatten(specs) if isinstance(s, tf.TensorSpec)]
    for spec in dense:
        if spec.shape.rank is None or None in spec.shape[1:].as_list():
            raise UnsupportedError(
                "a signature must have known dimensions beyond the batch, got "
                f"{spec.shape} for {spec.name or 'an argument'}. Pad or resize the "
                "data to one size."
            )
    return specs


def called_signature(signature: Sequence[Any], args: Sequence[Any]) -> tuple[Any, ...]:
    """Return a signature with open dimensions filled in from a call.

    If the structure of the arguments differs, nothing is filled in.
    """

    def known(spec: Any, value: Any) -> Any:
        if not isinstance(spec, tf.TensorSpec) or spec.shape.is_fully_defined():
            return spec
        with tf.device("CPU:0"):  # arrays take no memory of the device
            tensor = tf.convert_to_tensor(value, spec.dtype)
        shape = spec.shape.merge_with(tensor.shape)
        return tf.TensorSpec(shape, spec.dtype, spec.name)

    try:
        return tuple(tf.nest.map_structure(known, tuple(signature), tuple(args)))
    except (TypeError, ValueError):  # the call itself raises with the cause
        return tuple(signature)


def flat_specs(signature: Sequence[Any]) -> list[tf.TensorSpec]:
    """Return specs of a signature's flat tensors, in the order of a function's call."""
    leaves = tf.nest.flatten(tuple(signature), expand_composites=True)
    return [leaf for leaf in leaves if isinstance(leaf, tf.TensorSpec)]


def is_open(iterator: Any) -> bool:
    """Tell whether batches may differ in shape."""
    specs = flat_specs([iterator.element_spec])
    return not all(spec.shape.is_fully_defined() for spec in specs)


def _as_spec(value: Any) -> Any:
    if value is None or isinstance(value, tf.TypeSpec):
        return value
    if isinstance(value, _COMPOSITES):
        return tf.type_spec_from_value(value)
    tensor = tf.convert_to_tensor(value)
    return tf.TensorSpec(tensor.shape, tensor.dtype)


_COMPOSITES = tf.SparseTensor, tf.RaggedTensor, tf.distribute.DistributedValues
_COMPOSITE = ("Sparse", "Ragged")  # prefixes of types of tensors and specs


def signature_key(tensors: Sequence[Any]) -> str:
    """Return a text that is equal for tensors and specs of equal types and shapes."""

    def key(t: Any) -> Any:
        if isinstance(t, tf.distribute.DistributedValues):
            return str(tf.type_spec_from_value(t))
        if not hasattr(t, "dtype"):
            return str(t)
        return type(t).__name__.startswith(_COMPOSITE), t.dtype.name, str(t.shape)

    return str(tf.nest.map_structure(key, list(tensors)))


def input_specs(traced: TracedFunction) -> list[tf.TensorSpec]:
    """Return specs of the flat inputs, as traced."""
    if traced.iterator_spec is not None:
        return compat.flat_element_specs(traced.iterator_spec)
    return _specs(traced.concrete)


def trace(
    function: Callable[..., Any],
    args: Sequence[Any],
    *,
    iterator: Any = None,
    own: Any = None,
) -> TracedFunction:
    """Trace a step and let TensorFlow optimise it, without running it.

    Args:
        function: A Python function or a `tf.function`. With `iterator` the function
            takes the iterator and draws its own batch.
        args: Tensors, or specs with static shapes, in place of arguments.
        iterator: A `tf.data` iterator with elements of any shapes, passed instead of
            `args`. Tracing draws no element.
        own: The `tf.function` that would run without this library: the step is traced
            with its shapes.

    Returns:
        The traced function with the graph that would run.

    Raises:
        UnsupportedError: If a dimension of `args` beyond the batch is unknown, or other
            threads keep calling new functions.
    """
    started = time.perf_counter()
    if iterator is None or draws_for_several(iterator):
        specs = read_signature(args if iterator is None else [iterator.element_spec])
        iterator = None
    else:
        specs = (tf.data.IteratorSpec(iterator.element_spec),)
    with PREPARING:
        specs = _as_traced_by(own, specs)
        concrete, graph_def = _undisturbed(function, specs, iterator)
    return TracedFunction(
        concrete=concrete,
        graph_def=graph_def,
        captures=tuple(concrete.captured_inputs),
        iterator_spec=None if iterator is None else iterator.element_spec,
        seconds=time.perf_counter() - started,
    )


def _undisturbed(
    function: Callable[..., Any], specs: Sequence[Any], iterator: Any
) -> tuple[Any, compat.GraphDef]:
    """Return (concrete function, graph) without graphs of other threads."""
    python = getattr(function, "python_function", function)
    for _ in range(_TRIES):
        # An XLA cluster would lose device placement.
        traced = tf.function(python, jit_compile=False)
        concrete = traced.get_concrete_function(*specs)
        if iterator is None:
            inputs = [tf.zeros([], spec.dtype) for spec in _specs(concrete)]
        else:
            inputs = compat.flat_inputs(concrete, [iterator])
        arguments = [*inputs, *concrete.captured_inputs]
        graph_def = compat.optimised_graph(concrete, arguments)
        if graph_def is not None:
            if any(node.op == "_ParallelConcatStart" for node in graph_def.node):
                raise UnsupportedError(
                    "`tf.parallel_stack` must not be in a planned step: ops write into "
                    "a tensor that others may hold. Use `tf.stack`: equal numbers."
                )
            _name_as_written(graph_def.node)
            return concrete, graph_def
    raise UnsupportedError(
        f"Could not trace the step: in all of {_TRIES} tries another thread called a "
        "function for the first time. Run a first step of each thread's model before "
        "the threads run side by side."
    )


def _name_as_written(nodes: Iterable[compat.NodeDef]) -> None:
    """Take `_CALLED` off the names of nodes, unless two nodes would share a name."""
    there = {node.name for node in nodes}
    own = {name: name.removeprefix(_CALLED) for name in there}
    if len(set(own.values())) < len(own):
        return
    for node in nodes:
        node.name = own[node.name]
        for i, name in enumerate(node.input):
            mark = "^" if name.startswith("^") else ""
            node.input[i] = mark + name.removeprefix(mark).removeprefix(_CALLED)


def _as_traced_by(own: Any, specs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the specs with which a call of `own` with `specs` would be traced.

    A first trace takes the specs as they are, so it is put off until other specs come:
    the first trace decides which dimensions stay open.
    """
    if not isinstance(own, tf.types.experimental.PolymorphicFunction):
        return specs
    asked: Any = own
    if asked.input_signature is not None:
        return tuple(asked.input_signature)
    first = getattr(own, _FIRST, None)
    if asked.experimental_get_tracing_count() == 0 and first in (None, specs):
        setattr(own, _FIRST, specs)
        return specs
    if first is not None:
        asked.get_concrete_function(*first)
    traced = asked.get_concrete_function(*specs)
    return tuple(traced.structured_input_signature[0])


def draws_for_several(iterator: Any) -> bool:
    """Tell whether an iterator's elements are batches of several replicas."""
    return isinstance(iterator, tf.distribute.DistributedIterator)


def as_function(function: Callable[..., Any]) -> Any:
    """Return a function as a `tf.function`, itself if it is one."""
    if isinstance(function, tf.types.experimental.PolymorphicFunction):
        return function
    return tf.function(function)


def _specs(concrete: Any) -> list[tf.TensorSpec]:
    inputs = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
    return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]


def again(batch: Any, given: Any) -> Any:
    """Return a drawn batch in what Keras's function takes: a list, or an iterator.

    XLA compiles anew for the other. Batches of open shapes never come by an iterator.
    """
    is_list = isinstance(given, list) or is_open(given)
    return [batch] if is_list else iter(tf.data.Dataset.from_tensors(batch))
