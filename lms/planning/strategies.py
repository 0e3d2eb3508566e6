"""The search for a step's fastest plan, over tensors to move and to recompute.

    a few starts ──> change one coordinate ──> the fastest, with all effort
                     while the simulated step gets faster

It ends after a number of tries, not of seconds, so a step always gets the same plan.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product, takewhile

from lms.errors import BudgetError
from lms.ir.graph import GraphView, op_of
from lms.ir.liveness import peak
from lms.ir.plan import SwapPlan, planned_graph
from lms.ir.recompute import with_recomputed
from lms.ir.write_guard import can_come_last
from lms.machine.hardware import PRESETS, Hardware, roofline
from lms.planning.addresses import why_unsealed
from lms.planning.candidates import movable, small_pool_for, smallest_worth_moving
from lms.planning.eviction import EvictionRules
from lms.planning.placement import (
    certain_need,
    find_plan,
    in_room,
    judged,
    least_need,
    ranked,
    seconds_of,
)
from lms.planning.problem import (
    UNLIMITED,
    Filters,
    FittedPlan,
    Headroom,
    MemoryBudget,
    PlanRequest,
    Risk,
    Speeds,
)
from lms.planning.recompute_choice import Fates, LinkShare, Terms, choose_fates
from lms.planning.schedule import orders as _orders
from lms.planning.settings import Settings
from lms.planning.tuning import QUICK, QUICK_SEALED, THOROUGH, TUNING, Effort
from lms.simulation.executor import collector_paused
from lms.units import Bytes, Seconds, format_bytes

__all__ = ["best_plan", "may_fit", "modelled_speeds", "plan_by_budget"]

# Four times the peak of any order, and chunks for its small tensors, are enough for a
# plan that moves nothing: holes of unequal sizes and gaps may take as much again.
_SPACIOUS = 4

_REFERENCE = "v100-pcie"

# Indices into the percentages of the search to try in turn for the least budget.
_LITTLE_ROOM = (0, 3, 5)


def best_plan(orders: Sequence[GraphView], request: PlanRequest) -> FittedPlan | None:
    """Return the fastest of the plans without risk; None if there is none.

    Args:
        orders: The step in the execution orders that may be obeyed.
        request: Terms of the plan.

    Returns:
        A plan for `planned_graph(graph, plan)`.
    """
    options = _options(orders, request)
    return ranked(options)[0] if options else None


def _options(orders: Sequence[GraphView], request: PlanRequest) -> list[FittedPlan]:
    """Return a plan without risk and swaps, or else the best ones of a search."""
    orders = [graph for graph in orders if certain_need(graph) <= request.budget]
    if not orders:
        return []
    if min(map(peak, orders)) <= request.budget:
        for graph in orders:
            moving = _find(graph, request, Fates(), THOROUGH)
            if moving and not moving.plan.swaps and moving.risk is Risk.NONE:
                return [moving]
    search = _Search(orders, request)
    search.run()
    options, sure = list[FittedPlan](), 0  # tried plans, judged in all regions
    for place, choice in enumerate(search.ranked()):
        tried = search.judged(choice)
        is_final = place < TUNING.search_finals
        is_final &= not (request.sealed or request.is_first)
        made = search.made(choice, THOROUGH) if is_final else None
        both = [option for option in (tried, made) if option is not None]
        options += [option for option in both if option.risk is Risk.NONE]
        sure += tried is not None and tried.risk is Risk.NONE
        if sure == TUNING.search_finals:
            break
    if request.recompute is not True:
        return options
    again = [option for option in options if option.plan.recomputed]
    return again or options + _options(orders, replace(request, recompute=False))


@dataclass(frozen=True, slots=True)
class _Choice:
    """Coordinates of the search, most being indices into tuples of `TUNING`.

    `kept` names ops whose outputs are neither moved nor recomputed by choice.
    """

    price: int = 0
    percent: int = 0
    share: int = 1
    window: int = 1
    room: int = 0
    order: int = 0
    rounds: int = 0
    only_moves: int = 0
    kept: frozenset[str] = frozenset()


class _Search:
    """Hill climbing over the coordinates of `_Choice`, one change at a time.

    Each start climbs to its first faster neighbour until none is faster. What is left
    of the tries takes choices of the best plans back, one op at a time.
    """

    def __init__(self, orders: Sequence[GraphView], request: PlanRequest) -> None:
        self._orders = orders
        self._request = request
        self._seconds = sum(request.speeds.costs.of(op.name) for op in orders[0].ops)
        self._fates: dict[_Choice, Fates] = {}
        self._found: dict[_Choice, FittedPlan | None] = {}
        self._known: dict[tuple[_Choice, Fates], FittedPlan | None] = {}
        few, many = TUNING.search_tries
        tries = TUNING.search_effort_ops // max(1, len(orders[0].ops))
        self.left = min(many, max(few, tries))
        self._effort, self._percents = QUICK, TUNING.search_percent
        if request.sealed:
            self.left += TUNING.search_finals
            self._effort = QUICK_SEALED
            self._percents = TUNING.search_sealed_percent
        self._places = {
            "price": len(TUNING.search_prices),
            "percent": len(self._percents),
            "share": len(TUNING.search_shares),
            "window": 2,
            "room": len(TUNING.search_rooms),
            "order": len(orders),
            "rounds": TUNING.search_rounds,
        }
        if request.recompute is True:
            self._places |= {"price": 1, "share": 1}

    def run(self) -> None:
        """Climb from each start until the tries are used up.

        A first plan is the first start's that has one without risk, if any has.
        """
        sure = (self._worth(start)[0] is Risk.NONE for start in self._starts())
        if self._request.is_first:
            _ = any(sure)
            return
        for start in sorted(self._starts(), key=self._worth):
            self._climb(start, self._neighbours)
        for choice in self.ranked() if self._request.recompute is not True else ():
            self._climb(choice, self._taken_back)

    def _climb(
        self, best: _Choice | None, near: Callable[[_Choice], Iterator[_Choice]]
    ) -> None:
        while best is not None:
            worth = self._worth(best)
            left = takewhile(lambda _: self.left > 0, near(best))
            best = next((n for n in left if self._worth(n) < worth), None)

    def ranked(self) -> list[_Choice]:
        """Return the choices that led to plans, the best first."""
        firsts: dict[SwapPlan, _Choice] = {}
        for choice, option in self._found.items():
            if option is not None:
                firsts.setdefault(option.plan, choice)
        return sorted(firsts.values(), key=self._worth)

    def made(self, choice: _Choice, effort: Effort) -> FittedPlan | None:
        """Make the plan of a choice, with some effort."""
        return _find(
            self._orders[choice.order],
            _within(self._request, TUNING.search_rooms[choice.room]),
            self._fates_of(choice),
            effort,
            by_window=bool(choice.window),
        )

    def judged(self, choice: _Choice) -> FittedPlan | None:
        """Judge the tried plan of a choice in all regions; None if it has no place."""
        option, request = self._found[choice], self._request
        if option is None or option.sealed:
            return option
        planned = planned_graph(self._orders[choice.order], option.plan)
        if in_room(planned, option.small_pool, option.plan, request.budget) is None:
            return None
        _, sure = judged(planned, option, request)
        return sure

    def _starts(self) -> list[_Choice]:
        if self._request.recompute is False:
            return [_Choice(only_moves=1)]
        if self._request.recompute is True:
            return [_Choice(percent=place) for place in (0, 5, 2)]
        prices = _Choice(price=2), _Choice(price=3, rounds=1), _Choice(price=4, share=3)
        percents = (_Choice(percent=place) for place in (2, 4, 1, 3, 5))
        starts = [_Choice(), *prices, _Choice(only_moves=1), *percents]
        if not self._request.sealed or self._can_move_all():
            return starts[: max(4, self.left // 2)]
        # Plans that move more bytes need more room for early copies.
        few = [_Choice(price=place, percent=1) for place in (0, 2)]
        few.append(_Choice(price=3, percent=2, rounds=1))
        few.append(_Choice(price=4, percent=1, rounds=1))
        return [*few, *starts][: max(4, self.left // 4)]

    def _can_move_all(self) -> bool:
        """Tell whether the link can copy the bytes above the budget in one step."""
        above = max(0, min(map(peak, self._orders)) - self._request.budget)
        hardware = self._request.speeds.hardware
        seconds = hardware.copy_seconds(above, to_device=False)
        return seconds < self._seconds

    def _neighbours(self, choice: _Choice) -> Iterator[_Choice]:
        """Yield the choices that differ by one in one coordinate."""
        for name, places in self._places.items():
            if choice.only_moves and name not in ("window", "room", "order"):
                continue
            if name == "share" and not choice.price:
                continue
            for place in (getattr(choice, name) + 1, getattr(choice, name) - 1):
                if 0 <= place < places:
                    yield replace(choice, **{name: place})

    def _taken_back(self, choice: _Choice) -> Iterator[_Choice]:
        """Yield the choices that keep one op's output more, or one less."""
        fates, kept = self._fates_of(choice), choice.kept
        moved = [op_of(root) for root, _ in fates.leaving]
        for name in dict.fromkeys([*(again.op for again in fates.recomputed), *moved]):
            yield replace(choice, kept=kept | {name})
        for name in sorted(kept):
            yield replace(choice, kept=kept - {name})

    def _worth(self, choice: _Choice) -> tuple[Risk, Seconds]:
        """Return (risk, seconds) of a choice's plan; the least is best."""
        if choice not in self._found:
            self._found[choice] = self.made_once(choice)
        option = self._found[choice]
        if option is None:
            return Risk.PLACE, math.inf
        return option.risk, seconds_of(option)

    def made_once(self, choice: _Choice) -> FittedPlan | None:
        """Make the plan of a choice, or reuse the plan of one with equal fates."""
        same = replace(choice, price=0, percent=0, share=0, rounds=0, kept=frozenset())
        key = same, self._fates_of(choice)
        if key not in self._known:
            self.left -= 1
            self._known[key] = self.made(choice, self._effort)
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
            budget=request.budget * self._percents[choice.percent] // 100,
            most=partial(_longest, request),
            share=self._share(choice),
            least=least,
        )
        able = movable(graph, min_bytes=least, filters=request.filters)
        able = {root for root in able if op_of(root) not in choice.kept}
        return choose_fates(graph, able, request.speeds.costs, terms, before)

    def _fates_of(self, choice: _Choice) -> Fates:
        key = replace(choice, window=0)  # fates do not depend on it
        if key not in self._fates:
            self._fates[key] = self._chosen(choice)
        return self._fates[key]

    def _share(self, choice: _Choice) -> LinkShare | None:
        price = TUNING.search_prices[choice.price]
        if price == 1:
            return None
        return LinkShare(
            hardware=self._request.speeds.hardware,
            seconds=self._seconds * TUNING.search_shares[choice.share],
            price=price,
        )


