"""The largest size of a model that trains on a card, before it trains anywhere.

    size ──build, trace──> does it fit as it is? ──plan──> how much longer does it take?

Each size is captured and planned on the card, as `fit` does it: scratch is measured,
the budget is what the card has left, and the plan is the first that `fit` would run.
The last answer has a plan by the seconds of a reference card, too. Before `fit` refuses
a step it tries these: so no measured second decides. Sizes have at most 5 binary
digits, so neighbours differ by at most 1/16. The first and the last answer and the next
size, which was refused, are neighbours.

Known weakness: where a larger size needs less memory or time, as after another way to
cut an op, the search may miss sizes above a refused one.
"""

import gc
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from lms.commands.forecast import at_rates, described, forecast, training_of
from lms.commands.model_file import subject_of
from lms.errors import BudgetError, HostMemoryError
from lms.machine.hardware import find_hardware
from lms.planning.placement import certain_need
from lms.planning.select import enough_for, fits
from lms.planning.settings import read_settings
from lms.report.progress import tell
from lms.report.step import StepReport, brief
from lms.tf.measure.devices import find_device
from lms.tf.prepare import Captured
from lms.units import MIB, Bytes, format_bytes

__all__ = ["Largest", "Size", "examples_of", "largest", "size_at"]

# Times as long as unplanned within which planned sizes are searched.
_TIMES: Final = (1.1, 1.3)

# The caption of a table of sizes: how the sizes were found.
_NOTE: Final = """\
The first and last size and the next are at most 1/16 apart, the others 1/8. `fit` runs
this plan first, and needs its host memory. An emulated card gives cuDNN no workspace: a
real one may train less."""

# Places among sizes: the first that is tried, and the most to the next (16 times as
# large). Planned sizes within `_TIMES` are at most 2 places apart: 1/8. The search for
# the last planned size begins 8 places below an upper bound: half of it at least.
_FIRST, _JUMP, _NEAR, _BELOW = 8, 64, 2, 8


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
        device: The card, and the source of its times.
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
        title = f"Largest sizes for {self.device}"
        return f"{brief(title, ('', 'size'), lines, 'next')}\n{_NOTE}"


def largest(
    build: Callable[[int], tuple[Any, Sequence[Any]]],
    *,
    hardware: str | None = None,
    budget: int | str | None = None,
    host_memory: int | str | None = None,
    multiple: int = 1,
) -> Largest:
    """Find how large a model may grow on this process's card; nothing is trained.

    Args:
        build: Returns a compiled Keras model and a batch, as tensors' specs or arrays,
            for a number that makes them larger: examples of a batch, or an edge.
        hardware: The card of this process if it is emulated, by name or numbers, whose
            rates time the ops; None times ops on the card.
        budget: Bytes to plan into, such as "6GiB"; None for the whole card.
        host_memory: The most host memory for swapped tensors; None for this host's.
        multiple: Sizes are multiples of this number, at least 1.

    Raises:
        UnsupportedError: If a step cannot be planned, or there is no GPU to measure.
        ValueError: If an argument is invalid, or `build` makes something else.

    Example:
        Not run here, as it takes minutes:

            lms.emulate.limit_memory(card="t4", dry=True)  # unless the card is here

            def build(batch):
                model = keras.applications.ResNet50(weights=None)
                model.compile("sgd", "mse")
                specs = [batch, 224, 224, 3], [batch, 1000]
                return model, tuple(map(tf.TensorSpec, specs))

            print(lms.largest(build, hardware="t4"))
    """
    if not isinstance(multiple, int) or multiple < 1:
        raise ValueError(
            f"`multiple` must be a whole number of at least 1, got {multiple!r}. Leave "
            "it out for 1."
        )
    settings = read_settings(budget=budget, host_memory=host_memory)
    card, limit = hardware and find_hardware(hardware), find_device().limit
    if card and abs((limit or 0) - card.memory) > MIB:
        raise ValueError(
            f"`hardware` must be the card of this process, got {hardware!r}. Begin the "
            f"program with lms.emulate.limit_memory(card={hardware!r}, dry=True)."
        )

    def capture(size: int) -> tuple[Captured, int]:
        made = subject_of("build", build(size))
        found = training_of(made.model, made.batch, settings)
        found = at_rates(found, card) if card else found
        return found, examples_of(made.batch)

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


