"""Predictions beside measurements, from the rows of all questions.

Before a training's first step the callback predicts the peak in bytes, and the seconds
of a step. Both are compared with measurements: the allocator's own peak, and the median
step. A training that ran out of memory and was replanned is counted, but left out of
the errors. With IBM's rule (`thresholds=`) predictions are farther off, and are not
counted here.

Cards without a simulated speed run at the speed of this shared machine, so their times
are noisy.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

from experiments.question import Answer, Panel, Series, Verdict, sentences
from experiments.runner import RESULTS, read_lines
from experiments.stats import Row, Rows, commits, step_of, trained

__all__ = ["SETTINGS", "TITLE", "all_rows", "answer", "parts"]

TITLE = "Predictions"
SETTINGS: dict[str, Any] = {}
_MEDIAN, _WORST, _RUNS = 0.01, 0.03, 300  # errors of peaks, and trainings wanted
_TIME, _DRY_TIME = 0.2, 0.1  # errors of steps: on this machine, and on dry cards
_SAME = (
    " Plan and dry card take an op's time from one data sheet: this shows how well the "
    "simulator plays TensorFlow's scheduling, not how well it predicts a real card."
)
_DRY = ("cards", "cost")  # questions whose cards are dry and run in slow motion


def parts(_: Any) -> tuple[str, ...]:
    """Return no part: nothing is measured."""
    return ()


def all_rows() -> list[Row]:
    """Read the planned rows of all questions, each with the name of its question."""
    return [
        {**row, "question": path.stem}
        for path in sorted(RESULTS.glob("*.jsonl"))
        if path.stem != "gpu"
        for row in read_lines(path)[1]
        if _counts(row)
    ]


def _counts(row: Row) -> bool:
    report = row.get("report") or {"not_planned": True}
    is_own = trained(row) and row.get("way") in (None, "callback")
    return is_own and not report.get("not_planned")


def answer(rows: Rows) -> Answer:
    """Report errors of peaks and times."""
    anew = sum(bool(row["report"].get("replans")) for row in rows)
    rows = [row for row in rows if not row["report"].get("replans")]
    peaks, times = _offs(rows)
    sizes, above = sorted(map(abs, peaks)), sum(one > 0 for one in peaks)
    text = f"{above} of {len(peaks)} trainings used more memory than predicted"
    verdicts: list[Verdict] = [(not above, text)]
    text = f"predicted peaks are off by {median(sizes):.1%} in the median, "
    text += f"{sizes[-1]:.0%} at worst; goals {_MEDIAN:.0%} and {_WORST:.0%}"
    verdicts.append((median(sizes) <= _MEDIAN and sizes[-1] <= _WORST, text))
    text = f"{anew} further trainings ran out of memory and were replanned"
    verdicts.append((not anew, text))
    dry = [*map(abs, _offs([r for r in rows if r["question"] in _DRY])[1])]
    if dry:
        within = sum(one <= _DRY_TIME for one in dry)
        text = (
            f"in {len(dry)} trainings on dry cards in slow motion a step's time is off "
            f"its prediction by {median(dry):.0%} in the median, {max(dry):.0%} at "
            f"worst; {within} lie within {_DRY_TIME:.0%}"
        )
        verdicts.append((max(dry) <= _DRY_TIME, text))
    if len(peaks) < _RUNS:
        verdicts.append((None, f"{len(peaks)} trainings, wanted {_RUNS}"))
    noisy = [*map(abs, times)]
    for one in dry:
        noisy.remove(one)
    near = sum(one <= _TIME for one in noisy)
    told = (
        f" At this machine's pace {near} of {len(noisy)} steps are within {_TIME:.0%}."
    )
    columns = ["rows of", "trainings", "peak off, median", "worst", "above prediction"]
    columns += ["times", "off, median", "within 20 %"]
    columns += ["commit (rows)"]
    names = dict.fromkeys(row["question"] for row in rows)
    body = [_line(name, [r for r in rows if r["question"] == name]) for name in names]
    return Answer(
        finding=sentences(verdicts) + _SAME + told * bool(noisy),
        table=("Trainings without a replan", columns, body),
        verdicts=verdicts,
        panels=[[_panel("peak", peaks), _panel("step", times)]],
        headline="What was predicted before the first step, and what was measured",
    )


def _offs(rows: Rows) -> tuple[list[float], list[float]]:
    """Return measured over predicted, less 1, of peaks and of steps."""
    peaks = [r["peak_bytes"] / r["report"]["predicted_peak_bytes"] - 1 for r in rows]
    known = [r for r in rows if r["report"].get("predicted_seconds")]
    # Workers share the cores that their kernels run on.
    known = [r for r in known if "step_seconds" in r and "workers" not in r]
    return peaks, [step_of(r) / r["report"]["predicted_seconds"] - 1 for r in known]


def _line(name: str, rows: Rows) -> list[str]:
    peaks, times = ([*map(abs, one)] for one in _offs(rows))
    above = sum(one > 0 for one in _offs(rows)[0])
    cells = [f"{median(peaks):.1%}", f"{max(peaks):.1%}", str(above), str(len(times))]
    if times:
        cells += [f"{median(times):.0%}", str(sum(one <= _TIME for one in times))]
    return [name, str(len(rows)), *cells, *[""] * (6 - len(cells)), commits(rows)]


def _panel(title: str, offs: Sequence[float]) -> Panel:
    """Draw each training's measured value over its prediction, sorted."""
    line = Series(points=[*enumerate(sorted(1 + off for off in offs), 1)], marker=".")
    x, y = "trainings, sorted", "measured over predicted"
    return Panel(title=title, x=x, y=y, series=[line], level=1.0)
