"""Room is asked for before an op whose kernel does not survive a refusal.

    group 3 ──> conv          becomes         group 3 ──> Empty, Empty ──> conv

TensorFlow's kernels raise an error when the allocator has no room. Those that oneDNN
makes on a CPU do not: they go on without the tensor, and the process dies. So on an
emulated device a tensor of the size of each output, and one of the op's scratch, is
taken and given back just before the op starts. Where there is no room the step fails
there, as it would on a GPU, and is planned anew. Nothing is written into them: this
takes a few microseconds.

Known weakness: scratch is asked for in one piece, after the outputs; a kernel that
takes it in several may find room or not where this did not or did.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from lms.ir.graph import GraphView, Op
from lms.tf import compat
from lms.tf.capture.op_types import INPLACE
from lms.tf.rewrite.transports import made_node

__all__ = ["ask_for_room"]

# Smaller tensors find their room in chunks that are kept for them.
_LEAST = 64 * 1024

_ROW = 256  # bytes; the allocator's rounding


def ask_for_room(
    graph: GraphView,
    chain: Sequence[Sequence[str]],
    nodes: Mapping[str, compat.NodeDef],
) -> list[compat.NodeDef]:
    """Let ordered ops wait until there was room for what they take.

    Args:
        graph: The planned graph.
        chain: The ordered groups of ops; all of a group wait for the same.
        nodes: The step's nodes by name, with all their control inputs. Those of ops
            that are asked for get more.

    Returns:
        The nodes that ask, and the constants that they need.
    """
    shapes: dict[int, compat.NodeDef] = {}
    asking: list[compat.NodeDef] = []
    for group in chain:
        ops = [graph.by_name[name] for name in group]
        sizes = [-(-size // _ROW) for op in ops for size in _taken(op)]
        if not sizes:
            continue
        first = nodes[group[0]]
        waits = [name for name in first.input if name.startswith("^")]
        found = _asked(f"lms/room/{first.name}", sizes, waits, first.device, shapes)
        asking += found
        for name in group:
            nodes[name].input.extend(f"^{node.name}" for node in found)
    return [*shapes.values(), *asking]


def _taken(op: Op) -> list[int]:
    """Bytes of the large tensors that an op takes while it runs."""
    if op.type in INPLACE:  # they raise, and may not take anything
        return []
    sizes = [*(tensor.size for tensor in op.outputs), op.scratch]
    return [size for size in sizes if size >= _LEAST]


def _asked(
    name: str,
    rows: Sequence[int],
    waits: Sequence[str],
    device: str,
    shapes: dict[int, compat.NodeDef],
) -> list[compat.NodeDef]:
    """Tensors that are there at once, the last one taken when the others are."""
    taken: list[compat.NodeDef] = []
    for number, count in enumerate(rows):
        shape = shapes.setdefault(count, _shape(count, device))
        after = [f"^{taken[-1].name}"] if taken else waits
        taken.append(
            made_node(
                f"{name}/{number}",
                "Empty",
                [shape.name, *after],
                device,
                dtype=tf.uint8,
            )
        )
    # These hold the others until the last one is there.
    held = [
        made_node(
            f"{node.name}/held",
            "Identity",
            [node.name, f"^{taken[-1].name}"],
            device,
            T=tf.uint8,
        )
        for node in taken[:-1]
    ]
    return [*taken, *held]


def _shape(rows: int, device: str) -> compat.NodeDef:
    node = compat.constant(f"lms/room/shape_{rows}", [rows, _ROW], tf.int32)
    node.device = device
    return node
