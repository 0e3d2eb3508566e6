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
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from experiments.coarse_subjects import make_coarse_subjects
from experiments.ledger import Head, Row, Rows
from experiments.question import Answer, Finding, cubed, settings_of
from experiments.runner import Book, why_it_failed
from unet3d.figures import draw_boxes
from unet3d.schemes import REGIONS
from unet3d.splits import make_split, write_split

__all__ = ["ANSWER", "main"]

_FOLDER = Path("build") / "experiments" / "dice_vs_volume"
_LONGEST = 3600  # seconds of a training
_MM = 4  # edge of a voxel: the case study's sizes, divided by it
_SIGNIFICANT = 0.05
_EMULATED = (
    "The patients: subjects are synthetic. The device is not: a CPU with all of the "
    "machine's memory."
)


def _add_settings(parser: Any) -> None:
    sizes = (28, 36, 48)
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes, help="rising")
    parser.add_argument("--models", type=int, default=4, help="for each size")
    parser.add_argument("--epochs", type=int, default=40, help="of each training")
    parser.add_argument("--filters", type=int, default=8)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--subjects", type=int, default=12, help="to train with")
    parser.add_argument("--unseen", type=int, default=10, help="to be scored")
    text = "folder of data and runs, which a run that goes on needs"
    parser.add_argument("--folder", type=Path, default=_FOLDER, help=text)


def _run(options: Any) -> None:
    """Finished models of the same settings are kept, also half a training."""
    names = ("sizes", "models", "epochs", "filters", "depth", "subjects", "unseen")
    settings = settings_of(options, *names) | {"voxel_mm": _MM}
    book = Book(options, settings, options.folder)
    seen = _subjects(options.folder / "seen", options.subjects, 0, book.console)
    unseen = _subjects(options.folder / "unseen", options.unseen, 1, book.console)
    split = options.folder / "split.json"
    write_split(split, make_split([p.name for p in sorted(seen.glob("s*"))], seed=0))
    models = [(size, seed) for seed in range(options.models) for size in options.sizes]
    for model in models if options.anew else ():
        for old in (_run_folder, _predicted):
            shutil.rmtree(old(options.folder, *model), ignore_errors=True)
    for size, seed in models:
        _model(size, seed, options, book, (seen, unseen, split))
    for pair in pairwise(options.sizes):
        _compare(pair, options, book, unseen)


def _subjects(folder: Path, count: int, seed: int, console: Console) -> Path:
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"Subjects in {folder.name}", total=count)
        return make_coarse_subjects(
            folder,
            subjects=count,
            seed=seed,
            factor=_MM,
            progress=lambda _: progress.advance(bar),
        )


def _model(
    size: int, seed: int, options: Any, book: Book, data: tuple[Path, Path, Path]
) -> None:
    """Train a model and let it segment the unseen subjects."""
    seen, unseen, split = data
    run = _run_folder(options.folder, size, seed)
    train: list[Any] = ["train", "--data", seen, "--label-scheme", "brats2017"]
    train += ["--size", size, "--filters", options.filters, "--depth", options.depth]
    train += ["--linear-heads", "--epochs", options.epochs, "--seed", seed]
    train += ["--split", split, "--cache", options.folder / "cache", "--no-lms"]
    train += ["--output", run, "--resume"]
    predict = ["predict", "--run", run, "--data", unseen, "--subjects", "all"]
    predict += ["--output", _predicted(options.folder, size, seed)]

    def measure() -> dict[str, Any]:
        started = time.perf_counter()
        for words in (train, predict):
            name = f"{size}^3, model {seed + 1}: {words[0]}"
            _unet3d(words, name, options.folder, book)
        return {"error": None, "seconds": time.perf_counter() - started}

    book.once({"kind": "model", "size": size, "seed": seed}, measure)


def _run_folder(folder: Path, size: int, seed: int) -> Path:
    return folder / f"run_{size}_{seed}"


def _predicted(folder: Path, size: int, seed: int) -> Path:
    return folder / f"predicted_{size}_{seed}"


