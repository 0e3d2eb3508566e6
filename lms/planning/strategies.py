"""The fastest plan of one step: a search over what moves and what is recomputed.

    a few starts ──> change one term at a time ──> the fastest, with all effort
                     while the plan is played faster

Of two that are about as fast it is the one that moves less: others use the link too.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product

from lms.errors import BudgetError
from lms.ir.graph import GraphView
from lms.ir.liveness import peak
from lms.ir.plan import SwapPlan, planned_graph
from lms.ir.recompute import with_recomputed
from lms.ir.write_guard import can_come_last
from lms.machine.costs import roofline
from lms.machine.hardware import preset
from lms.planning.candidates import movable, smallest_worth_moving
from lms.planning.eviction import EvictionRules
from lms.planning.placement import (
    PlanRequest,
    certain_need,
    find_plan,
    in_room,
    least_plan,
    ranked,
)
from lms.planning.prefetch import Speeds
from lms.planning.problem import UNLIMITED, MemoryBudget
from lms.planning.recompute_choice import Fates, LinkShare, Terms, choose_fates
from lms.planning.risk import (
    FittedPlan,
    Headroom,
    Risk,
    judged,
    seconds_of,
    with_likely_peak,
)
from lms.planning.schedule import orders as _orders
from lms.planning.settings import Settings
from lms.planning.tuning import QUICK, THOROUGH, TUNING, Effort
from lms.simulation.executor import collector_paused
from lms.units import Bytes, Seconds, format_bytes

__all__ = ["best_plan", "plan_by_budget"]


_ALL = 100  # percent

_REFERENCE = "v100-pcie"

# Places in `TUNING.search_percent` for the least budget: more and more is recomputed.
_LITTLE_ROOM = (0, 2, 5)


def best_plan(orders: Sequence[GraphView], request: PlanRequest) -> FittedPlan | None:
    """The plan with the least doubt, and of those the fastest; None if none fits.

    Args:
        orders: The step in the execution orders that may be obeyed.
        request: What is asked for.

    Returns:
        A plan for `planned_graph(graph, plan)`.
    """
    options = _options(orders, request)
    least = min((option.risk for option in options), default=Risk.NONE)
    likeliest = [option for option in options if option.risk is least]
    return ranked(likeliest)[0] if likeliest else None


def _options(orders: Sequence[GraphView], request: PlanRequest) -> list[FittedPlan]:
    """The plan that only orders ops where that is enough, or the search's best."""
    orders = [graph for graph in orders if certain_need(graph) <= request.budget]
    if not orders:
        return []
    options: list[FittedPlan] = []
    if min(map(peak, orders)) <= request.budget:
        for graph in orders:
            moving = _find(graph, request, Fates(), THOROUGH)
            if moving and not moving.plan.swaps:
                options.append(moving)
                if moving.risk is Risk.NONE:
                    return [moving]
    search = _Search(orders, request)
    search.run()
    sure = 0  # of those that were tried, in all regions too
    for place, choice in enumerate(search.ranked()):
        tried = search.judged(choice)
        is_final = place < TUNING.search_finals
        made = search.made(choice, THOROUGH) if is_final else None
        options += [option for option in (tried, made) if option is not None]
        sure += tried is not None and tried.risk is Risk.NONE
        if sure == TUNING.search_finals:
            break
    if request.recompute is not True:
        return options
    again = [option for option in options if option.plan.recomputed]
    if any(option.risk is Risk.NONE for option in again):
        return again
    return options + _options(orders, replace(request, recompute=False))


@dataclass(frozen=True, slots=True)
class _Choice:
    """Terms of a plan, most of them indices into the search's lists."""

    price: int = 0
    percent: int = 0
    share: int = 1
    window: int = 1
    room: int = 0
    order: int = 0
    rounds: int = 0
    only_moves: int = 0


