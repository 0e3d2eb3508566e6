"""Levels: the longest path of edges, data and control, from a source to each op.

    a ──> b ──> c ──> d            levels 0 1 2 3
    └──────────────── d            the longest path counts

TFLMS measures by levels how far a reader is from its tensor, and can make the ops of
a level run one by one; the ops behind them then move to later levels.

Source: TFLMS v2 (github.com/IBM/tensorflow-large-model-support, branch tflmsv2).

Known weakness: the sets of ancestors take n^2/16 bytes for n ops.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lms.ir.graph import GraphView, Op, op_of
from lms.ir.liveness import Buffer, buffers
from lms.planning.candidates import large_ops

__all__ = ["LevelledGraph", "can_wait", "level_graph", "levels"]

_SLICE = re.compile(r"(\d*)\s*:\s*(\d*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelledGraph:
    """A graph in level order and what every rule needs of it; positions count ops.

    Args:
        graph: The graph, its ops ordered by level.
        position: Each op's position by its name.
        level: Each op's level.
        start: Each level's first op; one entry more for the end.
        ancestors: The ops from which each op can be reached by data edges, itself
            included, as bits.
        chain: The serialised ops.
        live: The step's buffers.
    """

    graph: GraphView
    position: Mapping[str, int]
    level: tuple[int, ...]
    start: tuple[int, ...]
    ancestors: tuple[int, ...]
    chain: tuple[str, ...]
    live: tuple[Buffer, ...]


def levels(graph: GraphView) -> dict[str, int]:
    """The level of each op by its name: its longest path from a source, in edges.

    Example:
        >>> a, b = Op(name="a", type="A"), Op(name="b", type="B", controls=("a",))
        >>> levels(GraphView(ops=(a, b)))
        {'a': 0, 'b': 1}
    """
    return _levels(graph, {})


def level_graph(
    graph: GraphView,
    *,
    min_bytes: int,
    serialization: Sequence[int | str] = (),
    serialization_by_size: int = 0,
) -> LevelledGraph:
    """Serialise, then measure levels once for any number of rules.

    Args:
        graph: The graph in any execution order.
        min_bytes: Only ops that touch a tensor of at least this size are serialised.
        serialization: Levels whose ops run one by one: 4, '4', or a slice as in Python
            such as '3:5', ':2', '10:', ':'. Levels beyond the last are ignored.
        serialization_by_size: Bytes; levels whose ops read and make more run one by one
            too. 0 adds none.

    Raises:
        ValueError: If a level is written wrongly, or the size is negative.
    """
    plain = levels(graph)
    ordered = graph.reordered(_by_level(graph, plain))
    chosen = _serialized(ordered, plain, serialization, serialization_by_size)
    chain = tuple(
        name
        for name in large_ops(ordered, min_bytes=min_bytes)
        if plain[name] in chosen
    )
    waits = {name: [before] for before, name in pairwise(chain)}
    level = _levels(ordered, waits)
    ordered = graph.reordered(_by_level(graph, level))
    position = {op.name: i for i, op in enumerate(ordered.ops)}
    return LevelledGraph(
        graph=ordered,
        position=position,
        level=tuple(level[op.name] for op in ordered.ops),
        start=_starts([level[op.name] for op in ordered.ops]),
        ancestors=_ancestors(ordered.ops, position),
        chain=chain,
        live=buffers(ordered),
    )


def can_wait(op: Op) -> bool:
    """Tell whether an op can be made to wait, or be waited for.

    An alias, a persistent op or a part of a loop cannot.
    """
    return op.alias is None and not op.persistent and not op.fixed


def _levels(graph: GraphView, waits: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Levels with additional edges, which must follow the graph's order."""
    level: dict[str, int] = {}
    for op in graph.ops:
        before = (*map(op_of, op.inputs), *op.controls, *waits.get(op.name, ()))
        level[op.name] = 1 + max((level[name] for name in before), default=-1)
    return level


def _by_level(graph: GraphView, level: Mapping[str, int]) -> list[str]:
    """Names by level, then by given position."""
    return sorted((op.name for op in graph.ops), key=level.__getitem__)


def _serialized(
    graph: GraphView,
    level: Mapping[str, int],
    wanted: Sequence[int | str],
    by_size: int,
) -> set[int]:
    """The levels to be serialised."""
    if by_size < 0:
        raise ValueError(
            f"`serialization_by_size` must be at least 0, got {by_size}. "
            "Leave it out to choose no levels by their size."
        )
    count = max(level.values(), default=-1) + 1
    chosen = {number for item in wanted for number in _read_levels(item, count)}
    touched = [0] * count
    for op in graph.ops:
        if can_wait(op):
            made = [tensor.name for tensor in op.outputs]
            names = dict.fromkeys([*op.inputs, *made])
            touched[level[op.name]] += sum(graph.tensors[name].size for name in names)
    if by_size > 0:
        chosen.update(i for i, size in enumerate(touched) if size > by_size)
    return chosen


def _read_levels(item: int | str, count: int) -> range:
    """The levels that one item of `serialization` stands for."""
    text = str(item).strip()
    if text.isdecimal():
        return range(int(text), int(text) + 1)
    parts = _SLICE.fullmatch(text)
    if parts is None:
        raise ValueError(
            "`serialization` must list levels such as 4 or '4', or slices of levels "
            f"such as '3:5', ':2', '10:' or ':', got {item!r}. "
            "The end of a slice is not part of it."
        )
    return range(count)[
        slice(*(int(part) if part else None for part in parts.groups()))
    ]


def _starts(level: Sequence[int]) -> tuple[int, ...]:
    """First position of each level; every level up to the last has an op."""
    new = [i for i, number in enumerate(level) if i == 0 or number != level[i - 1]]
    return (*new, len(level))


def _ancestors(ops: Sequence[Op], position: Mapping[str, int]) -> tuple[int, ...]:
    ancestors: list[int] = []
    for i, op in enumerate(ops):
        bits = 1 << i
        for name in op.inputs:
            bits |= ancestors[position[op_of(name)]]
        ancestors.append(bits)
    return tuple(ancestors)
