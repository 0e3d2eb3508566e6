"""Larger volumes and better segmentations: the case study's method, scaled by four.

The case study trained on brains of about 140 x 171 x 140 voxels: 112^3 against 144^3
gained clearly, 144^3 against 192^3 little, because the data is no finer. Here synthetic
subjects have voxels of 4 mm, so that a brain is about 35 x 43 x 35, and the volumes are
a quarter of the case study's:

    28^3 and 36^3    2.13 times the voxels, the data's own resolution about the larger
    36^3 and 48^3    2.37 times the voxels, the data's own resolution below the larger

Several models per size train on one split, each by `python -m unet3d train`, and
segment other subjects, which no model has seen. A pair is scored on cubes of the
larger size, to which predictions are resized. A subject's Dice is the mean over the
models, tested by Wilcoxon's signed-rank test, corrected by Holm's method.

Known weaknesses: the subjects are synthetic and say nothing of patients. The comparison
favours the larger size, whose labels are not resized. Epochs and filters are few.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from experiments.question import Answer, Bar, Panel, Verdict, sentences
from experiments.runner import Book, why_it_failed
from experiments.stats import Row, Rows
from unet3d.schemes import REGIONS
from unet3d.splits import make_split, write_split

__all__ = ["SETTINGS", "TITLE", "answer", "measure", "parts"]

TITLE = "Do larger volumes give better segmentations?"
SETTINGS = {"sizes": (28, 36, 48), "models": 4, "epochs": 40}  # sizes rise
SETTINGS |= {"subjects": 12, "unseen": 10}  # to train with, and to be scored
_LONGEST = 3600  # seconds of a training
_MM = 4  # edge of a voxel; sizes are the case study's over 4
_SIGNIFICANT = 0.05
_SCORE = ("set", "subject", "region", "dice")


def parts(_: Any) -> tuple[str, ...]:
    """Return one part: models share data and a split."""
    return ("all",)


def measure(book: Book, _: str, options: Any) -> None:
    """Train, segment and compare; keep finished and interrupted trainings."""
    from experiments.coarse_subjects import make_coarse_subjects  # needs nibabel

    folder = book.folder / "dice"
    sets = (("seen", options.subjects), ("unseen", options.unseen))
    seen, unseen = (
        make_coarse_subjects(folder / name, subjects=count, seed=seed, factor=_MM)
        for seed, (name, count) in enumerate(sets)
    )
    split = folder / "split.json"
    write_split(split, make_split([p.name for p in sorted(seen.glob("s*"))], seed=0))
    seeds = range(options.models)

    def made(size: int, seed: int) -> Row:
        run = folder / f"run_{size}_{seed}"
        known = ["--label-scheme", "brats2017", "--filters", 8, "--depth", 3]
        known += ["--linear-heads", "--no-lms", "--resume", "--epochs", options.epochs]
        known += ["--split", split, "--cache", folder / "cache", "--output", run]
        _unet3d(folder, "train", "--data", seen, "--size", size, "--seed", seed, *known)
        known = ["--subjects", "all", "--output", _predicted(folder, size, seed)]
        _unet3d(folder, "predict", "--run", run, "--data", unseen, *known)
        return {"error": None}

    for seed in seeds:
        for size in options.sizes:
            key = {"kind": "model", "size": size, "seed": seed}
            book.once(key, lambda of=(size, seed): made(*of))
    for pair in pairwise(options.sizes):
        key = {"kind": "comparison", "pair": list(pair)}
        book.once(key, lambda pair=pair: _compared(pair, seeds, folder, unseen))


def _predicted(folder: Path, size: int, seed: int) -> Path:
    return folder / f"predicted_{size}_{seed}"


def _unet3d(folder: Path, *words: Any) -> None:
    """Run one command of the case study; its output goes to a log."""
    log = folder / "log.txt"
    with log.open("w") as sink:
        done = subprocess.run(
            [sys.executable, "-m", "unet3d", *map(str, words)],
            env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1"},
            stdout=sink,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=_LONGEST,
        )
    error = why_it_failed(log.read_text(errors="replace"), done.returncode)
    if error is not None:
        raise SystemExit(f"dice: {error}. Run again: what is finished is kept.")


def _compared(
    pair: tuple[int, int], seeds: Sequence[int], folder: Path, unseen: Path
) -> Row:
    """Score both sizes on cubes of the larger size."""
    sets = [(size, seed) for size in pair for seed in seeds]
    report = folder / f"report_{pair[0]}_{pair[1]}"
    words: list[Any] = ["--truth", unseen, "--label-scheme", "brats2017"]
    words += ["--predictions", *(_predicted(folder, *one) for one in sets)]
    words += ["--names", *(f"{size}^3" for size, _ in sets)]
    _unet3d(folder, "evaluate", *words, "--size", pair[1], "--output", report)
    found = json.loads((report / "report.json").read_text())
    scores = [{name: score[name] for name in _SCORE} for score in found["scores"]]
    return {"error": None, "scores": scores, "tests": found["tests"]["dice"]}


def answer(rows: Rows) -> Answer:
    """Report gains in Dice, and their significance."""
    body: list[list[str]] = []
    bars: list[Bar] = []
    verdicts: list[Verdict] = []
    for row in (row for row in rows if row["kind"] == "comparison"):
        low, high = row["pair"]
        tests = {test["region"]: test for test in row["tests"]}
        gains = {region: tests[region]["median_difference"] for region in REGIONS}
        sure = all(tests[r]["corrected_p"] < _SIGNIFICANT for r in REGIONS)
        text = ", ".join(f"{region} {gain:+.3f}" for region, gain in gains.items())
        good = min(gains.values()) > 0 if sure else None
        verdicts.append((good, f"from {low}^3 to {high}^3 Dice gains {text}"))
        for region, gain in gains.items():
            means = [f"{_mean(row, f'{size}^3', region):.3f}" for size in (low, high)]
            odds = [f"{tests[region][name]:.3g}" for name in ("p", "corrected_p")]
            told = f"{gain:+.3f}"
            body.append([f"{low}^3, {high}^3", region, *means, told, *odds])
            label = f"{low}^3 to {high}^3, {region}"
            bars.append(Bar(label=label, length=gain, text=told))
    columns = ["pair", "region", "mean, smaller", "mean, larger", "median gain"]
    return Answer(
        finding=sentences(verdicts)
        + " These are medians over unseen synthetic subjects, "
        "each scored by the mean of the models.",
        table=("Dice on cubes of the larger size", [*columns, "p", "p by Holm"], body),
        verdicts=verdicts,
        panels=[[Panel(x="median gain in Dice", bars=bars)]],
        headline="What a larger volume gains on synthetic subjects",
    )


def _mean(row: Row, name: str, region: str) -> float:
    own = [
        s["dice"] for s in row["scores"] if (s["set"], s["region"]) == (name, region)
    ]
    return statistics.fmean(float("nan") if one is None else one for one in own)
