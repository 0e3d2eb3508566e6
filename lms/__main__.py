"""The command line: run on an emulated card, plan before training, find faults.

Each subcommand imports its modules when it runs: `--help` waits for no TensorFlow.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from lms import __version__
from lms.commands.model_file import find_file
from lms.emulation.card import card_variables, memory_variable
from lms.machine.hardware import LINKS, PRESETS, LinkRates
from lms.planning.settings import RECOMPUTE_WORDS
from lms.units import parse_size

__all__ = ["main"]

# TensorFlow logs each start; errors come as exceptions.
_QUIET = ("TF_CPP_MIN_LOG_LEVEL", "3")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one subcommand.

    Args:
        arguments: Words after `python -m lms`; None takes those of this process.

    Raises:
        SystemExit: Always; code 0 after `--help`, 2 after a mistake, else the
            subcommand's or that of `lms.commands.endings`.

    Example:
        $ python -m lms emulate --memory 96MiB -- python train.py
    """
    parser = argparse.ArgumentParser(prog="python -m lms", description=__doc__)
    parser.add_argument("--version", action="version", version=f"lms {__version__}")
    subcommands = parser.add_subparsers(title="subcommands", required=True)
    for add in (_add_emulate, _add_launch, _add_plan, _add_doctor):
        add(subcommands)
    options = parser.parse_args(arguments)
    from lms.commands.endings import end_well

    def say(text: str) -> None:
        print(f"{options.parser.prog}: {text}", file=sys.stderr)

    raise SystemExit(end_well(lambda: options.run(options), say))


# The words after an option `--`.
_COMMAND: dict[str, Any] = {
    "nargs": argparse.REMAINDER,
    "metavar": "COMMAND",
    "help": "the program and its arguments",
}


def _add_emulate(subcommands: Any) -> None:
    emulate = subcommands.add_parser(
        "emulate",
        help="run a command on an emulated card of a given memory",
        usage="python -m lms emulate [-h] [--memory SIZE] [--cards N] [--card NAME] "
        "[--link NAME | --h2d RATE --d2h RATE] [--latency SECONDS] [--dry] "
        "[--slow-motion F] -- COMMAND ...",
        description="TensorFlow's own GPU runtime on a driver made of host memory. The "
        "driver is compiled once, which takes a minute.",
    )
    emulate.add_argument(
        "--memory",
        type=_type(_memory),
        metavar="SIZE",
        help="card memory that TensorFlow may use, such as 96MiB or 1.5GiB",
    )
    emulate.add_argument(
        "--cards", type=int, default=1, metavar="N", help="how many cards, 1 by default"
    )
    emulate.add_argument(
        "--card",
        choices=PRESETS,
        metavar="NAME",
        help=f"memory, rates and link of a card: one of {', '.join(PRESETS)}",
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
    group = emulate.add_argument_group("the link to the host, for copies of tensors")
    group.add_argument(
        "--link",
        choices=LINKS,
        metavar="NAME",
        help=f"published rates of a link: one of {', '.join(LINKS)}",
    )
    group.add_argument(
        "--h2d", type=_type(_rate), metavar="RATE", help="to the card, as 12GB/s"
    )
    group.add_argument("--d2h", type=_type(_rate), metavar="RATE", help="from the card")
    group.add_argument("--latency", type=float, metavar="SECONDS", help="of each copy")
    emulate.add_argument("command", **_COMMAND)
    emulate.set_defaults(run=_emulate, parser=emulate)


def _add_launch(subcommands: Any) -> None:
    launch = subcommands.add_parser(
        "launch",
        help="run a command several times on this host, as the workers of one job",
        usage="python -m lms launch [-h] -n N [--groups N] [--memory SIZE,...] "
        "[--grace SECONDS] -- COMMAND ...",
        epilog="Exit codes: 0 if all workers ended with 0; else the first other code, "
        "or 128 plus the number of the signal that ended a worker.",
    )
    launch.add_argument(
        "-n", dest="workers", required=True, type=int, metavar="N", help="workers"
    )
    launch.add_argument(
        "--groups",
        type=int,
        metavar="N",
        help="split the workers into loose groups; a group that fails is restarted",
    )
    launch.add_argument(
        "--memory",
        type=_type(lambda text: [_memory(size) for size in text.split(",")]),
        metavar="SIZE,...",
        help="emulate a card for each worker, of one size for all or a size for each",
    )
    launch.add_argument(
        "--grace",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="time for the other workers to end after one has failed",
    )
    launch.add_argument("command", **_COMMAND)
    launch.set_defaults(run=_launch, parser=launch)


def _add_plan(subcommands: Any) -> None:
    plan = subcommands.add_parser(
        "plan",
        help="predict whether a model fits, and how fast it trains",
        usage="python -m lms plan [-h] FILE.py:function [--budget SIZE] "
        "[--hardware NAME] [--link NAME] [--planner NAME] [--recompute HOW] "
        "[--json FILE] [--figure FILE] [--output FILE]",
        description="Plan a model's training step. Nothing is trained.",
        epilog="Exit codes: 0 when a plan exists, 3 when no plan fits, 2 for a mistake "
        "in the arguments or the file.",
    )
    plan.add_argument(
        "subject",
        type=_type(lambda text: find_file(text) and text),  # before TensorFlow
        metavar="FILE.py:function",
        help="a function that returns a compiled Keras model and a batch: (x, y) as "
        "tf.TensorSpec or arrays",
    )
    plan.add_argument(
        "--budget",
        type=_type(partial(parse_size, name="budget")),
        metavar="SIZE",
        help="device memory, such as 96MiB; by default the device's less a margin",
    )
    plan.add_argument(
        "--hardware",
        choices=PRESETS,
        metavar="NAME",
        help="plan for another device, by a roofline; by default the present (or "
        f"emulated) device is measured. One of {', '.join(PRESETS)}",
    )
    plan.add_argument(
        "--link",
        choices=PRESETS,
        metavar="NAME",
        help="plan with the link of this hardware",
    )
    plan.add_argument(
        "--planner",
        choices=("budget", "threshold"),
        default="budget",
        metavar="NAME",
        help="budget (the default), or threshold, which is IBM's rule",
    )
    plan.add_argument(
        "--recompute",
        choices=RECOMPUTE_WORDS,
        default="auto",
        help="recompute ops instead of keeping or offloading their outputs: where "
        "predicted to be faster (auto, the default), wherever possible (always), or "
        "never",
    )
    plan.add_argument(
        "--json", type=Path, metavar="FILE", help="write the forecast and the plan"
    )
    plan.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help='write the plan alone, for LMSCallback(plan="FILE")',
    )
    plan.add_argument(
        "--figure", type=Path, metavar="FILE", help="draw the step over time, as PNG"
    )
    plan.set_defaults(run=_plan, parser=plan)


