"""The command line of the case study: `python -m unet3d synthesize`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from unet3d.synthesis import synthesize

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The words after `python -m unet3d`; the process's own if left out.

    Returns:
        The exit status: 0 for success, 2 for a bad value.
    """
    options = _parser().parse_args(arguments)
    console = Console(stderr=True)
    try:
        return options.run(options, console)
    except ValueError as error:
        console.print(f"Error: {error}", style="red", markup=False)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m unet3d", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser(
        "synthesize",
        help="write BraTS-like subjects as NIfTI files",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument("--output", type=Path, required=True, help="folder to fill")
    command.add_argument("--subjects", type=int, default=12, help="how many")
    command.add_argument("--seed", type=int, default=0, help="same seed, same voxels")
    command.set_defaults(run=_synthesize)
    return parser


def _synthesize(options: argparse.Namespace, console: Console) -> int:
    with Progress(console=console) as progress:
        bar = progress.add_task("Writing subjects", total=options.subjects)
        folders = synthesize(
            options.output,
            subjects=options.subjects,
            seed=options.seed,
            progress=lambda _: progress.advance(bar),
        )
    console.print(f"Subjects written to {options.output}: {len(folders)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
