"""What waits in rounds of a loop that overlap.

TensorFlow begins a loop's next rounds before a round has ended, up to
`parallel_iterations` of them. What a round adds to a loop's variable (the gradient of a
weight, say) then waits for its turn. Measured on Keras's recurrent layers, on two
cores: where a loop runs by itself a quarter of these rounds or less wait; where two can
run at the same time, as those of `Bidirectional` can, about half of them do.

Known weakness: how much waits depends on the machine's threads.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TypeAlias

import tensorflow as tf

from lms.allocator import rounded_up
from lms.tf import compat
from lms.tf.loops import source_of
from lms.tf.trips import Trips

__all__ = ["waiting_bytes"]

_Frame: TypeAlias = tuple[str, ...]

# Of the rounds that may overlap, one in so many waits.
_ALONE, _MEETING = 4, 2

_ADDS = frozenset({"Add", "AddV2", "AddN"})


def waiting_bytes(
    ordered: Sequence[compat.NodeDef],
    specs: Mapping[str, Sequence[tf.TensorSpec]],
    frames: Mapping[str, _Frame],
    trips: Trips,
) -> dict[str, int]:
    """Bytes that wait in each outermost loop, by the name of an Enter of the loop.

    Args:
        ordered: Nodes after their inputs, the edge back to Merge left out.
        specs: Types and shapes of their outputs.
        frames: The loops around each node's outputs.
        trips: Rounds of the loops.
    """
    nodes = {node.name: node for node in ordered}
    added: dict[_Frame, int] = {}
    holders: dict[_Frame, tuple[int, compat.NodeDef]] = {}
    for merge in ordered:
        frame = frames[merge.name]
        size = _size(specs[merge.name][0]) if merge.op == "Merge" else None
        edges = [nodes.get(source_of(name)) for name in merge.input]
        enter = next((n for n in edges if n and n.op == "Enter"), None)
        after = next((n for n in edges if n and n.op == "NextIteration"), None)
        if size is None or not enter or not after or len(frame) != 1:
            continue
        holders[frame] = min(
            holders.get(frame, (size, enter)), (size, enter), key=itemgetter(0)
        )
        update = nodes.get(source_of(after.input[0]))
        if update is not None and update.op in _ADDS:
            added[frame] = added.get(frame, 0) + rounded_up(size)
    before = _before(ordered, frames)
    found: dict[str, int] = {}
    for frame, size in added.items():
        meets = any(
            frame not in before[other] and other not in before[frame]
            for other in added.keys() - {frame}
        )
        enter = holders[frame][1]
        rounds = _overlapping(enter, trips.of(frame))
        found[enter.name] = size * (rounds // (_MEETING if meets else _ALONE))
    return found


def _overlapping(enter: compat.NodeDef, rounds: int | None) -> int:
    """Rounds that may be under way beside the first one."""
    most = max(1, int(enter.attr["parallel_iterations"].i))
    return (most if rounds is None else min(most, max(1, rounds))) - 1


def _before(
    ordered: Sequence[compat.NodeDef], frames: Mapping[str, _Frame]
) -> dict[_Frame, set[_Frame]]:
    """For each loop the loops that end before it begins."""
    ended: dict[str, frozenset[_Frame]] = {}
    before: dict[_Frame, set[_Frame]] = defaultdict(set)
    for node in ordered:
        own = frozenset[_Frame]().union(
            *(ended.get(source_of(name), ()) for name in node.input)
        )
        if node.op == "Enter":
            before[frames[node.name]] |= own
        if node.op == "Exit":
            frame = frames[source_of(node.input[0])]
            own |= {frame} | before[frame]  # it waits for the whole loop
        ended[node.name] = own
    return before


def _size(spec: tf.TensorSpec) -> int | None:
    if spec.dtype in (tf.resource, tf.variant, tf.string):
        return None
    return spec.dtype.size * (spec.shape.num_elements() or 0)
