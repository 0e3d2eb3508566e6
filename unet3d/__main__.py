"""The command line of the case study: `python -m unet3d COMMAND --help`."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from lms.units import parse_size
from unet3d.runs import Configuration
from unet3d.schemes import SCHEMES
from unet3d.synthesis import synthesize

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The words after `python -m unet3d`; the process's own if left out.

    Returns:
        The exit status: 0 for success, 2 for a bad value or file, 3 if the device has
        too little memory.
    """
    options = _parser().parse_args(arguments)
    console = Console(stderr=True)
    try:
        return options.run(options, console)
    except (ValueError, FileNotFoundError) as error:
        console.print(f"Error: {error}", style="red", markup=False, soft_wrap=True)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m unet3d", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_synthesize(commands)
    _add_train(commands)
    return parser


def _command(commands: Any, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name, help=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    command.set_defaults(run=run)
    return command


def _add_synthesize(commands: Any) -> None:
    text = "write BraTS-like subjects as NIfTI files, labels brats2017"
    command = _command(commands, "synthesize", text, _synthesize)
    command.add_argument("--output", type=Path, required=True, help="folder to fill")
    command.add_argument("--subjects", type=int, default=12, help="how many")
    command.add_argument("--seed", type=int, default=0, help="same seed, same voxels")


def _add_train(commands: Any) -> None:
    command = _command(commands, "train", "train the network", _train)
    add = command.add_argument
    add("--data", type=Path, required=True, help="folder of subjects")
    _add_scheme(command)
    add("--output", type=Path, required=True, help="folder of the run")
    add("--size", type=int, default=144, help="voxels along each axis")
    add("--filters", type=int, default=16, help="channels of the top level")
    add("--depth", type=int, default=5, help="levels")
    add("--batch-size", type=int, default=1, help="subjects per step")
    add("--epochs", type=int, default=300, help="most epochs")
    add("--steps-per-epoch", type=int, help="one pass over the subjects if left out")
    add("--seed", type=int, default=0, help="decides every random choice")
    add(
        "--lms",
        action=argparse.BooleanOptionalAction,
        help="large model support; where a step does not fit, if left out",
    )
    add("--budget", type=_size, metavar="SIZE", help="device memory, such as 12GiB")
    add("--mixed-precision", action="store_true", help="activations in float16")
    add("--linear-heads", action="store_true", help="heads without normalisation")
    add("--augment", action=argparse.BooleanOptionalAction, default=True)
    add("--split", type=Path, help="split.json of another run")
    add("--resume", action="store_true", help="go on with the run in --output")
    _add_shared(command)


def _add_scheme(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--label-scheme",
        choices=tuple(SCHEMES),
        required=True,
        help="what the labels mean; synthesised data is brats2017",
    )


def _add_shared(command: argparse.ArgumentParser) -> None:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    command.add_argument(
        "--cache",
        type=Path,
        default=Path(base) / "unet3d",
        help="folder of prepared subjects",
    )
    command.add_argument(
        "--skip-bad",
        action="store_true",
        help="leave out subjects that cannot be read, and list them",
    )


def _size(text: str) -> int:
    try:
        return parse_size(text, name="budget")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def _synthesize(options: argparse.Namespace, console: Console) -> int:
    with _bars(console) as progress:
        bar = progress.add_task("Writing subjects", total=options.subjects)
        folders = synthesize(
            options.output,
            subjects=options.subjects,
            seed=options.seed,
            progress=lambda _: progress.advance(bar),
        )
    console.print(f"Subjects written to {options.output}: {len(folders)}")
    return 0


def _train(options: argparse.Namespace, console: Console) -> int:
    configuration = Configuration(
        data=str(options.data.resolve()),
        label_scheme=options.label_scheme,
        size=options.size,
        filters=options.filters,
        depth=options.depth,
        batch_size=options.batch_size,
        epochs=options.epochs,
        steps_per_epoch=options.steps_per_epoch,
        seed=options.seed,
        mixed_precision=options.mixed_precision,
        linear_heads=options.linear_heads,
        varied=options.augment,
        lms=options.lms,
        budget=options.budget,
    )
    # As wide as it matters: without oneDNN a 3-D convolution on a CPU takes three times
    # the memory and ten times the time. Read when TensorFlow is imported.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    from unet3d.training import train

    # A run that is resumed must end as if it had never stopped.
    tf.config.experimental.enable_op_determinism()
    try:
        with _bars(console) as progress:
            outcome = train(
                configuration,
                options.output,
                cache=options.cache,
                split=options.split,
                resume=options.resume,
                skip_bad=options.skip_bad,
                progress=progress,
            )
    except tf.errors.ResourceExhaustedError as error:
        console.print(
            f"Error: device memory must hold a step of {options.size}^3, got too "
            "little. Train with --lms, or a smaller --size or --batch-size. "
            f"TensorFlow said: {str(error).splitlines()[0]}",
            style="red",
            markup=False,
            soft_wrap=True,
        )
        return 3
    for problem in outcome.problems:
        console.print(f"Left out {problem.name}: {problem.message}", markup=False)
    console.print(
        f"Trained {outcome.epochs} epochs with {len(outcome.split.training)} subjects; "
        f"best Dice of {len(outcome.split.validation)} validation subjects "
        f"{outcome.best:.3f}. Everything is in {options.output}."
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
