"""Hand-drawn graphs of at most six ops with their numbers worked out, and plans.

Sizes are small whole numbers of bytes. `curve` is the memory while each op runs with
nothing swapped, `sets` what each op needs by itself, `levels` the longest path from a
source: all written down by hand, never computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lms.ir.graph import GraphView, Op, Tensor
from lms.ir.plan import Swap, SwapIn, SwapPlan
from lms.planning.schedule import orders

__all__ = ["CONTROLLED", "FORK", "LOOP", "RESHAPE", "SKIP", "TWICE", "TWO_WAITING"]
__all__ += ["Drawn", "all_drawn", "graph_of", "make_op", "one_of_two_written_over"]
__all__ += ["one_swap", "scheduled", "unplanned"]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A graph and its numbers."""

    graph: GraphView
    curve: tuple[int, ...]
    sets: tuple[int, ...]
    levels: tuple[int, ...]


def make_op(name: str, size: int, *reads: str, **rest: Any) -> Op:
    """Return an op with one output of `size` bytes that reads outputs of other ops."""
    inputs = tuple(f"{read}:0" for read in reads)
    rest.setdefault("type", "Op")
    return Op(
        name=name, inputs=inputs, outputs=(Tensor(name=f"{name}:0", size=size),), **rest
    )


def graph_of(*ops: Op, results: tuple[str, ...] = ()) -> GraphView:
    """Return a graph of ops in their execution order."""
    return GraphView(ops=ops, results=results)


def _drawn(
    *ops: Op, results: tuple[str, ...] = (), **numbers: tuple[int, ...]
) -> Drawn:
    return Drawn(graph=graph_of(*ops, results=results), **numbers)


# a (100) ─> b (10) ─> c (80) ─> d (10) ─> e (10)
#   └───────────────────────────────────────┘
SKIP = _drawn(
    make_op("a", 100),
    make_op("b", 10, "a"),
    make_op("c", 80, "b"),
    make_op("d", 10, "c"),
    make_op("e", 10, "d", "a"),
    curve=(100, 110, 190, 190, 120),
    sets=(100, 110, 90, 90, 120),
    levels=(0, 1, 2, 3, 4),
)

# a (100) ─> b (50) ─> c (50) ─> d (10)
#   └─> r, the same 100 bytes ────┘
RESHAPE = _drawn(
    make_op("a", 100),
    make_op("r", 100, "a", type="Reshape", alias="a:0"),
    make_op("b", 50, "a"),
    make_op("c", 50, "b"),
    make_op("d", 10, "c", "r"),
    curve=(100, 100, 150, 200, 160),
    sets=(100, 0, 150, 100, 160),
    levels=(0, 1, 1, 2, 3),
)

# a (100) ─> b (10) ─> c (10) ─> w (10, 60 of scratch, a loop) ─> d (10)
#   └──────────────────────────────────────────────────────────────┘
LOOP = _drawn(
    make_op("a", 100),
    make_op("b", 10, "a"),
    make_op("c", 10, "b"),
    make_op("w", 10, "c", type="While", fixed=True, scratch=60),
    make_op("d", 10, "w", "a"),
    curve=(100, 110, 120, 180, 120),
    sets=(100, 110, 20, 80, 120),
    levels=(0, 1, 2, 3, 4),
)

# a (100) ─> b (10) ─> c (10, 90 of scratch) ─> d (10) ─> e (10, 90) ─> f (10)
#   ├─────────────────────────────────────────────┘                      │
#   └────────────────────────────────────────────────────────────────────┘
TWICE = _drawn(
    make_op("a", 100),
    make_op("b", 10, "a"),
    make_op("c", 10, "b", scratch=90),
    make_op("d", 10, "c", "a"),
    make_op("e", 10, "d", scratch=90),
    make_op("f", 10, "e", "a"),
    curve=(100, 110, 210, 120, 210, 120),
    sets=(100, 110, 110, 120, 110, 120),
    levels=(0, 1, 2, 3, 4, 5),
)

# x (40) ────────────────────────────────┐
# y (40) ─────────────────────> d (10) ─> e (10)
# c (10, 60 of scratch) ─────────┘
TWO_WAITING = _drawn(
    make_op("x", 40),
    make_op("y", 40),
    make_op("c", 10, scratch=60),
    make_op("d", 10, "y", "c"),
    make_op("e", 10, "d", "x"),
    curve=(40, 80, 150, 100, 60),
    sets=(40, 40, 70, 60, 60),
    levels=(0, 0, 0, 1, 2),
)

# a (100) ┄> p (10) ┄> q (10) ┄> e (10)      ┄> is a control edge
#   └──────────────────────────────┘
CONTROLLED = _drawn(
    make_op("a", 100),
    make_op("p", 10, controls=("a",)),
    make_op("q", 10, controls=("p",)),
    make_op("e", 10, "a", controls=("q",)),
    curve=(100, 110, 110, 110),
    sets=(100, 10, 10, 110),
    levels=(0, 1, 2, 3),
)

# a (10) ─┬─> b (20) ─┬─> d (10)
#         └─> c (30) ─┘
FORK = _drawn(
    make_op("a", 10),
    make_op("b", 20, "a"),
    make_op("c", 30, "a"),
    make_op("d", 10, "b", "c"),
    results=("d:0",),
    curve=(10, 30, 60, 60),
    sets=(10, 30, 40, 60),
    levels=(0, 1, 1, 2),
)


def all_drawn() -> dict[str, Drawn]:
    """Return the graphs by name, for tests that each graph must pass."""
    return {
        "skip": SKIP,
        "reshape": RESHAPE,
        "loop": LOOP,
        "twice": TWICE,
        "two waiting": TWO_WAITING,
        "controlled": CONTROLLED,
        "fork": FORK,
    }


def one_of_two_written_over(reads: tuple[str, str]) -> GraphView:
    """Return a graph whose op `c` may write over either of its two inputs.

    In 3072 bytes `d` fits only where `c` takes the place of `a`: `b` lies beside the
    free 1024 bytes.
    """
    return graph_of(
        make_op("a", 1024),
        make_op("b", 1024),
        make_op("c", 1024, *reads, inplace=True),
        make_op("d", 2048, "c"),
    )


def unplanned(graph: GraphView, **fields: Any) -> SwapPlan:
    """Return a plan in the graph's order, by default without swaps."""
    order = tuple(op.name for op in graph.ops)
    return SwapPlan(planner="by hand", order=order, **fields)


def one_swap(
    graph: GraphView,
    *copies: tuple[str | None, str],
    release: str | None = None,
    chain: Sequence[str] = (),
) -> SwapPlan:
    """Return a plan that offloads `a:0`; a copy is its trigger and its readers."""
    swap_ins = tuple(SwapIn(trigger=t, readers=tuple(read)) for t, read in copies)
    size = graph.tensors["a:0"].size
    swap = Swap(tensor="a:0", size=size, release=release, swap_ins=swap_ins)
    return unplanned(graph, chain=tuple(chain), swaps=(swap,))


def scheduled(graph: GraphView, *, writes_last: bool = True) -> GraphView:
    """Return a graph in the order with the lowest peak."""
    return orders(graph, writes_last=writes_last)[-1]