def _add_doctor(subcommands: Any) -> None:
    doctor = subcommands.add_parser(
        "doctor",
        help="report what this machine has, its problems, and what to do",
        epilog="Exit codes: 0 without a problem, 1 with one.",
    )
    doctor.add_argument("--json", action="store_true", help="as JSON")
    doctor.set_defaults(run=_doctor, parser=doctor)


def _emulate(options: argparse.Namespace) -> NoReturn:
    from lms.emulation.emulate import become, environment

    card = {
        "cards": options.cards,
        "card": options.card,
        "link": _link(options),
        "dry": options.dry,
        "slow_motion": options.slow_motion,
    }
    try:
        card_variables(options.memory, **card)
    except ValueError as error:
        options.parser.error(str(error))
    become(options.command, environment(options.memory, **card))


def _launch(options: argparse.Namespace) -> int:
    from lms.workers.launching import launch

    command: list[str] = options.command
    command = command[1:] if command[:1] == ["--"] else command
    environ, sizes = dict(os.environ), options.memory or []
    if len(sizes) not in (0, 1, options.workers):
        options.parser.error(
            f"--memory must be one size, or one for each of {options.workers} workers, "
            f"got {len(sizes)}. Separate sizes by commas."
        )
    if sizes:
        from lms.emulation.emulate import environment

        environ = environment(sizes[0], cards=options.workers)
    os.environ.update(environ)  # groups are copies of this process
    return launch(
        command,
        workers=options.workers,
        groups=options.groups,
        each=[memory_variable(size) for size in sizes] if len(sizes) > 1 else [],
        grace=options.grace,
    )


def _plan(options: argparse.Namespace) -> int:
    os.environ.setdefault(*_QUIET)
    from lms.commands.plan import Request, plan

    return plan(Request(**{f.name: getattr(options, f.name) for f in fields(Request)}))


def _doctor(options: argparse.Namespace) -> int:
    os.environ.setdefault(*_QUIET)
    from lms.commands.doctor import doctor

    return doctor(as_json=options.json)


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


def _type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap a parser for argparse, which shows the text of its own errors only."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def _memory(text: str) -> str:
    card_variables(text)
    return text


def _rate(text: str) -> float:
    """Parse bytes per second; the suffix "/s" is optional."""
    if not re.search("[1-9]", text):
        raise ValueError(
            f"a rate must be bytes per second above 0, got {text!r}. Write 12GB/s."
        )
    return float(parse_size(text.removesuffix("/s"), name="rate"))


if __name__ == "__main__":
    main()
