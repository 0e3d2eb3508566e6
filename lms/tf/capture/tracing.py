"""From a Python step to the graph that TensorFlow would run.

The graph is not rebuilt by imitation: the runtime itself is made to inline, place and
optimise the traced function, and its result is taken. For that the function is called
once with a call that was cancelled before: the runtime makes the graph, then finds the
cancellation and runs none of it. Whatever TensorFlow would have run is therefore what
is planned, op by op, and the numbers stay the same.

      step, iterator ──trace──> ConcreteFunction ──instantiate──> optimised graph

Which graph that is depends on the shapes that were known when it was traced: Grappler
does other things where the batch's size is open, and its bits are other bits. A
`tf.function` with `reduce_retracing`, as Keras's own are, leaves open what changed from
the first call to the second. So the function that would run without this library is
asked how it would be traced, and that is how its step is traced here.

What the runtime makes is collected of all threads together. Those that prepare steps
wait for each other; where another one called a new function of its own meanwhile, the
step is traced again.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any

import tensorflow as tf

from lms.errors import UnsupportedError
from lms.tf import compat

__all__ = [
    "PREPARING",
    "TracedFunction",
    "as_function",
    "called_signature",
    "flat_specs",
    "input_specs",
    "read_signature",
    "signature_key",
    "trace",
]


# Held by the thread that traces, measures the device or plans for it.
PREPARING = RLock()

_TRIES = 20

# Grappler puts it before the names of the ops of a function that a step calls.
_CALLED = "StatefulPartitionedCall/"

# Where a function's first specs are kept until it is traced: as long as it lives.
_FIRST = "_lms_first_specs"


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


def called_signature(signature: Sequence[Any], args: Sequence[Any]) -> tuple[Any, ...]:
    """A signature with the open dimensions of its tensors as a call has them.

    Args:
        signature: As `read_signature` gives it.
        args: Arguments of the same structure; others leave the signature as it is.
    """

    def known(spec: Any, value: Any) -> Any:
        if not isinstance(spec, tf.TensorSpec) or spec.shape.is_fully_defined():
            return spec
        shape = spec.shape.merge_with(tf.convert_to_tensor(value, spec.dtype).shape)
        return tf.TensorSpec(shape, spec.dtype, spec.name)

    try:
        return tuple(tf.nest.map_structure(known, tuple(signature), tuple(args)))
    except (TypeError, ValueError):  # the call itself says what is wrong
        return tuple(signature)


def flat_specs(signature: Sequence[Any]) -> list[tf.TensorSpec]:
    """A signature's flat tensors, as calls of a function pass them."""
    leaves = tf.nest.flatten(tuple(signature), expand_composites=True)
    return [leaf for leaf in leaves if isinstance(leaf, tf.TensorSpec)]


def _as_spec(value: Any) -> Any:
    if value is None or isinstance(value, tf.TypeSpec):
        return value
    if isinstance(value, (tf.SparseTensor, tf.RaggedTensor)):
        return tf.type_spec_from_value(value)
    tensor = tf.convert_to_tensor(value)
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _check_shape(shape: tf.TensorShape, name: str) -> None:
    if shape.rank is None or None in shape[1:].as_list():
        raise UnsupportedError(
            "a signature must have known dimensions beyond the batch, got "
            f"{shape} for {name}. Pad or resize the data to one size."
        )


_COMPOSITE = ("Sparse", "Ragged")  # tensors and their specs


def signature_key(tensors: Sequence[Any]) -> str:
    """Text that is equal for tensors and specs of equal types and shapes."""
    return str(
        tf.nest.map_structure(
            lambda t: (
                (type(t).__name__.startswith(_COMPOSITE), t.dtype.name, str(t.shape))
                if hasattr(t, "dtype")
                else str(t)
            ),
            list(tensors),
        )
    )


def input_specs(traced: TracedFunction) -> list[tf.TensorSpec]:
    """Specs of the flat inputs, as they were traced."""
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
        function: A Python function or a `tf.function`. With an iterator it takes the
            iterator and draws its own batch.
        args: Tensors, or specs with static shapes, in place of its arguments.
        iterator: A `tf.data` iterator that is passed instead of `args`, its elements of
            whatever shapes. None is drawn from it.
        own: The `tf.function` that would be called with the same arguments otherwise:
            its shapes are taken.

    Returns:
        The traced function with the graph that would run.

    Raises:
        UnsupportedError: If a dimension of `args` beyond the batch is unknown, or other
            threads keep calling new functions.
    """
    started = time.perf_counter()
    if iterator is None:
        specs = read_signature(args)
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
    """A concrete function and its graph, into which no other thread's has come."""
    python = getattr(function, "python_function", function)
    for _ in range(_TRIES):
        # Inside an XLA cluster device placement is lost.
        traced = tf.function(python, jit_compile=False)
        concrete = traced.get_concrete_function(*specs)
        if iterator is None:
            inputs = [tf.zeros([], spec.dtype) for spec in _specs(concrete)]
        else:
            inputs = compat.flat_inputs(concrete, [iterator])
        arguments = [*inputs, *concrete.captured_inputs]
        graph_def = compat.optimised_graph(concrete, arguments)
        if graph_def is not None:
            _name_as_written(graph_def.node)
            return concrete, graph_def
    raise UnsupportedError(
        "a step must be traced while no other thread calls functions for the first "
        f"time, got {_TRIES} tries in which one did. Run a first step of each thread's "
        "model before the threads run side by side."
    )


def _name_as_written(nodes: Iterable[compat.NodeDef]) -> None:
    """Give nodes of the function that a step calls their own names, if all can be."""
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
    """The specs that a function would be traced with in a call with such arguments.

    Its first trace takes them as they are, and is not made only to know that. It is
    made up for when other specs come, since it decides what is left open.
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


def as_function(function: Callable[..., Any]) -> Any:
    """The `tf.function` that a Python function can become, or is."""
    if isinstance(function, tf.types.experimental.PolymorphicFunction):
        return function
    return tf.function(function)


def _specs(concrete: Any) -> list[tf.TensorSpec]:
    inputs = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
    return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
