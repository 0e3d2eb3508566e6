"""The subcommand `emulate`, and parts of options that other subcommands share."""

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from lms.emulation.card import LINKS, LinkRates, card_variables, checked_memory
from lms.machine.hardware import PRESETS, find_hardware
from lms.units import parse_size

__all__ = ["COMMAND", "add_emulate", "argument_type"]

# The words after an option `--`.
COMMAND: Final[dict[str, Any]] = {
    "nargs": argparse.REMAINDER,
    "metavar": "COMMAND",
    "help": "the program and its arguments",
}


def argument_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap a parser for argparse, which shows the text of its own errors only."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def add_emulate(subcommands: Any) -> None:
    """Add the subcommand to those of `python -m lms`."""
    emulate = subcommands.add_parser(
        "emulate",
        help="run a command on an emulated card of a given memory",
        usage="python -m lms emulate [-h] [--memory SIZE] [--cards N] [--card NAME] "
        "[--link NAME | --h2d RATE --d2h RATE] [--latency SECONDS] [--dry] "
        "[--slow-motion F] [--races] [--late [SEED]] -- COMMAND ...",
        description="TensorFlow's own GPU runtime on a driver made of host memory. The "
        "driver is compiled once, which takes one to four minutes.",
        epilog="Exit codes: the program's; with --races 4 if there was a race.",
    )
    emulate.add_argument(
        "--memory",
        type=argument_type(checked_memory),
        metavar="SIZE",
        help="card memory that TensorFlow may use, such as 96MiB or 1.5GiB",
    )
    emulate.add_argument(
        "--cards", type=int, default=1, metavar="N", help="how many cards, 1 by default"
    )
    emulate.add_argument(
        "--card",
        type=argument_type(lambda text: find_hardware(text) and text),
        metavar="NAME",
        help=f"memory, rates and link of a card: one of {', '.join(PRESETS)}, or any "
        "other by its numbers: 12GiB,12.7TF,360GB/s,pcie4",
    )
    emulate.add_argument(
        "--dry",
        action="store_true",
        help="compute nothing, but model the memory and time of steps on --card",
    )
    emulate.add_argument(
        "--slow-motion",
        type=float,
        default=1.0,
        metavar="F",
        help="multiply all modelled times by F",
    )
    emulate.add_argument(
        "--races",
        action="store_true",
        help="find accesses to memory that no stream, event or wait orders",
    )
    emulate.add_argument(
        "--late",
        type=int,
        nargs="?",
        const=0,
        metavar="SEED",
        help="copies take effect as late as is legal, or at moments drawn by SEED",
    )
    group = emulate.add_argument_group("the link to the host, for copies of tensors")
    group.add_argument(
        "--link",
        choices=LINKS,
        metavar="NAME",
        help=f"published rates of a link: one of {', '.join(LINKS)}",
    )
    group.add_argument(
        "--h2d",
        type=argument_type(_rate),
        metavar="RATE",
        help="to the card, as 12GB/s",
    )
    group.add_argument(
        "--d2h", type=argument_type(_rate), metavar="RATE", help="from the card"
    )
    group.add_argument("--latency", type=float, metavar="SECONDS", help="of each copy")
    emulate.add_argument("command", **COMMAND)
    emulate.set_defaults(run=_emulate, parser=emulate)


def _emulate(options: argparse.Namespace) -> int:
    from lms.emulation.emulate import become, environment
    from lms.emulation.races import race_variables, run_watched

    card = {
        "cards": options.cards,
        "card": options.card,
        "link": _link(options),
        "dry": options.dry,
        "slow_motion": options.slow_motion,
    }
    late: Mapping[str, str] = {}
    try:
        card_variables(options.memory, **card)
        late = race_variables(late=options.late)
    except ValueError as error:
        options.parser.error(str(error))
    variables = {**environment(options.memory, **card), **late}
    if not options.races:
        become(options.command, variables)
    return run_watched(options.command, variables)


def _link(options: argparse.Namespace) -> LinkRates | None:
    parser: argparse.ArgumentParser = options.parser
    given, latency = (options.h2d, options.d2h), options.latency
    if options.link is None and given == (None, None):
        if latency is not None:
            parser.error("--latency must come with a link. Add --link NAME.")
        return None
    if options.link is not None and given != (None, None):
        parser.error("--link must be given alone, got --h2d or --d2h too. Leave one.")
    if options.link is None and None in given:
        parser.error("--h2d and --d2h must be given together. Add the other one.")
    try:
        own = LINKS.get(options.link or "")
        rates = own or LinkRates(h2d=options.h2d, d2h=options.d2h)
        return rates if latency is None else replace(rates, latency=latency)
    except ValueError as error:
        parser.error(str(error))


def _rate(text: str) -> float:
    """Parse bytes per second; the suffix "/s" is optional."""
    if not re.search("[1-9]", text):
        raise ValueError(
            f"a rate must be bytes per second above 0, got {text!r}. Write 12GB/s."
        )
    return float(parse_size(text.removesuffix("/s"), name="rate"))
