"""The command line: `python -m lms emulate --memory 96MiB -- python train.py`."""

import argparse
import os
from collections.abc import Sequence
from typing import NoReturn

from lms.emulate import environment

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one subcommand; mistakes in the arguments end with exit code 2.

    Args:
        arguments: What follows `python -m lms`; that of this process by default.

    Raises:
        SystemExit: With 2 after a mistake, with 0 after `--help`.

    Example:
        $ python -m lms emulate --memory 96MiB -- python train.py
    """
    parser = argparse.ArgumentParser(prog="python -m lms", description=__doc__)
    subcommands = parser.add_subparsers(title="subcommands", required=True)
    emulate = subcommands.add_parser(
        "emulate",
        help="run a command with the CPU as a device of a given memory",
        usage="python -m lms emulate --memory SIZE -- COMMAND ...",
    )
    emulate.add_argument(
        "--memory",
        required=True,
        type=_variables,
        metavar="SIZE",
        dest="variables",
        help="memory of the device, such as 96MiB or 1.5GiB",
    )
    emulate.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="the program and its arguments",
    )
    options = parser.parse_args(arguments)
    _become(options.command, options.variables, emulate)


def _variables(memory: str) -> dict[str, str]:
    """Parse --memory; argparse shows only its own kind of error as it is written."""
    try:
        return environment(memory)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _become(
    command: list[str], variables: dict[str, str], parser: argparse.ArgumentParser
) -> NoReturn:
    """Replace this process by the command: signals and exit code are the command's."""
    program = command[1:] if command[:1] == ["--"] else command
    if not program:
        parser.error("COMMAND must name a program, got nothing. Write it after `--`.")
    try:
        os.execvpe(program[0], program, {**os.environ, **variables})
    except OSError as error:
        parser.error(
            f"COMMAND must be a program that can be started, got '{program[0]}' "
            f"({error.strerror}). Check its name and path."
        )


if __name__ == "__main__":
    main()
