"""Several workers of one job, beside as many processes that train for themselves.

The case study's network at a small size trains in processes of this machine, each with
a card of its own of half of what plain Keras takes, with the callback:

    together   workers of one job: gradients are averaged in each step
    apart      as many processes that train each for itself
    plain      workers of one job without the callback, in cards with room for all

Processes share this machine's cores, so as many processes apart are the fair base:
efficiency is a median step apart over a median step together.
"""

from dataclasses import replace
from statistics import median
from typing import Any

from experiments.question import Answer, Verdict, sentences
from experiments.runner import Book, Trial
from experiments.stats import Estimate, Rows, estimate, ratio, said, trained
from experiments.subjects import in_mib
from lms.units import GIB

__all__ = ["SETTINGS", "TITLE", "answer", "measure"]

TITLE = "Several workers"
SETTINGS: dict[str, Any] = {"workers": (1, 2, 4), "repeats": 3, "steps": 60}
_SHAPE = {"size": 32, "filters": 8, "depth": 3}
_WARM = 5


def measure(book: Book, _: str, options: Any) -> None:
    """Run each job, in rounds; jobs of different sizes must not run at once."""
    trial = Trial(model="unet", shape=_SHAPE, steps=options.steps, memory=GIB)
    for repeat in range(1, options.repeats + 1):
        alone = book.row({"kind": "alone", "workers": 1, "repeat": repeat}, trial)
        if not trained(alone):
            return
        half = in_mib(alone["peak_bytes"] / 2)
        planned = replace(trial, way="callback", memory=half)
        for workers in options.workers:
            for kind in ("together", "apart", "plain"):
                job = trial if kind == "plain" else planned
                job = replace(job, workers=workers, apart=kind == "apart")
                book.row({"kind": kind, "workers": workers, "repeat": repeat}, job)


def answer(rows: Rows) -> Answer:
    """Report efficiency by the number of workers."""
    alone = _step(rows, "alone", 1)
    body: list[list[str]] = []
    verdicts: list[Verdict] = []
    for count in sorted({r["workers"] for r in rows if r["kind"] == "together"}):
        kinds = ("together", "apart", "plain")
        together, apart, plain = (_step(rows, kind, count) for kind in kinds)
        if not (alone and together and apart):
            continue
        efficiency = ratio(apart, together)
        speed = f"{count * ratio(alone, together).median:.2f}"
        steps = (together, apart, plain)
        cells = [f"{one.median * 1e3:.0f} ms" if one else "" for one in steps]
        body.append([str(count), *cells, said(efficiency), speed])
        if count == 1:
            continue
        told = f"{efficiency.median:.2f}"
        text = f"{count} workers on two shared cores: efficiency {told} of as many "
        verdicts.append((None, f"{text}apart, {speed} times the speed of one"))
    done = {line[0] for line in body}
    missing = [str(n) for n in SETTINGS["workers"] if str(n) not in done]
    columns = ["workers", "together", "apart", "plain Keras together"]
    columns += ["apart over together", "times the speed of one alone"]
    return Answer(
        finding=sentences(verdicts)
        + " Workers of one machine share its cores, so this measures the cost of "
        "synchronising, not scaling."
        + f" Not run: {', '.join(missing)} workers."
        * bool(missing),
        table=("Medians of all workers' steps", columns, body),
        verdicts=verdicts,
    )


def _step(rows: Rows, kind: str, workers: int) -> Estimate | None:
    """Estimate a step over jobs; a job's value is the median of its workers' steps."""
    found: list[float] = []
    for row in rows:
        if (row["kind"], row["workers"]) == (kind, workers) and trained(row):
            each = row["step_seconds"]
            each = each if isinstance(each[0], list) else [each]
            found.append(median(s for steps in each for s in steps[_WARM:] or steps))
    return estimate(found) if found else None
