"""Values of planning: a step, the user's wishes, memory budgets, a plan and its risk.

A plan is placed in several regions of memory, and its risk is recorded: other
allocations are not known to the byte.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from functools import cache

from lms.ir.graph import GraphView, Op
from lms.ir.liveness import old_values
from lms.ir.plan import SwapPlan
from lms.machine.hardware import Costs, Hardware
from lms.planning.tuning import TUNING
from lms.simulation.allocator import SmallPool
from lms.simulation.memory import MemoryTimeline, simulate_memory
from lms.simulation.timeline import Timeline
from lms.units import MIB, Bytes, Seconds

__all__ = ["UNLIMITED", "Filters", "FittedPlan", "Headroom", "MemoryBudget"]
__all__ += ["PlanRequest", "PlannedStep", "Reason", "Risk", "Speeds"]
__all__ += ["Workload", "budget_in"]

UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which ops' outputs may move, by scope and by type; TFLMS's names.

    Args:
        include_scopes: Path prefixes of op names; when given, only outputs of ops
            below one of them move.
        exclude_scopes: Path prefixes whose ops' outputs stay. Exclusion wins.
        include_types: Op types whose outputs may move, when given.
        exclude_types: Op types whose outputs stay.
    """

    include_scopes: tuple[str, ...] = ()
    exclude_scopes: tuple[str, ...] = ()
    include_types: tuple[str, ...] = ()
    exclude_types: tuple[str, ...] = ()

    def accepts(self, op: Op) -> bool:
        """Tell whether the outputs of an op may move.

        Example:
            >>> Filters(exclude_types=("Relu",)).accepts(Op(name="r", type="Relu"))
            False
        """
        if self.include_scopes and not _below(op.name, self.include_scopes):
            return False
        if self.include_types and op.type not in self.include_types:
            return False
        return not (
            _below(op.name, self.exclude_scopes) or op.type in self.exclude_types
        )


def _below(name: str, scopes: Sequence[str]) -> bool:
    """Tell whether a scope is a part of a name's path, at any level.

    Keras nests and numbers names (`functional_1/conv_1/Conv3D`), and users know `conv`.
    So a layer named `conv_1` is below the scope `conv` too; the longer
    `functional/conv` or the layer's whole name is more exact.
    """
    return any(_scope_pattern(scope).search(f"/{name}/") for scope in scopes)


