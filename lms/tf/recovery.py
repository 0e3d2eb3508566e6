"""Run a planned step; if it runs out of memory, plan it into less and repeat it.

    run ──out of memory──> undo ──> less budget ──> plan, rewrite, rebuild ──> run

Where no plan fits into less, it is another one for the same budget: with as many ops
recomputed as can be, then with none. Then other means are taken, such as variables on
the host (`lms.tf.means`). Where none is left, and nobody insists on a plan, the step
runs as without this library; only what that raises is an error. A step that could not
be planned, as nobody knows its sizes, is planned by guesses of them then.

A plan is made for a device with a certain amount of memory in use, at certain places.
Batches that an input pipeline reads ahead, or tensors of other programs, can be in the
way. What the aborted step has written is put back (`lms.ir.write_guard`), so the batch
can be repeated: the numbers are those of a step that never failed.

The host's pinned memory may run out too: another plan would need no less of it, so that
is said at once.

Known weaknesses: TensorFlow waits ten seconds for memory before a step fails. Plans by
thresholds are as the user wants them, and are not made anew.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from threading import Lock
from typing import Any, Protocol

import tensorflow as tf

from lms.errors import BudgetError, HostMemoryError, LMSError, OutOfMemoryError
from lms.planning.problem import MemoryBudget
from lms.report.step import StepReport, StepTimeline
from lms.tf.measure.devices import DeviceMemory
from lms.tf.out_of_memory import (
    first_words,
    given_up,
    half_written,
    host_is_full,
    not_undone,
    ran_out,
    ran_out_on_host,
    unwatched,
)
from lms.tf.passes.host_variables import HostVariables
from lms.tf.passes.write_order import CommitFlag, KeptVariables
from lms.tf.rewrite.rebuilding import RebuiltStep
from lms.tf.uninterrupted import uninterrupted

__all__ = ["PreparedStep", "StepSource", "run_recovering"]

# A step that ran out of memory is planned into so many percent of its budget: the first
# with which there is another plan. So often a step is planned anew in all.
_LESS_PERCENT, _TRIES = (88, 94, 98), 6

# So often in turn a step that cannot be planned may run out of memory.
_ATTEMPTS = 3

# So many calls of a step that is not planned may run out of memory and be planned.
_WATCHED = 3


class StepSource(Protocol):
    """Source of a step: it can be prepared anew."""

    def budget_now(self) -> MemoryBudget:
        """Measure what a step may use now."""
        ...

    def prepare(
        self, budget: MemoryBudget, *, recompute: bool | None = None
    ) -> "PreparedStep":
        """Plan and build a step into a budget.

        Args:
            budget: Bytes that it may use.
            recompute: Whether all ops that can be are recomputed, or none, where the
                user leaves that open; None for what is fastest.

        Raises:
            BudgetError: If no plan fits.
            HostMemoryError: If the host cannot hold what is swapped out.
        """
        ...

    def by_other_means(self, error: BudgetError, percent: int) -> "PreparedStep | None":
        """The step with less on the card than any plan of it leaves there.

        Args:
            error: What its last plan was refused with.
            percent: Percent of the room that is left that it is planned into.

        Returns:
            None if there are no other means.

        Raises:
            HostMemoryError: If the host cannot hold what is moved.
        """
        ...

    def without_plan(self, held_back: LMSError) -> "PreparedStep | None":
        """The step as TensorFlow runs it; None where a plan is insisted on.

        Args:
            held_back: Why there is no plan: raised if it runs out of memory.
        """
        ...

    def by_guesses(self) -> "PreparedStep | None":
        """The step as it is planned where sizes that only values tell are guessed.

        Returns:
            None if it was planned so before, or nothing is to be guessed.

        Raises:
            LMSError: If there is no such plan.
        """
        ...

    def run_without_batch(self) -> None:
        """Run what TensorFlow has run of a step when it finds that there is no batch.

        It is whatever needs none, such as the count of iterations.
        """
        ...


@dataclass(slots=True, kw_only=True)
class PreparedStep:
    """A rebuilt step, what was predicted of it, and what was measured of it.

    Args:
        rebuilt: What runs.
        memory: The allocator of its device.
        predicted: Its report before it ran.
        timeline: Its predicted memory.
        small_pool: What keeps room for small tensors together, as long as it lives.
        commit_flag: Takes note of when it begins to write.
        kept: The variables that it writes before that; of a step that is not planned
            and has little room left, all that it has, in its first calls; in all, if
            it has loops of unknown memory, or cannot be planned.
        on_host: The variables that it needs on the host.
        is_sure: Whether it needs no plan, has room to spare, and no loop's memory is
            unknown.
        can_be_planned: Whether a plan may be made if it runs out of memory.
        can_repeat: Whether it may begin again before `commit_flag` says that it writes:
            not if other workers may have had numbers of it by then.
        budget: What it was planned into.
        source: Prepares it anew.
        other_ways: Values of `recompute` that were not tried yet.
        held_back: What is raised if a step that cannot be planned runs out of memory.
        is_kept: Whether there is room for what undoes it.
        was_guessed: Whether a plan by guesses was asked for.
    """

    rebuilt: RebuiltStep | None
    memory: DeviceMemory
    predicted: StepReport
    timeline: StepTimeline
    small_pool: object
    commit_flag: CommitFlag
    kept: KeptVariables
    on_host: HostVariables
    is_sure: bool
    can_be_planned: bool
    can_repeat: bool
    budget: MemoryBudget
    source: "StepSource"
    other_ways: Sequence[bool] = ()
    held_back: LMSError | None = None
    is_kept: bool = True
    was_guessed: bool = False
    lock: Any = field(default_factory=Lock)
    calls: int = 0
    failures: int = 0
    measured_peak: int | None = None

    @property
    def plan_is_empty(self) -> bool:
        """Tell whether the step runs as TensorFlow would run it."""
        return self.predicted.fits_unplanned

    def run(self, inputs: Sequence[Any]) -> Any:
        """Run a step; the first one initialises and does not count as a measurement.

        Raises:
            _Aborted: If a planned step ran out of memory; early writes are undone.
        """
        assert self.rebuilt is not None
        # Host tensors belong to one call at a time.
        with self.lock, uninterrupted():
            self.memory.watch(self)
            self.on_host.settle()
            kept = self.is_kept and (self._is_watched or not self.plan_is_empty)
            self.commit_flag.begun = False
            values = self._values() if kept else []
            kept = kept and self.is_kept
            self.commit_flag.begun = not (kept and self.can_repeat)
            try:
                result = self.rebuilt(inputs)
            except BaseException as error:
                on_host = ran_out_on_host(error)
                if on_host or not (ran_out(error) and self._may_go_on(kept)):
                    is_undone = kept and not self.commit_flag.begun
                    if is_undone:
                        self._put_back(values)
                    if on_host:
                        said = host_is_full(first_words(error), is_undone)
                        raise HostMemoryError(said) from error
                    if self.held_back is not None and ran_out(error):
                        if not is_undone:
                            self.held_back.add_note(not_undone())
                        raise self.held_back from error
                    raise
                reason = first_words(error)
            else:
                self._measure()
                return result
            if kept:
                self._put_back(values)
        # Not within the handler: the error holds on to frames and their tensors.
        raise _Aborted(reason)

    def _may_go_on(self, kept: bool) -> bool:  # noqa: FBT001 - whether it can be undone
        """Count a failure; tell whether a plan, or ops in another order, may help."""
        self.failures += 1
        is_undone = kept and not self.commit_flag.begun
        again = self.held_back is not None and self.failures < _ATTEMPTS and is_undone
        return self.can_be_planned or again

    def _put_back(self, values: Sequence[Any]) -> None:
        try:
            self.kept.put_back(values)
        except tf.errors.ResourceExhaustedError as error:
            text = unwatched if self.plan_is_empty else half_written
            raise OutOfMemoryError(text(first_words(error))) from error

    def _values(self) -> list[Any]:
        """Old values of its variables, if there is room for those that are copied.

        Raises:
            _Aborted: If there is none, and a plan may be made.
        """
        try:
            return self.kept.values()
        except (tf.errors.ResourceExhaustedError, MemoryError) as error:
            reason = first_words(error)
        if self.can_be_planned:
            raise _Aborted(reason)
        self.is_kept = False
        return []

    def note_peak(self) -> None:
        """Take the peak of steps that Keras's own function ran."""
        if self.plan_is_empty and self.memory.is_watched_by(self):
            self.measured_peak = self.memory.peak_bytes

    def report(self) -> StepReport:
        """Report what was planned and what was measured."""
        return replace(self.predicted, measured_peak_bytes=self.measured_peak or None)

    def planned_anew(self) -> "PreparedStep | None":
        """The same step with another plan, in less budget than the one that failed had.

        Where no plan fits into that, it is a step by other means.

        Returns:
            None if there is none either.

        Raises:
            HostMemoryError: If the host cannot hold what would move.
        """
        self.rebuilt = self.small_pool = None  # frees their room for what comes
        now = self.source.budget_now()
        refused, least = BudgetError("no other plan", least_bytes=now.total), 0
        for budget, ways in self._budgets(now):
            total = budget.total or least
            if not ways and total * 100 < least * _LESS_PERCENT[1]:
                continue
            try:
                step = self.source.prepare(budget, recompute=ways[0] if ways else None)
            except BudgetError as error:
                refused, least = error, error.least_bytes or 0
                continue
            if step.predicted.plan != self.predicted.plan:
                step.other_ways = ways[1:] if ways else self.other_ways
                return step
        return self.source.by_other_means(refused, _LESS_PERCENT[0])

    def _budgets(
        self, now: MemoryBudget
    ) -> Iterator[tuple[MemoryBudget, Sequence[bool]]]:
        """Less and less than it took; then all of the budget, for plans of other ways.

        Where all that there is is needed, none fits into less. But another plan has its
        tensors in other places.
        """
        said = self.predicted
        peak = (
            said.unplanned_peak_bytes
            if self.plan_is_empty
            else said.predicted_peak_bytes
        )
        taken = min(now.step, peak - self.budget.persistent)  # what it was said to need
        # Beside loops a plan has but a part of the budget, so more than it took may do.
        rooms = (now.of(now.persistent + taken), now)
        parts = product(rooms, _LESS_PERCENT)
        less = (self.budget.tighter(room, part) for room, part in parts)
        for budget in dict.fromkeys(less):
            yield budget, ()
        for i in range(len(self.other_ways)):
            yield replace(now, lost=self.budget.lost_since(now)), self.other_ways[i:]

    @property
    def _is_watched(self) -> bool:
        """Tell whether values are kept to undo a step that is not planned.

        Loops may keep more in any step: how often they run may depend on the data.
        """
        may_grow = bool(self.predicted.unknown_memory) or self.held_back is not None
        return (self.calls < _WATCHED or may_grow) and not self.is_sure

    def _measure(self) -> None:
        self.calls += 1
        self.failures = 0
        if self.calls == 1:
            self.memory.reset_peak()
        else:
            self.measured_peak = max(
                self.measured_peak or 0, self.memory.peak_bytes or 0
            )


