"""Table of attempts: the next one where a step does not fit or ran out of memory.

    no plan fits       all lists of loops to the host > split large ops, or offload
                       variables, a good part at a time > unplanned, or refuse
    ran out of memory  into 88, 94, 98 % of its predicted bytes, then of its budget
                       > recompute all ops, then no op > as "no plan fits", into 88 %
    sizes unknown      unplanned > guess the sizes > unplanned
    plan not valid     recompute no op > as "no plan fits"
    not proved         into 88, 94 % of the free bytes > recompute no op > unplanned, or
                       refuse; never refuse for a fault of the proof itself

A plan offloads tensors that the step makes; a rewrite changes the step itself. Ops are
split first where one op needs most of the step's memory; else variables are offloaded
first. A refusal comes after all rewrites, so the least budget depends on no budget.
A budget far below what one op needs in any rewrite (`lms.tf.offers.floor_of`) is
refused before the first attempt.

Where a step needs its whole budget, no plan fits into less. But a plan that recomputes
other ops has its tensors at other addresses.
"""

import logging
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product
from typing import Any

from lms.errors import BudgetError, LMSError, PlanError
from lms.planning.problem import UNLIMITED, MemoryBudget, PlannedStep
from lms.planning.settings import Settings
from lms.units import Bytes, Seconds

__all__ = ["NOTHING", "Attempt", "Offers", "Outcome", "Rewrites", "UnprovedError"]
__all__ += ["count_plans", "first_plan", "last_failure", "next_attempt", "refusal"]

_LOG = logging.getLogger("lms")

# After an out of memory a step is replanned into 88, 94 or 98 % of its memory, the
# first that gives another plan; at most 6 times in all.
_LESS_PERCENT, _TRIES = (88, 94, 98), 6

# At least 1/4 of the remaining variables' bytes is offloaded at once.
_PART = 4


class UnprovedError(PlanError):
    """A step is not proved, by its plan's fault or by one of the proof itself."""

    is_fault: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rewrites:
    """Changes of the step itself that lower its memory need.

    Args:
        lists: Lists of loops that lie on the host.
        handles: Variables that lie on the host.
        op_size: Limit of an op's bytes, above which the op is split.
        guesses: Whether dynamic shapes are guessed, not bounded.
    """

    lists: tuple[Any, ...] = ()
    handles: tuple[Any, ...] = ()
    op_size: Any = None
    guesses: bool = False


NOTHING = Rewrites()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One way to prepare a step.

    Args:
        rewrites: The rewrites that are applied.
        percent: Percentage of the step's free bytes that the plan may use.
        most: The most bytes of which a percentage below 100 is taken.
        recompute: Whether all possible ops are recomputed, or none; None for the user's
            choice.
        unsealed: Why the addresses of large chunks must not be planned; empty if they
            may.
    """

    rewrites: Rewrites = NOTHING
    percent: int = 100
    most: Bytes = UNLIMITED
    recompute: bool | None = None
    planned: bool = True
    unsealed: str = ""

    def budget(self, now: MemoryBudget) -> MemoryBudget:
        """The budget to plan into, of the memory that is free now."""
        now = replace(now, unsealed=now.unsealed or self.unsealed)
        if self.percent == 100:
            return now
        step = min(self.most, now.step) * self.percent // 100
        return now.of(now.persistent + step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """Rewrites that a step still offers.

    Args:
        lists: Lists of loops that may move to the host.
        variables: Handles and bytes of variables that may move, the best ones first.
        op_sizes: Op sizes to which some op can be split, the largest first.
        largest_op: Bytes that the largest op needs.
        is_open: Whether the step has dynamic shapes.
    """

    lists: tuple[Any, ...] = ()
    variables: Sequence[tuple[Any, Bytes]] = ()
    op_sizes: Iterable[Any] = ()
    largest_op: Bytes = 0
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of an attempt: a plan, a refusal, or a step that ran out of memory.

    Args:
        step: The step as captured for the attempt. It has a `budget` and can
            `offers(op_size)`, `rewritten(rewrites)` and `plan(attempt)`.
        planned: The plan, also of a step that ran out of memory.
        seconds: Seconds that the planner took.
        error: Why there is no plan.
        failure: TensorFlow's words where the step ran out of memory.
    """

    attempt: Attempt
    step: Any = None
    planned: PlannedStep | None = None
    seconds: Seconds = 0.0
    error: LMSError | None = None
    failure: str | None = None

    @property
    def refusal(self) -> BudgetError | None:
        """The refusal, if it names a least budget."""
        error = self.error if isinstance(self.error, BudgetError) else None
        return error if error is not None and error.exceeds(0) else None


