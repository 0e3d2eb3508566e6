"""Dependencies of ops and copies in a planned step, and the memory that each holds.

The simulator of time (`lms.simulation.executor`) plays them; this file has no clock.
Ops are positions of the plan's order, copies and pieces of memory are numbers.

    op ──> swap-out ──> ops that wait for the freed memory
               └──────> swap-in ──> ops that read the copy
    trigger ───────────────┘  └──> ops that wait until the swap-in holds memory
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from lms.ir.graph import GraphView
from lms.ir.liveness import written_over
from lms.ir.plan import SwapPlan
from lms.ir.resolved import ResolvedSwap, ResolvedSwapIn, resolve
from lms.simulation.timeline import Lane
from lms.units import Bytes

__all__ = ["Copy", "Dependencies", "Take", "find_dependencies"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """A piece of device memory that an op or a swap-in begins to hold.

    Args:
        key: Its number.
        size: Bytes; 0 when an op reuses the piece of a dying input.
        holders: Number of ops and copies that must end before it is free.
    """

    key: int
    size: Bytes
    holders: int


@dataclass(slots=True, kw_only=True)
class Copy:
    """One copy of a swapped tensor.

    Args:
        lane: Its direction.
        tensor: The tensor's name.
        size: Bytes.
        waits: Number of ops and copies whose end it still waits for.
        ops: Positions of ops that wait for its end.
        copies: Numbers of swap-ins that wait for its end.
        beside: Positions of ops that wait until it holds its memory.
        out: Number of the swap-out that a swap-in belongs to.
        take: The memory of a swap-in.
        gives: The piece that a swap-out holds until its end.
        frees_host: Whether its end frees the tensor's host memory.
    """

    lane: Lane
    tensor: str
    size: Bytes
    waits: int = 0
    ops: list[int] = field(default_factory=list[int])
    copies: list[int] = field(default_factory=list[int])
    beside: list[int] = field(default_factory=list[int])
    out: int = -1
    take: Take | None = None
    gives: int | None = None
    frees_host: bool = False


@dataclass(slots=True, kw_only=True)
class Dependencies:
    """The dependencies of one step.

    Args:
        copies: All copies: the swap-outs, then the swap-ins swap by swap.
        after_op: Copies that wait for the end of an op.
        waits: Number of copies that an op waits for.
        takes: Memory that an op takes when it starts.
        gives: Pieces that an op holds until its end.
    """

    copies: list[Copy] = field(default_factory=list[Copy])
    after_op: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    waits: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    takes: dict[int, list[Take]] = field(default_factory=lambda: defaultdict(list))
    gives: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))


def find_dependencies(graph: GraphView, plan: SwapPlan) -> Dependencies:
    """Find the dependencies of a planned step.

    An ordered op waits until the swap-ins that start beside it hold their memory, and
    until the swap-outs whose release it is have ended.

    Args:
        graph: The graph that the plan is for, in any execution order.
        plan: A plan that `validate_plan` accepts.
    """
    return _Finder(graph, plan).found


class _Finder:
    """Fills `Dependencies` once; holds the lookups that its parts share."""

    def __init__(self, graph: GraphView, plan: SwapPlan) -> None:
        self.found = Dependencies()
        self._roots = graph.roots
        self._plan = resolve(graph, plan)
        self._buffers = self._plan.buffers
        self._key = {root: key for key, root in enumerate(self._buffers)}
        self._size = {self._key[r]: b.size for r, b in self._buffers.items()}
        self._holders = dict.fromkeys(self._size, 1)
        self._dying: dict[int, dict[str, int]] = defaultdict(dict)  # keys by roots
        self._outs: dict[str, int] = {}
        self._released: dict[int, list[int]] = defaultdict(list)
        self._stay({swap.tensor for swap in plan.swaps})
        for swap in self._plan.swaps:
            self._swap_out(swap)
        for swap in self._plan.swaps:
            for copy in swap.swap_ins:
                self._swap_in(swap, copy)
        self._take_outputs()

    def _stay(self, moved: set[str]) -> None:
        """Let buffers that do not move die with their last reader, unless kept."""
        for root, buffer in self._buffers.items():
            if root in moved or buffer.kept:
                continue
            self.found.gives[buffer.last].append(self._key[root])
            if buffer.uses:
                self._dying[buffer.last][root] = self._key[root]

    def _swap_out(self, swap: ResolvedSwap) -> None:
        buffer, key = swap.buffer, self._key[swap.buffer.root]
        out = Copy(
            lane=Lane.D2H,
            tensor=buffer.root,
            size=buffer.size,
            waits=1,
            gives=key,
        )
        self._outs[buffer.root] = number = self._add(out)
        self.found.after_op[buffer.producer].append(number)
        link = swap.release_link
        if swap.release is not None:
            self._wait(out.ops, [swap.release])
        if link is not None:
            self._released[link].append(number)
        self._holders[key] = 2  # the copy, and the last near reader
        self.found.gives[swap.last_near].append(key)
        if link:  # held until the ordered op before its release has ended
            self._holders[key] += 1
            # A producer that is not ordered may run after that op.
            last = max(buffer.producer, self._plan.chain[link - 1])
            self.found.gives[last].append(key)

    def _swap_in(self, swap: ResolvedSwap, copy: ResolvedSwapIn) -> None:
        buffer = swap.buffer
        key = len(self._size)
        self._size[key] = buffer.size
        back = Copy(
            lane=Lane.H2D,
            tensor=buffer.root,
            size=buffer.size,
            out=self._outs[buffer.root],
            take=Take(key=key, size=buffer.size, holders=1),
            frees_host=copy is swap.swap_ins[-1],
        )
        number = self._add(back)
        self.found.gives[copy.last_read].append(key)
        self._dying[copy.last_read][buffer.root] = key
        self._wait(back.ops, copy.readers)
        needed = [back.out]
        link = copy.trigger_link
        if link is not None:
            needed += [o for o in self._released[link + 1] if o not in needed]
            self._wait(back.beside, self._plan.chain[link + 1 : link + 2])
        for out in needed:
            self.found.copies[out].copies.append(number)
        back.waits = len(needed)
        if copy.trigger is not None:
            back.waits += 1
            self.found.after_op[copy.trigger].append(number)

    def _add(self, copy: Copy) -> int:
        self.found.copies.append(copy)
        return len(self.found.copies) - 1

    def _wait(self, waiting: list[int], positions: Iterable[int] = ()) -> None:
        for position in positions:
            waiting.append(position)
            self.found.waits[position] += 1

    def _take_outputs(self) -> None:
        """Give each output new memory, or the piece of an input that dies there.

        A reused piece is not freed: the output takes over its key.
        """
        actual: dict[int, int] = {}
        for position, op in enumerate(self._plan.ops):
            if op.persistent:
                continue
            own = [self._key[t.name] for t in op.outputs if t.name in self._key]
            dying = self._dying[position]
            sizes = {root: self._size[key] for root, key in dying.items()}
            output, over = written_over(op, self._roots, sizes) or (None, "")
            for key in own:
                size = self._size[key]
                if output and key == self._key.get(output):
                    self.found.gives[position].remove(dying[over])
                    actual[key] = actual.get(dying[over], dying[over])
                    size = 0
                take = Take(
                    key=actual.get(key, key), size=size, holders=self._holders[key]
                )
                self.found.takes[position].append(take)
        for given in self.found.gives.values():
            given[:] = [actual.get(key, key) for key in given]
        for copy in self.found.copies:
            if copy.gives is not None:
                copy.gives = actual.get(copy.gives, copy.gives)