def _within(request: PlanRequest, percent: int) -> PlanRequest:
    """Return the request with `percent` of its budget; the rest becomes headroom."""
    budget = request.budget * percent // 100
    left, headroom = request.budget - budget, request.headroom
    more = replace(headroom, free=headroom.free + left, bound=headroom.bound + left)
    return replace(request, budget=budget, headroom=more)


def _longest(request: PlanRequest, size: Bytes) -> Seconds:
    """Return the most seconds for recomputing a tensor: as long as moving takes."""
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
    """Find a plan for chosen fates; it may move more tensors."""
    planned = with_recomputed(graph, fates.recomputed)
    rules = EvictionRules(leaving=dict(fates.leaving), by_window=by_window)
    option = find_plan(planned, request, rules, effort)
    if option is None:
        return None
    return replace(option, plan=replace(option.plan, recomputed=fates.recomputed))


@collector_paused()
def plan_by_budget(
    graph: GraphView,
    settings: Settings,
    budget: MemoryBudget,
    speeds: Callable[[], Speeds],
    *,
    is_first: bool = False,
) -> FittedPlan:
    """Plan with deferred writes; where they take too much memory, with eager writes.

    A step is sealed if it can be. `is_first` as in `PlanRequest`; `speeds` is called
    only if the step may fit.
    """
    request = PlanRequest(
        budget=budget.step,
        speeds=speeds() if may_fit(graph, budget) else modelled_speeds(graph),
        filters=settings.filters,
        recompute=settings.recompute,
        is_first=is_first,
    )
    orders, refusal = _families(graph), None
    if not (budget.unsealed or why_unsealed(graph)):
        try:
            if (found := _plan_sealed(orders, request, budget)) is not None:
                return found
        except BudgetError as error:
            refusal = error.with_traceback(None)
    return _plan_unsealed(orders, request, budget, refusal)