def next_attempt(tried: Sequence[Outcome], settings: Settings) -> Attempt | None:
    """Return what to try after at least one outcome; None where nothing is left."""
    first, *later = _since_failure(tried)
    ran_out, error = first.failure is not None, tried[-1].error
    unproved = _unproved(tried)
    is_invalid = isinstance(error, PlanError) and settings.plan is None
    is_refusal = error is None or isinstance(error, BudgetError | UnprovedError)
    is_refusal |= is_invalid
    is_refusal &= not getattr(error, "is_final", False)
    if unproved and not ran_out:
        ladder = (_other,)
    elif not ran_out or (later and not first.attempt.planned):
        ladder = (_rewrite,)
    elif not first.attempt.planned:
        ladder = (_guess,)
    else:
        ladder = (_replan, _rewrite) if count_plans(tried) <= _TRIES else ()
    for rung in (_keep, *ladder) if is_refusal else ():
        if (attempt := rung(tried, settings)) is not None:
            return attempt
    had_plan = first.planned is not None and not first.planned.plan.is_empty
    is_asked = settings.asks_for_a_plan and not any(e.is_fault for e in unproved)
    if is_asked or (ran_out and not (had_plan and is_refusal)):
        return None
    return replace(first.attempt, planned=False)


def first_plan(
    step: Any, tried: list[Outcome], settings: Settings, first: Attempt | None = None
) -> Outcome | None:
    """Make attempts until one has a plan, and not the plan that failed.

    Outcomes without a plan are appended to `tried`.

    Returns:
        The plan; an attempt without a plan, if only that is left; or None.
    """
    failed = last_failure(tried)
    before = failed and failed.planned and failed.planned.plan
    attempt = next_attempt(tried, settings) if tried else first or Attempt()
    while attempt is not None and attempt.planned:
        found = Outcome(attempt=attempt, step=step)
        try:
            found = replace(found, step=step.rewritten(attempt.rewrites))
            planned, seconds = found.step.plan(attempt)
            if planned.plan != before or attempt.rewrites is not _rewrites(failed):
                return replace(found, planned=planned, seconds=seconds)
        except LMSError as error:
            if isinstance(error, PlanError) and settings.plan is None:
                said = "A plan is not valid, another is made: %s. Please report it."
                _LOG.warning(said, error)
            # The frames of an error keep tensors alive.
            found = replace(found, error=error.with_traceback(None))
        tried.append(found)
        attempt = next_attempt(tried, settings)
    return attempt and Outcome(attempt=attempt, step=step)


def last_failure(tried: Sequence[Outcome]) -> Outcome | None:
    """Return the last outcome of a step that ran out of memory."""
    return next((each for each in reversed(tried) if each.failure is not None), None)


def count_plans(tried: Sequence[Outcome]) -> int:
    """Count the plans whose step ran out of memory."""
    return sum(each.failure is not None and each.attempt.planned for each in tried)


def refusal(tried: Sequence[Outcome]) -> LMSError | None:
    """Return the refusal with the smallest least budget: rewrites can raise it.

    An error that is no refusal, such as of a full host, comes before, and a plan that
    is not valid comes last.
    """
    errors = [each.error for each in _since_failure(tried) if each.error is not None]
    valid = [error for error in errors if not isinstance(error, PlanError)]
    ran_out = any(each.failure is not None for each in tried)
    errors = (not ran_out and _unproved(tried)) or valid or errors
    if not errors or not isinstance(errors[-1], BudgetError):
        return errors[-1] if errors else None
    known = [e for e in errors if isinstance(e, BudgetError) and e.exceeds(0)]
    *others, best = known or [errors[-1]]
    for error in reversed(others):
        best = best if error.exceeds(best) else error
    return best


def _since_failure(tried: Sequence[Outcome]) -> Sequence[Outcome]:
    failed = [i for i, each in enumerate(tried) if each.failure is not None]
    return tried[failed[-1] if failed else 0 :]


def _keep(tried: Sequence[Outcome], settings: Settings) -> Attempt | None:
    """Plan without recomputation where the validator has refused a plan, once."""
    last = tried[-1]
    may_keep = settings.recompute is None and last.attempt.recompute is not False
    is_invalid = isinstance(last.error, PlanError) and not _unproved(tried)
    return replace(last.attempt, recompute=False) if may_keep and is_invalid else None


def _unproved(tried: Sequence[Outcome]) -> list[UnprovedError]:
    errors = (each.error for each in _since_failure(tried))
    return [error for error in errors if isinstance(error, UnprovedError)]


def _other(tried: Sequence[Outcome], settings: Settings) -> Attempt | None:
    """Plan into less, then with no op recomputed: other plans have other edges.

    No op is recomputed either where the validator has refused that (`_keep`).
    """
    if settings.plan is not None:  # there is no other
        return None
    errors = (each.error for each in _since_failure(tried))
    is_kept = any(type(error) is PlanError for error in errors)
    way = False if is_kept and settings.recompute is None else None
    ways = [*product(_LESS_PERCENT[:2], [way]), (100, False)]
    known = {(each.attempt.percent, each.attempt.recompute) for each in tried}
    for percent, way in ways if settings.recompute is None else ways[:-1]:
        if (percent, way) not in known:
            return replace(tried[-1].attempt, percent=percent, recompute=way)
    return None