@cache
def _scope_pattern(scope: str) -> re.Pattern[str]:
    parts = (re.escape(part) + r"(_\d+)?" for part in scope.strip("/").split("/"))
    return re.compile(f"/{'/'.join(parts)}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Speeds of a device: seconds of its ops, and of copies over its link."""

    costs: Costs
    hardware: Hardware


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


class Risk(IntEnum):
    """Risk of a plan's placement; the least is best."""

    NONE = 0  # placed in all regions, within bounds
    PLACE = 1  # placed in the budget, and not in all regions within bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPlan:
    """A plan and its placement by the allocator.

    Args:
        small_pool: Chunks to reserve for small tensors.
        peak: The most bytes of chunks in use, in any region where it was placed.
        risk: Risk of the placement in the device's memory.
        seconds: Simulated seconds of the step; None if it was not simulated.
        beside: Bytes that it may take beyond the peak, where ops run side by side.
        sealed: Whether its large chunks get planned addresses.
    """

    plan: SwapPlan
    small_pool: SmallPool
    peak: int
    risk: Risk = Risk.NONE
    seconds: Seconds | None = None
    beside: int = 0
    sealed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The terms of a plan.

    Args:
        budget: Bytes that the step may use, persistent bytes excluded.
        recompute: Whether tensors are recomputed: None where that is best; True
            wherever possible.
        sealed: Whether large chunks get planned addresses; no headroom is needed then.
        large: Bytes of the smallest large chunk of a sealed step: the same for all its
            plans, since smaller scratch is not measured.
        is_first: Whether the first plan without risk is taken, since a faster one is
            searched for while the step trains.
    """

    budget: Bytes
    headroom: Headroom = field(default_factory=Headroom)
    speeds: Speeds
    filters: Filters
    recompute: bool | None = None
    sealed: bool = False
    large: Bytes = 0
    is_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Memory of the device, in bytes; None where there is no limit.

    Args:
        total: Bytes that may be in use.
        margin: Bytes of the device's limit that are left free.
        persistent: Bytes in use beside the step.
        limit: The most bytes that the device's allocator can hand out.
        holes: Free fragments apart from the chunk at the end, the largest first.
        fences: Bytes of the free fragments that fit large tensors of a sealed step.
        lost: Growth of `persistent` since the first plan.
        unsealed: Why the step cannot get all free memory in one piece; empty if it can.
    """

    total: int | None
    margin: int
    persistent: int
    limit: int | None = None
    holes: tuple[int, ...] = ()
    fences: int = 0
    lost: int = 0
    unsealed: str = ""

    @property
    def step(self) -> int:
        """Bytes left for the step itself."""
        return UNLIMITED if self.total is None else self.total - self.persistent

    @property
    def sealed_room(self) -> int:
        """Bytes that a sealed step may use.

        No margin is needed, but fences of free fragments count as in use.
        """
        room = self.free if self.is_whole_device else self.step
        return room - self.fences

    @property
    def is_whole_device(self) -> bool:
        """Tell whether only a margin is kept from the step, as without a budget."""
        if self.total is None:
            return True
        return self.limit is not None and self.total + self.margin >= self.limit

    @property
    def free(self) -> int:
        """Bytes that the device really has for the step, never fewer than `step`."""
        if self.limit is None:
            return UNLIMITED
        return max(self.step, self.limit - self.persistent)

    def lost_since(self, now: "MemoryBudget") -> int:
        """Return the growth of persistent bytes since the first plan."""
        return self.lost + max(0, now.persistent - self.persistent)

    def device_for(self, budget: int) -> int:
        """Return the bytes of the smallest device that has a budget and its margin.

        TensorFlow's limits of devices are whole MiB.

        Example:
            >>> budget = MemoryBudget(total=300, margin=20, persistent=100)
            >>> budget.device_for(62 * MIB - 1) / MIB
            64.0
        """
        part = math.ceil(budget / (TUNING.margin_part - 1))
        return math.ceil((budget + max(MIB, part)) / MIB) * MIB

    def device_has(self, step: int) -> bool:
        """Tell whether the device has `step` bytes for the step, and a margin.

        Bytes lost since the first plan count as free.

        Example:
            >>> whole = budget_in(64 * MIB, asked=None, persistent=MIB)
            >>> whole.device_has(61 * MIB), whole.device_has(62 * MIB)
            (True, False)
        """
        if self.limit is None:
            return True
        return self.device_for(self.persistent - self.lost + step) <= self.limit

    def of(self, budget: int) -> "MemoryBudget":
        """Return a smaller budget; the difference counts as margin."""
        left_out = (self.total or budget) - budget
        return replace(self, total=budget, margin=self.margin + left_out)


def budget_in(
    limit: Bytes | None, *, asked: Bytes | None, persistent: Bytes
) -> MemoryBudget:
    """Return the budget of a step: the asked one, at most the device less a margin.

    Args:
        limit: Bytes that the device can hand out; None if unknown.
        asked: The user's budget in bytes; None for the whole device.
        persistent: Bytes in use beside the step.

    Example:
        >>> budget_in(320 << 20, asked=None, persistent=0).margin >> 20
        10
        >>> budget_in(320 << 20, asked=100 << 20, persistent=40 << 20).step >> 20
        60
    """
    if limit is None:
        return MemoryBudget(total=asked, margin=0, persistent=persistent)
    margin = max(MIB, limit // TUNING.margin_part)
    total = limit - margin
    if asked is not None and asked < total:
        total, margin = asked, 0
    return MemoryBudget(total=total, margin=margin, persistent=persistent, limit=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A step to be planned, with the scratch of its ops.

    Args:
        graph: The step as planners see it.
        own: TensorFlow's own graph of it, which runs when everything fits.
        plain: The plan without swaps, of TensorFlow's own graph.
        speeds: Finds the seconds of ops and copies; called only if needed.
    """

    graph: GraphView
    own: GraphView
    plain: FittedPlan
    speeds: Callable[[], Speeds]

    @property
    def plain_memory(self) -> MemoryTimeline:
        """Predicted memory of the step without a plan."""
        found = simulate_memory(self.own, self.plain.plan)
        both = zip(found.device, old_values(self.own), strict=True)
        kept = self.own.constant_bytes - self.graph.constant_bytes
        return replace(found, device=tuple(kept + used + old for used, old in both))


class Reason(Enum):
    """Why a step got its plan."""

    FITS_EASILY = "The step fits, even if TensorFlow needs much more than predicted."
    FITS = "The step fits, unless TensorFlow needs much more than predicted."
    PLANNED = "The step does not fit without a plan."
    SMALL_HOST = "The host cannot hold the tensors that the fastest plan swaps out."
    NO_PLAN = "No plan was found, and no knob of the user needs one."


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step with its plan and its predictions.

    Args:
        plan: The plan; without swaps if the step fits.
        graph: The graph that runs: TensorFlow's own, or the planned one.
        small_pool: Chunks to reserve for small tensors.
        memory: Memory at each op of the plan's order.
        timeline: The planned step over time; None for a step without a plan.
        step_bytes: Predicted peak, without persistent bytes.
        sealed: Whether its large chunks get planned addresses.
    """

    workload: Workload
    budget: MemoryBudget
    reason: Reason
    plan: SwapPlan
    graph: GraphView
    small_pool: SmallPool
    memory: MemoryTimeline
    timeline: Timeline | None
    step_bytes: Bytes
    risk: Risk
    sealed: bool = False

    @property
    def peak_bytes(self) -> Bytes:
        """Predicted peak, persistent bytes included."""
        return self.budget.persistent + self.step_bytes

    @property
    def runs_plain(self) -> bool:
        """Tell whether the step runs as TensorFlow would run it."""
        return self.reason in (Reason.FITS, Reason.FITS_EASILY, Reason.NO_PLAN)
