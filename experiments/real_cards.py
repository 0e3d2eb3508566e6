"""Results of real cards, beside the predictions of a dry card.

Rows of the card NAME lie in `experiments/results/NAME`, rows of a dry card in its
folder `predicted`. A *promise* is the callback's prediction before the first step.
Trainings ran at once and shared the host's cores: a step is the fastest one of all
processes, and ratios are of fastest steps.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from experiments import gpu
from experiments.judging import Outcome, judge
from experiments.question import Answer, Verdict
from experiments.runner import RESULTS, read_lines
from experiments.stats import Row, Rows, ending, estimate, trained
from experiments.subjects import SUBJECTS, named
from lms.machine.inventory import read_driver
from lms.units import MIB
from profiling.tables import markdown_rows

__all__ = [
    "QUESTIONS",
    "TITLE",
    "answer",
    "folder_here",
    "known_as",
    "names",
    "predicted_in",
]
__all__ += ["pages", "sections"]

TITLE = "On real cards"
QUESTIONS = ("capacity", "gpu", "cost", "bits")  # that a real card's rows answer
_SHOWN = 8  # lines of the table on the page of all results
_HEAD = "<!-- Written by `python -m experiments page`. -->"
_MS = 1e-3
_NEAR = 0.1  # error of a step over its promise
_COLUMNS = ["training", "memory", "peak, MiB: dry", "promised", "measured"]
_COLUMNS += ["step, ms: dry", "promised", "measured", "over plain Keras: dry"]
_COLUMNS += ["measured", "processes", "how it ended"]
_WORDS = {True: "Holds", False: "Fails", None: "Open"}

_Key = tuple[Any, ...]
_Trainings = Mapping[_Key, Rows]


def known_as(name: str) -> str | None:
    """Return the folder of a card by its driver's name; None for an emulated card.

    Example:
        >>> [known_as(one) for one in ("NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-16GB")]
        ['h100', 'v100']
        >>> known_as("NVIDIA GeForce RTX 4090"), known_as("Emulated card 3c78f18e: 12")
        ('rtx-4090', None)
    """
    found = re.search(r"^(?!Emulated).*?\b((?:RTX )?[A-Z]{0,2}\d{1,4}[A-Z]?)\b", name)
    return found[1].lower().replace(" ", "-") if found else None


def folder_here() -> Path | None:
    """Return the folder for rows of this machine's card; None for an emulated card."""
    cards = read_driver().gpus
    name = known_as(cards[0].name or "") if cards else None
    return RESULTS / name if name else None


def predicted_in(preset: str) -> Path:
    """Return the folder for rows of a dry card, which predict a real card's rows.

    Example:
        >>> predicted_in("h100-sxm").relative_to(RESULTS).as_posix()
        'h100/predicted'
    """
    return RESULTS / re.split(r"-(?=sxm|pcie|nvlink|\d)", preset)[0] / "predicted"


def names() -> list[str]:
    """List the cards that have rows."""
    found = (path for name in QUESTIONS for path in RESULTS.glob(f"*/{name}.jsonl"))
    return sorted({path.parent.name for path in found})


def answer(folder: Path) -> Answer | None:
    """Answer by all rows of a card's folder; None if there are none."""
    measured, dry = _trainings(folder), _trainings(folder / "predicted")
    own, compared = _rows(folder, "gpu"), _rows(folder, "bits")
    rows = [*(row for each in measured.values() for row in each), *own, *compared]
    if not rows:
        return None
    verdicts = [*_kept(measured), _foretold(measured, dry)]
    if own:
        claims = gpu.answer(own).verdicts
        fails = [text[:90] for holds, text in claims if holds is False]
        text = f"of {len(claims)} claims on the card's mechanisms {len(fails)} fail"
        text += f": {'; '.join(fails)}" if fails else ""
        verdicts.append((not fails, text))
    verdicts += [_same_bits(compared)] if compared else ()
    device = next((row["device"] for row in rows if row.get("device")), folder.name)
    commits = ", ".join(sorted({row["commit"] or "unknown" for row in rows}))
    keys = sorted(measured, key=lambda key: key[1] == "plain" and not key[2])
    body = [_line(key, measured, dry) for key in keys]
    return Answer(
        finding=f"{len(rows)} rows of commit {commits}, on {device}.",
        table=("Trainings", _COLUMNS, body),
        verdicts=verdicts,
    )


def _rows(folder: Path, name: str) -> list[Row]:
    path = folder / f"{name}.jsonl"
    return [*read_lines(path)[1]] if path.exists() else []


def _trainings(folder: Path) -> _Trainings:
    """Read rows of `capacity` and `cost`, of a rule's tries the last."""
    last: dict[_Key, Row] = {}
    for row in (row for name in ("capacity", "cost") for row in _rows(folder, name)):
        own = (row.get(name) for name in ("size", "kind", "share", "beside"))
        repeat = row.get("repeat", row.get("attempt"))
        last[row["model"], row["way"], *own, repeat] = row
    found: dict[_Key, list[Row]] = {}
    for (*key, _), row in last.items():
        found.setdefault(tuple(key), []).append(row)
    return found


