"""Writes an evaluation: tables, tests, and figures.

REPORT/scores.csv     a line per set, subject and region
REPORT/report.json    the rule, summaries, tests, and subjects left out
REPORT/dice.png       boxes; hd95.png and lesion_dice.png likewise
REPORT/losses.png     losses of the runs that made the predictions, where known
REPORT/gallery.png    the best, a middling and the worst subject
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from lms.storage.files import write_text
from unet3d.cache import SKIP, usable
from unet3d.data import check_size
from unet3d.evaluation import (
    MEASURES,
    Comparison,
    Score,
    Summary,
    compare,
    score_subject,
    summarise,
)
from unet3d.figures import draw_boxes, draw_gallery, draw_losses
from unet3d.files import write_json
from unet3d.gallery import choose_subjects, gather_slice, read_logs
from unet3d.lines import as_csv
from unet3d.prediction_sets import (
    PredictionSet,
    check_complete,
    common_subjects,
    named_alike,
)
from unet3d.schemes import LabelScheme
from unet3d.scores import EmptyRule
from unet3d.subjects import Found, Problem, SubjectFiles, find_subjects

__all__ = ["RULES", "Report", "comparison_table", "evaluate", "summary_table"]
__all__ += ["write_report"]

RULES = {
    EmptyRule.BRATS: (
        "Empty regions by BraTS's rule: if both are empty, Dice 1 and HD95 0 mm; if "
        "one is, Dice 0 and HD95 373.13 mm."
    ),
    EmptyRule.NAN: (
        "Empty regions: if both are empty, no score; if one is, Dice 0 and no HD95. "
        "Missing scores are left out."
    ),
}
_AREA = "HD95 counts voxels of the surface; lesion-wise, as in BraTS 2023, its area."
_TITLES = {"dice": "Dice per subject", "hd95": "HD95 per subject"}
_TITLES |= {"lesion_dice": "Lesion-wise Dice per subject"}
_LABELS = {"dice": "Dice", "hd95": "HD95 (mm)"}
_LABELS |= {"lesion_dice": "lesion-wise Dice", "lesion_hd95": "lesion-wise HD95 (mm)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """An evaluation: scores, their summaries, and by measure tests of pairs of sets.

    `size` is the common cube's; None for the source's grid. `unasked` are labelled
    subjects that no set was asked to predict.
    """

    scores: tuple[Score, ...]
    summaries: tuple[Summary, ...]
    tests: dict[str, tuple[Comparison, ...]]
    rule: EmptyRule
    size: int | None
    problems: tuple[Problem, ...]
    unasked: tuple[str, ...]


def evaluate(  # noqa: PLR0913 - what with what, and how
    truth: Path,
    scheme: LabelScheme,
    sets: Sequence[PredictionSet],
    *,
    rule: EmptyRule = EmptyRule.BRATS,
    size: int | None = None,
    skip_bad: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Report:
    """Score sets of predictions."""
    _check_regions(sets, scheme)
    if size is not None:
        check_size(size)
    found = find_subjects(truth, scheme.channels)
    sets = [named_alike(group, found.names) for group in sets]
    named = {name for group in sets for name in group.subjects}
    # Test scans are no part of a cross-validation, and the reverse.
    kinds = {files.is_test for files in found.subjects if files.name in named}
    truths = (files for files in found.subjects if files.is_test in kinds)
    labelled = {files.name for files in truths if files.labels is not None}
    lost = check_complete(sets, labelled, skip_bad=skip_bad)
    names, left_out = common_subjects(sets, skip_bad=skip_bad)
    told = {problem.name for problem in lost}
    problems = [*lost, *(p for p in left_out if p.name not in told)]
    scores: list[Score] = []
    there = _find(found, truth, names, skip_bad=skip_bad, problems=problems)
    for files in there:
        try:
            scores += score_subject(files, sets, scheme, rule=rule, size=size)
        except (FileNotFoundError, ValueError) as error:
            if not skip_bad:
                raise type(error)(f"{error} {SKIP}") from error
            problems.append(Problem(name=files.name, message=str(error)))
        progress(len(there))
    if not scores:
        raise ValueError(
            "`truth` must hold at least one subject that can be scored, got "
            f"'{truth}'. The first reason: {problems[0].message}"
        )
    return Report(
        scores=tuple(scores),
        summaries=summarise(scores),
        tests={measure: compare(scores, measure) for measure in MEASURES},
        rule=rule,
        size=size,
        problems=tuple(problems),
        unasked=tuple(sorted(labelled - {*names, *(p.name for p in problems)})),
    )


def write_report(
    report: Report,
    output: Path,
    *,
    truth: Path,
    scheme: LabelScheme,
    sets: Sequence[PredictionSet],
) -> None:
    """Write tables and figures; the folder is made if missing."""
    scores = [asdict(score) for score in report.scores]
    write_text(output / "scores.csv", as_csv(scores))
    content = {
        "empty rule": report.rule.value,
        "empty rule in words": RULES[report.rule],
        "grid": "source" if report.size is None else f"{report.size}^3",
        "summaries": [_finite(asdict(s)) for s in report.summaries],
        "tests": {
            measure: [_finite(asdict(test)) for test in tests]
            for measure, tests in report.tests.items()
        },
        "scores": [_finite(score) for score in scores],
        "left out": [problem.message for problem in report.problems],
        "not predicted": list(report.unasked),
    }
    write_json(output / "report.json", content)
    for measure in _TITLES:
        values, missed = _by_region(report.scores, measure)
        draw_boxes(
            values,
            output / f"{measure}.png",
            title=f"{_TITLES[measure]}, {_grid(report.size)}",
            label=f"{_LABELS[measure]}, {int(measure != 'hd95')} is perfect",
            note=RULES[report.rule],
            missed=missed,
            limits=(0, None) if measure == "hd95" else (None, 1.02),
        )
    logs = read_logs(sets)
    if logs:
        note = "One line per run; Dice is the mean over regions and subjects."
        draw_losses(logs, output / "losses.png", note=note)
    chosen = choose_subjects(report.scores)
    found = find_subjects(truth, scheme.channels)
    by_name = {files.name: files for files in found.subjects}
    sets = [named_alike(group, found.names) for group in sets]
    slices = [gather_slice(by_name[n], sets, scheme, report.scores) for n in chosen]
    if len(slices) > 1:
        slices[0] = replace(slices[0], name=f"best: {chosen[0]}")
        slices[-1] = replace(slices[-1], name=f"worst: {chosen[-1]}")
    draw_gallery(
        slices,
        output / "gallery.png",
        names=list(scheme.regions),
        title="Truth and prediction",
        note=f"{scheme.channels[0]}, the axial slice with most regions; the patient's "
        f"right is left. Dice, {_grid(report.size)}: {' / '.join(scheme.regions)}.",
    )


def summary_table(report: Report) -> Table:
    """Make the table of summaries, with the rule for empty regions beneath."""
    caption = f"{RULES[report.rule]} {_AREA}"
    table = Table(title=f"Scores, {_grid(report.size)}", caption=caption)
    columns = ("set", "region", "measure", "n", "missed", "mean", "median", "quartiles")
    for column in columns:
        table.add_column(column, justify="left" if column in "set region" else "right")
    for row in report.summaries:
        table.add_row(
            row.set,
            row.region,
            _LABELS[row.measure],
            str(row.subjects),
            str(row.missed),
            f"{row.mean:.3f}",
            f"{row.median:.3f}",
            f"{row.lower_quartile:.3f} - {row.upper_quartile:.3f}",
        )
    return table


def comparison_table(report: Report) -> Table:
    """Make the table of paired tests of sets."""
    table = Table(title="Paired Wilcoxon tests, Holm's correction")
    for column in ("measure", "region", "pair", "n", "median difference", "p", "Holm"):
        table.add_column(column)
    for measure, tests in report.tests.items():
        for test in tests:
            table.add_row(
                _LABELS[measure],
                test.region,
                f"{test.second} - {test.first}",
                str(test.subjects),
                f"{test.median_difference:+.3f}",
                f"{test.p:.3g}",
                f"{test.corrected_p:.3g}",
            )
    return table


def _grid(size: int | None) -> str:
    return "on the sources' grids" if size is None else f"on cubes of {size}^3"


def _find(
    found: Found,
    truth: Path,
    names: Sequence[str],
    *,
    skip_bad: bool,
    problems: list[Problem],
) -> list[SubjectFiles]:
    """Return the subjects to score; add missing subjects to `problems`."""
    bad = {problem.name: problem for problem in found.problems}
    everyone = {files.name: files for files in usable(found, skip_bad=True)}
    for name in names:
        if name in everyone:
            continue
        missing = Problem(
            name=name,
            message=f"`truth` must hold every predicted subject, got '{truth}' without "
            f"{name}. Pass the data that was predicted.",
        )
        problem = bad.get(name, missing)
        if not skip_bad:
            raise ValueError(f"{problem.message} {SKIP}")
        problems.append(problem)
    return [everyone[name] for name in names if name in everyone]


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Replace NaN by None: JSON has no NaN."""
    return {
        key: None if isinstance(value, float) and math.isnan(value) else value
        for key, value in values.items()
    }


def _by_region(
    scores: Sequence[Score], measure: str
) -> tuple[dict[str, dict[str, list[float]]], dict[str, dict[str, int]]]:
    """Group values by region and set, and count the values left out as missed."""
    values: dict[str, dict[str, list[float]]] = {}
    missed: dict[str, dict[str, int]] = {}
    for score in scores:
        known = values.setdefault(score.region, {}).setdefault(score.set, [])
        out = missed.setdefault(score.region, {})
        gone = measure == "hd95" and score.missed > 0
        out[score.set] = out.get(score.set, 0) + gone
        if not gone:
            known.append(getattr(score, measure))
    return values, missed


def _check_regions(sets: Sequence[PredictionSet], scheme: LabelScheme) -> None:
    """Refuse sets whose regions are not the truth's."""
    for group in sets:
        if list(group.scheme.regions) != list(scheme.regions):
            raise ValueError(
                f"`predictions` must have the regions {', '.join(scheme.regions)} of "
                f"label scheme {scheme.name}, got '{group.folder}' with "
                f"{', '.join(group.scheme.regions)}. Choose the scheme of both."
            )
