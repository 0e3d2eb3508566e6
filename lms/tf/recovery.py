"""Run a planned step; after an out of memory, replan and repeat the step.

    run ──out of memory──> undo ──> less budget ──> plan, rewrite, rebuild ──> run

`lms.tf.attempts` says what is tried next.

A plan assumes how many bytes of the device are in use, and where. Batches that an input
pipeline reads ahead, or tensors of other programs, can be in the way. Undo copies
restore what the aborted step has written (`lms.ir.write_guard`), so the batch can be
repeated: the numbers are those of a step that never failed.

Where the host's pinned memory runs out, the step fails: no plan would need less of it.

Known weaknesses: TensorFlow waits ten seconds for memory before a step fails. Plans by
thresholds are as the user wants them, and are not replanned.
"""

import logging
import math
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any
from weakref import WeakSet

import tensorflow as tf

from lms.errors import (
    BudgetError,
    ChangedTensorError,
    HostMemoryError,
    LMSError,
    OutOfMemoryError,
)
from lms.ir.graph import GraphView
from lms.machine.host import Beside
from lms.planning.problem import UNLIMITED
from lms.planning.select import plan_at_length, plan_step
from lms.report.page import Shown
from lms.report.step import StepReport, StepTimeline
from lms.tf import compat, failures
from lms.tf.attempts import Outcome
from lms.tf.measure.arena import Arena
from lms.tf.measure.devices import Device
from lms.tf.measure.free_memory import host_budget
from lms.tf.passes.host_variables import HostVariables
from lms.tf.rewriting import RebuiltStep, Seal
from lms.tf.undo import CommitFlag, KeptVariables
from lms.tf.uninterrupted import uninterrupted
from lms.units import format_bytes

__all__ = ["PreparedStep", "run_recovering"]

_LOG = logging.getLogger("lms")

# A step that cannot be planned fails at its 3rd out of memory in a row.
_ATTEMPTS = 3

# After 100 steps in one arena, moves are counted from 0 again.
_SETTLED = 100

# The peak of a sealed step is compared with the planned one after its 2nd call.
_CHECKED = 2

# A plan takes over where the planned step takes 102 % of its seconds, at least.
_FASTER_PERCENT = 102

# Searches for faster plans; one runs at a time.
_SEARCHES, _BEGINS = WeakSet[Beside](), Lock()

# A step is sealed anew at most 3 times, in memory that others have changed.
_MOVES = 3

# Ends the error of a step of unknown sizes that ran out of memory.
_NO = " The step ran out of memory, and no plan by guessed sizes fits."

# Undo copies are kept in the first 3 calls of an unplanned step.
_WATCHED = 3


@dataclass(slots=True, kw_only=True)
class Part:
    """One device's part of a step: its plan, its memory, its measurements.

    Args:
        device: The device.
        predicted: The report before the first run.
        timeline: Predicted memory over the step.
        small_pool: Keeps free chunks for small tensors together while it lives.
        arena: The memory of a sealed part; None if the part is not sealed.
        seal: Where its chunks lie.
        on_host: The variables on the host.
        found: The attempt that prepared the part, and its plan.
        received: Positions of the inputs that the device receives.
        tried: The other attempts, in the order of time.
        measured_peak: The most bytes in use after the first run; None if not known.
    """

    device: Device
    predicted: StepReport
    timeline: StepTimeline
    small_pool: object
    arena: Arena | None
    seal: Seal | None
    on_host: HostVariables
    found: Outcome
    received: Sequence[int]
    tried: list[Outcome] = field(default_factory=list[Outcome])
    measured_peak: int | None = None

    def free(self) -> None:
        """Give up the memory that the part keeps for itself."""
        self.small_pool = self.arena = None

    def is_crowded(self) -> bool:
        """Tell whether others have taken memory that a part without an arena needs."""
        planned = self.found.planned
        if planned is None or planned.budget.limit is None or planned.runs_plain:
            return False
        room = planned.budget.limit - planned.step_bytes
        taken = (self.device.current_bytes or 0) > room
        return taken and (self.device.settled_bytes() or 0) > room


