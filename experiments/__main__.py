"""The command line: run a question, show its rows, write the page."""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments import day, real_cards, subjects
from experiments import page as pages
from experiments.page import QUESTIONS, STUDIES, check_or_write, module_of
from experiments.runner import RESULTS, Book, OutOfTimeError
from lms.units import parse_size

__all__ = ["main"]

_BUILD = Path("build")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a question, show its rows, or write the page.

    The exit status is 1 if a verdict does not hold or the page is not current, 2 if
    there is nothing to show, 3 if there is no card.
    """
    options = _parser().parse_args(arguments)
    if options.command == "page":
        return check_or_write(check=options.check)
    if options.command == "run":
        return _run(options)
    if options.command == "day":
        return _day(options)
    if options.question == "day":
        found = real_cards.answer(options.results)
    else:
        found = pages.answer_of(options.question, options.results or _path(options))
    if found is None:
        sys.stderr.write(f"{options.question}: no rows. Measure first, with `run`.\n")
        return 2
    return pages.print_answer(found)


def _path(options: Any) -> Path:
    preset = getattr(options, "preset", subjects.PRESET)
    folder = RESULTS if preset == subjects.PRESET else real_cards.predicted_in(preset)
    if getattr(options, "card", "") == "real":
        folder = real_cards.folder_here() or _BUILD / "real"
    return folder / f"{options.question}.jsonl"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    page = commands.add_parser("page", help="write docs/results.md and its figures")
    page.add_argument("--check", action="store_true", help="write nothing")
    asked = commands.add_parser(
        "day",
        help="a quarter of an hour with a real card",
        description=day.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    day.add_options(asked, _add_run)
    for word, text in (("show", "answer by the rows"), ("run", "measure missing rows")):
        asking = commands.add_parser(word, help=text)
        questions = asking.add_subparsers(dest="question", required=True)
        for name in (*QUESTIONS, *STUDIES, "allocations", "gpu"):
            module = module_of(name)
            asked = questions.add_parser(
                name,
                help=module.TITLE,
                description=module.__doc__,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            asked.add_argument("--results", type=Path, help="JSON lines")
            if word == "run":
                _add_run(asked)
                _add_parts(asked)
                _add_settings(asked, module)
        if word == "show":
            asked = questions.add_parser("day", help=real_cards.TITLE)
            asked.add_argument("--results", type=Path, required=True, help="a folder")
    return parser


def _add_run(parser: Any) -> None:
    text = "emulated: one for each trial; real: this machine's card"
    cards = ("emulated", "real")
    parser.add_argument("--card", choices=cards, default="emulated", help=text)
    text = "minutes after which the run ends; call it again to go on"
    parser.add_argument("--minutes", type=float, default=float("inf"), help=text)
    text, folder = "where trials leave results and logs", _BUILD / "experiments"
    parser.add_argument("--folder", type=Path, default=folder, help=text)


def _add_parts(parser: Any) -> None:
    parser.add_argument("--jobs", type=int, default=1, help="parts at once")
    text = "bytes of a real card for a trial that names none, such as 16GiB"
    parser.add_argument("--memory", type=parse_size, help=text)


def _add_settings(parser: Any, module: Any) -> None:
    """Add an option for each of a question's settings; a tuple takes several values."""
    for name, default in module.SETTINGS.items():
        known: dict[str, Any] = {"help": f"default: {default}", "default": default}
        if default is False:
            known["action"] = "store_true"
        elif isinstance(default, tuple):
            known |= {"nargs": "+", "type": type((default or ("",))[0])}
        else:
            known["type"] = type(default)
        if known.get("type") is str:
            known["choices"] = getattr(module, "KNOWN", {}).get(name, default)
        parser.add_argument(f"--{name}", **known)


def _run(options: Any) -> int:
    module = module_of(options.question)
    if getattr(options, "small", False) and not options.results:
        sys.stderr.write("--small is a rehearsal: give a file for it as --results.\n")
        return 2
    book = Book(
        path=options.results or _path(options),
        card=options.card,
        folder=options.folder,
        deadline=time.monotonic() + 60 * options.minutes,
        room=options.memory,
    )
    parts = getattr(options, "models", ("all",))
    if hasattr(module, "parts"):
        parts = module.parts(options)
    works = [partial(module.measure, book, part, options) for part in parts]
    try:
        _all(works, options.jobs)
    except OutOfTimeError:
        Console().print("Rows are missing: run the same command again.")
    if options.question != "gpu":
        return 0
    return pages.print_answer(module.answer(book.rows))  # 1 where a claim fails


def _day(options: Any) -> int:
    folder = options.results
    if folder is None:
        if options.card == "real":
            here = None if options.small else real_cards.folder_here()
            folder = here or _BUILD / "real"
        else:
            folder = real_cards.predicted_in(options.preset)
            folder = _BUILD / "predicted" if options.small else folder
    try:
        day.run(options, folder)
    except OutOfTimeError:
        Console().print("Rows are missing: run the same command again.")
    found = real_cards.answer(folder)
    return 2 if found is None else pages.print_answer(found)


def _all(works: Iterable[Callable[[], None]], jobs: int) -> None:
    """Do all works, `jobs` at once; the first error ends the run."""
    if jobs == 1:
        for work in works:
            work()
        return
    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result()


if __name__ == "__main__":
    raise SystemExit(main())
