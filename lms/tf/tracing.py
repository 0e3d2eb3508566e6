"""From a Python step to the graph that TensorFlow would run.

The graph is not rebuilt by imitation: the runtime itself is made to inline, place and
optimise the traced function, and its result is taken. For that the function is called
once with a call that was cancelled before: the runtime makes the graph, then finds the
cancellation and runs none of it. Whatever TensorFlow would have run is therefore what
is planned, op by op, and the numbers stay the same.

      step, iterator ──trace──> ConcreteFunction ──instantiate──> optimised graph
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from lms.errors import UnsupportedError
from lms.tf import compat

__all__ = [
    "TracedFunction",
    "gives_tensors",
    "input_specs",
    "read_signature",
    "signature_key",
    "trace",
]


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


def gives_tensors(signature: Sequence[Any]) -> bool:
    """Whether a signature is an example in memory: nothing in it is just a spec."""
    leaves = tf.nest.flatten(tuple(signature))
    return bool(leaves) and all(isinstance(leaf, tf.Tensor) for leaf in leaves)


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


def input_specs(traced: TracedFunction) -> list[tf.TensorSpec]:
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
        inputs = [tf.zeros([], spec.dtype) for spec in _specs(concrete)]
    else:
        for shape in compat.flat_shapes(iterator.element_spec):
            _check_shape(shape, "the data set's element")
        concrete = plain.get_concrete_function(iterator)
        inputs = compat.flat_inputs(concrete, [iterator])
    captures = tuple(concrete.captured_inputs)
    graph_def = compat.optimised_graph(concrete, [*inputs, *captures])
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
