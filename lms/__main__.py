"""The command line: `python -m lms emulate --memory 96MiB -- python train.py`."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from lms.emulate import environment
from lms.hardware import PRESETS
from lms.link import LinkRates
from lms.units import parse_size

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
        usage="python -m lms emulate --memory SIZE [--link NAME | --h2d RATE "
        "--d2h RATE] [--scale F] [--latency SECONDS] [--bus FILE] -- COMMAND ...",
    )
    emulate.add_argument(
        "--memory",
        required=True,
        type=_memory,
        metavar="SIZE",
        help="memory of the device, such as 96MiB or 1.5GiB",
    )
    _add_link_options(emulate)
    emulate.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="the program and its arguments",
    )
    options = parser.parse_args(arguments)
    link = _link(options, emulate)
    _become(options.command, environment(options.memory, link=link), emulate)


def _add_link_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the link to the host, for copies of tensors")
    group.add_argument("--link", choices=PRESETS, help="the link of this hardware")
    group.add_argument("--h2d", type=_rate, metavar="RATE", help="to it, as 12GB (/s)")
    group.add_argument("--d2h", type=_rate, metavar="RATE", help="from it")
    group.add_argument("--latency", type=float, metavar="SECONDS", help="of each copy")
    group.add_argument("--scale", type=float, metavar="F", help="F times the rates")
    group.add_argument("--bus", type=Path, metavar="FILE", help="share it by this file")


def _link(
    options: argparse.Namespace, parser: argparse.ArgumentParser
) -> LinkRates | None:
    given = (options.h2d, options.d2h)
    if options.link is None and given == (None, None):
        for name in ("latency", "scale", "bus"):
            if getattr(options, name) is not None:
                parser.error(f"--{name} must come with a link. Add --link NAME.")
        return None
    if options.link is not None and given != (None, None):
        parser.error("--link must be given alone, got --h2d or --d2h too. Leave one.")
    if options.link is None and None in given:
        parser.error("--h2d and --d2h must be given together. Add the other one.")
    try:
        return _rates(options)
    except ValueError as error:
        parser.error(str(error))


def _rates(options: argparse.Namespace) -> LinkRates:
    """The link that the options name; bandwidths are scaled, latency is not."""
    if options.link is not None:
        rates = LinkRates.of(PRESETS[options.link])
    else:
        rates = LinkRates(h2d=options.h2d, d2h=options.d2h)
    if options.latency is not None:
        rates = replace(rates, latency=options.latency)
    return replace(
        rates.scaled(1.0 if options.scale is None else options.scale), bus=options.bus
    )


def _memory(text: str) -> str:
    """Parse --memory; argparse shows only its own kind of error as it is written."""
    try:
        environment(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _rate(text: str) -> float:
    """Parse bytes per second; "/s" may be written or not."""
    try:
        return float(parse_size(text.removesuffix("/s"), name="rate"))
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
