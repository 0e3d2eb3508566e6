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
import time
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
from lms.tf import compat
from lms.tf.measure.devices import find_device
from lms.tf.prepare import Captured
from lms.units import MIB, Bytes, format_bytes

__all__ = ["Largest", "Size", "examples_of", "largest", "size_at"]

# The caption of a table of sizes: how the sizes were found.
_NOTE: Final = """\
The first and last size and the next are at most 1/16 apart, the others 1/8. `fit` runs
this plan first, and needs its host memory. An emulated card gives cuDNN no workspace: a
real one may train less."""

# Places among sizes: the first that is tried, and the most to the next (16 times as
# large). Sizes within 1.1 and 1.3 times are at most 2 places apart: 1/8. The search for
# the last planned size begins 8 places below an upper bound: half of it at least, and
# goes on 4 places above. A search usually tries some 14 sizes.
_FIRST, _JUMP, _NEAR, _BELOW, _STEP, _USUAL = 8, 64, 2, 8, 4, 14


class Size(NamedTuple):
    """The largest size that answers a question.

    Args:
        question: Such as "fits as it is".
        size: The number that `build` may get; None where there is none.
        report: The plan and its predictions at `size`; None without a size.
        examples: Examples in a batch: the first dimension of its first part.
        above: The next larger number that was tried; 0 without one.
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
        is_whole: Whether the search came to its end; else larger sizes may train.
    """

    device: str
    rows: tuple[Size, ...]
    is_whole: bool = True

    def __str__(self) -> str:
        """Lay the rows out as a text table."""
        lines = [
            (r.question, r.size or "none", r.report, r.examples, f"{r.above}: {r.why}")
            for r in self.rows
        ]
        title, note = f"Largest sizes for {self.device}", _NOTE
        if not self.is_whole:
            title, note = f"{title} so far", "The search was ended: larger may train."
        return f"{brief(title, ('', 'size'), lines, 'next')}\n{note}"


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

    Returns:
        The answers; after Ctrl-C the best ones so far.

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
        rule = "`multiple` must be a whole number of at least 1"
        raise ValueError(f"{rule}, got {multiple!r}. Leave it out for 1.")
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

    def __init__(
        self, size: int, captured: Captured, examples: int, *, is_sure: bool
    ) -> None:
        self.size, self.examples = size, examples
        plain, budget = captured.workload.plain, captured.budget
        self.power = 1 if size == examples else 3  # an edge, else
        self.need = enough_for(plain), budget.step
        self.needs = f"needs {format_bytes(budget.persistent + self.need[0])}"
        self.certain = certain_need(captured.workload.graph), budget.free
        self.least: tuple[Bytes, Bytes] = (0, 0)  # needed by any plan if refused
        self.report: StepReport | None = None
        self.fits, self.times = fits(plain, budget), math.inf
        self.said = "no plan"
        tell(f"LMS: size {size} {self.needs}" + ", and fits." * self.fits)
        try:
            captured = captured.above_floor()
            report, self.said = forecast(captured).report, "no sure plan"
            if is_sure and not self.fits:  # by seconds that no measurement changes
                forecast(at_rates(captured))
            self.report, self.times = report, report.slowdown or 1.0
            self.said = f"{self.times:.2f} times"
        except (BudgetError, HostMemoryError) as error:
            room = budget.limit if budget.is_whole_device else budget.total
            least = getattr(error, "least_bytes", None)
            if least and room:
                self.least = least - budget.persistent, room - budget.persistent


