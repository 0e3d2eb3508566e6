"""A pass finds places in a step's nodes and changes each; none changes a number.

A pass ensures that nothing is left for it to find. It requires what earlier passes
ensure. Tests check both.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from lms.tf.nodes import Nodes

__all__ = ["Pass", "Step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Facts of a step that passes read.

    Args:
        device: Full name of the device.
        ends: For each Exit, the ops that must have ended before, by name.
        fixed: Names of the nodes in loops and branches, which stay as they are.
        outputs: Names of the tensors that the step returns.
        taken: Names of the comparisons that are always true.
        variables: Types and shapes of variables by the names of their handles' nodes.
        on_host: Names of the handles' nodes of variables that lie on the host.
        pushes: Ops that put elements into lists that move to the host.
        pops: Ops that take these out, each with the Merge ops that begin its round.
    """

    device: str
    ends: Mapping[str, Sequence[str]] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    outputs: Sequence[str] = ()
    taken: Collection[str] = ()
    variables: Mapping[str, tf.TensorSpec] = field(default_factory=dict)
    on_host: Collection[str] = ()
    pushes: Collection[str] = ()
    pops: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A change of a step's nodes.

    Args:
        find: Yields places to change, which earlier changes may decide.
        change: Changes one place.
        requires: Passes that ran before.
    """

    find: Callable[[Nodes, Step], Iterator[Any]]
    change: Callable[[Nodes, Step, Any], None]
    requires: "tuple[Pass, ...]" = ()

    def run(self, graph: Nodes, step: Step) -> None:
        """Change all places."""
        for place in self.find(graph, step):
            self.change(graph, step, place)
