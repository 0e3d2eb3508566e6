"""One page of all results: `make report`.

Reads the committed results of `experiments` and `profiling`, measures nothing, and
writes one HTML file with every figure and table in it. An experiment that has no
result yet gets a section that says which command makes one.
"""

import argparse
import contextlib
import importlib
import io
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import track

from experiments.report_catalogue import Entry
from experiments.report_page import Section, page
from experiments.report_profiles import profile_sections
from experiments.report_sections import RESULTS, entries_of, not_shown, section_of
from lms.storage.files import write_text
from profiling.record import circumstances

__all__ = ["main"]

_PROFILES = Path(__file__).parent.parent / "profiling" / "results"
_COLUMNS = "118"  # of what `draw` prints


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page.

    Args:
        arguments: The words after `python -m experiments.report`.

    Returns:
        The exit status: 1 if a result is there and cannot be shown.
    """
    parser = argparse.ArgumentParser(
        prog="python -m experiments.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON lines")
    parser.add_argument("--profiles", type=Path, default=_PROFILES, help="JSON files")
    parser.add_argument("--output", type=Path, default=Path("build") / "report")
    options = parser.parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # some experiments import it
    console, started = Console(stderr=True), time.perf_counter()
    figures = options.output / "figures"
    sections = [
        _experiment(entry, options.results, figures)
        for entry in track(
            entries_of(options.results),
            "Drawing",
            console=console,
            disable=not console.is_terminal,
        )
    ]
    sections += profile_sections(options.profiles, figures)
    target = options.output / "index.html"
    write_text(target, page("Large model support: results", _introduction(), sections))
    missing = sum(section.problem is not None for section in sections)
    console.print(
        f"{target}: {len(sections)} sections, {missing} without a result, "
        f"{time.perf_counter() - started:.0f} s",
        soft_wrap=True,
    )
    return int(any("could not" in (section.problem or "") for section in sections))


def _introduction() -> str:
    commit = circumstances()["commit"]
    return (
        "Each section answers one question: what was asked, what the numbers say, and "
        "how they were measured. No GPU was used unless a section says so. Sizes in "
        "MiB and GiB are powers of 2. Drawn from committed results alone, at commit "
        f"`{commit}`; the commit that a result was measured at stands beside it."
    )


def _experiment(entry: Entry, results: Path, figures: Path) -> Section:
    section = section_of(entry, results)
    if section.problem is not None:
        return section
    path = results / f"{entry.name}.jsonl"
    try:
        printed, drawn = _drawn(entry.name, path, figures)
    except Exception as error:  # one bad result must not hide the others
        return not_shown(section, path, error)
    return replace(section, figures=drawn, printed=printed)


def _drawn(name: str, results: Path, figures: Path) -> tuple[str, tuple[Path, ...]]:
    """What an experiment's `draw` prints, and the figures that it makes."""
    for old in figures.glob(f"{name}*.png"):
        old.unlink()
    module = importlib.import_module(f"experiments.{name}")
    words = ["draw", "--results", str(results)]
    words += ["--figure", str(figures / f"{name}.png")]
    sink = io.StringIO()
    with contextlib.redirect_stdout(sink), _wide():
        module.main(words)
    return sink.getvalue(), tuple(sorted(figures.glob(f"{name}*.png")))


@contextlib.contextmanager
def _wide() -> Iterator[None]:
    """Within it, tables that are printed have room for their columns."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _COLUMNS
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


if __name__ == "__main__":
    raise SystemExit(main())
