"""Simulate a step that obeys a plan: three lanes, and memory on both sides, over time.

    op ──> swap-out ──> ops that wait for the freed memory
               └──────> swap-in ──> ops that read the copy
    trigger ───────────────┘  └──> ops that wait until the swap-in holds memory

Discrete events with the semantics of TensorFlow's runtime on a GPU, as the rewriter's
transport meets them (`lms.tf.rewriting`):

- One thread of the host launches ops in the plan's order, ahead of the device. Memory
  changes hands when an op is launched, not when the device gets to it.
- Each direction has a stream of its own, first come, first served. A copy takes the
  seconds of its bytes and `Hardware.latency`. It waits for all ops that were launched
  before it (`GPUUtil` in TensorFlow's gpu_util.cc).
- A swap-out is launched after its producer. Its tensor's memory is free when the host
  knows that the copy has ended, and when the near readers and the ordered op before its
  release were launched.
- A swap-in is launched, and takes its memory, when its trigger was launched and the
  host knows that its own swap-out and the swap-outs released by the next ordered op
  have ended. Ops behind the trigger are launched after it.
- An op is launched when the swap-ins that it reads, and the swap-outs whose release it
  is, have ended.

Known weaknesses: ops never run side by side; small ops are launched in the plan's order
too; copies do not slow each other or the ops.
"""

import gc
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count

from lms.errors import PlanError
from lms.ir.graph import GraphView
from lms.ir.liveness import written_over
from lms.ir.plan import ResolvedSwap, ResolvedSwapIn, SwapPlan, resolve
from lms.machine.hardware import Costs, Hardware
from lms.simulation.timeline import Cause, Interval, Lane, Request, Stall, Timeline
from lms.units import Bytes, Seconds

__all__ = ["Dependencies", "collector_paused", "simulate"]


