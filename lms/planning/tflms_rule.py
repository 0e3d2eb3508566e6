"""IBM's rule: a reader that lies too many levels behind its tensor reads a copy.

The level of an op is the longest path of edges, data and control, from a source. A
tensor leaves the device if a reader lies more than `swapout_threshold` levels behind
its producer; such far readers read copies that come back, the others the original.

    level 0   1     2     3     4          swapout_threshold=1, swapin_ahead=1
          a ──> b ──> c ──> d ──> e        distance(a, b) = 1: near
          └───────────────────────┘        distance(a, e) = 4: far; its copy starts
                                           after c, at level(e) - ahead - 1 = 2

Source: TFLMS v2 (github.com/IBM/tensorflow-large-model-support, branch tflmsv2), after
Le, Imai, Negishi, Kawachiya, "TFLMS: Large Model Support in TensorFlow by Graph
Rewriting" (arXiv:1807.02037, 2018), sections 4.1-4.4. Here the rule makes a `SwapPlan`,
with one release a tensor and one trigger a copy. Three simplifications follow:

- Swap-out sync made all readers of the producer wait for the swap-out. Here the first
  of them in execution order does, as the plan's `release`; if all readers are far, the
  first op behind the producer's level.
- Swap-in sync made a swap-in wait for all other inputs of its reader. Here it waits for
  the last of them in execution order, as the plan's `trigger`.
- Of several ops that may trigger a copy, the first in execution order does, and never
  an alias, a persistent op or a part of a loop: those cannot be waited for.

Known weaknesses: a level says nothing of bytes or seconds, so good thresholds must be
searched (`lms.planning.tflms_autotune`). The sets of ancestors take n^2/16 bytes for n
ops.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain, pairwise

from lms.ir.graph import GraphView, Op, op_of
from lms.ir.liveness import Buffer, buffers
from lms.ir.plan import Swap, SwapIn, SwapPlan
from lms.machine.hardware import moved_bytes
from lms.planning.candidates import large_ops
from lms.planning.tuning import TUNING

__all__ = ["LEAST", "LevelledGraph", "SyncMode", "ThresholdRule", "level_graph"]
__all__ += ["levels", "plan_by_rule", "read_levels"]

# The least values of the knobs that are tuned.
LEAST = {"swapout_threshold": 1, "swapin_ahead": 1, "swapin_groupby": 0}

_SLICE = re.compile(r"(\d*)\s*:\s*(\d*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelledGraph:
    """A graph in level order, with data that all rules share; positions count ops.

    Args:
        graph: The graph, its ops ordered by level.
        level: Each op's level.
        start: Each level's first op; one entry more for the end.
        ancestors: The ops from which each op can be reached by data edges, itself
            included, as bits.
        chain: The serialised ops.
    """

    graph: GraphView
    level: tuple[int, ...]
    start: tuple[int, ...]
    ancestors: tuple[int, ...]
    chain: tuple[str, ...]


def levels(
    graph: GraphView, waits: Mapping[str, Sequence[str]] | None = None
) -> dict[str, int]:
    """Return each op's level by its name: its longest path from a source, in edges.

    `waits` are more edges, which follow the order: ops that an op waits for.
    """
    extra = waits or {}
    level: dict[str, int] = {}
    for op in graph.ops:
        before = (*map(op_of, op.inputs), *op.controls, *extra.get(op.name, ()))
        level[op.name] = 1 + max((level[name] for name in before), default=-1)
    return level


def level_graph(
    graph: GraphView,
    *,
    min_bytes: int,
    serialization: Sequence[int | str] = (),
    serialization_by_size: int = 0,
) -> LevelledGraph:
    """Serialise, which moves later ops to later levels; measure levels for all rules.

    Args:
        graph: The graph in any execution order.
        min_bytes: Only ops that touch a tensor of at least this size are serialised.
        serialization: Levels whose ops run one by one: 4, '4', or a slice as in Python
            such as '3:5', ':2', '10:', ':'. Levels beyond the last are ignored.
        serialization_by_size: Bytes; levels whose ops read and make more run one by one
            too. 0 adds none.

    Raises:
        ValueError: If a level is written wrongly.
    """
    plain = levels(graph)
    ordered = graph.reordered(_by_level(graph, plain))
    chosen = _serialized(ordered, plain, serialization, serialization_by_size)
    large = large_ops(ordered, min_bytes=min_bytes)
    chain = tuple(name for name in large if plain[name] in chosen)
    waits = {name: [before] for before, name in pairwise(chain)}
    level = levels(ordered, waits)
    ordered = graph.reordered(_by_level(graph, level))
    position = ordered.position
    numbers = tuple(level[op.name] for op in ordered.ops)  # with no gap
    ancestors: list[int] = []
    for i, op in enumerate(ordered.ops):
        bits = 1 << i
        for name in op.inputs:
            bits |= ancestors[position[op_of(name)]]
        ancestors.append(bits)
    begins = [i for i, n in enumerate(numbers) if i == 0 or n != numbers[i - 1]]
    return LevelledGraph(
        graph=ordered,
        level=numbers,
        start=(*begins, len(numbers)),
        ancestors=tuple(ancestors),
        chain=chain,
    )


def _can_wait(op: Op) -> bool:
    """Tell whether an op can be made to wait, or be waited for."""
    return op.alias is None and not op.persistent and not op.fixed


def _by_level(graph: GraphView, level: Mapping[str, int]) -> list[str]:
    """Return the ops' names by level, then by given position."""
    return sorted((op.name for op in graph.ops), key=level.__getitem__)


