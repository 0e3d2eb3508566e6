"""The ops that the budget planner's walk takes at once, and what they need.

A step here is an ordered op and the ops up to the next ordered one: nothing is known of
the order in which TensorFlow runs these, so memory is made for all of them together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lms.ir.graph import GraphView
from lms.ir.liveness import Buffer, reused_bytes

__all__ = ["Step", "needs", "split_into_steps"]


@dataclass(slots=True, kw_only=True)
class Step:
    """Ops that the walk takes at once: an ordered one and those up to the next.

    Buffers are numbers: indices into the graph's `buffers`. `op` is the ordered one;
    what comes before the first has none. `need` is the most bytes of the buffers it
    touches, live at once, plus scratch.
    """

    op: str | None
    length: int = 0
    reads: set[int] = field(default_factory=set[int])
    makes: set[int] = field(default_factory=set[int])
    need: int = 0


def split_into_steps(
    graph: GraphView, chain: Sequence[str], live: Sequence[Buffer]
) -> list[Step]:
    """The steps in the execution order, with what each reads, makes and needs.

    Args:
        graph: The graph in the execution order to obey.
        chain: Names of the ordered ops, in the execution order.
        live: The graph's buffers.
    """
    ordered = frozenset(chain)
    steps: list[Step] = []
    step_at: list[int] = []
    for op in graph.ops:
        if not steps or op.name in ordered:
            steps.append(Step(op=op.name if op.name in ordered else None))
        steps[-1].length += 1
        step_at.append(len(steps) - 1)
    for i, buffer in enumerate(live):
        steps[step_at[buffer.producer]].makes.add(i)
        for use in buffer.uses:
            steps[step_at[use]].reads.add(i)
    for step in steps:
        step.reads -= step.makes
    _measure_needs(graph, steps, step_at, live)
    return steps


def _measure_needs(
    graph: GraphView,
    steps: Sequence[Step],
    step_at: Sequence[int],
    live: Sequence[Buffer],
) -> None:
    """Sweep the positions, counting only what the position's step touches."""
    dying = _dying(live)
    last = [len(graph.ops) if buffer.kept else buffer.last for buffer in live]
    position = 0
    for number, step in enumerate(steps):
        present = {i: live[i].size for i in step.reads}
        makes = sorted(step.makes, key=lambda i: live[i].producer, reverse=True)
        while position < len(graph.ops) and step_at[position] == number:
            op = graph.ops[position]
            while makes and live[makes[-1]].producer == position:
                made = makes.pop()
                present[made] = live[made].size
            reused = reused_bytes(op, dying.get(position, ()))
            step.need = max(step.need, sum(present.values()) + op.scratch - reused)
            for i in [i for i in present if last[i] == position]:
                del present[i]
            position += 1


def _dying(live: Sequence[Buffer]) -> dict[int, list[int]]:
    """Sizes of the buffers that an op may write over, by its position."""
    dying: dict[int, list[int]] = {}
    for buffer in live:
        if buffer.uses and not buffer.kept:
            dying.setdefault(buffer.last, []).append(buffer.size)
    return dying


def _last_steps(steps: Sequence[Step], live: Sequence[Buffer]) -> list[int]:
    """The step after which each buffer is free; past the end for kept ones."""
    last = [0] * len(live)
    for position, step in enumerate(steps):
        for i in step.reads | step.makes:
            last[i] = position
    return [len(steps) if b.kept else last[i] for i, b in enumerate(live)]


def needs(
    steps: Sequence[Step], live: Sequence[Buffer], movable: frozenset[str]
) -> list[int]:
    """Bytes that must be on the device at each step, all that may move being out."""
    last = _last_steps(steps, live)
    residencies = [buffer.root not in movable for buffer in live]
    staying = 0
    needed: list[int] = []
    for position, step in enumerate(steps):
        touched = step.reads | step.makes
        idle = staying - sum(live[i].size for i in step.reads if residencies[i])
        needed.append(idle + step.need)
        staying += sum(live[i].size for i in step.makes if residencies[i])
        staying -= sum(
            live[i].size for i in touched if residencies[i] and last[i] == position
        )
    return needed