class _Try:
    """A size, its needs, and its plan."""

    def __init__(self, size: int, captured: Captured, examples: int) -> None:
        self.size, self.examples = size, examples
        plain, budget = captured.workload.plain, captured.budget
        self.power = 1 if size == examples else 3  # an edge, else
        self.need, self.room = enough_for(plain), budget.step
        self.needs = f"needs {format_bytes(budget.persistent + self.need)}"
        self.least, self.total = certain_need(captured.workload.graph), budget.free
        self.report: StepReport | None = None
        self.fits, self.times = fits(plain, budget), math.inf
        tell(f"LMS: size {size} {self.needs}" + ", and fits." * self.fits)
        with suppress(BudgetError, HostMemoryError):
            self.report = forecast(captured.above_floor()).report
            self.times = self.report.slowdown or 1.0
        self.said = f"{self.times:.2f} times" if self.report else "no plan"
        if not self.fits:
            tell(f"LMS: size {size}: {self.said}.")


class _Search:
    """Sizes that were tried, by place; place 0 stands for no size, which fits."""

    def __init__(
        self, capture: Callable[[int], tuple[Captured, int]], multiple: int
    ) -> None:
        self._capture, self._multiple = capture, multiple
        self._tries: dict[int, _Try] = {}
        self._device = ""

    def answer(self) -> Largest:
        """Search the answers, each with the help of the ones before."""
        guess = _FIRST
        for _ in range(2):  # needs grow with the size, and by a constant
            tried = self._at(guess)
            guess = self._near(guess, tried.need, tried.room)
        plain, above = self._last(lambda tried: tried.fits, guess)
        tried = self._at(above)
        rows = [self._row("as it is", plain, above, tried.needs)]
        # A refusal takes longer than a plan, so the search begins below.
        guess = max(above, self._near(above, tried.least, tried.total) - _BELOW)
        last, beyond = self._last(lambda tried: tried.report is not None, guess, plain)
        while last > plain and not self._is_sure(last):
            last, beyond = last - 1, last
        for times in _TIMES:
            low, high = self._within(times, plain, beyond)
            rows.append(self._row(f"within {times} times", low, high))
        why = "no sure plan" if self._at(beyond).report else ""
        rows.append(self._row("at all", last, beyond, why))
        return Largest(device=self._device, rows=tuple(rows))

    def _last(
        self, works: Callable[[_Try], bool], place: int, low: int = 0
    ) -> tuple[int, int]:
        """Return the last place that works, above `low`, and the next, which does not.

        The first try is `place`, and each next one is twice as far from the one before,
        until that leaves the places between one that works and one that does not.
        """
        high, step = 0, 1  # high is 0 until one is known
        while high - low != 1:
            does_work = works(self._at(place))
            low, high = (place, high) if does_work else (low, place)
            place, step = place + step * (1 if does_work else -1), 2 * step
            if not low < place or 0 < high <= place:
                place = (low + high) // 2
        return low, high

    def _is_sure(self, place: int) -> bool:
        """Tell whether a size has a plan by seconds that no measurement changes."""
        captured, _ = self._capture(size_at(place) * self._multiple)
        with suppress(BudgetError, HostMemoryError):
            return bool(forecast(at_rates(captured.above_floor())))
        return False

    def _near(self, place: int, need: Bytes, room: Bytes) -> int:
        """Guess the first place above the room; the need is a power of the size."""
        times = max(0.0, room / max(need, 1)) ** (1 / self._at(place).power)
        size = size_at(place) * min(times, size_at(_JUMP))
        digits = max(0, int(math.log2(max(size, 1))) - 4)
        return min(place + _JUMP, 16 * digits + int(size / 2**digits) + 1)

    def _within(self, times: float, low: int, beyond: int) -> tuple[int, int]:
        """Return the last place that takes at most `times` as long, and a near one."""
        known = sorted(at for at in self._tries if low < at <= beyond)
        high = next(at for at in known if self._at(at).times > times)
        low = max((at for at in known if at < high), default=low)
        while high - low > _NEAR:
            place = (low + high) // 2
            is_within = self._at(place).times <= times
            low, high = (place, high) if is_within else (low, place)
        return low, high

    def _at(self, place: int) -> _Try:
        """Try a size, once. One step is held at a time, for the device's memory."""
        if place not in self._tries:
            gc.collect()  # models have cycles
            size = size_at(place) * self._multiple
            captured, examples = self._capture(size)
            self._device = described(captured.workload.speeds())
            self._tries[place] = _Try(size, captured, examples)
        return self._tries[place]

    def _row(self, question: str, place: int, above: int, why: str = "") -> Size:
        tried = self._at(place) if place else None
        size, report = (tried.size, tried.report) if tried else (None, None)
        examples, beyond = tried.examples if tried else 1, self._at(above)
        return Size(question, size, report, examples, beyond.size, why or beyond.said)