def _serialized(
    graph: GraphView,
    level: Mapping[str, int],
    wanted: Sequence[int | str],
    by_size: int,
) -> set[int]:
    count = max(level.values(), default=-1) + 1
    chosen = {number for item in wanted for number in read_levels(item, count)}
    touched = [0] * count
    for op in graph.ops:
        if _can_wait(op):
            touched[level[op.name]] += moved_bytes(graph, op)
    if by_size > 0:
        chosen.update(i for i, size in enumerate(touched) if size > by_size)
    return chosen


def read_levels(item: int | str, count: int) -> range:
    """Read one item of `serialization`, a level or a slice of `count` levels.

    Raises:
        ValueError: If the item is neither.
    """
    text = "" if isinstance(item, bool) else str(item).strip()
    if text.isdecimal():
        return range(int(text), int(text) + 1)
    parts = _SLICE.fullmatch(text)
    if parts is None:
        raise ValueError(
            "`serialization` must list levels such as 4 or '4', or slices of levels "
            f"such as '3:5', ':2', '10:' or ':', got {item!r}. "
            "The end of a slice is not part of it."
        )
    ends = (int(part) if part else None for part in parts.groups())
    return range(count)[slice(*ends)]


class SyncMode(Enum):
    """Which copies the computation waits for; the values are TFLMS's numbers."""

    OFF = 0
    SWAP_OUT = 1
    SWAP_IN = 2
    BOTH = 3

    @property
    def label(self) -> str:
        """The mode's name as a person writes it."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def parse(cls, value: "int | str | SyncMode") -> "SyncMode":
        """Read a mode that a person wrote: a label, one of TFLMS's numbers, or a mode.

        Raises:
            ValueError: If it is none of these.
        """
        for mode in cls:
            known = (mode, mode.label, mode.value)
            if not isinstance(value, bool) and value in known:
                return mode
        raise ValueError(
            "`sync_mode` must be one of 'off' (0), 'swap-out' (1), 'swap-in' (2) and "
            f"'both' (3), got {value!r}. Leave it out to wait for no copies."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdRule:
    """TFLMS's knobs for swaps, in levels.

    Args:
        swapout_threshold: The most levels between the producer and a reader of the
            original, at least 1; readers farther behind read a copy.
        swapin_ahead: A copy starts more levels than this ahead of its first reader; at
            least 1.
        swapin_groupby: The most levels between two readers that share a copy; 0 makes
            one copy for each reader.
        sync_mode: Which copies the computation waits for.
    """

    swapout_threshold: int
    swapin_ahead: int
    swapin_groupby: int
    sync_mode: SyncMode = SyncMode.OFF

    def __str__(self) -> str:
        """Write the knobs for people.

        Example:
            >>> knobs = {"swapout_threshold": 9, "swapin_ahead": 3, "swapin_groupby": 0}
            >>> print(ThresholdRule(**knobs))
            thresholds 9, 3, 0, sync off
        """
        knobs = self.swapout_threshold, self.swapin_ahead, self.swapin_groupby
        return f"thresholds {', '.join(map(str, knobs))}, sync {self.sync_mode.label}"


def plan_by_rule(
    levelled: LevelledGraph, rule: ThresholdRule, *, movable: frozenset[str]
) -> SwapPlan:
    """Apply a rule to a levelled graph."""
    ops, level = levelled.graph.ops, levelled.level
    far: dict[str, list[int]] = {}
    for buffer in buffers(levelled.graph):
        if buffer.root in movable and not buffer.pinned:
            nearest = level[buffer.producer] + rule.swapout_threshold
            far[buffer.root] = [use for use in buffer.uses if level[use] > nearest]
    swaps = tuple(
        Swap(
            tensor=buffer.root,
            size=buffer.size,
            release=_release(levelled, buffer, rule, far),
            swap_ins=tuple(
                SwapIn(
                    trigger=_trigger(levelled, buffer, group[0], rule),
                    readers=tuple(ops[reader].name for reader in group),
                )
                for group in _grouped(levelled, far[buffer.root], rule)
            ),
        )
        for buffer in buffers(levelled.graph)
        if far.get(buffer.root)
    )
    return SwapPlan(
        planner="threshold",
        chain_is_partial=True,
        order=tuple(op.name for op in ops),
        chain=levelled.chain,
        swaps=_without_circles(levelled, swaps),
        chosen=str(rule),
    )


def _grouped(
    levelled: LevelledGraph, far: Sequence[int], rule: ThresholdRule
) -> list[list[int]]:
    """Group readers that share a copy: each within the gap of the reader before."""
    level = levelled.level
    groups: list[list[int]] = []
    for reader in far:
        gap = level[reader] - level[groups[-1][-1]] if groups else 0
        if groups and rule.swapin_groupby > 0 and gap <= rule.swapin_groupby:
            groups[-1].append(reader)
        else:
            groups.append([reader])
    return groups


def _release(
    levelled: LevelledGraph,
    buffer: Buffer,
    rule: ThresholdRule,
    far: Mapping[str, Sequence[int]],
) -> str | None:
    """Return the op that waits for the swap-out."""
    if rule.sync_mode not in (SyncMode.SWAP_OUT, SyncMode.BOTH):
        return None
    ops, made = levelled.graph.ops, buffer.producer
    near = {
        use
        for other in buffers(levelled.graph)
        if other.producer == made
        for use in other.uses
        if use not in far.get(other.root, ())
    }
    behind = range(levelled.start[levelled.level[made] + 1], len(ops))
    for position in (*sorted(near), *behind):
        if _can_wait(ops[position]) and position > made:
            return ops[position].name
    return None


def _trigger(
    levelled: LevelledGraph, buffer: Buffer, reader: int, rule: ThresholdRule
) -> str | None:
    """Return the op after which the copy for a reader starts."""
    found = None
    if rule.sync_mode in (SyncMode.OFF, SyncMode.SWAP_OUT):
        found = _trigger_ahead(levelled, buffer, reader, rule.swapin_ahead)
    if found is None:
        found = _trigger_beside(levelled, buffer, reader)
    return None if found is None else levelled.graph.ops[found].name


def _trigger_ahead(
    levelled: LevelledGraph, buffer: Buffer, reader: int, ahead: int
) -> int | None:
    """Find an op some levels ahead from which data edges reach the reader."""
    level, start = levelled.level, levelled.start
    # No path through the tensor itself counts: ops that lead to it lie below `lowest`.
    ancestors = levelled.ancestors[reader]
    highest = level[reader] - ahead - 1
    lowest = max(
        level[reader] - ahead - TUNING.rule_trigger_levels, level[buffer.producer] + 1
    )
    for number in range(highest, lowest - 1, -1):
        for position in range(start[number], start[number + 1]):
            if ancestors >> position & 1 and _can_wait(levelled.graph.ops[position]):
                return position
    return None


def _trigger_beside(levelled: LevelledGraph, buffer: Buffer, reader: int) -> int | None:
    """Find the last other input of the reader, else the last op below its level."""
    ops, made = levelled.graph.ops, buffer.producer
    names = {*map(op_of, ops[reader].inputs), *ops[reader].controls}
    inputs = sorted(levelled.graph.position[name] for name in names)
    below = range(made + 1, levelled.start[levelled.level[reader]])
    for found in chain(reversed(inputs), reversed(below)):
        if found > made and _can_wait(ops[found]):
            return found
    return made if _can_wait(ops[made]) else None


def _without_circles(
    levelled: LevelledGraph, swaps: Sequence[Swap]
) -> tuple[Swap, ...]:
    """Drop the releases that would close a circle.

    A swap-in waits for the swap-outs that the next chained op releases. One of these
    may belong to a tensor that is made, unchained, after the swap-in is read.
    """
    link_of = {name: i for i, name in enumerate(levelled.chain)}
    first_read: dict[int, int] = {}  # by the link that a swap-in starts beside
    for swap in swaps:
        for copy in swap.swap_ins:
            beside = link_of.get(copy.trigger or "", -2) + 1
            reader = levelled.graph.position[copy.readers[0]]
            first_read[beside] = min(reader, first_read.get(beside, reader))

    def circular(swap: Swap) -> bool:
        reader = first_read.get(link_of.get(swap.release or "", -2))
        made = levelled.graph.position[op_of(swap.tensor)]
        return reader is not None and reader <= made

    return tuple(
        replace(swap, release=None) if circular(swap) else swap for swap in swaps
    )
