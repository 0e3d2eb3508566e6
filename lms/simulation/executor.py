"""Simulate a step that obeys a plan: three lanes, and memory on both sides, over time.

Discrete events with the semantics of TensorFlow's runtime on a GPU, as the rewriter's
transport meets them (`lms.tf.rewrite.rewriting`):

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
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from heapq import heappop, heappush
from itertools import count

from lms.errors import PlanError
from lms.ir.graph import GraphView
from lms.ir.plan import SwapPlan
from lms.ir.resolved import resolve
from lms.machine.hardware import Costs, Hardware
from lms.simulation.dependencies import Copy, Take, find_dependencies
from lms.simulation.timeline import Cause, Interval, Lane, Request, Stall, Timeline
from lms.units import Bytes, Seconds

__all__ = ["collector_paused", "simulate"]


@contextmanager
def collector_paused() -> Generator[None]:
    """Pause Python's garbage collector while planners make objects without cycles.

    Searches for cycles took a third of planning. The whole process pauses.

    Example:
        >>> with collector_paused():
        ...     gc.isenabled()
        False
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Clock:
    """Calls functions in the order of their times, then of their registration."""

    def __init__(self) -> None:
        self.now: Seconds = 0.0
        self._calls: list[tuple[Seconds, int, Callable[[], None]]] = []
        self._number = count()

    def at(self, when: Seconds, call: Callable[[], None]) -> None:
        """Register a call at a time that is not past."""
        heappush(self._calls, (when, next(self._number), call))

    def run(self) -> None:
        """Make the registered calls until none is left."""
        while self._calls:
            self.now, _, call = heappop(self._calls)
            call()


def simulate(
    graph: GraphView, plan: SwapPlan, costs: Costs, hardware: Hardware
) -> Timeline:
    """Predict one step on one device; Python's garbage collector is paused.

    Args:
        graph: The graph that the plan is for, in any execution order.
        plan: A plan that `validate_plan` accepts.
        costs: Seconds of each op.
        hardware: The device and its link.

    Raises:
        PlanError: If ops and copies wait for each other in a circle.

    Example:
        >>> from lms.ir.graph import Op, Tensor
        >>> from lms.machine.hardware import preset
        >>> a = Op(name="a", type="A", outputs=(Tensor(name="a:0", size=8),))
        >>> b = Op(name="b", type="B", inputs=("a:0",))
        >>> graph = GraphView(ops=(a, b))
        >>> plan = SwapPlan(planner="none", order=("a", "b"))
        >>> costs = Costs(seconds={"a": 2.0, "b": 1.0}, source="measured")
        >>> simulate(graph, plan, costs, preset("v100-pcie")).seconds
        3.0
    """
    with collector_paused():
        return _Device(graph, plan, costs, hardware).played()


class _Device:
    """Plays one step: the host that launches, the device, and its two copy lanes."""

    def __init__(
        self, graph: GraphView, plan: SwapPlan, costs: Costs, hardware: Hardware
    ) -> None:
        self._clock = Clock()
        self._costs = costs
        self._hardware = hardware
        self._ops = resolve(graph, plan).ops
        self._depends = find_dependencies(graph, plan)
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
        self._clock.run()
        if self._next < len(self._ops):
            raise PlanError(
                "ops and copies of the plan must not wait for each other in a circle, "
                f"got op {self._ops[self._next].name!r} that waits forever. "
                "Make the plan again."
            )
        return Timeline(
            intervals=tuple(self._intervals),
            stalls=tuple(self._stalls),
            requests=tuple(self._requests),
            host_requests=tuple(self._host_requests),
        )

    def _launch_next(self) -> None:
        """Launch ops as long as the next one waits for nothing but the host."""
        ops, waits = self._ops, self._depends.waits
        while self._next < len(ops) and not waits.get(self._next, 0):
            if self._clock.now < self._host_free:
                break  # another launch goes on
            self._launch(self._next)

    def _launch(self, position: int) -> None:
        op, now = self._ops[position], self._clock.now
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
            self._clock.at(self._host_free, self._launch_next)

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
            self._host_requests.append(
                Request(at=self._clock.now, key=number, size=copy.size)
            )
        start = max(self._clock.now, self._device_free, self._lane_free[copy.lane])
        into = copy.lane is Lane.H2D
        end = start + self._hardware.copy_seconds(copy.size, to_device=into)
        self._lane_free[copy.lane] = end
        self._add(copy.lane, copy.tensor, start, end, copy.size)
        self._clock.at(end, partial(self._copied, copy))

    def _copied(self, copy: Copy) -> None:
        """Free memory and waiting ops, as the host learns that a copy has ended."""
        if copy.gives is not None:
            self._give(copy.gives)
        if copy.frees_host:
            self._host_requests.append(
                Request(at=self._clock.now, key=copy.out, size=-copy.size)
            )
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
            self._requests.append(
                Request(at=self._clock.now, key=take.key, size=take.size)
            )
        else:
            self._held[take.key] = take.holders, self._held[take.key][1]

    def _give(self, key: int) -> None:
        holders, size = self._held[key]
        if holders > 1:
            self._held[key] = holders - 1, size
            return
        del self._held[key]
        self._requests.append(Request(at=self._clock.now, key=key, size=-size))