@dataclass(slots=True, kw_only=True)
class PreparedStep:
    """A rebuilt step with its predictions and measurements.

    Args:
        rebuilt: The callable; None once its memory was given up.
        parts: What each of the step's devices has of it.
        commit_flag: Raised when the step passes its commit point.
        kept: The variables with undo copies: those written before the commit point; of
            an unplanned step that may run out of memory, all its variables.
        is_sure: Whether the step fits easily without a plan, and no loop's memory is
            unknown.
        can_be_planned: Whether the step may be replanned after an out of memory.
        can_repeat: Whether the step may be repeated before its commit point: not if
            other workers may have received its numbers by then.
        source: Prepares the step again (`lms.tf.prepare.Captured`, or all devices').
        held_back: Why the step cannot be planned: raised if it runs out of memory.
        is_kept: Whether undo copies find memory.
        search: A search for a faster plan, in another process.
        searches: Whether a search may begin.
        failed: The part that ran out of memory last.
        own: Runs the present batch in the user's function, while there is no plan.
    """

    rebuilt: RebuiltStep | None
    parts: tuple[Part, ...]
    commit_flag: CommitFlag
    kept: KeptVariables
    is_sure: bool
    can_be_planned: bool
    can_repeat: bool
    source: Any
    held_back: LMSError | None = None
    is_kept: bool = True
    search: Beside | None = None
    searches: bool
    lock: Any = field(default_factory=Lock)
    calls: int = 0
    failures: int = 0
    moves: int = 0
    failed: Part | None = None
    own: Callable[[], Any] | None = None

    @property
    def is_plain(self) -> bool:
        """Tell whether the step runs as TensorFlow would run it."""
        return all(part.predicted.fits_unplanned for part in self.parts)

    @property
    def is_on_host(self) -> bool:
        """Tell whether some of the step's variables lie on the host."""
        return any(part.on_host.handles for part in self.parts)

    def run(self, inputs: Sequence[Any]) -> Any:
        """Run the step; the first run initialises and is not measured.

        Raises:
            _Aborted: If the step ran out of memory and may go on; writes are undone.
        """
        # Host tensors belong to one call at a time.
        with self.lock, uninterrupted():
            self._settle()
            kept = self.is_kept and (self._is_watched or not self.is_plain)
            self.commit_flag.lower()
            values = self._values() if kept else []
            kept = kept and self.is_kept
            self.commit_flag.begun = not (kept and self.can_repeat)
            # Later steps seldom fail, and users' own messages pass.
            is_caught = self.calls < _WATCHED or self.failures > 0
            is_caught &= self.can_be_planned or self.held_back is not None
            try:
                with compat.errors_alone() if is_caught else nullcontext():
                    own = None if self.is_on_host or not self.is_plain else self.own
                    result = own() if own else self._call(inputs)
            except _Moved:
                raise
            except BaseException as error:
                self.failed = self._part_of(str(error))
                on_host = failures.ran_out_on_host(error)
                ran_out = failures.ran_out(error)
                is_undone = kept and not self.commit_flag.begun
                self._end_if_changed(values, is_undone=is_undone)
                self.failures += ran_out and not on_host
                # A plan may help; or ops in another order, a few times.
                again = self.held_back is not None and self.failures < _ATTEMPTS
                may_go_on = self.can_be_planned or (again and is_undone)
                if on_host or not (ran_out and may_go_on):
                    if is_undone:
                        self._put_back(values)
                    if on_host:
                        words = failures.first_words(error)
                        said = failures.host_is_full(words, is_undone)
                        raise HostMemoryError(said) from error
                    if self.held_back is not None and ran_out:
                        if not is_undone:
                            self.held_back.add_note(failures.NOT_UNDONE)
                        raise self.held_back from error
                    raise
                reason = failures.first_words(error)
            else:
                self._measure()
                return result
            if kept:
                self._put_back(values)
        # Not within the handler: the error holds on to frames and their tensors.
        raise _Aborted(reason)

    def watch(self) -> None:
        """Measure the peaks of this step from now on."""
        for part in self.parts:
            part.device.watch(self)

    def _settle(self) -> None:
        self.watch()
        for part in self.parts:
            part.on_host.settle()

    def _call(self, inputs: Sequence[Any]) -> Any:
        """Run the callable on a batch.

        Raises:
            _Moved: If the step must be sealed anew, or does not fit beside what others
                have taken since it was planned.
        """
        assert self.rebuilt is not None
        may_plan = self.can_be_planned and self.calls > 0 and self.moves < _MOVES
        received = [*inputs]
        for part in self.parts:
            if part.arena is None:
                if may_plan and part.is_crowded():
                    raise _Moved
                continue
            own = part.arena.admit([inputs[i] for i in part.received])
            if own is None:
                raise _Moved
            for i, tensor in zip(part.received, own, strict=True):
                received[i] = tensor
        return self.rebuilt(received)

    def _end_if_changed(self, values: Sequence[Any], *, is_undone: bool) -> None:
        """End a step in which a tensor came back with other bytes."""
        if changed := self.commit_flag.changed:
            try:
                if is_undone:
                    self._put_back(values)
            except OutOfMemoryError:
                is_undone = False
            said = failures.changed_on_the_way(changed, is_undone=is_undone)
            raise ChangedTensorError(said) from None

    def _put_back(self, values: Sequence[Any]) -> None:
        try:
            self.kept.put_back(values)
        except tf.errors.ResourceExhaustedError as error:
            raise self.half_written(failures.first_words(error)) from error

    def half_written(self, reason: str) -> OutOfMemoryError:
        """The error of a step whose variables may be written."""
        said = failures.half_written(reason, had_plan=not self.is_plain)
        return OutOfMemoryError(said)

    def _values(self) -> list[Any]:
        """Undo copies of the step's variables; empty if they find no memory.

        Raises:
            _Aborted: If they find no memory, and the step may be replanned.
        """
        try:
            return self.kept.values()
        except (tf.errors.ResourceExhaustedError, MemoryError) as error:
            reason = failures.first_words(error)
        if self.can_be_planned:
            raise _Aborted(reason)
        self.is_kept = False
        return []

    def note_peak(self) -> None:
        """Record the memory peak of steps that Keras's own function ran."""
        for part in self.parts:
            if part.predicted.fits_unplanned and part.device.is_watched_by(self):
                part.measured_peak = part.device.peak_bytes

    def reports(self) -> tuple[StepReport, ...]:
        """A report for each device, with what was measured and compared."""
        watches = [*self.commit_flag.watches] or [None] * len(self.parts)
        return tuple(
            replace(
                part.predicted,
                measured_peak_bytes=part.measured_peak or None,
                compared=watch.compared if watch else 0,
                compared_again=watch.compared_again if watch else 0,
                not_compared=watch.unwatched if watch else 0,
            )
            for part, watch in zip(self.parts, watches, strict=True)
        )

    def shown(self) -> tuple[Shown, ...]:
        """Return the step as a page shows it, for each device."""
        both = zip(self.reports(), self.parts, strict=True)
        return tuple(Shown(report=r, timeline=part.timeline) for r, part in both)

    def planned_anew(self, reason: str) -> "PreparedStep":
        """Prepare the step again after an out of memory.

        Args:
            reason: TensorFlow's words.

        Raises:
            LMSError: If no plan fits, and the step may not run unplanned.
        """
        part = self.failed or self._part_of(reason)
        if self.held_back is None:
            self._free()  # memory for the next plan
        attempt = part.found.attempt
        unsealed = attempt.unsealed or "it ran out of memory"
        attempt = replace(attempt, percent=100, most=UNLIMITED, unsealed=unsealed)
        part.tried.append(replace(part.found, attempt=attempt, failure=reason))
        anew = self.source.prepare(part.tried)
        for new, old in zip(anew.parts, self.parts, strict=True):
            new.tried = new.tried or old.tried
        anew.commit_flag.go_on(self.commit_flag)
        anew.set_reports(replans=self.parts[0].predicted.replans + 1)
        return anew

    def _part_of(self, reason: str) -> Part:
        """Return the part whose device a message names; else the fullest device's."""
        names = ((part, rf"{part.device.name}\b") for part in self.parts)
        named = (part for part, name in names if re.search(name, reason))
        fullest = min(self.parts, key=lambda part: part.device.room_at_peak)
        return next(named, fullest)

    def _free(self) -> None:
        self.rebuilt = None
        for part in self.parts:
            part.free()

    def set_reports(self, **changes: Any) -> None:
        """Change fields of all reports."""
        for part in self.parts:
            part.predicted = replace(part.predicted, **changes)

    def sealed_anew(self) -> "PreparedStep":
        """Build the step again, by its plan, in the memory that is free now.

        A step that is not sealed is planned anew. Where others change the free memory
        again and again, a sealed one is built unsealed.
        """
        moves, founds = self.moves + 1, list[Outcome]()
        for part in self.parts:
            found = part.found
            if part.arena is None:
                found = replace(found, planned=None)
            elif moves > _MOVES:
                why = "others change the device's free memory"
                found = replace(found, attempt=replace(found.attempt, unsealed=why))
            founds.append(found)
        anew = self._built_again(founds)
        anew.moves = moves
        return anew

    def _built_again(
        self, founds: Sequence[Outcome], old: Outcome | None = None
    ) -> "PreparedStep":
        """Build the step by plans, or else by the old one, or by one for less memory.

        A search for the old plan's memory ends with that plan.
        """
        self._free()
        anew = None if old is None else self.source.built_as(*founds)
        anew = anew or self.source.sealed_again(*([old] if old else founds))
        plans = [one.planned for one in (*founds, old) if one is not None]
        if any(anew.parts[0].found.planned is plan for plan in plans):
            anew.search, anew.searches = self.search, self.searches
        for part, before in zip(anew.parts, self.parts, strict=True):
            part.tried = before.tried
        anew.commit_flag.go_on(self.commit_flag)
        said = self.parts[0].predicted
        kept = {
            "replans": said.replans,
            "preparation_seconds": said.preparation_seconds,
        }
        anew.set_reports(**kept)
        return anew

    def search_on(self) -> None:
        """Begin to search for a faster plan, unless the process searches for another.

        The first plan, which was found quickly, runs meanwhile.
        """
        found = self.parts[0].found
        planned, recompute = found.planned, found.attempt.recompute
        settings = self.source.settings
        if recompute is not None:
            settings = replace(settings, recompute=recompute)
        if planned is None or planned.plan.planner != "budget":
            self.searches = False
            return
        work = planned.workload
        graphs = (work.graph, work.own)
        both = (GraphView(ops=one.ops, results=one.results) for one in graphs)
        known = work.speeds(), settings, planned.budget
        with _BEGINS:
            if not any(one.is_running for one in _SEARCHES):
                self.search = Beside(plan_at_length, *both, *known)
                self.searches = False
                _SEARCHES.add(self.search)

    def planned_faster(self) -> "PreparedStep | None":
        """Build the step by a plan that was found meanwhile; None if none is faster."""
        if self.search is None or self.search.is_running:
            return None
        found = self.parts[0].found
        before, fitted, self.search = found.planned, self.search.wait(), None
        if fitted is None or before is None or before.timeline is None:
            return None
        settings, budget = self.source.settings, before.budget
        free = host_budget(settings, 0)
        host = None if free is None else max(free, before.memory.host_peak)
        try:
            planned = plan_step(
                before.workload, settings, budget, host, choose=lambda *_: fitted
            )
        except (LMSError, KeyError, ValueError):  # of another graph
            return None
        seconds = planned.timeline.seconds if planned.timeline else math.inf
        if seconds * _FASTER_PERCENT > before.timeline.seconds * 100:
            return None
        return self._built_again([replace(found, planned=planned)], found)

    @property
    def _is_watched(self) -> bool:
        """Tell whether undo copies of an unplanned step are kept.

        Loops may need more memory in any step: trip counts may depend on the data.
        """
        said = self.parts[0].predicted
        may_grow = bool(said.unknown_memory) or self.held_back is not None
        return (self.calls < _WATCHED or may_grow) and not self.is_sure

    def _measure(self) -> None:
        self.calls += 1
        self.failures = 0
        if self.calls == 1:
            for part in self.parts:
                part.device.reset_peak()
            return
        if self.calls == _SETTLED:
            self.moves = 0
        if self.searches:
            self.search_on()
        for part in self.parts:
            peak = part.device.peak_bytes or 0
            part.measured_peak = max(part.measured_peak or 0, peak)
            promised = part.predicted.predicted_peak_bytes
            if part.arena and self.calls == _CHECKED and peak > promised:
                said = (
                    "The %s step took %s, more than the planned %s: please report it."
                )
                sizes = map(format_bytes, (peak, promised))
                _LOG.warning(said, part.predicted.kind, *sizes)


