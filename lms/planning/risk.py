"""Where a plan lies in memory as it will be, not only as it was planned.

What is in the way in the real memory is not known to the byte, and best fit takes the
smallest chunk that will do: with a little more memory tensors lie elsewhere. So a plan
is tried in several regions, and what is not known of its place is said.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from lms.ir.graph import GraphView
from lms.ir.plan import SwapPlan
from lms.planning.tuning import THOROUGH, TUNING, Effort
from lms.simulation.allocator import SmallPool
from lms.simulation.memory import Region, peaks_by_region
from lms.units import Seconds

__all__ = ["NOTHING", "FittedPlan", "Headroom", "Risk"]
__all__ += ["judged", "middle", "regions_of", "seconds_of", "with_likely_peak"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """Memory of a device beyond the room that a step is planned into, in bytes.

    Args:
        free: Nobody else uses it.
        bound: The step may be in it, if the allocator happens to place tensors so.
        holes: Free chunks that are not one piece with the others, of the room.
    """

    free: int = 0
    bound: int = 0
    holes: tuple[int, ...] = ()


NOTHING = Headroom()


class Risk(IntEnum):
    """Doubt about a plan's place; the least is best."""

    NONE = 0  # placed in all regions, within bounds
    BOUNDS = 1  # placed in all, beyond the bounds in some
    PLACE = 2  # placed in the room, and not in all regions


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPlan:
    """A plan and how the allocator takes it.

    Args:
        plan: The plan.
        small_pool: Chunks to be kept for small tensors.
        peak: Bytes of chunks in use at most: the middle of what is likely, so it may be
            a little more or less.
        risk: Whether it will be so in the device's memory as well.
        seconds: What the step is played to take; None if it was not played.
        beside: Bytes that it may take besides, where ops run side by side.
    """

    plan: SwapPlan
    small_pool: SmallPool
    peak: int
    risk: Risk = Risk.NONE
    seconds: Seconds | None = None
    beside: int = 0


def seconds_of(fitted: FittedPlan) -> Seconds:
    """Seconds that the step takes by a plan that was played."""
    assert fitted.seconds is not None
    return fitted.seconds


def judged(
    graph: GraphView,
    option: FittedPlan,
    budget: int,
    headroom: Headroom,
    effort: Effort = THOROUGH,
) -> tuple[int, FittedPlan]:
    """How bad the doubt is, and the plan with what is not known.

    The first is only comparable between plans of one doubt: of `PLACE`, the regions in
    which the plan cannot be placed; of `BOUNDS`, its highest peak.

    Args:
        graph: The graph that the plan is for, in any execution order.
        option: A plan, and the chunks that are kept for small tensors.
        budget: Bytes of device memory for the step.
        headroom: What more the device has.
        effort: In how many regions it is placed.
    """
    regions = regions_of(budget, headroom, option.small_pool, effort)
    peaks = list(peaks_by_region(graph, option.plan, regions))
    placed = [peak for peak in peaks if peak is not None]
    if len(placed) < len(regions):
        return len(regions) - len(placed), replace(option, risk=Risk.PLACE)
    sure = replace(option, peak=middle(placed), risk=Risk.NONE)
    if max(placed) > budget + headroom.bound:
        return max(placed), replace(sure, risk=Risk.BOUNDS)
    return 0, sure


def middle(peaks: Sequence[int]) -> int:
    """Halfway between the low and the high ones.

    The same plan may peak higher in another region, where tensors lie elsewhere. Which
    it will be is not known, so the promise is what is nearest to both. A median is one
    of the two.
    """
    ranked = sorted(peaks)
    left_out = len(ranked) * TUNING.outliers_percent // 100
    return (ranked[left_out] + ranked[-1 - left_out]) // 2


def regions_of(
    budget: int, headroom: Headroom, small_pool: SmallPool, effort: Effort = THOROUGH
) -> tuple[Region, ...]:
    """Regions to place a plan in: its room, and others like what will be there.

    Best fit takes the smallest chunk that will do, so a little more memory can mean
    other chunks, other holes, and a tensor that no hole is large enough for.
    """
    more = (headroom.free * part // 100 for part in effort.region_percent)
    sizes = (
        max(budget * TUNING.region_least_percent // 100, budget + part) for part in more
    )
    return tuple(
        Region(capacity=size, small_pool=small_pool, scratch_first=i % 2 == 1)
        for i, size in enumerate(dict.fromkeys(sizes))
    )


def with_likely_peak(
    graph: GraphView, fitted: FittedPlan, budget: int, headroom: Headroom
) -> FittedPlan:
    """The plan with the middle of its peaks in many regions."""
    sizes = (budget + headroom.free * part // 100 for part in TUNING.likely_percent)
    regions = [Region(capacity=size, small_pool=fitted.small_pool) for size in sizes]
    found = peaks_by_region(graph, fitted.plan, regions)
    peaks = [peak for peak in found if peak is not None]
    return replace(fitted, peak=middle(peaks)) if peaks else fitted
