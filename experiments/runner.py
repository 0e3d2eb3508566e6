"""Trials as plain data, their processes, and the book of their rows.

    trial ──in the book?──> its row
      └──no──> process on a card of its own ──> row ──> results/NAME.jsonl

A row is written when its process has ended, in success or failure, so a killed run goes
on with the missing rows. A trial that the run's time cuts off leaves no row. An
emulated card runs TensorFlow's own GPU runtime; with `--card real` trials run on this
machine's card, whose memory is limited by a logical device.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from rich.console import Console

from experiments.stats import Row, Rows, ending
from lms.emulation import emulate
from lms.emulation.card import LINKS
from lms.storage.cache import OFF, VARIABLE
from lms.storage.files import write_text
from lms.units import GIB, Bytes, Seconds, format_bytes
from lms.workers.launching import launch
from lms.workers.processes import Worker, copied, spawned
from profiling.record import circumstances, read_json

__all__ = [
    "FRONT",
    "NO_CARD",
    "OUT_OF_MEMORY",
    "RESULTS",
    "Book",
    "OutOfTimeError",
    "Trial",
]
__all__ += ["measured", "read_lines", "why_it_failed"]

RESULTS = Path(__file__).parent / "results"
NO_CARD = 3  # the exit status of a trial, and of a run, without a card
OUT_OF_MEMORY = "OOM when allocating tensor"

# Variable of an emulated card's library: copies load it; its loader must not fork.
FRONT = "EXPERIMENTS_FRONT"

_ROOT = Path(__file__).parents[1]
_ENOUGH = 16 * GIB  # of a card, for trials that name no memory
_LEAST: Seconds = 15.0  # with less time left no trial starts
_POLL: Seconds = 0.05  # between checks whether a trial has ended

# Modules that the copied process has imported; and a lock around starting or polling a
# copy, since `multiprocessing` polls all copies when it starts one.
_IMPORTED = ("experiments.trial", "experiments.probes.questions", "keras_hub")
_COPIES = Lock()

# Ours come first: measured ops may run out of memory before a plan is refused.
# Keras writes its reason below a line of its own.
_REASONS = (
    r"^lms\.errors\.\w+: .*",
    rf"(?:{OUT_OF_MEMORY}|failed to allocate memory).*",
    r"^\s*[\w.]*(?:Error|Exception)\b.*(?:(?<=\.call\(\)\.)\s*\n\s*.*)?",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One training in one way; or one probe of a card."""

    model: str = ""  # a name of `experiments.models`
    shape: Mapping[str, Any] = field(default_factory=dict)  # arguments of its function
    way: str = "plain"  # as `experiments.ways` has them
    memory: Bytes | None = None  # of the card; None for all of its memory
    card: str | None = None  # a preset that an emulated card imitates
    link: str | None = None  # a name of `lms.emulation.card.LINKS`
    dry: bool = False  # an emulated card computes nothing
    slow_motion: float = 1.0  # an emulated card takes as many times longer
    budget: int | None = None  # bytes for the callback; None for its default
    knobs: Mapping[str, Any] = field(default_factory=dict)  # callback's, or a probe's
    steps: int = 6
    feed: str = "dataset"  # one batch at a time from the host; or "arrays"
    deterministic: bool = True  # TensorFlow's op determinism
    traced: bool = False  # the last step is recorded
    curves: bool = False  # predicted memory over the step is kept
    held: bool = False  # the card's free memory is taken after two steps
    workers: int = 1  # processes of one job, each with a card
    apart: bool = False  # each worker trains for itself
    probe: str = ""  # a name of `experiments.probes`, instead of a training
    cache: str = OFF  # folder of the library's cache
    longest: Seconds = 1200.0  # after which the trial is killed


class OutOfTimeError(Exception):
    """The time of a run is over; the next run measures the missing rows."""


@dataclass(slots=True, kw_only=True)
class Book:
    """The rows so far: a known row is not measured again, a new row is written."""

    path: Path
    card: str = "emulated"  # or "real" for this machine's card
    folder: Path = Path("build") / "experiments"  # of trials' results and logs
    room: Bytes | None = None  # of a real card, for a trial that names no memory
    copies: bool = False  # trials are copies of one process with TensorFlow
    deadline: float = float("inf")  # of the run, on `time.monotonic`
    rows: list[dict[str, Any]] = field(default_factory=list)
    _writing: Any = field(default_factory=Lock)

    def __post_init__(self) -> None:
        if self.path.exists():
            head, self.rows = read_lines(self.path)
            if head["settings"] != {"card": self.card}:
                raise SystemExit(
                    f"{self.path} must have been measured with {self.card!r} cards, "
                    f"got {head['settings']}. Give another file as --results."
                )

    def find(self, key: Row) -> dict[str, Any] | None:
        """Return the row of this key; None if there is none."""
        wanted = _as_written(key)
        for row in self.rows:
            if all(name in row and row[name] == wanted[name] for name in wanted):
                return row
        return None

    def row(
        self, key: Row, trial: Trial, *, told: Callable[[dict[str, Any]], Any] = dict
    ) -> dict[str, Any]:
        """Return the row of a trial, which runs if the row is missing.

        Args:
            key: The row's first values, which no other row has.
            trial: The trial.
            told: Converts the measured values to the values of the row.
        """
        words = "-".join(str(value) for value in key.values())
        stem = re.sub(r"\W+", "-", words.lower()).strip("-")
        return self.once(key, lambda: told(measured(trial, self, stem)))

    def once(self, key: Row, measure: Callable[[], Row]) -> dict[str, Any]:
        """Return the row of a key, which is measured and written if missing."""
        found = self.find(key)
        if found is not None:
            return found
        if self.deadline - time.monotonic() < _LEAST:
            raise OutOfTimeError
        started = time.monotonic()
        known = circumstances()
        origin = {name: known[name] for name in ("commit", "machine")}
        row = _as_written({**key, **origin, **measure()})
        row.setdefault("seconds", time.monotonic() - started)
        with self._writing:
            self.rows.append(row)
            _write_lines(self.path, {"card": self.card}, self.rows)
        _say(key, row)
        return row


