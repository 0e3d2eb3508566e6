"""Simulate a step that obeys a plan: three lanes, and memory on both sides, over time.

Discrete events with the semantics of TensorFlow's runtime:

- Ops start one after the other in the plan's order. An op waits for the swap-ins that
  it reads and for the swap-outs whose release it is.
- A swap-out may start when its tensor exists. The tensor's room is free when the copy
  and the near readers have ended.
- A swap-in may start when its trigger, its own swap-out, and the swap-outs released by
  the next ordered op have ended. It takes room from then on.
- Copies in one direction are served one by one in the order in which they may start.
- On an asynchronous device (a GPU) the host starts ops ahead of the device. A copy then
  waits for all ops started before it, in both directions (`GPUUtil` in TensorFlow's
  gpu_util.cc lets the copy's stream wait for the compute stream), and memory changes
  hands when the host starts an op, not when the device gets to it.
- Where cores copy that would compute (`Hardware.copy_load`), the next op takes longer
  by what the copies since then cost, less the time in which nothing was computed.
- On a synchronous device (an emulated one) the next ordered op waits until swap-ins
  that start beside it have their room, and a tensor keeps its room until the op before
  the one that waits for its swap-out has ended, as the rewriter makes them.

Several devices may share a bus: copies in one direction share its bandwidth equally.

Known weaknesses: ops never run side by side; what a copy costs is charged to the op
after it; a bus does not hand on what a device with a slower link leaves over.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from lms.errors import PlanError
from lms.ir.graph import GraphView
from lms.ir.plan import SwapPlan
from lms.ir.resolved import resolve
from lms.machine.costs import Costs
from lms.machine.hardware import Hardware
from lms.simulation.dependencies import Copy, Take, find_dependencies
from lms.simulation.event_queue import Clock, Flow
from lms.simulation.gc_pause import collector_paused
from lms.simulation.timeline import Cause, Interval, Lane, Request, Stall, Timeline
from lms.units import Bytes, Seconds

__all__ = ["Bus", "Job", "simulate", "simulate_together"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One device and the step it runs.

    Args:
        graph: The graph that the plan is for, in any execution order.
        plan: A plan that `validate_plan` accepts.
        costs: Seconds of each op.
        hardware: The device and its link.
        start: When the step starts, in seconds.
        after: The number of the job after whose end it starts, on the same device; its
            own `start` says nothing then.
    """

    graph: GraphView
    plan: SwapPlan
    costs: Costs
    hardware: Hardware
    start: Seconds = 0.0
    after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bus:
    """What the links of several devices share.

    Args:
        h2d: Bytes per second from host to devices, all together.
        d2h: Bytes per second from devices to host, all together.
    """

    h2d: float
    d2h: float


def simulate(
    graph: GraphView, plan: SwapPlan, costs: Costs, hardware: Hardware
) -> Timeline:
    """Predict one step on one device.

    Args:
        graph: The graph that the plan is for, in any execution order.
        plan: A plan that `validate_plan` accepts.
        costs: Seconds of each op.
        hardware: The device and its link.

    Example:
        >>> from lms.ir.graph import Op, Tensor
        >>> from lms.machine.presets import preset
        >>> a = Op(name="a", type="A", outputs=(Tensor(name="a:0", size=8),))
        >>> b = Op(name="b", type="B", inputs=("a:0",))
        >>> graph = GraphView(ops=(a, b))
        >>> plan = SwapPlan(planner="none", order=("a", "b"))
        >>> costs = Costs(seconds={"a": 2.0, "b": 1.0}, source="measured")
        >>> simulate(graph, plan, costs, preset("v100-pcie")).seconds
        3.0
    """
    job = Job(graph=graph, plan=plan, costs=costs, hardware=hardware)
    return simulate_together([job])[0]


def simulate_together(
    jobs: Sequence[Job], *, bus: Bus | None = None
) -> tuple[Timeline, ...]:
    """Predict steps on several devices that may share a bus.

    Python's garbage collector rests meanwhile.

    Args:
        jobs: A step each, on devices of their own or one after the other.
        bus: What their links share; None if each link is its own.

    Returns:
        One timeline for each job; times count from the same moment.

    Raises:
        PlanError: If ops and copies wait for each other in a circle.
    """
    with collector_paused():
        return _played(jobs, bus)


def _played(jobs: Sequence[Job], bus: Bus | None) -> tuple[Timeline, ...]:
    clock = Clock()
    shared = None if bus is None else (Flow(clock, bus.h2d), Flow(clock, bus.d2h))
    devices: list[_Device] = []
    for job in jobs:
        link = job.hardware
        flows = shared or (Flow(clock, link.h2d), Flow(clock, link.d2h))
        devices.append(_Device(job, clock, *flows))
        if job.after is None:
            clock.at(job.start, devices[-1].begin)
        else:
            devices[job.after].then.append(devices[-1].begin)
    clock.run()
    return tuple(device.timeline() for device in devices)


