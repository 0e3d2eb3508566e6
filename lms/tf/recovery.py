"""Run a planned step; after an out of memory, replan and repeat the step.

    run ──out of memory──> undo ──> less budget ──> plan, rewrite, rebuild ──> run

Where no plan fits a smaller budget, other plans for the same budget are tried: with all
possible ops recomputed, then with none. Rewrites come next, such as variables on the
host (`lms.tf.means`). Where no rewrite is left, the step runs unplanned, unless the
user asked for a plan. A step that ran unplanned because its sizes are unknown is now
planned by guesses of the sizes.

A plan assumes how many bytes of the device are in use, and where. Batches that an input
pipeline reads ahead, or tensors of other programs, can be in the way. Undo copies
restore what the aborted step has written (`lms.ir.write_guard`), so the batch can be
repeated: the numbers are those of a step that never failed.

Where the host's pinned memory runs out, the step fails: no plan would need less of it.

Known weaknesses: TensorFlow waits ten seconds for memory before a step fails. Plans by
thresholds are as the user wants them, and are not replanned.
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

# After an out of memory a step is replanned into 88, 94 or 98 % of its budget, the
# first that gives another plan; at most 6 times in all.
_LESS_PERCENT, _TRIES = (88, 94, 98), 6

# A step that cannot be planned fails at its 3rd out of memory in a row.
_ATTEMPTS = 3

# Undo copies are kept in the first 3 calls of an unplanned step.
_WATCHED = 3


class StepSource(Protocol):
    """Prepares a step again, in other ways."""

    def budget_now(self) -> MemoryBudget:
        """Measure the memory that the step may use now."""
        ...

    def prepare(
        self, budget: MemoryBudget, *, recompute: bool | None = None
    ) -> "PreparedStep":
        """Plan and build the step for a budget.

        Args:
            budget: The memory that the step may use.
            recompute: Whether all possible ops are recomputed, or none; None for the
                user's choice.

        Raises:
            BudgetError: If no plan fits.
            HostMemoryError: If the host cannot hold what is swapped out.
        """
        ...

    def by_other_means(self, error: BudgetError, percent: int) -> "PreparedStep | None":
        """The step after its next rewrite, planned.

        Args:
            error: The refusal of the last plan.
            percent: Percent of the present budget to plan into.

        Returns:
            None if no plan fits with any rewrite.

        Raises:
            HostMemoryError: If the host cannot hold what is offloaded.
        """
        ...

    def without_plan(self, held_back: LMSError) -> "PreparedStep | None":
        """The unplanned step; None where the user asked for a plan.

        Args:
            held_back: Why there is no plan: raised if the step runs out of memory.
        """
        ...

    def by_guesses(self) -> "PreparedStep | None":
        """The step, planned with guesses of its dynamic shapes.

        Returns:
            None if the step was guessed before, or has no dynamic shape.

        Raises:
            LMSError: If no plan fits.
        """
        ...

    def run_without_batch(self) -> None:
        """Run the ops that TensorFlow runs before a step finds that there is no batch.

        These ops read no batch: for instance they count iterations.
        """
        ...


@dataclass(slots=True, kw_only=True)
class PreparedStep:
    """A rebuilt step with its predictions and measurements.

    Args:
        rebuilt: The callable; None once its memory was given up.
        memory: The allocator of the step's device.
        predicted: The report before the first run.
        timeline: Predicted memory over the step.
        small_pool: Keeps free chunks for small tensors together while it lives.
        commit_flag: Raised when the step passes its commit point.
        kept: The variables with undo copies: those written before the commit point; of
            an unplanned step that may run out of memory, all its variables.
        on_host: The step's variables on the host.
        is_sure: Whether the step fits easily without a plan, and no loop's memory is
            unknown.
        can_be_planned: Whether the step may be replanned after an out of memory.
        can_repeat: Whether the step may be repeated before its commit point: not if
            other workers may have received its numbers by then.
        budget: The budget that was planned for.
        source: Prepares the step again.
        other_ways: Values of `recompute` that were not tried yet.
        held_back: Why the step cannot be planned: raised if it runs out of memory.
        is_kept: Whether undo copies find memory.
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
        """Run the step; the first run initialises and is not measured.

        Raises:
            _Aborted: If the step ran out of memory and may go on; writes are undone.
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
        """Undo copies of the step's variables; empty if they find no memory.

        Raises:
            _Aborted: If they find no memory, and the step may be replanned.
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
        """Record the memory peak of steps that Keras's own function ran."""
        if self.plan_is_empty and self.memory.is_watched_by(self):
            self.measured_peak = self.memory.peak_bytes

    def report(self) -> StepReport:
        """The report, with the measured peak."""
        return replace(self.predicted, measured_peak_bytes=self.measured_peak or None)

    def planned_anew(self) -> "PreparedStep | None":
        """Replan the step after an out of memory, into a smaller budget.

        Where no plan fits, the step is rewritten and planned.

        Returns:
            None if no plan fits with any rewrite.

        Raises:
            HostMemoryError: If the host cannot hold what is offloaded.
        """
        self.rebuilt = self.small_pool = None  # frees memory for the next plan
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
        """Smaller budgets; then the whole budget with recomputation on, then off.

        Where a step needs the whole budget, no plan fits into less. But another plan
        has its tensors at other addresses.
        """
        said = self.predicted
        peak = (
            said.unplanned_peak_bytes
            if self.plan_is_empty
            else said.predicted_peak_bytes
        )
        taken = min(now.step, peak - self.budget.persistent)  # predicted need
        # With loops a plan may use a part of its budget only, so more than the need may
        # give another plan.
        rooms = (now.of(now.persistent + taken), now)
        parts = product(rooms, _LESS_PERCENT)
        less = (self.budget.tighter(room, part) for room, part in parts)
        for budget in dict.fromkeys(less):
            yield budget, ()
        for i in range(len(self.other_ways)):
            yield replace(now, lost=self.budget.lost_since(now)), self.other_ways[i:]

    @property
    def _is_watched(self) -> bool:
        """Tell whether undo copies of an unplanned step are kept.

        Loops may need more memory in any step: trip counts may depend on the data.
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
    """Run a step; after an out of memory, replan and repeat it while that may help.

    Args:
        step: The step.
        inputs: The step's flat inputs.
        replaced: Called with each replacement step.

    Raises:
        OutOfMemoryError: If replanning does not help, or the step had begun to write.
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
            except LMSError as error:  # ops may yet run in another order
                error.__traceback__ = None
                if not isinstance(step.held_back, BudgetError):  # names the least one
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