class _Aborted(Exception):  # noqa: N818 - it never leaves this file
    """A planned step ran out of memory; the message is TensorFlow's."""


class _Moved(Exception):  # noqa: N818 - it never leaves this file
    """The free memory has changed since the step was sealed."""


def run_recovering(
    step: PreparedStep, inputs: Sequence[Any], replaced: Callable[[PreparedStep], None]
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
    if (faster := step.planned_faster()) is not None:
        step = faster
        replaced(step)
    while True:
        reason = ""
        try:
            return step.run(inputs)
        except _Moved:
            pass
        except _Aborted as aborted:
            reason = str(aborted)
        finally:
            step.kept.in_step.forget()
        if not reason:  # not within the handler: an error holds on to its frames
            step = step.sealed_anew()
            replaced(step)
            continue
        if step.commit_flag.begun and step.held_back is None:
            raise step.half_written(reason)
        try:
            step = step.planned_anew(reason)
        except LMSError as error:  # ops of an unplanned step may run in another order
            if step.held_back is None:
                raise
            step.held_back = _reason(step, step.held_back, error.with_traceback(None))
            continue
        replaced(step)


def _reason(step: PreparedStep, before: LMSError, error: LMSError) -> LMSError:
    """Return why a step that ran out cannot be planned, of two errors."""
    tried = [part.tried[-1] for part in step.parts if part.tried]
    if any(each.attempt.rewrites.guesses for each in tried):  # guesses are no least
        before.args = (f"{str(before).removesuffix(_NO)}{_NO}",)
        return before
    is_named = isinstance(before, BudgetError)  # names the least budget
    is_refused = any(each.error is not None for each in tried)
    return error if is_refused and not is_named else before
