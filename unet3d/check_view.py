"""`python -m unet3d check`: prints the findings, and writes them as JSON."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from unet3d.checking import DataSet, check_data
from unet3d.files import write_json
from unet3d.lines import counting, grouped, some
from unet3d.schemes import LabelScheme

__all__ = ["BAD", "check"]

BAD = 1  # the exit status for data that `train` refuses


def check(
    data: Path,
    scheme: LabelScheme | None,
    *,
    group_by: str | None,
    labelled: bool,
    json: Path | None,
    bars: Progress,
) -> int:
    """Check a data set, print the findings, and return the exit status."""
    if json is not None and json.is_dir():
        raise ValueError(f"`json` must be a file, got '{json}'. Name a file in it.")
    with bars:
        found = check_data(
            data,
            scheme,
            group_by=group_by,
            labelled=labelled,
            progress=counting(bars, bars.add_task("Checking subjects"), "Checked"),
        )
    _show(found, Console(soft_wrap=True))
    if json is not None:
        known = {"data": str(data), "label scheme": scheme.name if scheme else None}
        write_json(json, known | {"sound": found.is_sound} | asdict(found))
    return 0 if found.is_sound else BAD


def _show(found: DataSet, console: Console) -> None:
    bad = grouped((s.name, reason) for s in found.bad for reason in s.reasons)
    for reason, names in bad.items():
        several = f"{len(names)} subjects are bad, {some(names)}; the first:"
        title = several if len(names) > 1 else f"{names[0]} is bad:"
        _list(console, title, [reason], "red")
    _list(console, "`train` refuses the data set:", found.reasons, "red")
    warned = grouped((s.name, w) for s in found.subjects for w in s.warnings)
    told = [f"{warning}: {some(names)}" for warning, names in warned.items()]
    warnings = [*found.warnings, *told]
    _list(console, "Warnings:", warnings, "yellow")
    console.print(_table(found, len(warnings)))


def _list(console: Console, title: str, lines: Iterable[str], style: str) -> None:
    lines = tuple(lines)
    if lines:
        console.print(title, style=style, markup=False, highlight=False)
    for line in lines:
        console.print(f"  - {line}", markup=False, highlight=False)


def _table(found: DataSet, warnings: int) -> Table:
    table = Table(title="Checked", show_header=False)
    labels = sorted({v for subject in found.subjects for v in subject.labels or ()})
    rows = {
        "subjects": str(len(found.subjects)),
        "bad": str(len(found.bad)),
        "warnings": str(warnings),
        "patients of good subjects": str(len(found.patients)),
        "without labels": some(found.unlabelled) or "none",
        "voxels (x, y, z)": _counts(subject.shape for subject in found.subjects),
        "spacing (mm)": _counts(subject.spacing for subject in found.subjects),
        "labels": ", ".join(map(str, labels)) or "none",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _counts(values: Iterable[tuple[float, ...] | None], most: int = 4) -> str:
    """List the `most` frequent values with their counts."""
    counts = Counter(
        " x ".join(f"{number:.4g}" for number in value) for value in values if value
    )
    told = [f"{words}: {count}" for words, count in counts.most_common(most)]
    rest = len(counts) - most
    return "\n".join([*told, *([f"and {rest} more"] if rest > 0 else [])]) or "none"
