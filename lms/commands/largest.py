"""The largest size of a model that trains on a card, before it trains anywhere.

    size ──build, trace──> does it fit as it is? ──plan──> how much longer does it take?

Each question is answered by bisection, on sizes of at most 5 binary digits: an answer
and the next size, which was tried too, differ by at most 1/16, or 1/8 with a plan.

Known weakness: where a larger size needs less memory or time, as after another way to
cut an op, bisection may miss sizes above a refused one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from lms.commands.forecast import described, forecast, training_of
from lms.commands.model_file import subject_of
from lms.errors import BudgetError, HostMemoryError
from lms.machine.hardware import find_hardware
from lms.planning.select import enough_for, fits
from lms.planning.settings import read_settings
from lms.report.progress import tell
from lms.report.step import StepReport, brief
from lms.tf.offers import floor_of
from lms.tf.prepare import Captured
from lms.units import Bytes, format_bytes

__all__ = ["Largest", "Size", "largest", "search_last", "size_at"]

# Times as long as unplanned within which planned sizes are searched.
_TIMES: Final = (1.1, 1.3)

# Places among sizes: the first that is tried, the most to the next (16 times as large),
# to twice as large, and the first from which sizes with a plan are two places apart.
_FIRST, _JUMP, _TWICE, _COARSE = 8, 64, 16, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The largest size that answers a question.

    Args:
        question: Such as "fits as it is".
        size: The number that `build` may get; None where there is none.
        above: The next larger number that was tried.
        why: What stands against it.
        report: The plan and its predictions at `size`; None without a size.
        examples: Examples in a batch: the first dimension of its first part.
    """

    question: str
    size: int | None
    above: int
    why: str
    report: StepReport | None
    examples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The largest sizes of a model on a card; `str` makes a table.

    Args:
        device: The card, and the source of its numbers.
        rows: An answer each: as it is, within 1.1 and 1.3 times as long, at all.
    """

    device: str
    rows: tuple[Size, ...]

    def __str__(self) -> str:
        """Lay the rows out as a text table."""
        lines = [
            (row.question, f"{row.size or 'none'}", row.report, row.examples, note)
            for row in self.rows
            for note in [f"{row.above}: {row.why}"]
        ]
        return brief(f"Largest sizes for {self.device}", ("", "size"), lines, "next")


def largest(
    build: Callable[[int], tuple[Any, Sequence[Any]]],
    *,
    hardware: str | None = None,
    budget: int | str | None = None,
    multiple: int = 1,
) -> Largest:
    """Find how large a model may grow on a card; nothing is trained.

    Args:
        build: Returns a compiled Keras model and a batch, as tensors' specs or arrays,
            for a number that makes them larger: examples of a batch, or an edge.
        hardware: A card's name or numbers, as `python -m lms plan --hardware` takes;
            None for the present GPU, whose ops are measured.
        budget: Bytes to plan into, such as "6GiB"; None for the whole card.
        multiple: Sizes are multiples of this number, at least 1.

    Raises:
        UnsupportedError: If a step cannot be planned, or there is no GPU to measure.
        ValueError: If an argument is invalid, or `build` makes something else.

    Example:
        Not run here, as it takes minutes:

            def build(batch):
                model = keras.applications.ResNet50(weights=None)
                model.compile("sgd", "sparse_categorical_crossentropy")
                x = tf.TensorSpec([batch, 224, 224, 3])
                return model, (x, tf.TensorSpec([batch]))

            print(lms.largest(build, hardware="t4"))
    """
    if not isinstance(multiple, int) or multiple < 1:
        raise ValueError(
            f"`multiple` must be a whole number of at least 1, got {multiple!r}. Leave "
            "it out for 1."
        )
    settings = read_settings(budget=budget, replan=False)
    card = None if hardware is None else find_hardware(hardware)

    def tried(place: int) -> _Try:
        size = size_at(place) * multiple
        made = subject_of("build", build(size))
        captured = training_of(made.model, made.batch, settings, hardware=card)
        return _Try(size, captured, _examples(made.batch))

    return _Search(tried).answer()


def _examples(batch: Any) -> int:
    """Return the first dimension of a batch's first part; 1 without one."""
    while not hasattr(batch, "shape"):
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return int(batch.shape[0]) if len(batch.shape) else 1


def size_at(place: int) -> int:
    """Return the number of at most 5 binary digits at a place of their sequence.

    Example:
        >>> [size_at(place) for place in (1, 31, 32, 33, 48, 49)]
        [1, 31, 32, 34, 64, 68]
    """
    power, rest = divmod(max(place, 16) - 16, 16)
    return min(place, 16 + rest) << power


