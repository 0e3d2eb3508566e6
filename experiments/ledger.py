"""Result files of JSON lines, and the rows of a run: written as soon as they are known.

The first line says how the others came about. A run that is killed goes on with the
rows that are missing. Each row says at which commit and on which machine it was
measured, since a run may go on after a change. Sizes are bytes, times are seconds.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from rich.console import Console

from lms.storage.files import write_text
from profiling.record import circumstances

__all__ = ["Head", "Ledger", "Row", "Rows", "provenance", "read_lines"]
__all__ += ["write_lines"]

# A file's first line, and the others: what was asked for, then what was measured.
Head = Mapping[str, Any]
Row = Mapping[str, Any]
Rows = Sequence[Row]


class Ledger:
    """The rows so far: what is in it is not measured again, what is new is written.

    Args:
        path: The result file.
        settings: What its rows are measured with.
        anew: Keep nothing: the first new row replaces the file.

    Raises:
        SystemExit: If the file has rows of other settings, which would be lost.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "one.jsonl"
        >>> ledger = Ledger(path, {"steps": 3})
        >>> row = ledger.once({"size": 8}, lambda: {"peak_bytes": 7})
        >>> again = Ledger(path, {"steps": 3}).once({"size": 8}, lambda: 1 / 0)
        1 row of one.jsonl kept; only what is missing is measured. All: --anew
        >>> again == row
        True
    """

    def __init__(
        self, path: Path, settings: Mapping[str, Any], *, anew: bool = False
    ) -> None:
        self._path = path
        self._settings = settings
        self._writing = Lock()
        self._rows = [] if anew else _finished_rows(path, settings)
        if self._rows:
            count = f"{len(self._rows)} row{'s' * (len(self._rows) > 1)}"
            Console(soft_wrap=True, highlight=False).print(
                f"{count} of {path.name} kept; only what is missing is measured. "
                "All: --anew"
            )

    def find(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """The row of this key, if there is one."""
        wanted = _as_written(key)
        for row in self._rows:
            if all(name in row and row[name] == wanted[name] for name in wanted):
                return row
        return None

    def once(
        self, key: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The row of a key; if it is not there, it is measured and written.

        Args:
            key: What tells it from all others; begins the row.
            measure: Returns the rest of the row.
        """
        found = self.find(key)
        if found is None:
            found = _as_written({**key, **provenance(), **measure()})
            self.add(found)
        return found

    def add(self, *rows: Mapping[str, Any]) -> None:
        """Write rows down, all of them or none; threads may do so at once."""
        with self._writing:
            self._rows += map(_as_written, rows)
            write_lines(self._path, self._settings, self._rows)


def _as_written(values: Mapping[str, Any]) -> dict[str, Any]:
    """As they are when they have been read again: tuples are lists."""
    return json.loads(json.dumps(values))


def _finished_rows(path: Path, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a run that was interrupted."""
    if not path.exists():
        return []
    head, rows = read_lines(path)
    wanted = _as_written(settings)
    had = head["settings"]
    if had == wanted:
        return rows
    differing = (
        f"{name} = {had.get(name)!r} instead of {wanted.get(name)!r}"
        for name in {**wanted, **had}
        if had.get(name) != wanted.get(name)
    )
    raise SystemExit(
        f"{path} must have been measured with the same settings, got "
        f"{', '.join(differing)}. Give another file as --results, or --anew to "
        "measure all of it again."
    )


def provenance() -> dict[str, Any]:
    """At which commit and on which machine a row is measured: a run may move on."""
    known = circumstances()
    return {name: known[name] for name in ("commit", "machine")}


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