class _Search:
    """Sizes that were tried, by place; place 0 stands for no size."""

    def __init__(
        self, capture: Callable[[int], tuple[Captured, int]], multiple: int
    ) -> None:
        self._capture, self._multiple = capture, multiple
        self._tries: dict[int, _Try] = {}
        self._device, self._is_sure, self._begun = "", True, time.perf_counter()

    def answer(self) -> Largest:
        """Search the answers; return the best ones so far if that is interrupted."""
        tell("LMS: planning some 14 sizes, 10 to 60 s each. Ctrl-C shows the best yet.")
        is_whole = False
        with suppress(KeyboardInterrupt):
            self._find_all()
            is_whole = True
        if not self._tries:
            raise KeyboardInterrupt
        rows = tuple(self._row(*question) for question in _QUESTIONS.items())
        return Largest(device=self._device, rows=rows, is_whole=is_whole)

    def _find_all(self) -> None:
        """Narrow each answer, with the help of the ones before."""
        fits, *within, trains = _QUESTIONS.values()
        _, above = self._narrow(fits, _FIRST, lambda tried: tried.need)
        # A refusal takes longer than a plan, so the search begins below.
        place = self._near(above, self._at(above).certain) - _BELOW
        self._narrow(trains, place, lambda tried: tried.least, _STEP)
        self._is_sure = False
        for works in within:
            self._narrow(works)

    def _narrow(
        self,
        works: Callable[[_Try], bool],
        place: int = 0,
        needs: Callable[[_Try], tuple[Bytes, Bytes]] | None = None,
        step: int = 1,
    ) -> tuple[int, int]:
        """Return the last place that works and the next, which does not.

        A try's need and room, where they are known, tell where the next one is; else it
        is `step` places off. Without `needs` intervals are halved, until they are near.
        """
        low, high = self._bounds(works)
        while not 0 < high - low <= (1 if needs else _NEAR):
            if high and not (needs and low < place < high):
                place = (low + high) // 2
            place = max(place, low + 1)
            does_work = works(tried := self._at(place))
            low, high = (place, high) if does_work else (low, place)
            if needs:
                near = self._near(place, needs(tried))
                if near == place:
                    place, step = place + (step if does_work else -step), 2 * step
                else:
                    place, step = near - (not does_work), 1
        return low, high

    def _bounds(self, works: Callable[[_Try], bool]) -> tuple[int, int]:
        """Return the last place before the first that does not work, and that; or 0."""
        worked = {place: works(tried) for place, tried in self._tries.items()}
        high = min((at for at in worked if not worked[at]), default=0)
        return max((at for at in worked if at < high or not high), default=0), high

    def _near(self, place: int, need: tuple[Bytes, Bytes]) -> int:
        """Guess the first place above a room; the need is a power of the size."""
        if not need[0]:
            return place
        times = max(0.0, need[1] / need[0]) ** (1 / self._at(place).power)
        size = size_at(place) * min(times, size_at(_JUMP))
        digits = max(0, int(math.log2(max(size, 1))) - 4)
        return min(place + _JUMP, 16 * digits + int(size / 2**digits) + 1)

    def _at(self, place: int) -> _Try:
        """Try a size, once. One step is held at a time, for the device's memory."""
        if place not in self._tries:
            gc.collect()  # models have cycles
            size = size_at(place) * self._multiple
            with compat.gradients_forgotten():
                captured, examples = self._capture(size)
                self._device = described(captured.workload.speeds())
                tried = _Try(size, captured, examples, is_sure=self._is_sure)
            self._tries[place] = tried
            count, seconds = len(self._tries), time.perf_counter() - self._begun
            left = seconds / count * max(1, _USUAL - count)
            tell(f"LMS: size {size}: {tried.said}. About {left:.0f} s are left.")
        return self._tries[place]

    def _row(self, question: str, works: Callable[[_Try], bool]) -> Size:
        low, high = (self._tries.get(place) for place in self._bounds(works))
        size, report = (low.size, low.report) if low else (None, None)
        above, why = (high.size, high.said) if high else (0, "not tried")
        if high and question == "as it is":
            why = high.needs
        return Size(question, size, report, low.examples if low else 1, above, why)


# Questions, in order: the last sizes are searched that obey these rules.
_QUESTIONS: Final[dict[str, Callable[[_Try], bool]]] = {
    "as it is": lambda tried: tried.fits,
    "within 1.1 times": lambda tried: tried.times <= 1.1,
    "within 1.3 times": lambda tried: tried.times <= 1.3,
    "at all": lambda tried: tried.report is not None,
}
