"""The command line: run on an emulated card, plan before training, find faults.

Each subcommand imports its modules when it runs: `--help` waits for no TensorFlow.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from lms import __version__
from lms.commands.model_file import find_file
from lms.emulation.card import checked_memory, memory_variable
from lms.emulation.command import COMMAND, add_emulate, argument_type
from lms.machine.hardware import PRESETS, find_hardware
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
    parser.add_argument("--version", action="version", version=f"tflms {__version__}")
    subcommands = parser.add_subparsers(title="subcommands", required=True)
    for add in (add_emulate, _add_launch, _add_plan, _add_doctor):
        add(subcommands)
    options = parser.parse_args(arguments)
    from lms.commands.endings import end_well

    def say(text: str) -> None:
        print(f"{options.parser.prog}: {text}", file=sys.stderr)

    raise SystemExit(end_well(lambda: options.run(options), say))


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
        type=argument_type(lambda text: [*map(checked_memory, text.split(","))]),
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
    launch.add_argument("command", **COMMAND)
    launch.set_defaults(run=_launch, parser=launch)


def _add_plan(subcommands: Any) -> None:
    plan = subcommands.add_parser(
        "plan",
        help="predict whether a model fits, and how fast it trains",
        usage="python -m lms plan [-h] FILE.py:function [OPTION ...]",
        description="Plan a model's training step. Nothing is trained.",
        epilog="Exit codes: 0 when a plan exists, 3 when no plan fits, 2 for a mistake "
        "in the arguments or the file.",
    )
    plan.add_argument(
        "subject",
        type=argument_type(lambda text: find_file(text) and text),  # before TensorFlow
        metavar="FILE.py:function",
        help="a function that returns a compiled Keras model and a batch: (x, y) as "
        "tf.TensorSpec or arrays",
    )
    plan.add_argument(
        "--budget",
        type=argument_type(partial(parse_size, name="budget")),
        metavar="SIZE",
        help="device memory, such as 96MiB; by default the device's less a margin",
    )
    plan.add_argument(
        "--hardware",
        type=argument_type(_checked_card),
        metavar="NAME",
        help="plan for another device, by a roofline; by default the present (or "
        f"emulated) device is measured. One of {', '.join(PRESETS)}; `all` of them; "
        "or any other by its numbers: 12GiB,12.7TF,360GB/s,pcie4",
    )
    plan.add_argument(
        "--link",
        type=argument_type(_checked_card),
        metavar="NAME",
        help="plan with the link of this hardware",
    )
    plan.add_argument(
        "--host-memory",
        type=argument_type(partial(parse_size, name="host memory")),
        metavar="SIZE",
        help="the most host memory for swapped tensors; by default what is free here",
    )
    plan.add_argument(
        "--largest",
        action="store_true",
        help="find the largest sizes that train: the function takes one number, such "
        "as a batch's examples or a volume's edge",
    )
    plan.add_argument(
        "--multiple",
        type=argument_type(_multiple),
        default=1,
        metavar="N",
        help="with --largest, try multiples of N only",
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
        "--page",
        type=Path,
        metavar="FILE",
        help="write a page to look at, as HTML: memory by layer over time, and what "
        "becomes of each tensor; also of a step without a plan",
    )
    plan.set_defaults(run=_plan, parser=plan)


def _add_doctor(subcommands: Any) -> None:
    doctor = subcommands.add_parser(
        "doctor",
        help="report what this machine has, its problems, and what to do",
        epilog="Exit codes: 0 without a problem, 1 with one.",
    )
    doctor.add_argument("--json", action="store_true", help="as JSON")
    doctor.add_argument(
        "--require-gpu", action="store_true", help="a missing GPU is a problem"
    )
    doctor.set_defaults(run=_doctor, parser=doctor)


def _checked_card(text: str) -> str:
    return text if text == "all" else (find_hardware(text) and text)


def _multiple(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError(
            f"the multiple must be a whole number above 0, got {text!r}. Write 16."
        )
    return int(text)


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
    if options.largest and options.hardware not in (None, "all"):
        from lms.emulation.emulate import limit_memory

        limit_memory(card=options.hardware, dry=True, timed=False)
    from lms.commands.plan import plan

    return plan(options)


def _doctor(options: argparse.Namespace) -> int:
    os.environ.setdefault(*_QUIET)
    from lms.commands.doctor import doctor

    return doctor(as_json=options.json, needs_gpu=options.require_gpu)


if __name__ == "__main__":
    main()