class _Device:
    """Plays one job: the host that starts ops, the device, and its two copy lanes."""

    def __init__(self, job: Job, clock: Clock, h2d: Flow, d2h: Flow) -> None:
        self._job = job
        self._clock = clock
        self._flow = {Lane.H2D: h2d, Lane.D2H: d2h}
        self._queue: dict[Lane, deque[int]] = {Lane.H2D: deque(), Lane.D2H: deque()}
        self._link = {Lane.H2D: job.hardware.h2d, Lane.D2H: job.hardware.d2h}
        self._ahead = job.hardware.asynchronous
        self._ops = resolve(job.graph, job.plan).ops
        self._depends = find_dependencies(
            job.graph, job.plan, rooms_first=not self._ahead
        )
        self.then: list[Callable[[], None]] = []  # what begins at the end of the step
        self._left = len(self._depends.copies)
        self._next = 0
        self._running = False  # whether the host waits for the end of an op
        self._host_free: Seconds = 0.0
        self._device_free: Seconds = 0.0
        self._owed: Seconds = 0.0  # computing that copies have cost
        self._settled: Seconds = 0.0  # until when idle time has paid for it
        self._held: dict[int, tuple[int, Bytes]] = {}  # key -> holders left, bytes
        self._reason: Copy | None = None  # the copy that the next op waited for last
        self._timeline: list[Interval] = []
        self._stalls: list[Stall] = []
        self._requests: list[Request] = []
        self._host_requests: list[Request] = []

    def timeline(self) -> Timeline:
        if self._next < len(self._ops):
            raise PlanError(
                "ops and copies of the plan must not wait for each other in a circle, "
                f"got op {self._ops[self._next].name!r} that waits forever. "
                "Make the plan again."
            )
        return Timeline(
            intervals=tuple(self._timeline),
            stalls=tuple(self._stalls),
            requests=tuple(self._requests),
            host_requests=tuple(self._host_requests),
        )

    def begin(self) -> None:
        """Begin the step now."""
        self._host_free = self._device_free = self._settled = self._clock.now
        self.start_next()

    def start_next(self) -> None:
        """Start ops as long as the next one waits for nothing but the host."""
        ops, waits = self._ops, self._depends.waits
        while self._next < len(ops) and not waits.get(self._next, 0):
            if self._running or self._clock.now < self._host_free:
                break  # the call that goes on is under way
            self._start(self._next, self._clock.now)
        is_over = self._next == len(ops) and not self._running and not self._left
        while is_over and self.then:
            self._clock.at(max(self._clock.now, self._device_free), self.then.pop())

    def _start(self, position: int, now: Seconds) -> None:
        op = self._ops[position]
        seconds = self._job.costs.of(op.name)
        start = max(now, self._device_free)
        self._settle(start)
        if seconds:
            seconds, self._owed = seconds + self._owed, 0.0
        self._note_stall(op.name, start)
        self._next += 1
        self._reason = None
        for take in self._depends.takes.get(position, ()):
            self._take(take)
        scratch = Take(key=-1 - position, size=op.scratch, holders=1)
        if op.scratch:
            self._take(scratch)
        if seconds:
            self._timeline.append(
                Interval(
                    lane=Lane.COMPUTE, name=op.name, start=start, end=start + seconds
                )
            )
        self._device_free = start + seconds
        if self._ahead:
            self._host_free = now + (self._job.hardware.launch if seconds else 0.0)
            self._complete(position, scratch)
            if self._host_free > now:
                self._clock.at(self._host_free, self.start_next)
        elif seconds:
            self._running = True
            self._clock.at(self._device_free, partial(self._end, position, scratch))
        else:
            self._complete(position, scratch)

    def _end(self, position: int, scratch: Take) -> None:
        self._running = False
        self._complete(position, scratch)
        self.start_next()

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

    def _complete(self, position: int, scratch: Take) -> None:
        """The op needs its inputs no longer, for all that the host knows."""
        if scratch.size:
            self._give(scratch.key)
        for key in self._depends.gives.get(position, ()):
            self._give(key)
        for number in self._depends.after_op.get(position, ()):
            self._resolve(number)

    def _resolve(self, number: int) -> None:
        """One of the things that a copy waits for has come."""
        copy = self._depends.copies[number]
        copy.waits -= 1
        if copy.waits:
            return
        if copy.take is not None:
            self._take(copy.take)
            self._let_go(copy.beside, copy)
        if self._ahead and self._device_free > self._clock.now:
            self._clock.at(self._device_free, partial(self._enqueue, number))
        else:
            self._enqueue(number)

    def _enqueue(self, number: int) -> None:
        queue = self._queue[self._depends.copies[number].lane]
        queue.append(number)
        if len(queue) == 1:
            self._carry(number)

    def _carry(self, number: int) -> None:
        copy, start = self._depends.copies[number], self._clock.now
        link = self._link[copy.lane]
        if copy.lane is Lane.D2H:
            self._host_requests.append(Request(at=start, key=number, size=copy.size))

        def ended() -> None:
            self._timeline.append(
                Interval(
                    lane=copy.lane,
                    name=copy.tensor,
                    start=start,
                    end=self._clock.now,
                    size=copy.size,
                )
            )
            self._copied(copy)

        self._settle(start)
        self._owed += copy.size * self._job.hardware.copy_load
        # Latency as the bytes that the link could have carried.
        size = copy.size + self._job.hardware.latency * link
        self._flow[copy.lane].carry(size, link, ended)

    def _settle(self, now: Seconds) -> None:
        """While nothing is computed, cores have time to copy."""
        idle = now - max(self._device_free, self._settled)
        self._owed = max(0.0, self._owed - max(0.0, idle))
        self._settled = max(self._settled, now)

    def _copied(self, copy: Copy) -> None:
        self._left -= 1
        queue = self._queue[copy.lane]
        queue.popleft()
        if queue:
            self._carry(queue[0])
        if copy.gives is not None:
            self._give(copy.gives)
        if copy.frees_host:
            self._host_requests.append(
                Request(at=self._clock.now, key=copy.out, size=-copy.size)
            )
        self._let_go(copy.ops, copy)
        for waiting in copy.copies:
            self._resolve(waiting)
        self.start_next()

    def _let_go(self, positions: Sequence[int], copy: Copy) -> None:
        for position in positions:
            self._depends.waits[position] -= 1
            if position == self._next:
                self._reason = copy

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
