"""The words of the command: run a question, show its rows, write the page."""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.page import (
    QUESTIONS,
    STUDIES,
    answer_of,
    check_or_write,
    module_of,
    print_answer,
)
from experiments.runner import RESULTS, Book, OutOfTimeError

__all__ = ["main"]

_REAL = Path("build") / "real"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, show, or write.

    Args:
        arguments: The words after `python -m experiments`.

    Returns:
        The exit status: 1 if a verdict does not hold or the page is not current, 2 if
        there is nothing to show, 3 if there is no card.
    """
    options = _parser().parse_args(arguments)
    if options.command == "page":
        return check_or_write(check=options.check)
    if options.command == "show":
        found = answer_of(options.question, options.results or _path(options))
        if found is None:
            sys.stderr.write(
                f"{options.question}: no rows. Measure first, with `run`.\n"
            )
            return 2
        return print_answer(found)
    return _run(options)


def _path(options: Any) -> Path:
    folder = _REAL if getattr(options, "card", "") == "real" else RESULTS
    return folder / f"{options.question}.jsonl"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    page = commands.add_parser("page", help="write docs/results.md and its figures")
    page.add_argument("--check", action="store_true", help="write nothing")
    show = commands.add_parser("show", help="print what the rows say")
    run = commands.add_parser("run", help="measure what is missing")
    for command in (show, run):
        questions = command.add_subparsers(dest="question", required=True)
        for name in (*QUESTIONS, *STUDIES, "gpu"):
            module = module_of(name)
            asked = questions.add_parser(
                name,
                help=module.TITLE,
                description=module.__doc__,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            asked.add_argument("--results", type=Path, help="JSON lines")
            if command is run:
                _add_run(asked)
                module.add_settings(asked)
    return parser


def _add_run(parser: Any) -> None:
    text = "emulated: of each trial's own; real: the one that is here"
    cards = ("emulated", "real")
    parser.add_argument("--card", choices=cards, default="emulated", help=text)
    text = "ends after so many; call it again, and it goes on"
    parser.add_argument("--minutes", type=float, default=float("inf"), help=text)
    parser.add_argument("--jobs", type=int, default=1, help="trials at once")
    text = "measure all of it, also what the file has"
    parser.add_argument("--anew", action="store_true", help=text)
    text = "where trials leave results and logs"
    folder = Path("build") / "experiments"
    parser.add_argument("--folder", type=Path, default=folder, help=text)
    text = "a folder that gets a copy of the results after each trial"
    parser.add_argument("--copy-to", type=Path, metavar="DIR", help=text)


def _run(options: Any) -> int:
    module = module_of(options.question)
    book = Book(
        path=options.results or _path(options),
        card=options.card,
        folder=options.folder,
        deadline=time.monotonic() + 60 * options.minutes,
        anew=options.anew,
        copy_to=options.copy_to,
    )
    try:
        _all(module.units(options), book, options.jobs)
    except OutOfTimeError:
        Console().print("No time for all: run the same command again.")
    return int(getattr(module, "status", lambda _: 0)(book.rows))


def _all(units: Iterable[Callable[[Book], None]], book: Book, jobs: int) -> None:
    """Run units, so many at once; a unit that fails ends the run."""
    if jobs == 1:
        for unit in units:
            unit(book)
        return
    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(unit, book) for unit in units]:
            done.result()


if __name__ == "__main__":
    raise SystemExit(main())