def measured(trial: Trial, book: Book, stem: str) -> dict[str, Any]:
    """Run a trial in a process for each worker, and return its row.

    Raises:
        OutOfTimeError: If the run's time ended before the trial did.
        SystemExit: If there is no card.
    """
    folder = book.folder / book.path.stem
    folder.mkdir(parents=True, exist_ok=True)
    output, log = folder / f"{stem}.json", folder / f"{stem}.log"
    each = [output.with_suffix(f".{rank}.json") for rank in range(trial.workers)]
    events = output.with_suffix(".events.json")
    for old in (output, events, *each):
        old.unlink(missing_ok=True)
    real = book.card == "real"
    asked = asdict(trial) | {"limit": None}
    if real:  # the host has its own memory
        asked["knobs"] = {k: v for k, v in trial.knobs.items() if k != "host_memory"}
        asked |= {"limit": trial.memory or book.room, "slow_motion": 1.0}
    words = [sys.executable, "-m", "experiments.trial"]
    words += [json.dumps(asked), str(output.resolve())]
    left = book.deadline - time.monotonic()
    started = time.monotonic()
    with log.open("w") as sink:
        environ = _environment(trial, real=real)
        start = partial(copied, imported=_IMPORTED) if book.copies else spawned
        code = _ended(words, trial, environ, sink, left, start)
    if code is None and left < trial.longest:
        raise OutOfTimeError
    text = log.read_text(errors="replace")
    if code == NO_CARD:
        sys.stderr.write(f"experiments: {why_it_failed(text, code)}\n")
        raise SystemExit(NO_CARD)
    limit = asked["limit"] or trial.memory
    row = {"error": why_it_failed(text, code or 0), "memory_bytes": limit}
    if code is None:
        row["error"] = f"not done after {trial.longest:.0f} s"
    if trial.workers > 1 and not row["error"]:
        told = [read_json(one) for one in each]
        row |= told[0] | {"step_seconds": [one["step_seconds"] for one in told]}
    elif output.exists():
        row |= read_json(output)
    if real and events.exists():
        with _COPIES, book.path.with_name("allocs.jsonl").open("a") as sink:
            sink.write(json.dumps(read_json(events)) + "\n")
    return row | {"seconds": time.monotonic() - started}


def _environment(trial: Trial, *, real: bool) -> dict[str, str]:
    known = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1", VARIABLE: trial.cache}
    path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    known |= {"PYTHONPATH": os.pathsep.join(path)}
    if real:  # the limit is allocated in one piece
        return known | {"TF_FORCE_GPU_ALLOW_GROWTH": "false"}
    return emulate.environment(
        trial.memory or (None if trial.card else _ENOUGH),
        inherited=known,
        cards=trial.workers,
        link=LINKS[trial.link] if trial.link else None,
        card=trial.card,
        dry=trial.dry,
        slow_motion=trial.slow_motion,
    )


def _ended(
    words: Sequence[str],
    trial: Trial,
    environ: Mapping[str, str],
    sink: Any,
    left: Seconds,
    start: Callable[..., Any] = spawned,
) -> int | None:
    """Return the exit status; None if the trial was killed, with its children."""
    if trial.workers > 1:
        return launch(words, workers=trial.workers, environ=environ, out=sink)
    until, code = time.monotonic() + min(trial.longest, left), None
    with _COPIES:
        worker = Worker(lambda out: start(words, environ, out), sink.write)
    try:
        while code is None and time.monotonic() < until:
            time.sleep(_POLL)
            with _COPIES:
                code = worker.code()
        return code
    finally:
        with _COPIES:
            worker.kill()


def why_it_failed(log: str, code: int) -> str | None:
    r"""Return a log's line of the cause: our error, out of memory, or the last error.

    Example:
        >>> why_it_failed("Traceback ...\nValueError: no\n", 1)
        'ValueError: no'
        >>> why_it_failed("done\n", 0)
    """
    if code == 0:
        return None
    plain = re.sub(r"\x1b\[\d*m", "", log)  # not in bold
    for pattern in _REASONS:
        found = re.findall(pattern, plain, re.MULTILINE)
        if found:
            crashed = " - and the process crashed" if code < 0 else ""
            return " ".join(found[-1].split()) + crashed
    last = log.strip().rpartition("\n")[2] or "nothing printed"
    return f"exit status {code}: {last}"


def _say(key: Row, row: Row) -> None:
    """Print one line of a row, and the reason why a training ended."""
    words = ", ".join(f"{value}" for value in key.values())
    told = f"{row['seconds']:.0f} s"
    if peak := row.get("peak_bytes"):
        told += f", {format_bytes(peak)}"
    reason = ending(row)
    colour = "red" if row["error"] else "yellow" if reason else "green"
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"[{colour}]{words}[/]: {told}")
    if reason:
        console.print(f"    {reason}", markup=False, style="dim")


def _as_written(values: Row) -> dict[str, Any]:
    """Convert values as a file does: tuples become lists."""
    return json.loads(json.dumps(values))


def _write_lines(path: Path, settings: Row, rows: Rows) -> None:
    """Write the circumstances and settings, then one line for each row."""
    lines = [circumstances() | {"settings": settings}, *rows]
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def read_lines(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read a file's circumstances with settings, and its rows."""
    head, *rows = (json.loads(line) for line in path.read_text().splitlines())
    return head, rows
