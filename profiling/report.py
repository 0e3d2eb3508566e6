"""Tables and figures from profilers' files alone: python -m profiling.report.

    python -m profiling.report link.json "PCIe 3.0=step.json" --output build/profile

A run has the name before `=`, else its file's. Files of one kind share a table and,
where it makes sense, a figure; steps also become traces that Perfetto opens.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from lms.storage.files import write_text
from profiling.drawing import FIGURES, slug
from profiling.record import read_result
from profiling.tables import TABLES, Table, markdown
from profiling.timelines import timeline_from_json
from profiling.traces import chrome_trace

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, print, and write DIR/report.md, figures and traces."""
    parser = argparse.ArgumentParser(
        prog="python -m profiling.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", metavar="[NAME=]FILE")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    options = parser.parse_args(arguments)
    try:
        kinds = _by_kind(options.files)
    except (OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    tables = [table for kind in kinds for table in TABLES[kind](kinds[kind])]
    for table in tables:
        _print(table)
    written = [
        path
        for kind, results in kinds.items()
        if kind in FIGURES
        for path in FIGURES[kind](results, options.output)
    ]
    written += _write_traces(kinds.get("step_timeline", {}), options.output)
    parts = [markdown(table) for table in tables]
    parts += [f"![{p.stem}]({p.name})\n" for p in written if p.suffix == ".png"]
    write_text(options.output / "report.md", "\n".join(parts))
    for path in [options.output / "report.md", *written]:
        print(f"written: {path}")
    return 0


def _by_kind(files: Sequence[str]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Read results by kind and name, kinds in the order of the tables."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {kind: {} for kind in TABLES}
    for text in files:
        name, _, file = text.rpartition("=")
        path = Path(file)
        result = read_result(path)
        if result["kind"] not in found:
            raise ValueError(
                f"`{path}` must be one of {', '.join(TABLES)}, "
                f"got {result['kind']!r}. Leave it out."
            )
        name = name or path.stem
        if slug(name) in map(slug, found[result["kind"]]):
            raise ValueError(
                f"`{path}` must have a name of its own, got {name!r} twice. Write "
                "NAME=FILE."
            )
        found[result["kind"]][name] = result
    return {kind: results for kind, results in found.items() if results}


def _print(table: Table) -> None:
    title, head, rows = table
    shown = RichTable(title=title, box=SIMPLE_HEAD, title_justify="left")
    for i, name in enumerate(head):
        shown.add_column(name, justify="left" if i < 2 else "right")
    for row in rows:
        shown.add_row(*row)
    Console().print(shown)


def _write_traces(results: Mapping[str, Mapping[str, Any]], folder: Path) -> list[Path]:
    written: list[Path] = []
    for name, result in results.items():
        for label in ("measured", "predicted"):
            timeline = timeline_from_json(result[f"{label}_timeline"])
            path = folder / f"step_{slug(name)}_{label}.trace.json"
            write_text(path, chrome_trace(timeline, f"{name}, {label}"))
            written.append(path)
    return written


if __name__ == "__main__":
    sys.exit(main())
