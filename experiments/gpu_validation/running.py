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
from lms.machine import emulate
from lms.machine.link import LinkRates
from lms.units import GIB, MIB
from profiling.record import read_json

__all__ = ["Runner", "device_memory"]

_ROOT = Path(__file__).parents[2]

# All that a rehearsal's device has, and its link.
_WHOLE = GIB
_LINK = LinkRates(h2d=1e9, d2h=1e9, latency=1e-5)

# Bytes of traces that a run may leave, so that its results can be carried away.
_TRACES = 14 * MIB

# Less time than this is not worth a process.
_LEAST = 15.0


@dataclass(slots=True, kw_only=True)
class Runner:
    """A run, from its first trial to the end of its time.

    Args:
        folder: Where everything goes.
        device: "gpu" or "cpu".
        settings: What the head of the results says.
        deadline: When it ends, on `time.monotonic`.
        rows: Of the trials that have ended.
        say: Is told of each trial that ends.
        copy_to: Where `folder` is copied to after each trial, or None.
    """

    folder: Path
    device: str
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
            if self._row(trial.name) is not None:
                continue
            if self.deadline - time.monotonic() < _LEAST:
                left.append(trial.name)
                continue
            row = self._missing(trial) or self._tried(self._with_budget(trial))
            if row is None:
                left.append(trial.name)
                continue
            self.rows.append(_head(trial) | row)
            write_lines(self.folder / "results.jsonl", self.settings, self.rows)
            self.copy_out()
            self.say(self.rows[-1])
        return left

    def _row(self, name: str) -> dict[str, Any] | None:
        return next((row for row in self.rows if row["name"] == name), None)

    def _missing(self, trial: Trial) -> dict[str, Any] | None:
        """A row for a trial whose needs did not end well."""
        shares = (share for share in (trial.share_of, trial.memory_of) if share)
        needs = [*trial.needs, *(share[0] for share in shares)]
        for name in needs:
            row = self._row(name)
            if row is None or row["outcome"] != "done":
                return {"outcome": "skipped", "error": f"needs {name!r}", "seconds": 0}
        return None

    def _with_budget(self, trial: Trial) -> Trial:
        """The trial with its bytes, where they are shares of another's peak."""
        if trial.memory_of is not None:
            trial = replace(trial, memory=self._part_of_peak(*trial.memory_of))
        if trial.share_of is not None:
            budget = self._part_of_peak(*trial.share_of)
            trial = replace(trial, settings={**trial.settings, "budget": budget})
        return trial

    def _part_of_peak(self, name: str, share: float) -> int:
        return int(share * (self._row(name) or {})["peak_bytes"])

    def _tried(self, trial: Trial) -> dict[str, Any] | None:
        """The trial's row; without determinism where an op has none."""
        row = self._try(trial)
        if (
            row is None
            or row["outcome"] != "failed"
            or "determinis" not in row["error"]
        ):
            return row
        settings = {**trial.settings, "deterministic": False}
        again = self._try(replace(trial, settings=settings))
        return again and again | {"not_deterministic": row["error"]}

    def copy_out(self) -> None:
        """So that what was found is safe wherever this process is ended."""
        if self.copy_to is not None:
            shutil.copytree(self.folder, self.copy_to, dirs_exist_ok=True)

    def _try(self, trial: Trial) -> dict[str, Any] | None:
        """The trial's row; None if the run's time ended before the trial did."""
        memory = device_memory(self.device, trial.memory, self.rows)
        output = self.folder / "trials" / f"{_slug(trial.name)}.json"
        output.parent.mkdir(parents=True, exist_ok=True)
        output.unlink(missing_ok=True)
        asked = {"kind": trial.kind, "settings": trial.settings}
        asked |= {"device": self.device, "memory": memory}
        words = [sys.executable, "-m", "experiments.gpu_validation.worker"]
        words += [f"--trial={json.dumps(asked)}", f"--output={output.resolve()}"]
        left = self.deadline - time.monotonic()
        started = time.monotonic()
        log = self.folder / "log.txt"
        with log.open("a") as sink:
            sink.write(f"\n=== {trial.name}: {json.dumps(asked)}\n")
            sink.flush()
            environment = _environment(self.device, memory, trial.settings)
            environment |= self._host_limit()
            code = _wait(words, environment, sink, min(trial.limit, left))
            sink.write(f"=== exit status {code}\n")
        seconds = time.monotonic() - started
        if code is None and left < trial.limit:
            return None
        self._drop_traces()
        row = read_json(output) if output.exists() else {}
        row |= {"seconds": seconds, "memory_bytes": memory, "settings": trial.settings}
        return _ended(code, trial.limit, log) | row

    def _host_limit(self) -> dict[str, str]:
        """Pinned memory that TensorFlow may take: it is never given back."""
        free = (self._row("machine") or {}).get("host_free_bytes")
        if self.device == "cpu" or free is None:
            return {}
        return {"TF_GPU_HOST_MEM_LIMIT_IN_MB": str(free * 3 // 4 // MIB)}

    def _drop_traces(self) -> None:
        """Keep the smaller traces where all are too many."""
        traces = (self.folder / "traces").glob("*")
        files = sorted((path.stat().st_size, path) for path in traces)
        total = 0
        for size, path in files:
            total += size
            if total > _TRACES:
                path.unlink()


def device_memory(
    device: str, wanted: int | None, rows: Sequence[Mapping[str, Any]]
) -> int | None:
    """Bytes of a trial's device: what is wanted, if the GPU has them.

    Args:
        device: "gpu" or "cpu".
        wanted: By the trial; None for all that there is.
        rows: The machine's among them says what there is.
    """
    if device == "cpu":
        return wanted or _WHOLE
    there = next((r["limit_bytes"] for r in rows if r["name"] == "machine"), None)
    if wanted is None or there is None:
        return wanted
    return min(wanted, there // MIB * MIB)


def _environment(
    device: str, memory: int | None, settings: Mapping[str, Any]
) -> dict[str, str]:
    own = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1", **settings.get("variables", {})}
    own["PYTHONPATH"] = os.pathsep.join(
        [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    own["TF_FORCE_GPU_ALLOW_GROWTH"] = "false"  # a limit is taken in one piece
    if device == "cpu":
        variables = emulate.environment(memory or _WHOLE, link=_LINK)
        own = emulate.started_environment(variables, own)
    return own


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


def _head(trial: Trial) -> dict[str, Any]:
    names = ("part", "name", "kind", "may_fail")
    return {name: getattr(trial, name) for name in names} | provenance()


def _slug(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower()).strip("-")
