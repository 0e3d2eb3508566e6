"""What `dice_vs_volume` found: a table, a sentence, boxes for each pair of sizes."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.finding_console import show_finding
from experiments.lines import read_lines
from experiments.report_findings import Finding, Head, Rows
from unet3d.figures import draw_boxes
from unet3d.schemes import REGIONS

__all__ = ["draw", "finding"]

_SIGNIFICANT = 0.05


def draw(results: Path, path: Path) -> int:
    """Print and draw, a figure for each pair; always 0: nothing is claimed."""
    head, rows = read_lines(results)
    console = show_finding(finding(head, rows), width=130)
    for row in _comparisons(rows):
        low, high = row["pair"]
        figure = path.with_name(f"{path.stem}_{low}_{high}{path.suffix}")
        _boxes(head, row, figure)
        console.print(f"Drawn: {figure}", soft_wrap=True)
    return 0


def finding(head: Head, rows: Rows) -> Finding:
    """The sentence and the table."""
    parts: list[str] = []
    body: list[list[str]] = []
    for row in _comparisons(rows):
        low, high = row["pair"]
        tests = {test["region"]: test for test in row["tests"]}
        said: list[str] = []
        for region in REGIONS:
            test = tests[region]
            means = [_mean(row, f"{size}^3", region) for size in (low, high)]
            body.append(
                [
                    f"{low}^3, {high}^3",
                    region,
                    f"{(high / low) ** 3:.2f}",
                    *(f"{mean:.3f}" for mean in means),
                    f"{test['median_difference']:+.3f}",
                    f"{test['p']:.3g}",
                    f"{test['corrected_p']:.3g}",
                ]
            )
            sure = "" if test["corrected_p"] < _SIGNIFICANT else " (not significant)"
            said.append(f"{region} {test['median_difference']:+.3f}{sure}")
        parts.append(f"from {low}^3 to {high}^3: {', '.join(said)}")
    unseen, models = head["settings"]["unseen"], head["settings"]["models"]
    text = (
        f"Median gain in Dice of {unseen} unseen synthetic subjects, each the mean of "
        f"{models} models: {'; '.join(parts)}."
    )
    columns = ["pair", "region", "voxels", "mean, lower", "mean, higher"]
    columns += ["median gain", "p", "p by Holm"]
    return text, ("Dice, scored on cubes of the higher size", columns, body)


def _comparisons(rows: Rows) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["kind"] == "comparison"]


def _mean(row: Mapping[str, Any], name: str, region: str) -> float:
    return statistics.fmean(_values(row, name, region))


def _values(row: Mapping[str, Any], name: str, region: str) -> list[float]:
    return [
        float("nan") if score["dice"] is None else score["dice"]
        for score in row["scores"]
        if (score["set"], score["region"]) == (name, region)
    ]


def _boxes(head: Head, row: Mapping[str, Any], path: Path) -> None:
    low, high = row["pair"]
    names = [f"{low}^3", f"{high}^3"]
    settings = head["settings"]
    draw_boxes(
        {
            region: {name: _values(row, name, region) for name in names}
            for region in REGIONS
        },
        path,
        title=f"Dice on cubes of {high}^3: {(high / low) ** 3:.2f} times the voxels",
        label="Dice, 1 is perfect",
        note=(
            f"Unseen synthetic subjects of {settings['voxel_mm']} mm voxels; each dot "
            f"a subject, the mean of {settings['models']} models. "
            f"Commit {head['commit']}."
        ),
        limits=(None, 1.02),
    )