def _unet3d(words: Sequence[Any], name: str, folder: Path, book: Book) -> None:
    """One command of the case study; what it prints goes to a log."""
    log = folder / "log.txt"
    book.say(name)
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
        raise SystemExit(f"{name}: {error}. Run again: what is finished is kept.")


def _compare(pair: tuple[int, int], options: Any, book: Book, unseen: Path) -> None:
    """Score both sizes on the higher one's cubes."""
    sets = [(size, seed) for size in pair for seed in range(options.models)]
    report = options.folder / f"report_{pair[0]}_{pair[1]}"
    words: list[Any] = ["evaluate", "--truth", unseen, "--label-scheme", "brats2017"]
    words += ["--predictions", *(_predicted(options.folder, *one) for one in sets)]
    words += ["--names", *(f"{size}^3" for size, _ in sets)]
    words += ["--size", pair[1], "--output", report]

    def measure() -> dict[str, Any]:
        _unet3d(words, f"{pair[0]}^3 against {pair[1]}^3", options.folder, book)
        found = json.loads((report / "report.json").read_text())
        return {
            "rule": found["empty rule in words"],
            "scores": [
                {name: score[name] for name in _SCORE} for score in found["scores"]
            ],
            "tests": found["tests"]["dice"],
        }

    book.once({"kind": "comparison", "pair": pair}, measure)


_SCORE = ("set", "subject", "region", "dice")


def _finding(head: Head, rows: Rows) -> Finding:
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
                    f"{cubed(high, low):.2f}",
                    *(f"{mean:.3f}" for mean in means),
                    f"{test['median_difference']:+.3f}",
                    f"{test['p']:.3g}",
                    f"{test['corrected_p']:.3g}",
                ]
            )
            sure = "" if test["corrected_p"] < _SIGNIFICANT else " (not significant)"
            said.append(f"{region} {test['median_difference']:+.3f}{sure}")
        gain = "the median gain in Dice is"
        parts.append(f"From {low}^3 to {high}^3 {gain}: {', '.join(said)}.")
    unseen, models = head["settings"]["unseen"], head["settings"]["models"]
    text = (
        f"{' '.join(parts)} It is the median of {unseen} unseen synthetic subjects, "
        f"each scored by the mean of {models} models."
    )
    columns = ["pair", "region", "voxels", "mean, smaller", "mean, larger"]
    columns += ["median gain", "p", "p by Holm"]
    return text, ("Dice, scored on cubes of the larger size", columns, body)


def _comparisons(rows: Rows) -> list[Row]:
    return [row for row in rows if row["kind"] == "comparison"]


def _mean(row: Row, name: str, region: str) -> float:
    return statistics.fmean(_values(row, name, region))


def _values(row: Row, name: str, region: str) -> list[float]:
    return [
        float("nan") if score["dice"] is None else score["dice"]
        for score in row["scores"]
        if (score["set"], score["region"]) == (name, region)
    ]


def _plot(head: Head, rows: Rows, path: Path) -> None:
    """A figure for each pair."""
    for row in _comparisons(rows):
        low, high = row["pair"]
        name = f"{path.stem}_{low}_{high}{path.suffix}"
        _boxes(head, row, path.with_name(name))


def _boxes(head: Head, row: Row, path: Path) -> None:
    low, high = row["pair"]
    names = [f"{low}^3", f"{high}^3"]
    settings = head["settings"]
    draw_boxes(
        {
            region: {name: _values(row, name, region) for name in names}
            for region in REGIONS
        },
        path,
        title=f"Dice on cubes of {high}^3: {cubed(high, low):.2f} times the voxels",
        label="Dice, 1 is perfect",
        note=(
            f"Unseen synthetic subjects of {settings['voxel_mm']} mm voxels; each dot "
            f"a subject, the mean of {settings['models']} models. "
            f"Commit {head['commit']}."
        ),
        limits=(None, 1.02),
    )


ANSWER = Answer(
    name="dice_vs_volume",
    title="Do larger volumes give better segmentations?",
    emulated=_EMULATED,
    about=__doc__,
    add_settings=_add_settings,
    run=_run,
    finding=_finding,
    plot=_plot,
)
main = ANSWER.main

if __name__ == "__main__":
    raise SystemExit(main())
