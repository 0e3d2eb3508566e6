"""Risk of a plan: whether it can be placed in memory other than planned.

Other allocations in the real memory are not known to the byte, and best fit takes the
smallest chunk that will do: with a little more memory tensors lie elsewhere. So a plan
is placed in several regions, and its risk is recorded.
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
    """Bytes of a device beyond the budget that a step is planned into.

    Args:
        free: Bytes that are free.
        bound: Bytes by which the step may exceed the budget, by chance of placement.
        holes: Free fragments within the budget, apart from the chunk at the end.
    """

    free: int = 0
    bound: int = 0
    holes: tuple[int, ...] = ()


NOTHING = Headroom()


class Risk(IntEnum):
    """Risk of a plan's placement; the least is best."""

    NONE = 0  # placed in all regions, within bounds
    BOUNDS = 1  # placed in all, beyond the bounds in some
    PLACE = 2  # placed in the budget, and not in all regions


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPlan:
    """A plan and its placement by the allocator.

    Args:
        plan: The plan.
        small_pool: Chunks to reserve for small tensors.
        peak: The most bytes of chunks in use: the midpoint of likely peaks.
        risk: Risk of the placement in the device's memory.
        seconds: Simulated seconds of the step; None if it was not simulated.
        beside: Bytes that it may take beyond the peak, where ops run side by side.
    """

    plan: SwapPlan
    small_pool: SmallPool
    peak: int
    risk: Risk = Risk.NONE
    seconds: Seconds | None = None
    beside: int = 0


def seconds_of(fitted: FittedPlan) -> Seconds:
    """Return the seconds of a plan that was simulated."""
    assert fitted.seconds is not None
    return fitted.seconds


def judged(
    graph: GraphView,
    option: FittedPlan,
    budget: int,
    headroom: Headroom,
    effort: Effort = THOROUGH,
) -> tuple[int, FittedPlan]:
    """Return (penalty, the plan with its risk).

    Penalties compare only within one risk: of `PLACE`, the number of regions in which
    the plan cannot be placed; of `BOUNDS`, its highest peak.

    Args:
        graph: The graph that the plan is for, in any execution order.
        option: A plan, and the chunks reserved for small tensors.
        budget: Bytes of device memory for the step.
        headroom: Memory of the device beyond the budget.
        effort: The regions in which the plan is placed.
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
    """Return the midpoint of the lowest and the highest peak.

    Of ten or more, the outer tenths do not count. A plan may peak higher in another
    region, where tensors lie elsewhere. The midpoint is nearest to both; a median is
    one of them.
    """
    ranked = sorted(peaks)
    left_out = len(ranked) * TUNING.outliers_percent // 100
    return (ranked[left_out] + ranked[-1 - left_out]) // 2


def regions_of(
    budget: int, headroom: Headroom, small_pool: SmallPool, effort: Effort = THOROUGH
) -> tuple[Region, ...]:
    """Return the regions to place a plan in: the budget, a little less, and more.

    Best fit takes the smallest chunk that will do, so a little more memory can mean
    other chunks, other fragments, and a tensor that no fragment can hold.
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
    """Return the plan with the midpoint of its peaks in many regions."""
    sizes = (budget + headroom.free * part // 100 for part in TUNING.likely_percent)
    regions = [Region(capacity=size, small_pool=fitted.small_pool) for size in sizes]
    found = peaks_by_region(graph, fitted.plan, regions)
    peaks = [peak for peak in found if peak is not None]
    return replace(fitted, peak=middle(peaks)) if peaks else fitted