class _Aborted(Exception):  # noqa: N818 - it never leaves this file
    """A planned step ran out of memory; the message is TensorFlow's."""


def run_recovering(
    step: PreparedStep,
    inputs: Sequence[Any],
    replaced: Callable[[PreparedStep], None],
) -> Any:
    """Run a step, and plan it anew as often as it runs out of memory and that may help.

    Args:
        step: The step.
        inputs: Its flat inputs.
        replaced: Is told of each step that takes the place of the one before.

    Raises:
        OutOfMemoryError: If it still runs out of memory, or if it had begun to write.
        LMSError: If a step that cannot be planned runs out of memory: why it cannot.
    """
    while True:
        try:
            return step.run(inputs)
        except _Aborted as aborted:
            reason = str(aborted)
        anew, plans = None, step.predicted.replans + 1
        if step.held_back is not None:
            try:
                anew = None if step.was_guessed else step.source.by_guesses()
            except LMSError as error:  # it may yet run in another order
                error.__traceback__ = None
                if not isinstance(step.held_back, BudgetError):  # what is least is said
                    step.held_back = error
            step.was_guessed = True
            if anew is None:
                continue
        elif step.commit_flag.begun:
            text = unwatched if step.plan_is_empty else half_written
            raise OutOfMemoryError(text(reason))
        else:
            is_last = step.predicted.replans == _TRIES
            anew = None if is_last else step.planned_anew()
        if anew is None:
            step.rebuilt = None
            budget = step.budget.total or 0
            error = OutOfMemoryError(given_up(reason, budget, plans))
            anew = None if step.plan_is_empty else step.source.without_plan(error)
            if anew is None:
                raise error
        anew.predicted = replace(anew.predicted, replans=plans)
        step = anew
        replaced(step)
