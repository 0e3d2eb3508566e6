"""A model that does not fit, trained: `make demo`.

    subjects on disk --> arrays --> four trainings, each in a process and a card of
    its own --> one table, one figure, results.json

    plain Keras, enough memory      how much it takes, how long, and which numbers
    plain Keras, half of that       ends in TensorFlow's own out-of-memory error
    the callback, half of that      trains, with the same numbers
    the callback, near the least    trains, with the same numbers

The card is emulated: TensorFlow's own GPU runtime, whose allocator has a hard limit. Op
determinism is on, so "the same" means bit for bit.

Known weakness: kernels and copies take the time of the machine's cores. Step times say
nothing of a GPU's.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from experiments.demo_report import draw, failed_claims, print_table, save
from experiments.runner import Trial, run_trial
from lms.storage.files import write_arrays
from lms.units import MIB, format_bytes
from unet3d.data import MODALITIES, prepare, read_subject
from unet3d.synthesis import synthesize

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo.

    Args:
        arguments: The words after `python -m experiments.demo`.

    Returns:
        The exit status: 0 if everything that the demo claims came out so.
    """
    options = _parser().parse_args(arguments)
    console = Console()
    started = time.perf_counter()
    options.output.mkdir(parents=True, exist_ok=True)
    folders = _subjects(options, console)
    arrays = _arrays(options, folders, console)
    trials = _trials(_trainer(options, arrays, console))
    failures = failed_claims(trials)
    figure, results = options.output / "memory.png", options.output / "results.json"
    save(trials, vars(options), failures, results)
    if not failures:
        print_table(trials, console)
        draw(trials, figure)
        console.print(f"Memory over a step, drawn: {figure}")
    for failure in failures:
        console.print(f"Failed: {failure}", style="red", markup=False, soft_wrap=True)
    console.print(f"All numbers: {results}")
    console.print(f"{time.perf_counter() - started:.0f} s in all")
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.demo",
        description="Train what does not fit, with plain Keras and the callback.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/demo"), help="folder to fill"
    )
    parser.add_argument("--size", type=int, default=48, help="voxels along an axis")
    parser.add_argument("--filters", type=int, default=8, help="of the top level")
    parser.add_argument("--depth", type=int, default=4, help="levels of the network")
    parser.add_argument("--subjects", type=int, default=4, help="to make and train on")
    parser.add_argument("--epochs", type=int, default=3, help="of each training")
    parser.add_argument("--seed", type=int, default=0, help="of subjects and weights")
    return parser


def _subjects(options: argparse.Namespace, console: Console) -> list[Path]:
    """Subjects on disk: those of the last run, or new ones."""
    folder = options.output / f"subjects-seed{options.seed}"
    wanted = [folder / f"synthetic_{i:03d}" for i in range(options.subjects)]
    if all(_is_complete(subject) for subject in wanted):
        console.print(f"{len(wanted)} subjects are in {folder} already")
        return wanted
    with Progress(console=console) as progress:
        bar = progress.add_task("Making subjects", total=options.subjects)
        made = synthesize(
            folder,
            subjects=options.subjects,
            seed=options.seed,
            progress=lambda _: progress.advance(bar),
        )
    return list(made)


def _is_complete(subject: Path) -> bool:
    names = (*MODALITIES, "seg")
    return all((subject / f"{subject.name}_{n}.nii.gz").exists() for n in names)


def _arrays(
    options: argparse.Namespace, folders: Sequence[Path], console: Console
) -> Path:
    """The network's arrays, in one file for all trials."""
    path = options.output / "arrays.npz"
    cube = f"{options.size}x{options.size}x{options.size}"
    with console.status(f"Reading {len(folders)} subjects at {cube}"):
        pairs = [prepare(read_subject(f), options.size) for f in folders]
        volumes, regions = (np.stack(part) for part in zip(*pairs, strict=True))
        write_arrays(path, {"x": volumes, "y": regions})
    console.print(
        f"{len(folders)} subjects read at {cube}, "
        f"{format_bytes(volumes.nbytes + regions.nbytes)}"
    )
    return path


def _trainer(
    options: argparse.Namespace, arrays: Path, console: Console
) -> Callable[..., Trial]:
    """What runs one training, given its name, its memory and further flags."""
    settings = ("filters", "depth", "epochs", "seed")
    words = [f"--{name}={getattr(options, name)}" for name in settings]
    return partial(
        run_trial,
        command=["experiments.demo_trial", f"--data={arrays}", *words],
        folder=options.output / "trials",
        console=console,
    )


def _trials(train: Callable[..., Trial]) -> list[Trial]:
    """Each limit follows from what the trainings before it measured."""
    plain = train("plain Keras, enough memory", memory=None)
    if plain.result is None:
        return [plain]
    half = plain.result["peak_bytes"] // 2 // MIB * MIB
    refused = train("plain Keras, half of it", memory=half)
    planned = train("the callback, half of it", memory=half, flags=["--lms", "--least"])
    if planned.result is None:
        return [plain, refused, planned]
    least = min(half, _least_memory(planned.result))
    tight = train("the callback, near the least", memory=least, flags=["--lms"])
    return [plain, refused, planned, tight]


def _least_memory(planned: Mapping[str, Any]) -> int:
    """The least budget, and the margin."""
    needed = planned["least_budget_bytes"] + planned["report"]["margin_bytes"]
    return -(-needed // MIB) * MIB


if __name__ == "__main__":
    raise SystemExit(main())