class _Search:
    """Hill climbing over what moves and what is recomputed: one change at a time.

    From a start it goes to the first neighbour that is faster, until none is; then from
    the next start, until enough was tried. The same step gets the same plan: tries are
    counted, not seconds.

    Args:
        orders: The step in the execution orders that may be obeyed.
        request: What is asked for.
    """

    def __init__(self, orders: Sequence[GraphView], request: PlanRequest) -> None:
        self._orders = orders
        self._request = request
        self._fates: dict[_Choice, Fates] = {}
        self._found: dict[_Choice, FittedPlan | None] = {}
        self._known: dict[tuple[_Choice, Fates], FittedPlan | None] = {}
        few, many = TUNING.search_tries
        tries = TUNING.search_effort_ops // max(1, len(orders[0].ops))
        self._left = min(many, max(few, tries))
        self._places = {
            "price": len(TUNING.search_prices),
            "percent": len(TUNING.search_percent),
            "share": len(TUNING.search_shares),
            "window": 2,
            "room": len(TUNING.search_rooms),
            "order": len(orders),
            "rounds": TUNING.search_rounds,
        }
        if request.recompute is True:
            self._places |= {"price": 1, "share": 1}

    def run(self) -> None:
        """Try choices until no more may be tried."""
        for start in sorted(self._starts(), key=self._worth):
            best: _Choice | None = start
            while best is not None:
                best = self._better(best)

    @property
    def is_spent(self) -> bool:
        """Tell whether no more may be tried."""
        return self._left <= 0

    def ranked(self) -> list[_Choice]:
        """Choices that led to plans, the best first."""
        firsts: dict[SwapPlan, _Choice] = {}
        for choice, option in self._found.items():
            if option is not None:
                firsts.setdefault(option.plan, choice)
        return sorted(firsts.values(), key=self._worth)

    def made(self, choice: _Choice, effort: Effort) -> FittedPlan | None:
        """The plan of a choice, made with some effort."""
        return _find(
            self._orders[choice.order],
            _within(self._request, TUNING.search_rooms[choice.room]),
            self._fates_of(choice),
            effort,
            by_window=bool(choice.window),
        )

    def judged(self, choice: _Choice) -> FittedPlan | None:
        """The plan that was tried, placed in as many regions as any that is taken."""
        option, request = self._found[choice], self._request
        if option is None:
            return None
        planned = planned_graph(self._orders[choice.order], option.plan)
        if in_room(planned, option.small_pool, option.plan, request.budget) is None:
            return None
        _, sure = judged(planned, option, request.budget, request.headroom)
        return with_likely_peak(planned, sure, request.budget, request.headroom)

    def _starts(self) -> list[_Choice]:
        if self._request.recompute is False:
            return [_Choice(only_moves=1)]
        if self._request.recompute is True:
            return [_Choice(percent=place) for place in (0, 5, 2)]
        prices = _Choice(price=2), _Choice(price=3, rounds=1), _Choice(price=4, share=3)
        percents = (_Choice(percent=place) for place in (2, 4, 1, 3, 5))
        starts = [_Choice(), *prices, _Choice(only_moves=1), *percents]
        return starts[: max(4, self._left // 2)]

    def _better(self, best: _Choice) -> _Choice | None:
        """The first neighbour that is better; None if none is, or enough was tried."""
        for neighbour in self._neighbours(best):
            if self.is_spent:
                return None
            if self._worth(neighbour) < self._worth(best):
                return neighbour
        return None

    def _neighbours(self, choice: _Choice) -> Iterator[_Choice]:
        """Choices that differ in one thing, by one place."""
        for name, places in self._places.items():
            if choice.only_moves and name not in ("window", "room", "order"):
                continue
            if name == "share" and not choice.price:
                continue
            for place in (getattr(choice, name) + 1, getattr(choice, name) - 1):
                if 0 <= place < places:
                    yield replace(choice, **{name: place})

    def _worth(self, choice: _Choice) -> tuple[Risk, Seconds]:
        """Doubt and seconds of a choice's plan; the least is best."""
        if choice not in self._found:
            self._found[choice] = self.made_once(choice)
        option = self._found[choice]
        if option is None:
            return Risk.PLACE, math.inf
        return option.risk, seconds_of(option)

    def made_once(self, choice: _Choice) -> FittedPlan | None:
        """The plan; the one of another choice where that comes to the same."""
        same = replace(choice, price=0, percent=0, share=0, rounds=0)
        key = same, self._fates_of(choice)
        if key not in self._known:
            self._left -= 1
            self._known[key] = self.made(choice, QUICK)
        return self._known[key]

    def _chosen(self, choice: _Choice) -> Fates:
        if choice.only_moves:
            return Fates()
        request = _within(self._request, TUNING.search_rooms[choice.room])
        graph, before = self._orders[choice.order], None
        if choice.rounds:
            before = self._fates_of(replace(choice, rounds=choice.rounds - 1))
            graph = with_recomputed(graph, before.recomputed)
        least = smallest_worth_moving(peak(graph))
        terms = Terms(
            budget=request.budget * TUNING.search_percent[choice.percent] // 100,
            most=partial(_longest, request),
            share=self._share(choice),
            least=least,
            cheap=request.recompute == "cheap",
        )
        able = movable(graph, min_bytes=least, filters=request.filters)
        return choose_fates(graph, able, request.speeds.costs, terms, before)

    def _fates_of(self, choice: _Choice) -> Fates:
        key = replace(choice, window=0)  # it is no part of what is chosen
        if key not in self._fates:
            self._fates[key] = self._chosen(choice)
        return self._fates[key]

    def _share(self, choice: _Choice) -> LinkShare | None:
        price = TUNING.search_prices[choice.price]
        if price == 1:
            return None
        step = sum(self._request.speeds.costs.of(op.name) for op in self._orders[0].ops)
        return LinkShare(
            hardware=self._request.speeds.hardware,
            seconds=step * TUNING.search_shares[choice.share],
            price=price,
        )


def _within(request: PlanRequest, percent: int) -> PlanRequest:
    """The same for a part of the budget; the rest may be used if need be."""
    budget = request.budget * percent // 100
    left, headroom = request.budget - budget, request.headroom
    more = replace(headroom, free=headroom.free + left, bound=headroom.bound + left)
    return replace(request, budget=budget, headroom=more)


def _longest(request: PlanRequest, size: Bytes) -> Seconds:
    """How long it may take to make a tensor again: as long as to move it."""
    if request.recompute is True:
        return math.inf
    link = request.speeds.hardware
    there = link.copy_seconds(size, to_device=False)
    return there + link.copy_seconds(size, to_device=True)


def _find(
    graph: GraphView,
    request: PlanRequest,
    fates: Fates,
    effort: Effort,
    *,
    by_window: bool = False,
) -> FittedPlan | None:
    """A plan for what was chosen, which may move more."""
    planned = with_recomputed(graph, fates.recomputed)
    rules = EvictionRules(leaving=dict(fates.leaving), by_window=by_window)
    option = find_plan(planned, request, rules, effort)
    if option is None:
        return None
    if effort is THOROUGH:
        option = with_likely_peak(planned, option, request.budget, request.headroom)
    return replace(option, plan=replace(option.plan, recomputed=fates.recomputed))


@collector_paused()
def plan_by_budget(
    graph: GraphView, settings: Settings, budget: MemoryBudget, speeds: Speeds
) -> FittedPlan:
    """A plan with the writes last; where that takes too much room, as they come.

    A plan that leaves room is preferred: what the allocator, small ops and input
    pipelines do is not known to the byte. Where it costs much, one that leaves less may
    be faster. The edge of the room is for where nothing else fits, and for devices that
    have the least room in which a plan is sure, or had it when the training began: a
    step that runs out of memory waits, and is planned anew.
    """
    may_wait = (True, False) if can_come_last(graph) else (True,)
    orders = [cache(partial(_orders, graph, writes_last=last)) for last in may_wait]
    found: list[FittedPlan] = []
    sure: list[FittedPlan] = []
    for percent in TUNING.taken_percent:
        if percent == _ALL and sure:
            return ranked(sure)[0]
        option = _least_doubted(orders, _request(settings, budget, speeds, percent))
        if option is None:
            continue
        found.append(option)
        if option.risk is Risk.NONE and percent < _ALL:
            sure.append(option)
    every = [order for family in orders for order in family()]
    least, placed, op_name = least_plan(every, filters=settings.filters)
    is_enough = budget.device_has(least) and least <= budget.step
    if settings.recompute is not False and not is_enough:
        least, placed = _least_recomputing(every, settings, least, placed)
    if budget.device_has(least):
        request = _request(settings, budget, speeds, _ALL)
        edge = _at_the_edge(orders, found, request)
        if edge is not None:
            return edge
        if least <= budget.step:
            return placed
    enough = format_bytes(least, at_least=True)
    raise BudgetError(
        f"`budget` must be at least {enough} for op {op_name!r} and what the allocator "
        f"loses between tensors, got {format_bytes(budget.step)}. Use a smaller batch "
        "or volume.",
        op_name=op_name,
        least_bytes=least,
    )


def _least_recomputing(
    orders: Sequence[GraphView], settings: Settings, least: Bytes, sure: FittedPlan
) -> tuple[Bytes, FittedPlan]:
    """Less than that where ops run twice; the same in any budget and on any day.

    So times are a data sheet's and none that were measured.
    """
    hardware = preset(_REFERENCE)
    speeds = Speeds(costs=roofline(orders[0], hardware), hardware=hardware)
    rooms = [least * percent // 100 for percent in TUNING.least_recompute_percent]
    found = {least: replace(sure, seconds=None)}

    def is_too_small(step: Bytes) -> bool:
        room = MemoryBudget(total=step, margin=0, persistent=0)
        request = _request(settings, room, speeds, TUNING.taken_percent[0])
        free = step // TUNING.least_budget_part
        headroom = Headroom(free=free, bound=UNLIMITED)
        option = _first_sure(orders, replace(request, headroom=headroom))
        if option is not None:
            found[step] = replace(option, seconds=None)
        return option is None

    if is_too_small(rooms[0]):  # to fail takes longest: so it does in all the others
        return least, found[least]
    last = bisect_left(rooms, 1, 1, key=is_too_small)
    if last > 1 and rooms[last - 2] not in found:
        is_too_small(rooms[last - 2])
    step = min((room for room in found if room not in rooms[last - 1 :]), default=least)
    return step, found[step]


def _first_sure(orders: Sequence[GraphView], request: PlanRequest) -> FittedPlan | None:
    """A plan without doubt that recomputes, more and more; the first there is."""
    for graph in orders:
        if certain_need(graph) > request.budget:
            continue
        search = _Search([graph], request)
        for percent, window in product(_LITTLE_ROOM, range(2)):
            option = search.made_once(_Choice(percent=percent, window=window))
            if option is not None and option.risk is Risk.NONE:
                return option
            if search.is_spent:
                break
    return None


def _at_the_edge(
    orders: Iterable[Callable[[], Sequence[GraphView]]],
    found: Sequence[FittedPlan],
    request: PlanRequest,
) -> FittedPlan | None:
    """The best of the plans that were found, or one where holes might go away."""
    best = min(found, key=lambda option: option.risk, default=None)
    if best is not None and best.risk is not Risk.PLACE:
        return best
    if not request.headroom.holes:
        return None
    whole = replace(request, headroom=replace(request.headroom, holes=()))
    option = _least_doubted(orders, whole)
    if option is None or option.risk is Risk.PLACE:
        return None
    return replace(option, risk=Risk.PLACE)


def _request(
    settings: Settings, budget: MemoryBudget, speeds: Speeds, percent: int
) -> PlanRequest:
    """A plan that takes so many percent of the room."""
    taken = budget.step * percent // 100
    return PlanRequest(
        budget=taken,
        headroom=Headroom(
            free=budget.free - taken,
            bound=budget.step - taken + _bound(budget),
            holes=budget.holes,
        ),
        speeds=speeds,
        filters=settings.filters,
        recompute=settings.recompute,
    )


def _bound(budget: MemoryBudget) -> Bytes:
    """Bytes beyond the step's room that it may be in; no limit where that is all.

    A plan that is placed in all of the device cannot take more than there is.
    """
    return UNLIMITED if budget.is_whole_device else budget.margin


def _least_doubted(
    orders: Iterable[Callable[[], Sequence[GraphView]]], request: PlanRequest
) -> FittedPlan | None:
    """The first orders' plan that leaves no doubt, else that of the least."""
    found: list[FittedPlan] = []
    for family in orders:
        option = best_plan(family(), request)
        if option is not None:
            found.append(option)
            if option.risk is Risk.NONE:
                break
    return min(found, key=lambda option: option.risk, default=None)