def may_fit(graph: GraphView, budget: MemoryBudget) -> bool:
    """Tell whether the largest op of some order fits a budget, apart from the rest."""
    room = max(budget.step, budget.sealed_room)
    orders = (order for family in _families(graph) for order in family())
    return any(certain_need(order) <= room for order in chain([graph], orders))


def _families(graph: GraphView) -> list[Callable[[], Sequence[GraphView]]]:
    """Return what makes the orders with deferred writes, and those with eager ones."""
    may_wait = (True, False) if can_come_last(graph) else (True,)
    return [partial(_orders, graph, writes_last=last) for last in may_wait]


def _plan_unsealed(
    orders: Sequence[Callable[[], Sequence[GraphView]]],
    request: PlanRequest,
    budget: MemoryBudget,
    refusal: BudgetError | None,
) -> FittedPlan:
    """Plan a step whose chunks lie where best fit places them.

    Sure plans with headroom come first. Other plans are taken only on devices that have
    the least budget of a sure plan, or had it when the training began: a step that runs
    out of memory is replanned.
    """
    # No plan can take more than the whole device has.
    beyond = UNLIMITED if budget.is_whole_device else budget.margin
    headroom = Headroom(
        free=budget.free - budget.step, bound=beyond, holes=budget.holes
    )
    request = replace(request, headroom=headroom)
    sure = _sure(orders, _within(request, TUNING.taken_percent))
    if sure is not None:
        return sure
    sure = _sure(orders, request)
    if refusal is not None:
        if sure is None:
            raise refusal
        return sure
    every = [order for family in orders for order in family()]
    least = _Least(every, request)
    if sure is not None and least.obeys(budget.device_has):
        return sure
    may_place = sure is None and least.obeys(lambda size: size <= budget.step)
    if may_place and least.obeys(budget.device_has) and (found := least.plan()):
        return found
    raise _refusal(least.bounds(), every, request.filters, budget)


