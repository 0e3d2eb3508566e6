"""Start a command several times on this host, as the workers of one job.

    [0] Epoch 1/3
    [1] Epoch 1/3
    worker 1 ended with code 1; ending the others

The launcher prints workers' lines with their rank in front. The first worker that fails
ends the others, which would wait for it: first by a signal, later by SIGKILL. If the
launcher itself is killed, Linux kills the workers.

Each loose group is a job of its own: a group that fails is started again, and no other
group waits. `[2] [1] ...` is worker 1 of group 2.
"""

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import IO, Any

from lms.machine.ranks import Placement, cluster_variables
from lms.tf.uninterrupted import handled
from lms.units import Seconds
from lms.workers.buffer import BUFFER_VARIABLE, buffer_path
from lms.workers.processes import Worker, copied, is_program, spawned

__all__ = ["free_addresses", "launch"]

_HOST = "127.0.0.1"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_POLL = 0.1

# Seconds that workers of a group have to end before the group starts again.
_LAST_WORDS = 2.0
# A group is given up after 3 failures in a row, each within 60 seconds of its start.
_SOON: Seconds = 60.0
_TRIES = 3

# Added to a signal's number for the exit code, as in a shell.
_BY_SIGNAL = 128


def launch(  # noqa: PLR0913 - one argument for each option of the command
    command: Sequence[str],
    *,
    workers: int,
    groups: int | None = None,
    environ: Mapping[str, str] = os.environ,
    each: Sequence[Mapping[str, str]] = (),
    grace: Seconds = 10.0,
    out: IO[str] | None = None,
) -> int:
    """Run a command as the workers of one job, or of loose groups; wait for all.

    Groups share a buffer on this host. A group that fails is started again, unless no
    group has made the buffer yet, or the group failed by itself three times in a row,
    each within a minute. A program of this Python runs in a fork of a process that has
    imported TensorFlow, in the launcher's environment.

    Args:
        command: The program and its arguments.
        workers: Number of workers of all groups together, at least 1.
        groups: Number of loose groups, all of equal size; None for one job.
        environ: Variables of all workers; the launcher adds rank, addresses and GPU.
        each: More variables of each worker, by rank; empty for none.
        grace: Seconds that workers have to end after a signal.
        out: Receives the workers' lines; standard output by default.

    Returns:
        0 if all ended with 0, else the code of the first worker that failed; 128 plus
        the signal's number for a worker that a signal ended.

    Raises:
        ValueError: If there is less than one worker, no such program, fewer GPUs in
            CUDA_VISIBLE_DEVICES than workers, or groups of unequal size.

    Example:
        >>> launch([sys.executable, "-c", "raise SystemExit(3)"], workers=1)
        worker 0 ended with code 3
        3
    """
    own, say = _environs(command, workers, environ, each), _said_to(out)
    if groups is None:
        return _run([_Job(command, own, "", spawned, say)], grace, say)
    if groups < 1 or workers % groups:
        raise ValueError(
            f"`workers` must be a multiple of {groups} groups, got {workers}. All "
            "groups have equally many workers."
        )
    name = f"launch-{os.getpid()}-{time.monotonic_ns()}"
    own = [{**one, BUFFER_VARIABLE: name} for one in own]
    start, size = copied if is_program(command) else spawned, workers // groups
    jobs = [
        _Job(command, own[i * size : (i + 1) * size], f"[{i}] ", start, say)
        for i in range(groups)
    ]
    try:
        return _run(jobs, grace, say, buffer_path(name).exists)
    finally:
        buffer_path(name).unlink(missing_ok=True)


def _environs(
    command: Sequence[str],
    workers: int,
    environ: Mapping[str, str],
    each: Sequence[Mapping[str, str]],
) -> list[dict[str, str]]:
    """Return each worker's variables; refuse a program that cannot be started."""
    if workers < 1:
        raise ValueError(f"`workers` must be at least 1, got {workers}. Use 1 or more.")
    if not command or shutil.which(command[0], path=environ.get("PATH")) is None:
        raise ValueError(
            "`command` must be a program that can be started, got "
            f"{' '.join(command)!r}. Check its name and path."
        )
    gpus = _gpus(environ, workers)
    return [{**environ, **a, **b} for a, b in zip(gpus, each or gpus, strict=True)]


def free_addresses(count: int) -> tuple[str, ...]:
    """Find `count` addresses of this host with free ports.

    Another program may take a port before the worker does; `lms.join` then says so.
    """
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind((_HOST, 0))
        return tuple(f"{_HOST}:{each.getsockname()[1]}" for each in found)


_Say = Callable[[str], None]
_Start = Callable[[Sequence[str], Mapping[str, str], Connection], Any]


