"""Do predictions hold? Read off all rows of all questions; no trial is its own.

Each training of the callback that was not planned anew says before its first step how
many bytes it will take at its peak, and how many seconds a step. Both are compared with
what was measured: the allocator's own peak, and the median step.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from experiments.charts import COLOURS, Panel, Series
from experiments.question import Answer, sentences
from experiments.runner import RESULTS, Book, Row, Rows, read_lines, trained
from experiments.subjects import step_of

__all__ = ["TITLE", "add_settings", "all_rows", "answer", "units"]

TITLE = "Predictions"
_MEDIAN, _WORST, _TIME, _RUNS = 0.01, 0.03, 0.2, 300


def add_settings(parser: Any) -> None:
    """None: it is read off the rows of the other questions."""


def units(_: Any) -> Iterable[Callable[[Book], None]]:
    """Nothing is measured."""
    return ()


def all_rows() -> list[Row]:
    """Rows of all questions with a report, each with where it comes from."""
    found: list[Row] = []
    for path in sorted(RESULTS.glob("*.jsonl")):
        _, rows = read_lines(path)
        found += [{**row, "question": path.stem} for row in rows if _counts(row)]
    return found


def _counts(row: Row) -> bool:
    report = row.get("report")
    good = (report and "losses" in row) or "step_seconds" in row
    return bool(
        report
        and good
        and trained(row)
        and not report.get("replans")
        and not report.get("not_planned")
    )


def answer(rows: Rows) -> Answer:
    """How far off peaks and times were."""
    peaks = sorted(_off_peak(row) for row in rows)
    steps = [one for row in rows if (one := _off_time(row)) is not None]
    times = [abs(one) for one in steps]
    above = sum(one > 0 for one in peaks)
    sizes = sorted(map(abs, peaks))
    within = sum(one <= _TIME for one in times)
    verdicts: list[tuple[bool | None, str]] = [
        (not above, f"{above} of {len(peaks)} peaks are above their promise"),
    ]
    text = f"predicted peaks are off by {median(sizes):.1%} in the median, "
    text += f"{sizes[-1]:.0%} at worst; wanted {_MEDIAN:.0%} and {_WORST:.0%}"
    verdicts.append((median(sizes) <= _MEDIAN and sizes[-1] <= _WORST, text))
    if times:
        text = f"{within} of {len(times)} step times lie within {_TIME:.0%} of theirs"
        verdicts.append((within >= 0.9 * len(times), text))
    if len(peaks) < _RUNS:
        verdicts.append((None, f"{len(peaks)} trainings, wanted {_RUNS}"))
    body = list(_lines(rows))
    columns = ["rows of", "trainings", "peak off, median", "worst", "above the promise"]
    columns += ["times", "off, median", "within 20 %"]
    return Answer(
        finding=sentences(verdicts)
        + " Cards without a pace of their own take this machine's time, which other "
        "work shares.",
        table=("Predictions over all rows", columns, body),
        verdicts=verdicts,
        panels=[[_panel("peak", peaks), _panel("step", steps)]],
        headline="What was promised before the first step, and what was measured",
    )


def _off_peak(row: Row) -> float:
    """Measured over promised, less 1: above 0 it is more than promised."""
    return row["peak_bytes"] / row["report"]["predicted_peak_bytes"] - 1


def _off_time(row: Row) -> float | None:
    promised = row["report"].get("predicted_seconds")
    if not promised or "step_seconds" not in row:
        return None
    return step_of(row) / promised - 1


def _lines(rows: Rows) -> Iterator[list[str]]:
    for name in dict.fromkeys(row["question"] for row in rows):
        own = [row for row in rows if row["question"] == name]
        peaks = [_off_peak(row) for row in own]
        sizes = sorted(map(abs, peaks))
        times = [abs(one) for row in own if (one := _off_time(row)) is not None]
        yield [
            name,
            str(len(own)),
            f"{median(sizes):.1%}",
            f"{sizes[-1]:.1%}",
            str(sum(one > 0 for one in peaks)),
            str(len(times)),
            f"{median(times):.0%}" if times else "",
            f"{sum(one <= _TIME for one in times)}" if times else "",
        ]


def _panel(title: str, offs: Sequence[float]) -> Panel:
    """Each training's measured value over its promise, in order."""
    points = [(i + 1, 1 + off) for i, off in enumerate(sorted(offs))]
    series = Series(points=points, colour=COLOURS["callback"], marker=".")
    return Panel(
        title=title,
        x="trainings, sorted",
        y="measured over promised",
        series=[series],
        level=1.0,
    )
