"""From nodes to a callable with the inputs, captures and outputs of the traced step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from lms.simulation.allocator import SmallPool
from lms.tf import compat
from lms.tf.capture.specialising import TracedStep
from lms.tf.capture.tracing import TracedFunction

__all__ = ["RebuiltStep", "rebuild", "with_constants"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltStep:
    """A step that runs exactly the nodes it was built from.

    Args:
        function: The runtime's function of flat tensors.
        captures: Tensors that every call passes after its inputs.
        concrete: The traced function, whose output structure is given back.
    """

    function: Any
    captures: tuple[tf.Tensor, ...]
    concrete: Any

    def __call__(self, inputs: Sequence[tf.Tensor]) -> Any:
        """Run the step.

        Args:
            inputs: Flat input tensors, as `TracedFunction.flat_inputs` yields them.

        Returns:
            What the traced function returned, in its structure.
        """
        with compat.planned_as_is():
            outputs = self.function.call_flat(*inputs, *self.captures)
        return compat.pack_outputs(self.concrete, outputs)


def rebuild(
    traced: TracedFunction, step: TracedStep, nodes: Sequence[compat.NodeDef]
) -> RebuiltStep:
    """Make nodes callable.

    Args:
        traced: The function that was traced.
        step: The traced step that the nodes came from.
        nodes: Its nodes, rewritten.
    """
    graph_def = compat.graph_def(nodes, step.library)
    arguments = [(a.name, a.spec, a.variable) for a in step.arguments]
    return RebuiltStep(
        function=compat.build_function(graph_def, arguments, step.outputs),
        captures=traced.captures,
        concrete=traced.concrete,
    )


def with_constants(
    pool: SmallPool, before: Sequence[compat.NodeDef], after: Sequence[compat.NodeDef]
) -> SmallPool:
    """The pool with room for the small constants of the nodes that a plan adds."""
    if not pool.sizes:
        return pool
    added = sum(node.op == "Const" for node in after)
    added -= sum(node.op == "Const" for node in before)
    return replace(pool, sizes=pool.sizes + (1,) * added)