def _said_to(out: IO[str] | None) -> _Say:
    """Return a function that writes whole lines, safe to call from several threads."""
    to = out or sys.stdout

    def say(line: str) -> None:
        to.write(line.rstrip("\n") + "\n")  # one call, so that lines do not mix
        to.flush()

    return say


@dataclass(slots=True)
class _Job:
    """Workers that wait for one another, and so begin and end together."""

    command: Sequence[str]
    environs: Sequence[Mapping[str, str]]
    name: str
    start: _Start
    say: _Say
    workers: list[Worker] = field(default_factory=list)
    _begun: Seconds = 0.0
    _in_vain: int = 0

    def begin(self) -> None:
        """Start all workers, on free ports."""
        self.workers, size = [], len(self.environs)
        self._begun = time.monotonic()
        addresses = free_addresses(size) if size > 1 else ()
        for rank, environ in enumerate(self.environs):
            own, name = dict(environ), self.name
            if addresses:
                own |= cluster_variables(Placement(addresses=addresses, rank=rank))
                name += f"[{rank}] "
            self.workers.append(
                Worker(
                    lambda out, own=own: self.start(self.command, own, out),
                    lambda line, name=name: self.say(name + line),
                )
            )

    def failed(self) -> tuple[int, str] | None:
        """Return a failed worker's exit code, as in a shell, and a message; or None.

        Workers that a signal ended come first: their end made others fail.
        """
        codes = [(worker.code() or 0, i) for i, worker in enumerate(self.workers)]
        code, rank = min(((c, i) for c, i in codes if c), default=(0, 0))
        if not code:
            return None
        how = f"code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
        words = f"{self.name}worker {rank} ended with {how}"
        return code if code > 0 else _BY_SIGNAL - code, words

    def is_in_vain(self, code: int) -> bool:
        """Tell whether the job would fail for ever; call once for each failure."""
        is_soon = code < _BY_SIGNAL and time.monotonic() - self._begun < _SOON
        self._in_vain = self._in_vain + 1 if is_soon else 0
        return self._in_vain >= _TRIES


def _gpus(environ: Mapping[str, str], workers: int) -> list[dict[str, str]]:
    """Assign a GPU to each worker, among the launcher's visible ones."""
    allowed = environ.get(_VISIBLE)
    if allowed in ("", "-1"):
        return [{}] * workers
    names = [str(i) for i in range(workers)] if allowed is None else allowed.split(",")
    if workers > len(names):
        raise ValueError(
            f"each worker must have a GPU of its own, got {workers} workers and "
            f"{len(names)} GPUs in CUDA_VISIBLE_DEVICES={allowed}. Start fewer "
            "workers, or name more GPUs."
        )
    return [{_VISIBLE: names[rank]} for rank in range(workers)]


def _run(
    jobs: Sequence[_Job],
    grace: Seconds,
    say: _Say,
    again: Callable[[], bool] = lambda: False,
) -> int:
    """Run jobs until all have ended, one has failed, or a signal ends the launcher."""
    try:
        with _heard() as asked:
            for job in jobs:
                job.begin()
            code = _watched(jobs, say, again, asked)
            _end(jobs, asked[0] if asked else signal.SIGTERM, grace)
            return code
    finally:
        _end(jobs, signal.SIGKILL, 0)


def _watched(
    jobs: Sequence[_Job], say: _Say, again: Callable[[], bool], asked: Sequence[int]
) -> int:
    """Wait for the exit code; restart failed groups until then."""
    others = "; ending the others" if sum(len(job.workers) for job in jobs) > 1 else ""
    while not asked:
        failed = next((job for job in jobs if job.failed()), None)
        if failed is None:
            if all(one.code() == 0 for job in jobs for one in job.workers):
                return 0
            time.sleep(_POLL)
            continue
        code, words = failed.failed() or (0, "")
        if not again() or failed.is_in_vain(code):
            say(words + others)
            return code
        say(f"{words}; starting its group again")
        _end([failed], signal.SIGTERM, _LAST_WORDS)
        failed.begin()
    return _BY_SIGNAL + asked[0]


def _end(jobs: Sequence[_Job], number: int, grace: Seconds) -> None:
    """Signal all workers to end; kill workers that still run after `grace`."""
    workers = [worker for job in jobs for worker in job.workers]
    for worker in workers:
        worker.signal(number)
        worker.signal(signal.SIGCONT)  # a stopped worker handles it now
    until = time.monotonic() + grace
    while time.monotonic() < until and any(one.code() is None for one in workers):
        time.sleep(_POLL)
    for worker in workers:
        worker.kill()


@contextmanager
def _heard() -> Any:
    """Collect signals that ask this process to end."""
    asked: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with handled(dict.fromkeys(numbers, lambda got, _: asked.append(got))):
        yield asked