def _line(key: _Key, measured: _Trainings, dry: _Trainings) -> list[str]:
    model, way, size, _, share, _ = key
    rows = measured[key]
    good, foretold = [*filter(trained, rows)], [*filter(trained, dry.get(key, ()))]
    memory = rows[0]["memory_bytes"]
    cells = [
        _middle(own, read, unit)
        for read, promise, unit in (
            (_peak, _peak_promise, MIB),
            (_fastest, _promise, _MS),
        )
        for own, read in ((foretold, read), (good, promise), (good, read))
    ]
    return [
        " ".join([SUBJECTS[model].title, *[str(size)] * bool(size), named(way)]),
        f"{share:.0%} of its peak" if share else f"{(memory or 0) / MIB:.0f} MiB",
        *cells,
        *(_over_plain(key, one) for one in (dry, measured)),
        str(len(good)),
        next((ending(row)[:60] for row in rows if not trained(row)), "trained"),
    ]


def _over_plain(key: _Key, rows: _Trainings) -> str:
    """Divide the fastest step by plain Keras's fastest on a large card."""
    plain: _Key = (key[0], "plain", None, None, None, None)
    steps = [[*map(_fastest, filter(trained, rows.get(k, ())))] for k in (key, plain)]
    if key[2] or key == plain or not all(steps):
        return ""
    own, base = map(min, steps)
    return f"{own / base:.2f}"


def _fastest(row: Row) -> float:
    seconds = row["step_seconds"]
    return min(seconds[1:] or seconds)


def _peak(row: Row) -> int:
    return row["peak_bytes"]


def _promise(row: Row, name: str = "predicted_seconds") -> Any:
    return (row.get("report") or {}).get(name)


_peak_promise = partial(_promise, name="predicted_peak_bytes")


def _middle(rows: Rows, read: Callable[[Row], Any], unit: float) -> str:
    values = [value for row in rows if (value := read(row))]
    if not values:
        return ""
    if read is _fastest:
        return f"{min(values) / unit:.1f}"
    return f"{estimate(values).median / unit:{'.0f' if unit == MIB else '.1f'}}"


def _kept(measured: _Trainings) -> Iterator[Verdict]:
    """Compare the callback's peaks and steps with its own promises."""
    rows = [row for own in measured.values() for row in own if trained(row)]
    rows = [row for row in rows if row["way"] == "callback" and _peak_promise(row)]
    anew = [row for row in rows if row["report"].get("replans")]
    rows = [row for row in rows if row not in anew]
    if not rows:
        return
    offs = [_peak(row) / row["report"]["predicted_peak_bytes"] - 1 for row in rows]
    above = sum(one > 0 for one in offs)
    text = f"of `capacity` and `cost`, {above} of {len(offs)} peaks are above the "
    text += "promise; all lie within "
    text += f"{max(map(abs, offs)):.1%} of it; {len(anew)} more trainings ran out of "
    yield not above, f"{text}memory and were replanned"
    times = [_fastest(row) / one for row in rows if (one := _promise(row))]
    if times:
        text = f"steps take {min(times):.2f} to {max(times):.2f} times the promise"
        yield max(abs(one - 1) for one in times) <= _NEAR, text


def _same_bits(rows: Rows) -> Verdict:
    """Compare the bits of trainings with plain Keras's; ignore least budgets."""
    ran = [row for row in rows if row["kind"] == "plain" or trained(row)]
    models = [
        [r for r in ran if r["model"] == one] for one in {r["model"] for r in ran}
    ]
    ends = Counter(verdict.outcome for own in models for verdict in judge(own))
    refused, failed = (
        sum(bool(row.get(w)) for row in rows) for w in ("refused", "error")
    )
    text = f"{ends[Outcome.TRAINED]} of {ends.total()} trainings that ended have plain "
    text += "Keras's bits, with op determinism and one limit of cuDNN's workspace for "
    text += f"both; {refused} more were refused, {failed} failed"
    return not ends[Outcome.DEFECT] and not failed, text


def _foretold(measured: _Trainings, dry: _Trainings) -> Verdict:
    """Compare peaks and steps of all ways with the dry card's."""
    firsts = [
        ([*filter(trained, rows)], [*filter(trained, dry.get(key, ()))])
        for key, rows in measured.items()
    ]
    pairs = [(good[0], foretold[0]) for good, foretold in firsts if good and foretold]
    if not pairs:
        return None, "no training was predicted on a dry card"
    peaks, steps = (
        sorted(read(one) / read(other) for one, other in pairs)
        for read in (_peak, _fastest)
    )
    text = f"of {len(pairs)} trainings that a dry card predicted, peaks are "
    text += f"{peaks[0]:.2f} to {peaks[-1]:.2f} times the prediction, steps "
    return None, f"{text}{steps[0]:.2f} to {steps[-1]:.2f} times"


def sections() -> Iterator[str]:
    """Yield the section of each card on the page of results."""
    for name in names():
        title, *parts = _parts(name, _SHOWN)
        yield from (f"#{title}", *parts)
        yield f"[All rows](results/{name}.md)."


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each card's own page."""
    for name in names():
        yield name, "\n\n".join([_HEAD, *_parts(name)]) + "\n"


def _parts(name: str, most: int | None = None) -> list[str]:
    found = answer(RESULTS / name)
    assert found is not None, f"no rows of {name}"
    title, columns, body = found.table
    lines = (f"- {_WORDS[holds]}: {text}." for holds, text in found.verdicts)
    told = " ".join((__doc__ or "").split())
    parts = [f"# {TITLE}: {name.upper()}", f"*{told}*", found.finding]
    return [
        *parts,
        "\n".join(lines),
        f"**{title}**",
        markdown_rows(columns, body[:most]),
    ]
