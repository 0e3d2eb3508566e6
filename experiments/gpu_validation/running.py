"""Runs trials one after the other, each in a process with a time limit of its own.

    trials ──not done yet?──> budget from rows ──> process ──> row ──> results.jsonl

A row is written when its process has ended, however that was. A trial that the time of
the whole run cuts off leaves no row, and is tried again when the run goes on.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.gpu_validation.catalogue import Trial
from experiments.ledger import provenance, write_lines
from lms.units import MIB
from profiling.record import read_json

__all__ = ["NAMED", "Runner"]

# Facts in each row about where it was measured.
NAMED = ("card", "driver", "tensorflow", "cuda", "cudnn")

_ROOT = Path(__file__).parents[2]

# Bytes of traces that a run may leave, so that its results can be carried away.
_TRACES = 14 * MIB

# Less time than this is not worth a process.
_LEAST = 15.0


@dataclass(slots=True, kw_only=True)
class Runner:
    """A run, from its first trial to the end of its time.

    Args:
        folder: Where everything goes.
        settings: What the head of the results says.
        deadline: When it ends, on `time.monotonic`.
        rows: Of the trials that have ended.
        say: Is told of each trial that ends.
        copy_to: Where `folder` is copied to after each trial, or None.
    """

    folder: Path
    settings: Mapping[str, Any]
    deadline: float
    rows: list[dict[str, Any]]
    say: Callable[[Mapping[str, Any]], None]
    copy_to: Path | None = None

    def run(self, trials: Sequence[Trial]) -> list[str]:
        """Run what has not been run.

        Returns:
            Names of the trials for which there was no time.
        """
        left: list[str] = []
        for trial in trials:
            if self.row(trial.name) is not None:
                continue
            short = self.deadline - time.monotonic() < _LEAST
            row = None if short else self._skipped(trial) or self._tried(trial)
            if row is None:
                left.append(trial.name)
                continue
            self.rows.append(self._head(trial, row) | row)
            write_lines(self.folder / "results.jsonl", self.settings, self.rows)
            self.copy_out()
            self.say(self.rows[-1])
        return left

    def row(self, name: str) -> dict[str, Any] | None:
        """The row of a trial, if it has ended."""
        return next((row for row in self.rows if row["name"] == name), None)

    def copy_out(self) -> None:
        """So that what was found is safe wherever this process is ended."""
        if self.copy_to is not None:
            shutil.copytree(self.folder, self.copy_to, dirs_exist_ok=True)

    def _head(self, trial: Trial, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row's key; the machine's own row says where all others ran."""
        machine = self.row("machine") or row
        where = {name: machine.get(name) for name in NAMED}
        own = {name: getattr(trial, name) for name in ("name", "kind", "may_fail")}
        return own | where | provenance()

    def _skipped(self, trial: Trial) -> dict[str, Any] | None:
        """A row for a trial whose size depends on one that did not end well."""
        for needed in (trial.share_of, trial.memory_of):
            row = self.row(needed[0]) if needed else None
            if needed and (row is None or not row.get("peak_bytes")):
                error = f"needs {needed[0]!r}"
                return {"outcome": "skipped", "error": error, "seconds": 0}
        return None

    def _sized(self, trial: Trial) -> Trial:
        """The trial with its bytes, where they are shares of another's peak."""
        if trial.memory_of is not None:
            trial = replace(trial, memory=self._part_of_peak(*trial.memory_of))
        if trial.share_of is not None:
            budget = self._part_of_peak(*trial.share_of)
            trial = replace(trial, settings={**trial.settings, "budget": budget})
        return trial

    def _part_of_peak(self, name: str, share: float) -> int:
        return int(share * (self.row(name) or {})["peak_bytes"])

    def _tried(self, trial: Trial) -> dict[str, Any] | None:
        """The trial's row; None if the run's time ended before the trial did."""
        trial = self._sized(trial)
        output = self.folder / "trials" / f"{_slug(trial.name)}.json"
        output.parent.mkdir(parents=True, exist_ok=True)
        output.unlink(missing_ok=True)
        asked = {"kind": trial.kind, "settings": trial.settings, "memory": trial.memory}
        words = [sys.executable, "-m", "experiments.gpu_validation.worker"]
        words += [f"--trial={json.dumps(asked)}", f"--output={output.resolve()}"]
        left = self.deadline - time.monotonic()
        started = time.monotonic()
        log = self.folder / "log.txt"
        with log.open("a") as sink:
            sink.write(f"\n=== {trial.name}: {json.dumps(asked)}\n")
            sink.flush()
            environment = self._environment(trial.settings)
            code = _wait(words, environment, sink, min(trial.limit, left))
            sink.write(f"=== exit status {code}\n")
        if code is None and left < trial.limit:
            return None
        self._drop_traces()
        row = read_json(output) if output.exists() else {}
        row |= {
            "seconds": time.monotonic() - started,
            "memory_bytes": trial.memory,
            "settings": trial.settings,
        }
        return _ended(code, trial.limit, log) | row

    def _environment(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """This process's, so an emulated card is inherited; measured once in a run."""
        path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "1",
            "TF_FORCE_GPU_ALLOW_GROWTH": "false",  # a limit is taken in one piece
            "PYTHONPATH": os.pathsep.join(path),
            "LMS_CACHE": str(self.folder.resolve() / "cache"),
            **settings.get("variables", {}),
        }

    def _drop_traces(self) -> None:
        """Keep the smaller traces where all are too many."""
        traces = (self.folder / "traces").glob("*")
        total = 0
        for size, path in sorted((path.stat().st_size, path) for path in traces):
            total += size
            if total > _TRACES:
                path.unlink()


def _wait(
    words: Sequence[str], environment: Mapping[str, str], sink: Any, limit: float
) -> int | None:
    """The exit status; None if it had to be ended, with all that it had started."""
    process = subprocess.Popen(
        words,
        cwd=_ROOT,
        env=dict(environment),
        stdout=sink,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _ended(code: int | None, limit: float, log: Path) -> dict[str, Any]:
    """How a process ended that did not say it itself; it overrides this if it did."""
    if code is None:
        return {"outcome": "timed out", "error": f"not done after {limit:.0f} s"}
    tail = log.read_text(errors="replace")[-4000:]
    memory = "OOM when allocating" in tail or "RESOURCE_EXHAUSTED" in tail
    error = f"the process died with status {code}"
    return {"outcome": "out of memory" if memory else "crashed", "error": error}


def _slug(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower()).strip("-")