def search_last(works: Callable[[int], bool], low: int, high: int) -> tuple[int, int]:
    """Return two near places, between one that works and one that does not.

    The first works, the second does not; they are neighbours, or at most two places
    apart from the 32nd place on.

    Example:
        >>> search_last(lambda place: place <= 27, 8, 60)
        (27, 28)
    """
    while high - low > (1 if low < _COARSE else 2):
        place = (low + high) // 2
        low, high = (place, high) if works(place) else (low, place)
    return low, high


class _Try:
    """One size: its step, and its plan once asked for."""

    def __init__(self, size: int, captured: Captured, examples: int) -> None:
        self.size, self.captured, self.examples = size, captured, examples
        plain, self.room = captured.workload.plain, captured.budget.step
        self.need, self.fits = enough_for(plain), fits(plain, captured.budget)
        self.needs = format_bytes(captured.budget.persistent + self.need)
        fit = "fits" if self.fits else "does not fit as it is"
        tell(f"LMS: size {size} needs {self.needs} and {fit}.")

    @cached_property
    def report(self) -> StepReport | None:
        """The plan; None where there is none."""
        try:
            found = forecast(self.captured.above_floor()).report
        except (BudgetError, HostMemoryError):
            tell(f"LMS: size {self.size} has no plan.")
            return None
        if not self.fits:
            times = f"{found.slowdown:.2f} times as long"
            tell(f"LMS: size {self.size} is planned, {times}.")
        return found

    @property
    def times(self) -> float:
        """Seconds of the planned step over those of the step unplanned."""
        if self.fits:
            return 1.0
        return (self.report.slowdown or 1.0) if self.report else math.inf


class _Search:
    """Sizes that were tried, by place; place 0 stands for no size, which fits."""

    def __init__(self, make: Callable[[int], _Try]) -> None:
        self._make, self._tries = make, dict[int, _Try]()

    def answer(self) -> Largest:
        """Search the answers, each with the help of the ones before."""
        plain, above = self._fitting()
        rows = [self._row("as it is", plain, above, f"needs {self._at(above).needs}")]
        last, beyond = self._planned(plain, above)
        for times in _TIMES:
            low, high = self._within(times, plain, last, beyond)
            taken = self._times(high)
            why = "no plan" if taken == math.inf else f"{taken:.2f} times"
            rows.append(self._row(f"within {times} times", low, high, why))
        rows.append(self._row("at all", last, beyond, "no plan"))
        speeds = self._at(above).captured.workload.speeds()
        return Largest(device=described(speeds), rows=tuple(rows))

    def _fitting(self) -> tuple[int, int]:
        """Return the last place that fits without a plan, and the next."""
        low, high, place, is_half = 0, 0, _FIRST, True  # high is 0 until one is known
        while high - low != 1:
            tried = self._at(place)
            low, high = (place, high) if tried.fits else (low, place)
            is_half = not is_half if high else True
            place = self._near(place, tried.need, tried.room)
            place = (low + high) // 2 if high and is_half else place
            place = max(low + 1, min(place, high - 1) if high else place)
        return low, high

    def _planned(self, low: int, high: int) -> tuple[int, int]:
        """Return the last place that has a plan, and the next that was tried."""
        while self._times(high) < math.inf:
            captured = self._at(high).captured
            floor, _ = floor_of(captured.step)
            top = self._near(high, floor, captured.budget.total or 0)
            low, high = high, max(high + 1, min(high + _TWICE, top))
        return search_last(lambda at: self._times(at) < math.inf, low, high)

    @staticmethod
    def _near(place: int, need: Bytes, room: Bytes) -> int:
        """Guess the first place above the room: the need grows with the size."""
        size = size_at(place) * min(room / max(need, 1), size_at(_JUMP))
        power = max(0, int(math.log2(max(size, 1))) - 4)
        return min(place + _JUMP, 16 * power + int(size / 2**power) + 1)

    def _within(
        self, times: float, low: int, last: int, beyond: int
    ) -> tuple[int, int]:
        """Return the last place that takes at most `times` as long, and the next."""
        if self._times(last) <= times:
            return last, beyond
        known = sorted(at for at in self._tries if low < at <= last)
        known = [at for at in known if "report" in vars(self._at(at))]
        slow = [at for at in known if self._at(at).times > times]
        low = max((at for at in known if at < slow[0]), default=low)
        return search_last(lambda at: self._times(at) <= times, low, slow[0])

    def _times(self, place: int) -> float:
        return self._at(place).times if place else 1.0

    def _at(self, place: int) -> _Try:
        if place not in self._tries:
            self._tries[place] = self._make(place)
        return self._tries[place]

    def _row(self, question: str, place: int, above: int, why: str) -> Size:
        tried = self._at(place) if place else None
        return Size(
            question=question,
            size=tried and tried.size,
            above=self._at(above).size,
            why=why,
            report=tried and tried.report,
            examples=tried.examples if tried else 1,
        )
