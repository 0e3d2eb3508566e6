"""Offload lists of loops: their elements lie in the host's memory.

A loop's lists hold tensors of each round for the gradient. An element is copied to
pinned memory as soon as it is made. The round that takes it out copies it back to the
card, once the round's loop variables are there:

    made ──────────> TensorListPushBack ··> TensorListPopBack ──────────> read
    made ──> copy ──> TensorListPushBack ··> TensorListPopBack ──> copy ──> read

TensorFlow's swap ops copy. Attributes of the nodes say that the element is in the
host's memory, so that TensorFlow passes it on uncopied. A loop that runs one round at a
time holds at most one round's elements on the card.

Known weaknesses: a copy to the card begins in the round that waits for it. Elements
below 4 KiB, and lists that other ops read, stay on the card.

Sources: `_input_hostmem` in memory_types.cc, list_ops.cc, gpu_swapping_kernels.cc.
"""

from collections.abc import Iterator, Sequence

from lms.tf import compat
from lms.tf.nodes import COPY_IN, COPY_OUT, Nodes
from lms.tf.passes import Pass, Step

__all__ = ["LISTS_ON_HOST"]

# Attributes of inputs and outputs that lie in the host's memory.
_IN_HOST, _OUT_HOST = "_input_hostmem", "_output_hostmem"


def _on_card(
    graph: Nodes, step: Step
) -> Iterator[tuple[compat.NodeDef, Sequence[str] | None]]:
    """Yield (push, None), and (pop, names of the Merge ops that begin its round)."""
    for node in graph:
        if node.name in step.pushes and not compat.attribute(node, _IN_HOST).list.i:
            yield node, None
        if node.name in step.pops and not compat.attribute(node, _OUT_HOST).list.i:
            yield node, step.pops[node.name]


def _move(
    graph: Nodes, _: Step, place: tuple[compat.NodeDef, Sequence[str] | None]
) -> None:
    """Let a push take an element from the host's memory, or a pop give one there."""
    node, begun = place
    dtype, device = node.attr["element_dtype"].type, node.device
    if begun is None:
        held, element, *rest = node.input
        copies = (n.name for n in graph.readers(element) if n.op == COPY_OUT)
        copy = next(copies, f"{node.name}/lms_out")
        if not graph.get(copy):
            graph.make(copy, COPY_OUT, [element], device, T=dtype)
        graph.give(node, [held, copy, *rest])
        node.attr[_IN_HOST].list.i.append(1)
    else:
        element, copy = f"{node.name}:1", f"{node.name}/lms_in"
        graph.redirect({element: copy})
        inputs = [element, *(f"^{name}" for name in begun)]
        graph.make(copy, COPY_IN, inputs, device, T=dtype)
        node.attr[_OUT_HOST].list.i.append(1)


LISTS_ON_HOST = Pass(find=_on_card, change=_move)
