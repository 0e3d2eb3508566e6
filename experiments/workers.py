"""Several workers of one machine, beside as many that train each for itself.

The case study's network at a small size trains in 1, 2 and 4 processes of this machine,
each with a card of its own of half of what plain Keras takes, with the callback:

    together   workers of one job: gradients are averaged in each step
    apart      as many processes that train each for itself
    plain      workers of one job without the callback, in cards with room for all

Processes share this machine's cores, so as many apart are the fair base: efficiency
is a median step apart over a median step together. The published table (PowerAI DDL,
four V100s a server, 100 Gb/s between them) stands beside what a ring all-reduce of the
gradients adds to the published step, with nothing fitted.
"""

from dataclasses import replace
from math import ceil
from statistics import median
from typing import Any

from experiments.question import Answer, Bar, Panel, Verdict, sentences
from experiments.runner import Book, Trial
from experiments.stats import Estimate, Rows, estimate, ratio, said, trained
from experiments.subjects import in_mib
from lms.machine.hardware import preset
from lms.units import GIB, Bytes, Seconds

__all__ = ["SETTINGS", "TITLE", "answer", "measure"]

TITLE = "Several workers"
SETTINGS = {"workers": (1, 2, 4), "repeats": 3, "steps": 60}
_SHAPE = {"size": 32, "filters": 8, "depth": 3}
_WARM = 5

# Seconds of an epoch at 192^3 with TFLMS, by GPUs; four to a server.
_PUBLISHED = {1: 590, 4: 150, 8: 76, 16: 40}
_STEPS, _GPUS_EACH = 228, 4
_INFINIBAND = 12.5e9  # bytes per second: 100 Gb/s
_GRADIENTS: Bytes = 33_078_316  # of the case study's network, float32


def _ring_seconds(size: Bytes, workers: int, rate: float) -> Seconds:
    """Seconds of a ring all-reduce, whose workers send 2 (n - 1) / n of all bytes each.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters
    of workstations", J. Parallel Distrib. Comput. 69 (2009). The rate is the slowest
    link's, in bytes per second.

    Example:
        >>> _ring_seconds(100, 4, 50.0), _ring_seconds(100, 1, 50.0)
        (3.0, 0.0)
    """
    return 2 * (workers - 1) / workers * size / rate


def measure(book: Book, _: str, options: Any) -> None:
    """Run each job, in rounds; jobs of other sizes must not run beside each other."""
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
    """Efficiency by workers; and what was published."""
    alone = _step(rows, "alone", 1)
    body: list[list[str]] = []
    bars: list[Bar] = []
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
        bars.append(
            Bar(
                label=f"{count} workers",
                length=efficiency.median,
                text=told,
                span=(efficiency.low, efficiency.high),
            )
        )
    columns = ["workers", "together", "apart", "plain Keras together"]
    columns += ["apart over together", "times the speed of one alone"]
    published = [_published(gpus, seconds) for gpus, seconds in _PUBLISHED.items()]
    names = ["GPUs", "epoch, published", "efficiency, published", "by a ring alone"]
    return Answer(
        finding=sentences(verdicts)
        + " Workers of one machine share its cores, so this shows that they agree, "
        "and what agreeing costs, not how far they scale.",
        table=("Medians of all workers' steps", columns, body),
        more=[("PowerAI DDL on V100s, and a ring's lower bound", names, published)],
        verdicts=verdicts,
        panels=[[Panel(x="a step apart over a step together", bars=bars, level=1.0)]],
        headline="Efficiency of workers that share two cores",
    )


def _step(rows: Rows, kind: str, workers: int) -> Estimate | None:
    """A value for each job: the median of all of its workers' steps."""
    found: list[float] = []
    for row in rows:
        if (row["kind"], row["workers"]) == (kind, workers) and trained(row):
            each = row["step_seconds"]
            each = each if isinstance(each[0], list) else [each]
            found.append(median(s for steps in each for s in steps[_WARM:] or steps))
    return estimate(found) if found else None


def _published(gpus: int, epoch: int) -> list[str]:
    """A published epoch; and one in which steps and rings are all that takes time."""
    rate = preset("v100-nvlink").h2d if gpus <= _GPUS_EACH else _INFINIBAND
    step = _PUBLISHED[1] / _STEPS + _ring_seconds(_GRADIENTS, gpus, rate)
    bound = _PUBLISHED[1] / (gpus * ceil(_STEPS / gpus) * step)
    reached = _PUBLISHED[1] / (gpus * epoch)
    return [str(gpus), f"{epoch} s", f"{reached:.1%}", f"{bound:.1%}"]