def _plan_sealed(
    orders: Sequence[Callable[[], Sequence[GraphView]]],
    request: PlanRequest,
    budget: MemoryBudget,
) -> FittedPlan | None:
    """Plan a sealed step into the budget less a reserve, or into the least budget.

    Returns:
        None if the step has no sealed plan in any budget.
    """
    request = replace(
        request,
        budget=budget.sealed_room * TUNING.sealed_percent // 100,
        sealed=True,
        large=smallest_worth_moving(min(map(peak, orders[0]()))),
    )
    if (found := _sure(orders, request)) is not None:
        return found
    every = [order for family in orders for order in family()]
    least, fences = _Least(every, request), budget.fences
    if not least.exists() or least.obeys(lambda size: size <= budget.sealed_room):
        return least.plan()
    bounds = ((low + fences, high + fences) for low, high in least.bounds())
    raise _refusal(bounds, every, request.filters, budget)


def _refusal(
    bounds: Iterator[tuple[Bytes, Bytes]],
    orders: Sequence[GraphView],
    filters: Filters,
    budget: MemoryBudget,
) -> BudgetError:
    _, op_name = min(least_need(graph, filters) for graph in orders)

    def said(least: Bytes) -> str:
        return (
            f"`budget` must be at least {format_bytes(least, at_least=True)} for op "
            f"{op_name!r}, got {format_bytes(budget.step)}. Use a smaller batch or "
            "volume."
        )

    return BudgetError(said, op_name=op_name, bounds=bounds)