@contextmanager
def collector_paused() -> Generator[None]:
    """Pause Python's garbage collector while planners make objects without cycles.

    Searches for cycles took a third of planning. The whole process pauses.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """A piece of device memory that an op or a swap-in begins to hold."""

    key: int
    size: Bytes  # 0 when an op reuses the piece of a dying input
    holders: int  # number of ops and copies that must end before it is free


@dataclass(slots=True, kw_only=True)
class Copy:
    """One copy of a swapped tensor."""

    lane: Lane
    tensor: str
    size: Bytes
    waits: int = 0  # number of ops and copies whose end it still waits for
    ops: list[int] = field(default_factory=list[int])  # that wait for its end
    copies: list[int] = field(default_factory=list[int])  # swap-ins that do so
    beside: list[int] = field(default_factory=list[int])  # ops that wait for its start
    out: int = -1  # the swap-out that a swap-in belongs to
    take: Take | None = None  # memory of a swap-in
    gives: int | None = None  # the piece that a swap-out holds until its end
    frees_host: bool = False  # whether its end frees the tensor's host memory


class Dependencies:
    """Dependencies of ops and copies in a planned step, and the memory that each holds.

    Ops are positions of the plan's order, copies and pieces of memory are numbers.

    Attributes:
        copies: All copies: the swap-outs, then the swap-ins swap by swap.
        after_op: Copies that wait for the end of an op.
        waits: Number of copies that an op waits for.
        takes: Memory that an op takes when it starts.
        gives: Pieces that an op holds until its end.
    """

    def __init__(self, graph: GraphView, plan: SwapPlan) -> None:
        self.copies: list[Copy] = []
        self.after_op: dict[int, list[int]] = defaultdict(list)
        self.waits: dict[int, int] = defaultdict(int)
        self.takes: dict[int, list[Take]] = defaultdict(list)
        self.gives: dict[int, list[int]] = defaultdict(list)
        self._roots = graph.roots
        self._plan = resolve(graph, plan)
        self._buffers = self._plan.buffers
        self._key = {root: key for key, root in enumerate(self._buffers)}
        self._size = {self._key[r]: b.size for r, b in self._buffers.items()}
        self._holders = dict.fromkeys(self._size, 1)
        self._dying: dict[int, dict[str, int]] = defaultdict(dict)  # keys by roots
        self._released: dict[int, list[int]] = defaultdict(list)
        moved = {swap.tensor for swap in plan.swaps}
        for root, buffer in self._buffers.items():
            if root not in moved and not buffer.kept:  # it dies with its last reader
                self.gives[buffer.last].append(self._key[root])
                if buffer.uses:
                    self._dying[buffer.last][root] = self._key[root]
        for swap in self._plan.swaps:
            self._swap_out(swap)
        for out, swap in enumerate(self._plan.swaps):
            for copy in swap.swap_ins:
                self._swap_in(out, swap, copy)
        self._take_outputs()

    def _swap_out(self, swap: ResolvedSwap) -> None:
        buffer, key = swap.buffer, self._key[swap.buffer.root]
        root, size = buffer.root, buffer.size
        out = Copy(lane=Lane.D2H, tensor=root, size=size, waits=1, gives=key)
        number = self._add(out)
        self.after_op[buffer.producer].append(number)
        link = swap.release_link
        if swap.release is not None:
            self._wait(out.ops, [swap.release])
        if link is not None:
            self._released[link].append(number)
        self._holders[key] = 2  # the copy, and the last near reader
        self.gives[swap.last_near].append(key)
        if link:  # held until the ordered op before its release has ended
            self._holders[key] += 1
            # A producer that is not ordered may run after that op.
            last = max(buffer.producer, self._plan.chain[link - 1])
            self.gives[last].append(key)

    def _swap_in(self, out: int, swap: ResolvedSwap, copy: ResolvedSwapIn) -> None:
        buffer = swap.buffer
        key = len(self._size)
        self._size[key] = buffer.size
        back = Copy(
            lane=Lane.H2D,
            tensor=buffer.root,
            size=buffer.size,
            out=out,
            take=Take(key=key, size=buffer.size, holders=1),
            frees_host=copy is swap.swap_ins[-1],
        )
        number = self._add(back)
        self.gives[copy.last_read].append(key)
        self._dying[copy.last_read][buffer.root] = key
        self._wait(back.ops, copy.readers)
        needed = [out]
        link = copy.trigger_link
        if link is not None:
            needed += [o for o in self._released[link + 1] if o not in needed]
            self._wait(back.beside, self._plan.chain[link + 1 : link + 2])
        for before in needed:
            self.copies[before].copies.append(number)
        back.waits = len(needed)
        if copy.trigger is not None:
            back.waits += 1
            self.after_op[copy.trigger].append(number)

    def _add(self, copy: Copy) -> int:
        self.copies.append(copy)
        return len(self.copies) - 1

    def _wait(self, waiting: list[int], positions: Sequence[int]) -> None:
        for position in positions:
            waiting.append(position)
            self.waits[position] += 1

    def _take_outputs(self) -> None:
        """Give each output new memory, or the piece of an input that dies there.

        A reused piece is not freed: the output takes over its key.
        """
        actual: dict[int, int] = {}
        for position, op in enumerate(self._plan.ops):
            if op.persistent:
                continue
            own = [self._key[t.name] for t in op.outputs if t.name in self._key]
            dying = self._dying[position] if op.inplace else {}
            sizes = {root: self._size[key] for root, key in dying.items()}
            output, over = written_over(op, self._roots, sizes) or (None, "")
            for key in own:
                size = self._size[key]
                if output and key == self._key.get(output):
                    self.gives[position].remove(dying[over])
                    actual[key] = actual.get(dying[over], dying[over])
                    size = 0
                piece, holders = actual.get(key, key), self._holders[key]
                self.takes[position].append(Take(key=piece, size=size, holders=holders))
        for given in self.gives.values():
            given[:] = [actual.get(key, key) for key in given]
        for copy in self.copies:
            if copy.gives is not None:
                copy.gives = actual.get(copy.gives, copy.gives)


def simulate(
    graph: GraphView, plan: SwapPlan, costs: Costs, hardware: Hardware
) -> Timeline:
    """Predict one step that obeys a valid plan; pauses Python's garbage collector.

    Raises:
        PlanError: If ops and copies wait for each other in a cycle.
    """
    with collector_paused():
        return _Device(graph, plan, costs, hardware).played()


class _Device:
    """Plays one step: the host that launches, the device, and its two copy lanes."""

    def __init__(
        self, graph: GraphView, plan: SwapPlan, costs: Costs, hardware: Hardware
    ) -> None:
        self._now: Seconds = 0.0
        self._calls: list[tuple[Seconds, int, Callable[[], None]]] = []
        self._number = count()  # calls of equal times come as they were registered
        self._costs = costs
        self._hardware = hardware
        self._ops = resolve(graph, plan).ops
        self._depends = Dependencies(graph, plan)
        self._next = 0
        self._host_free: Seconds = 0.0
        self._device_free: Seconds = 0.0
        self._lane_free = {Lane.H2D: 0.0, Lane.D2H: 0.0}
        self._held: dict[int, tuple[int, Bytes]] = {}  # key -> holders left, bytes
        self._reason: Copy | None = None  # the copy that the next op waited for last
        self._intervals: list[Interval] = []
        self._stalls: list[Stall] = []
        self._requests: list[Request] = []
        self._host_requests: list[Request] = []

    def played(self) -> Timeline:
        self._launch_next()
        while self._calls:
            self._now, _, call = heappop(self._calls)
            call()
        if self._next < len(self._ops):
            raise PlanError(
                "ops and copies of the plan must not wait for each other in a cycle, "
                f"got op {self._ops[self._next].name!r} that waits forever. "
                "Make the plan again."
            )
        return Timeline(
            intervals=tuple(self._intervals),
            stalls=tuple(self._stalls),
            requests=tuple(self._requests),
            host_requests=tuple(self._host_requests),
        )

    def _at(self, when: Seconds, call: Callable[[], None]) -> None:
        heappush(self._calls, (when, next(self._number), call))

    def _launch_next(self) -> None:
        """Launch ops as long as the next one waits for nothing but the host."""
        ops, waits = self._ops, self._depends.waits
        while self._next < len(ops) and not waits.get(self._next, 0):
            if self._now < self._host_free:
                break  # another launch goes on
            self._launch(self._next)

    def _launch(self, position: int) -> None:
        op, now = self._ops[position], self._now
        seconds = self._costs.of(op.name)
        start = max(now, self._device_free)
        self._note_stall(op.name, start)
        self._next += 1
        self._reason = None
        for take in self._depends.takes.get(position, ()):
            self._take(take)
        if op.scratch:
            self._take(Take(key=-1 - position, size=op.scratch, holders=1))
            self._give(-1 - position)
        self._device_free = start + seconds
        if seconds:
            self._add(Lane.COMPUTE, op.name, start, self._device_free)
            self._host_free = now + self._hardware.launch
        for key in self._depends.gives.get(position, ()):
            self._give(key)
        for number in self._depends.after_op.get(position, ()):
            self._come(number)
        if self._host_free > now:
            self._at(self._host_free, self._launch_next)

    def _note_stall(self, op: str, start: Seconds) -> None:
        if start <= self._device_free:
            return
        cause, tensor = Cause.LAUNCH, ""
        if self._reason is not None:
            tensor = self._reason.tensor
            into = self._reason.lane is Lane.H2D
            cause = Cause.SWAP_IN if into else Cause.SWAP_OUT
        self._stalls.append(
            Stall(op=op, start=self._device_free, end=start, cause=cause, tensor=tensor)
        )

    def _come(self, number: int) -> None:
        """Count down the ends that a copy waits for; start the copy at zero."""
        copy = self._depends.copies[number]
        copy.waits -= 1
        if copy.waits:
            return
        if copy.take is not None:
            self._take(copy.take)
            self._let_go(copy.beside, copy)
        else:
            self._note(self._host_requests, number, copy.size)
        start = max(self._now, self._device_free, self._lane_free[copy.lane])
        into = copy.lane is Lane.H2D
        end = start + self._hardware.copy_seconds(copy.size, to_device=into)
        self._lane_free[copy.lane] = end
        self._add(copy.lane, copy.tensor, start, end, copy.size)
        self._at(end, partial(self._copied, copy))

    def _copied(self, copy: Copy) -> None:
        """Free memory and waiting ops, as the host learns that a copy has ended."""
        if copy.gives is not None:
            self._give(copy.gives)
        if copy.frees_host:
            self._note(self._host_requests, copy.out, -copy.size)
        self._let_go(copy.ops, copy)
        for waiting in copy.copies:
            self._come(waiting)
        self._launch_next()

    def _let_go(self, positions: Sequence[int], copy: Copy) -> None:
        for position in positions:
            self._depends.waits[position] -= 1
            if position == self._next:
                self._reason = copy

    def _add(
        self, lane: Lane, name: str, start: Seconds, end: Seconds, size: Bytes = 0
    ) -> None:
        self._intervals.append(
            Interval(lane=lane, name=name, start=start, end=end, size=size)
        )

    def _take(self, take: Take) -> None:
        if take.size:
            self._held[take.key] = take.holders, take.size
            self._note(self._requests, take.key, take.size)
        else:
            self._held[take.key] = take.holders, self._held[take.key][1]

    def _give(self, key: int) -> None:
        holders, size = self._held[key]
        if holders > 1:
            self._held[key] = holders - 1, size
            return
        del self._held[key]
        self._note(self._requests, key, -size)

    def _note(self, requests: list[Request], key: int, size: Bytes) -> None:
        requests.append(Request(at=self._now, key=key, size=size))
