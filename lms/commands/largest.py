"""The largest size of a model that trains on a card, before it trains anywhere.

    size ──build, trace──> does it fit as it is? ──plan──> how much longer does it take?

Each question is answered by bisection, on sizes of at most 5 binary digits: an answer
and the next size, which was tried too, differ by at most 1/16, or 1/8 with a plan.

Known weakness: where a larger size needs less memory or time, as after another way to
cut an op, bisection may miss sizes above a refused one.
"""

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

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

__all__ = ["Largest", "Size", "examples_of", "largest", "search_last", "size_at"]

# Times as long as unplanned within which planned sizes are searched.
_TIMES: Final = (1.1, 1.3)

# Places among sizes: the first that is tried, the most to the next (16 times as large),
# to twice as large, and the first from which sizes with a plan are two places apart.
_FIRST, _JUMP, _TWICE, _COARSE = 8, 64, 16, 32


class Size(NamedTuple):
    """The largest size that answers a question.

    Args:
        question: Such as "fits as it is".
        size: The number that `build` may get; None where there is none.
        report: The plan and its predictions at `size`; None without a size.
        examples: Examples in a batch: the first dimension of its first part.
        above: The next larger number that was tried.
        why: What stands against it.
    """

    question: str
    size: int | None
    report: StepReport | None
    examples: int
    above: int
    why: str


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
            (r.question, r.size or "none", r.report, r.examples, f"{r.above}: {r.why}")
            for r in self.rows
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

    def capture(size: int) -> tuple[Captured, int]:
        made = subject_of("build", build(size))
        captured = training_of(made.model, made.batch, settings, hardware=card)
        return captured, examples_of(made.batch)

    return _Search(capture, multiple).answer()


def examples_of(batch: Any) -> int:
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
    """A size, its needs, and its plan once one was made."""

    def __init__(self, size: int, captured: Captured, examples: int) -> None:
        self.size, self.examples = size, examples
        plain, budget = captured.workload.plain, captured.budget
        self.need, self.room = enough_for(plain), budget.step
        self.needs = format_bytes(budget.persistent + self.need)
        self.floor, self.total = floor_of(captured.step)[0], budget.total or 0
        self.report: StepReport | None = None
        self.fits = fits(plain, budget)
        # As long as unplanned: 0 while that is not known, infinite without a plan.
        self.times = float(self.fits)
        fit = "fits" if self.fits else "does not fit as it is"
        tell(f"LMS: size {size} needs {self.needs} and {fit}.")

    def plan(self, captured: Captured) -> None:
        """Plan the captured step."""
        try:
            self.report = forecast(captured.above_floor()).report
        except (BudgetError, HostMemoryError):
            self.times, said = math.inf, "has no plan"
        else:
            self.times = self.report.slowdown or 1.0
            said = f"is planned, {self.times:.2f} times as long"
        if not self.fits:
            tell(f"LMS: size {self.size} {said}.")


class _Search:
    """Sizes that were tried, by place; place 0 stands for no size, which fits.

    One step is held at a time: the variables of others would take the device's memory.
    """

    def __init__(
        self, capture: Callable[[int], tuple[Captured, int]], multiple: int
    ) -> None:
        self._capture, self._multiple = capture, multiple
        self._tries: dict[int, _Try] = {}
        self._held: tuple[int, Captured] | None = None

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
        assert self._held is not None
        speeds = self._held[1].workload.speeds()
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
            tried = self._at(high)
            top = self._near(high, tried.floor, tried.total)
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
        known = [at for at in known if self._at(at).times]
        slow = [at for at in known if self._at(at).times > times]
        low = max((at for at in known if at < slow[0]), default=low)
        return search_last(lambda at: self._times(at) <= times, low, slow[0])

    def _times(self, place: int) -> float:
        return (
            (self._at(place).times or self._planned_at(place).times) if place else 1.0
        )

    def _planned_at(self, place: int) -> _Try:
        tried = self._at(place)
        if tried.report is None and tried.times < math.inf:
            tried.plan(self._step_of(place))
        return tried

    def _at(self, place: int) -> _Try:
        if place not in self._tries:
            self._step_of(place)
        return self._tries[place]

    def _step_of(self, place: int) -> Captured:
        if self._held is None or self._held[0] != place:
            self._held = None
            gc.collect()  # models have cycles
            size = size_at(place) * self._multiple
            captured, examples = self._capture(size)
            self._held = place, captured
            if place not in self._tries:
                self._tries[place] = _Try(size, captured, examples)
        return self._held[1]

    def _row(self, question: str, place: int, above: int, why: str) -> Size:
        tried = self._planned_at(place) if place else None
        size, report = (tried.size, tried.report) if tried else (None, None)
        examples, beyond = tried.examples if tried else 1, self._at(above).size
        return Size(question, size, report, examples, beyond, why)