class _Least:
    """The least bytes of a sure plan: bisection that goes no further than is asked.

    Seconds are those of a reference card, so no measurement changes the least budget.
    """

    def __init__(self, orders: Sequence[GraphView], request: PlanRequest) -> None:
        self._orders = orders
        self._request = replace(request, speeds=modelled_speeds(orders[0]))
        self._most = max(map(_enough, orders))
        self._rooms = [min(map(certain_need, orders))]
        while self._rooms[-1] < self._most:
            more = self._rooms[-1] // TUNING.least_budget_part
            self._rooms.append(self._rooms[-1] + max(TUNING.least_budget_step, more))
        self._low, self._high = 0, len(self._rooms)  # places in `rooms`
        self._found: FittedPlan | None = None

    def bounds(self) -> Iterator[tuple[Bytes, Bytes]]:
        """Yield bounds of the least bytes, which draw together until they are equal."""
        while self._low < self._high:
            last = min(self._high, len(self._rooms) - 1)
            yield min(self._rooms[self._low], self._most), self._rooms[last]
            self._halve()
        least = self._rooms[self._low] if self.exists() else self._most
        yield least, least

    def exists(self) -> bool:
        """Tell whether there is a plan in any room."""
        while self._found is None and self._low < self._high:
            self._halve()
        return self._found is not None

    def obeys(self, rule: Callable[[Bytes], bool]) -> bool:
        """Tell whether the least bytes obey a rule that only more bytes break.

        The most bytes that obey are tried first: that alone decides.
        """
        broken = bisect_left(self._rooms, x=True, key=lambda room: not rule(room))
        if self._low < broken <= self._high:
            self._try(broken - 1)
        decided = ((a, b) for a, b in self.bounds() if rule(b) or not rule(a))
        return rule(next(decided)[0])

    def plan(self) -> FittedPlan | None:
        """Return the plan of the least bytes, without seconds; None without one."""
        while self._low < self._high:
            self._halve()
        return self._found and replace(self._found, seconds=None)

    def _halve(self) -> None:
        self._try((self._low + self._high) // 2)

    @collector_paused()
    def _try(self, place: int) -> None:
        """Plan into a room between the bounds."""
        room = self._rooms[place]
        asked = replace(self._request, budget=room)
        if not asked.sealed:
            headroom = Headroom(free=room // TUNING.least_budget_part, bound=UNLIMITED)
            asked = _within(replace(asked, headroom=headroom), TUNING.taken_percent)
        found = _first_sure(self._orders, asked)
        if found is None:
            self._low = place + 1
        else:
            self._high, self._found = place, found


def modelled_speeds(graph: GraphView, card: Hardware | None = None) -> Speeds:
    """Return a card's speeds by a roofline; None asks what must depend on no card."""
    hardware = card or PRESETS[_REFERENCE]
    return Speeds(costs=roofline(graph, hardware), hardware=hardware)


def _enough(graph: GraphView) -> Bytes:
    """Return bytes in which the step has a plan without swaps."""
    most = peak(graph)
    chunks = small_pool_for(graph, min_bytes=smallest_worth_moving(most)).bytes
    return most * _SPACIOUS + chunks * TUNING.small_chunks_factor


def _first_sure(orders: Sequence[GraphView], request: PlanRequest) -> FittedPlan | None:
    """Return the first plan without risk, recomputing more in each try."""
    places = () if request.recompute is False else _LITTLE_ROOM
    firsts = [_Choice(percent=place) for place in places]
    if request.recompute is not True:
        firsts.append(_Choice(only_moves=1))
    for graph in orders:
        if certain_need(graph) > request.budget:
            continue
        search = _Search([graph], request)
        for first, window in product(firsts, (1, 0)):
            option = search.made_once(replace(first, window=window))
            if option is not None and option.risk is Risk.NONE:
                return option
            if search.left <= 0:
                break
    return None


def _sure(
    families: Sequence[Callable[[], Sequence[GraphView]]], request: PlanRequest
) -> FittedPlan | None:
    """Return the first family's plan without risk; None if there is none.

    Measured seconds differ from run to run, and lead to plans or to none. So where they
    lead to none, those of a reference card are tried with all effort.
    """
    found = next(filter(None, (best_plan(f(), request) for f in families)), None)
    if found is not None:
        return found
    again = replace(request, speeds=modelled_speeds(families[0]()[0]), is_first=False)
    if again == request:
        return None
    found = next(filter(None, (best_plan(f(), again) for f in families)), None)
    return found and replace(found, seconds=None)
