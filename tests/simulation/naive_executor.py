"""A second `lms.simulation.executor`, slow and plain, to compare it with.

No events: every time is written as the latest of what it waits for, from zeros on,
again and again until nothing changes.
"""

from dataclasses import dataclass
from itertools import pairwise

from lms.ir.graph import GraphView, op_of
from lms.ir.liveness import buffers
from lms.ir.plan import Swap, SwapIn, SwapPlan
from lms.machine.hardware import Costs, Hardware

__all__ = ["Times", "naive_peak", "naive_times"]

Key = tuple[str, int]  # tensor, and -1 for the swap-out or the number of the swap-in


@dataclass
class Times:
    start: dict[str, float]
    end: dict[str, float]
    armed: dict[Key, float]
    copy_start: dict[Key, float]
    copy_end: dict[Key, float]
    over: dict[str, float]  # when the host has launched an op

    @property
    def seconds(self) -> float:
        return max([0.0, *self.end.values(), *self.copy_end.values()])


def naive_times(  # noqa: C901 - plain on purpose
    graph: GraphView, plan: SwapPlan, costs: Costs, hardware: Hardware
) -> Times:
    follower = dict(pairwise(plan.chain))
    outs = {swap.tensor: swap for swap in plan.swaps}
    ins: dict[Key, tuple[Swap, SwapIn]] = {
        (swap.tensor, k): (swap, copy)
        for swap in plan.swaps
        for k, copy in enumerate(swap.swap_ins)
    }

    def released_by(name: str) -> list[Key]:
        return [(t, -1) for t, swap in outs.items() if swap.release == name]

    def needed(key: Key) -> list[Key]:
        swap, copy = ins[key]
        beside = follower.get(copy.trigger or "")
        return [(swap.tensor, -1), *(released_by(beside) if beside else ())]

    def rooms(name: str) -> list[Key]:
        if name not in plan.chain:
            return []
        return [
            key
            for key, (_, copy) in ins.items()
            if follower.get(copy.trigger or "") == name
        ]

    zero = dict.fromkeys(plan.order, 0.0)
    copies = [*((t, -1) for t in outs), *ins]
    nothing = dict.fromkeys(copies, 0.0)
    times = Times(
        start=dict(zero),
        end=dict(zero),
        armed=dict(nothing),
        copy_start=dict(nothing),
        copy_end=dict(nothing),
        over=dict(zero),
    )
    for _ in range(4 * (len(plan.order) + len(copies)) + 4):
        before = repr(times)
        host = device = 0.0
        for name in plan.order:
            waits = [times.copy_end[key] for key in released_by(name)]
            waits += [
                times.copy_end[k] for k, (_, c) in ins.items() if name in c.readers
            ]
            waits += [times.armed[key] for key in rooms(name)]
            issue = max([host, *waits])
            times.start[name] = max(issue, device)
            times.end[name] = device = times.start[name] + costs.of(name)
            launch = hardware.launch if costs.of(name) else 0.0
            host = issue + launch
            times.over[name] = issue
        for key in copies:
            if key[1] < 0:
                times.armed[key] = times.over[op_of(key[0])]
                continue
            trigger = ins[key][1].trigger
            times.armed[key] = max(
                ([] if trigger is None else [times.over[trigger]])
                + [times.copy_end[other] for other in needed(key)]
            )
        ready = dict(times.armed)
        for key in copies:
            # Ops that the host starts at that very moment come after the copy, but for
            # the op that starts it.
            trigger = None if key[1] < 0 else ins[key][1].trigger
            causes = (op_of(key[0]), trigger)
            before_it = [
                times.end[name]
                for name in plan.order
                if times.over[name] < times.armed[key]
                or (name in causes and times.over[name] == times.armed[key])
            ]
            ready[key] = max([times.armed[key], *before_it])
        for to_device in (False, True):
            free = 0.0
            lane = [key for key in copies if (key[1] >= 0) is to_device]
            for key in sorted(lane, key=lambda key: (ready[key], times.armed[key])):
                size = outs[key[0]].size
                times.copy_start[key] = max(free, ready[key])
                seconds = hardware.copy_seconds(size, to_device=to_device)
                times.copy_end[key] = free = times.copy_start[key] + seconds
        if repr(times) == before:
            return times
    raise AssertionError("the times never settled")


def naive_peak(
    graph: GraphView, plan: SwapPlan, costs: Costs, hardware: Hardware
) -> int:
    """Bytes at the worst moment; for graphs without ops that write in place."""
    times = naive_times(graph, plan, costs, hardware)
    outs = {swap.tensor: swap for swap in plan.swaps}
    # What happens at one moment, in its order: a copy ends, its room goes to a swap-in;
    # an op is launched, and starts and ends for the host; a swap-in takes room.
    copied, by_copy, begins, over, by_op = range(5)
    begun = {name: (times.over[name], begins) for name in plan.order}
    done = {name: (times.over[name], over) for name in plan.order}
    never = (float("inf"), 0)
    spans = [(begun[op.name], done[op.name], op.scratch) for op in graph.ops]
    for buffer in buffers(graph):
        swap = outs.get(buffer.root)
        made = begun[op_of(buffer.root)]
        uses = [graph.ops[use].name for use in buffer.uses]
        if swap is None:
            end = never if buffer.kept else done[graph.ops[buffer.last].name]
            spans.append((made, end, buffer.size))
            continue
        far = {name for copy in swap.swap_ins for name in copy.readers}
        near = [name for name in uses if name not in far] + [op_of(buffer.root)]
        out = (times.copy_end[buffer.root, -1], copied)
        if swap.release in plan.chain:
            link = plan.chain.index(swap.release)
            near += plan.chain[max(0, link - 1) : link]
        spans.append((made, max([out, *(done[name] for name in near)]), buffer.size))
        for k, copy in enumerate(swap.swap_ins):
            armed = times.armed[buffer.root, k]
            by = times.over.get(copy.trigger or "") == armed
            room = (armed, by_op if by else by_copy)
            spans.append((room, max(done[name] for name in copy.readers), buffer.size))
    return max(
        (sum(s for a, b, s in spans if a <= now < b) for now, _, _ in spans), default=0
    )
