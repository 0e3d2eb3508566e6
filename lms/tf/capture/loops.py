"""Loops and branches in the runtime's graph: what belongs to them, when they end.

    a loop                                    a branch
    Enter ─> Merge ─> Switch ─> Exit          Switch ─┬─> then ─┬─> Merge
               ↑         └─> body ─┐                  └─> else ─┘
               └─ NextIteration <──┘

A loop's `Exit` yields its value when the last round has ended, which the edges alone do
not say once the edge back to `Merge` is left out: planners are told by controls.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from lms.tf import compat
from lms.tf.capture.op_types import CONTROL_FLOW

__all__ = [
    "control_flow",
    "frames_around",
    "loop_ends",
    "one_round_at_a_time",
    "source_of",
]


def source_of(name: str) -> str:
    """The node that an input comes from.

    Example:
        >>> source_of("a:1"), source_of("^a")
        ('a', 'a')
    """
    return name.removeprefix("^").partition(":")[0]


def control_flow(ordered: Sequence[compat.NodeDef]) -> frozenset[str]:
    """Names of all ops inside loops and branches, their borders included.

    A Switch belongs to a loop when LoopCond is its predicate, a Merge when it closes a
    NextIteration.
    """
    types = {node.name: node.op for node in ordered}
    depth: dict[str, int] = {}
    for node in ordered:
        sources = [source_of(name) for name in node.input]
        inside = max((depth.get(name, 0) for name in sources), default=0)
        kinds = {types.get(name) for name in sources}
        if node.op in ("Enter", "RefEnter"):
            inside += 1
        elif node.op in ("Switch", "RefSwitch", "_SwitchN"):
            inside += "LoopCond" not in kinds
        elif node.op in ("Exit", "RefExit"):
            inside -= 1
        elif node.op in ("Merge", "RefMerge"):
            inside -= "NextIteration" not in kinds
        depth[node.name] = inside
    return frozenset(
        node.name for node in ordered if depth[node.name] > 0 or node.op in CONTROL_FLOW
    )


def loop_ends(ordered: Sequence[compat.NodeDef]) -> Mapping[str, tuple[str, ...]]:
    """For each Exit the ops that must have ended before it yields.

    These are all NextIteration ops of its loop, and so the loop's whole body, and the
    Enter ops, and so all that the loop reads.

    Args:
        ordered: Nodes after their inputs, the edge back to Merge left out.
    """
    loops = frames_around(ordered)
    ends: dict[tuple[str, ...], list[str]] = defaultdict(list)
    exits: dict[str, tuple[str, ...]] = {}
    for node in ordered:
        if node.op in ("Enter", "RefEnter", "NextIteration", "RefNextIteration"):
            ends[loops[node.name]].append(node.name)
        if node.op in ("Exit", "RefExit"):
            exits[node.name] = loops[source_of(node.input[0])]
    return {name: tuple(ends[around]) for name, around in exits.items()}


def frames_around(
    ordered: Sequence[compat.NodeDef],
) -> dict[str, tuple[str, ...]]:
    """The loops around each node's outputs by their names, the innermost one last.

    Args:
        ordered: Nodes after their inputs, the edge back to Merge left out.
    """
    loops: dict[str, tuple[str, ...]] = {}
    for node in ordered:
        around = max(
            (loops.get(source_of(name), ()) for name in node.input),
            key=len,
            default=(),
        )
        if node.op in ("Enter", "RefEnter"):
            around = (*around, compat.attribute(node, "frame_name").s.decode())
        if node.op in ("Exit", "RefExit"):
            around = around[:-1]
        loops[node.name] = around
    return loops


def one_round_at_a_time(nodes: Sequence[compat.NodeDef]) -> list[compat.NodeDef]:
    """Nodes whose loops begin a round when the round before has ended.

    TensorFlow begins up to `parallel_iterations` rounds at once. What they make then
    waits for its turn, and how much that is depends on the machine's threads.
    """
    return [
        _alone(node) if node.op in ("Enter", "RefEnter") else node for node in nodes
    ]


def _alone(enter: compat.NodeDef) -> compat.NodeDef:
    copy = compat.NodeDef()
    copy.CopyFrom(enter)
    copy.attr["parallel_iterations"].i = 1
    return copy
