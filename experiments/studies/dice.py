"""Do larger volumes give better segmentations? The case study's method, scaled by four.

The case study trained on brains of about 140 x 171 x 140 voxels: 112^3 against 144^3
gained clearly, 144^3 against 192^3 little, because the data is no finer. Here synthetic
subjects have voxels of 4 mm, so that a brain is about 35 x 43 x 35, and the volumes are
a quarter of the case study's:

    28^3 and 36^3    2.13 times the voxels, the data's own resolution about the larger
    36^3 and 48^3    2.37 times the voxels, the data's own resolution below the larger

Several models per size, all on one split, each a run of `python -m unet3d train` on
whole subjects; the other subjects, seen by none, are segmented by each. A pair is
scored on cubes of the larger size: predictions of the smaller one are resized to it. A
subject's Dice is the mean over the models. Pairs are tested by Wilcoxon's signed-rank
test, corrected by Holm's method over the three regions.

Known weaknesses: the subjects are synthetic and say nothing of patients. The comparison
favours the larger size, whose labels are not resized. All models see as many
epochs, few for a training. The network has 3 levels and 8 filters.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from experiments.charts import COLOURS, Bar, Panel
from experiments.question import Answer, sentences
from experiments.runner import Book, Row, Rows, why_it_failed
from unet3d.schemes import REGIONS
from unet3d.splits import make_split, write_split

__all__ = ["TITLE", "add_settings", "answer", "units"]

TITLE = "Do larger volumes give better segmentations?"
_LONGEST = 3600  # seconds of a training
_MM = 4  # edge of a voxel: the case study's sizes, divided by it
_SIGNIFICANT = 0.05
_SCORE = ("set", "subject", "region", "dice")


def add_settings(parser: Any) -> None:
    """Sizes, models, subjects."""
    sizes = (28, 36, 48)
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes, help="rising")
    parser.add_argument("--models", type=int, default=4, help="for each size")
    parser.add_argument("--epochs", type=int, default=40, help="of each training")
    parser.add_argument("--subjects", type=int, default=12, help="to train with")
    parser.add_argument("--unseen", type=int, default=10, help="to be scored")


def units(options: Any) -> Iterable[Callable[[Book], None]]:
    """One unit: models share data and a split."""
    yield lambda book: _all(book, options)


def _all(book: Book, options: Any) -> None:
    """Finished models are kept, also half a training."""
    folder = book.folder / "dice"
    seen = _subjects(folder / "seen", options.subjects, 0)
    unseen = _subjects(folder / "unseen", options.unseen, 1)
    split = folder / "split.json"
    write_split(split, make_split([p.name for p in sorted(seen.glob("s*"))], seed=0))
    for seed in range(options.models):
        for size in options.sizes:
            key = {"kind": "model", "size": size, "seed": seed}
            words = _words(folder, (size, seed), (seen, unseen, split), options.epochs)
            book.once(key, lambda words=words: _made(words, folder))
    for pair in pairwise(options.sizes):
        key = {"kind": "comparison", "pair": list(pair)}
        book.once(
            key,
            partial(_compared, pair, options.models, folder, unseen),
        )


def _subjects(folder: Path, count: int, seed: int) -> Path:
    from unet3d.coarse import make_coarse_subjects  # needs nibabel

    return make_coarse_subjects(folder, subjects=count, seed=seed, factor=_MM)


def _words(
    folder: Path, of: tuple[int, int], data: tuple[Path, Path, Path], epochs: int
) -> list[list[Any]]:
    """Commands that train a model and let it segment the unseen subjects."""
    (size, seed), (seen, unseen, split) = of, data
    run = folder / f"run_{size}_{seed}"
    train: list[Any] = ["train", "--data", seen, "--label-scheme", "brats2017"]
    train += ["--size", size, "--filters", 8, "--depth", 3, "--linear-heads"]
    train += ["--epochs", epochs, "--seed", seed, "--split", split, "--no-lms"]
    train += ["--cache", folder / "cache", "--output", run, "--resume"]
    predict = ["predict", "--run", run, "--data", unseen, "--subjects", "all"]
    return [train, [*predict, "--output", _predicted(folder, size, seed)]]


def _predicted(folder: Path, size: int, seed: int) -> Path:
    return folder / f"predicted_{size}_{seed}"


def _made(commands: Sequence[Sequence[Any]], folder: Path) -> dict[str, Any]:
    for words in commands:
        _unet3d(words, folder)
    return {"error": None}


def _unet3d(words: Sequence[Any], folder: Path) -> None:
    """One command of the case study; what it prints goes to a log."""
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
    pair: tuple[int, int], models: int, folder: Path, unseen: Path
) -> dict[str, Any]:
    """Score both sizes on the higher one's cubes."""
    sets = [(size, seed) for size in pair for seed in range(models)]
    report = folder / f"report_{pair[0]}_{pair[1]}"
    words: list[Any] = ["evaluate", "--truth", unseen, "--label-scheme", "brats2017"]
    words += ["--predictions", *(_predicted(folder, *one) for one in sets)]
    words += ["--names", *(f"{size}^3" for size, _ in sets)]
    _unet3d([*words, "--size", pair[1], "--output", report], folder)
    found = json.loads((report / "report.json").read_text())
    scores = [{name: score[name] for name in _SCORE} for score in found["scores"]]
    return {"error": None, "scores": scores, "tests": found["tests"]["dice"]}


def answer(rows: Rows) -> Answer:
    """Gains in Dice, and how sure they are."""
    body: list[list[str]] = []
    bars: list[Bar] = []
    verdicts: list[tuple[bool | None, str]] = []
    for row in (row for row in rows if row["kind"] == "comparison"):
        low, high = row["pair"]
        tests = {test["region"]: test for test in row["tests"]}
        sure = [tests[r]["corrected_p"] < _SIGNIFICANT for r in REGIONS]
        gains = [tests[region]["median_difference"] for region in REGIONS]
        text = ", ".join(f"{r} {g:+.3f}" for r, g in zip(REGIONS, gains, strict=True))
        good = all(sure) and min(gains) > 0
        verdicts.append((good or None, f"from {low}^3 to {high}^3 Dice gains {text}"))
        for region in REGIONS:
            test = tests[region]
            means = [_mean(row, f"{size}^3", region) for size in (low, high)]
            cells = [f"{low}^3, {high}^3", region, *(f"{mean:.3f}" for mean in means)]
            cells += [f"{test['median_difference']:+.3f}"]
            body.append([*cells, f"{test['p']:.3g}", f"{test['corrected_p']:.3g}"])
            bars.append(
                Bar(
                    label=f"{low}^3 to {high}^3, {region}",
                    length=test["median_difference"],
                    colour=COLOURS["callback"],
                    text=f"{test['median_difference']:+.3f}",
                )
            )
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
    return statistics.fmean(
        float("nan") if score["dice"] is None else score["dice"]
        for score in row["scores"]
        if (score["set"], score["region"]) == (name, region)
    )