def _guess(tried: Sequence[Outcome], _: Settings) -> Attempt | None:
    """Plan with guesses of dynamic shapes, once."""
    last = tried[-1]
    if any(each.attempt.rewrites.guesses for each in tried):
        return None
    guessing = replace(last.attempt.rewrites, guesses=True)
    is_open = last.step.offers(None).is_open
    return replace(last.attempt, rewrites=guessing, planned=True) if is_open else None


def _replan(tried: Sequence[Outcome], settings: Settings) -> Attempt | None:
    """Plan into less; then into all with all ops recomputed, then with none.

    With loops a plan may use a part of its budget only, so more than the predicted need
    may give another plan.
    """
    first, *later = _since_failure(tried)
    failed, now, attempt = first.planned, first.step.budget, first.attempt
    assert failed is not None
    free = min(failed.budget.step, now.step)
    rooms = dict.fromkeys((min(failed.step_bytes, free), free))
    less = product(rooms, _LESS_PERCENT)
    plans = [replace(attempt, most=most, percent=percent) for most, percent in less]
    if failed.sealed:
        plans.insert(0, attempt)
    if settings.recompute is None:
        before = tried[: len(tried) - len(later)]
        known = {
            e.attempt.recompute for e in before if _rewrites(e) is _rewrites(first)
        }
        ways = (way for way in (True, False) if way not in known)
        plans += [replace(attempt, recompute=way) for way in ways]
    left, last = iter(plans), later[-1:]
    if later[1:] and isinstance(later[-2].error, PlanError):  # `_keep` came after
        last = later[-2:-1]
    if last and last[0].attempt not in left:  # takes off what was tried
        return None
    refused = next((each for each in reversed(later) if each.error), None)
    least = (refused and refused.refusal and refused.refusal.least_bytes) or 0
    most = least * _LESS_PERCENT[1] // 100  # less would be refused again
    far = (e for e in left if e.percent == 100 or (e.budget(now).total or 0) >= most)
    return next(far, None)


def _rewrite(tried: Sequence[Outcome], settings: Settings) -> Attempt | None:
    first, base = _since_failure(tried)[0], _base(tried)
    budget, rewrites = base.attempt.budget(base.step.budget), _rewrites(base)
    sizes = (_rewrites(each).op_size for each in tried)
    last = min(filter(None, sizes), key=lambda size: size.most, default=None)
    offers: Offers = base.step.offers(last)
    total, error = budget.total or 0, base.refusal

    def needs(size: Bytes) -> bool:
        return error is not None and error.exceeds(size)

    def split() -> Rewrites | None:
        size = next(iter(offers.op_sizes), None) if settings.cuts_ops else None
        return None if size is None else replace(rewrites, op_size=size)

    def moved() -> Rewrites | None:
        sizes = list(accumulate((size for _, size in offers.variables), initial=0))
        part = bisect_left(sizes, sizes[-1] // _PART)
        count = bisect_left(sizes, x=True, lo=part, key=lambda n: not needs(total + n))
        more = tuple(handle for handle, _ in offers.variables[:count])
        if not more or settings.state == "device":
            return None
        return replace(rewrites, handles=rewrites.handles + more)

    def is_light() -> bool:
        half = 2 * offers.largest_op + budget.persistent
        return needs(half) if error is not None else total > half

    if offers.lists:  # all at once: no plan orders the ops of loops
        found = replace(rewrites, lists=rewrites.lists + offers.lists)
    elif budget.step <= 0 or not offers.variables or is_light():
        found = moved() or split()
    else:
        found = split() or moved()
    if found is None:
        return None
    is_replan = first.failure is not None and first.attempt.planned
    percent = _LESS_PERCENT[0] if is_replan else 100
    return replace(first.attempt, rewrites=found, percent=percent, planned=True)


def _base(tried: Sequence[Outcome]) -> Outcome:
    """Return the outcome to rewrite further: the last, unless a split made it worse."""
    base, *later = _since_failure(tried)
    for each in (each for each in later if each.error is not None):
        ours, theirs = _rewrites(base), _rewrites(each)
        if theirs is ours:
            base = replace(base, error=each.error)
        elif theirs.op_size is ours.op_size or not _is_worse(each, base):
            base = each
    return base


def _is_worse(each: Outcome, base: Outcome) -> bool:
    ours, theirs = base.refusal, each.refusal
    return ours is not None and theirs is not None and theirs.exceeds(ours)


def _rewrites(outcome: Outcome | None) -> Rewrites:
    return NOTHING if outcome is None else outcome.attempt.rewrites
