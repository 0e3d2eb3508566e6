"""Result files of JSON lines: the first says how they came about, the others what.

A file is written under a temporary name and then renamed, so that it is complete or
absent. Sizes are bytes, times are seconds.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lms.storage.files import write_text
from profiling.record import circumstances

__all__ = ["command_line", "read_lines", "write_lines"]

_RESULTS = Path(__file__).parent / "results"
_FIGURES = Path("build") / "experiments"


def write_lines(
    path: Path, settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Write the circumstances and settings, then one line for each row.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "results" / "one.jsonl"
        >>> write_lines(path, {"repeats": 3}, [{"peak_bytes": 7}])
        >>> head, rows = read_lines(path)
        >>> head["settings"], rows
        ({'repeats': 3}, [{'peak_bytes': 7}])
    """
    lines = [circumstances() | {"settings": dict(settings)}, *rows]
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def read_lines(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read what `write_lines` wrote: circumstances with settings, and the rows.

    Where rows say at which commits they were measured, the head names those.
    """
    head, *rows = (json.loads(line) for line in path.read_text().splitlines())
    commits = dict.fromkeys(row["commit"] for row in rows if row.get("commit"))
    if commits:
        head["commit"] = ", ".join(commits)
    return head, rows


def command_line(
    name: str, description: str | None, add_settings: Callable[..., None]
) -> argparse.ArgumentParser:
    """The words of an experiment: `run` with its settings, or `draw`.

    Args:
        name: Of the experiment's module, and of its files.
        description: What it answers.
        add_settings: Is called with the parser of `run`.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure, and write the result file")
    draw = commands.add_parser("draw", help="print and draw what the file says")
    for command in (run, draw):
        command.add_argument(
            "--results", type=Path, default=_RESULTS / f"{name}.jsonl", help="the file"
        )
    draw.add_argument(
        "--figure", type=Path, default=_FIGURES / f"{name}.png", help="to draw"
    )
    text = "measure all of it, also what the file has; without it, a run goes on"
    run.add_argument("--anew", action="store_true", help=text)
    add_settings(run)
    return parser
