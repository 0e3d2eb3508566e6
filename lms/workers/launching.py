"""Start a command several times on this host, as the workers of one job.

    [0] Epoch 1/3
    [1] Epoch 1/3
    worker 1 ended with code 1; ending the others

What workers print comes with their rank before it. The first that fails ends all: the
others would wait for it. They are asked to end, and killed after a while. If the
launcher itself is killed, Linux kills the workers.

Loose groups wait for nobody: each has a launcher of its own, and one that fails is
started again. `[2] [1] ...` is worker 1 of group 2.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any

from lms.machine.placement import Placement, cluster_variables
from lms.units import Seconds
from lms.workers.buffer import BUFFER_VARIABLE, buffer_path

__all__ = ["free_addresses", "launch", "launch_groups"]

_HOST = "127.0.0.1"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_POLL = 0.1
_LAST_WORDS = 2.0

# Becomes the program; 1 asks Linux to kill it when the launcher ends (prctl(2)).
_BECOME = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
os.execvp(sys.argv[1], sys.argv[1:])
"""
_ENDS_WITH_LAUNCHER = (sys.executable, "-S", "-c", _BECOME)

# Exit codes of programs that a signal ended begin here, as in a shell.
_BY_SIGNAL = 128


def launch(  # noqa: PLR0913 - what is started, and how it ends
    command: Sequence[str],
    *,
    workers: int,
    environ: Mapping[str, str] = os.environ,
    each: Sequence[Mapping[str, str]] = (),
    grace: Seconds = 10.0,
    out: IO[str] | None = None,
    apart: Callable[[], int] | None = None,
) -> int:
    """Run a command as so many workers, and wait for all.

    Args:
        command: The program and its arguments.
        workers: How many, at least 1.
        environ: What they are started with, but for what tells them apart.
        each: More variables of each worker, by rank; none for no more.
        grace: How long workers get to end when they are asked to.
        out: Where their lines go; standard output by default.
        apart: Given for workers that know nothing of one another: one that fails is
            started again, as often as this says. None for workers of one job.

    Returns:
        0 if all ended with 0, else the code of the first that did not; 128 and the
        signal's number for one that a signal ended.

    Raises:
        ValueError: If there is less than one worker, no such program, less GPUs in
            CUDA_VISIBLE_DEVICES than workers, or `each` has not one for each worker.

    Example:
        >>> launch([sys.executable, "-c", "raise SystemExit(3)"], workers=2)
        worker 0 ended with code 3; ending the others
        3
    """
    if workers < 1:
        raise ValueError(f"`workers` must be at least 1, got {workers}. Use 1 or more.")
    if not command or shutil.which(command[0], path=environ.get("PATH")) is None:
        raise ValueError(
            "`command` must be a program that can be started, got "
            f"{' '.join(command)!r}. Check its name and path."
        )
    if each and len(each) != workers:
        raise ValueError(
            f"`each` must have one for each of {workers} workers, got {len(each)}. "
            "Write as many, or none."
        )
    gpus = [{}] * workers if apart else _gpus(environ, workers)
    is_job = workers > 1 and apart is None
    addresses = free_addresses(workers) if is_job else ()
    out, lock = out or sys.stdout, threading.Lock()

    def say(line: str) -> None:
        with lock:
            print(line.rstrip("\n"), file=out, flush=True)

    with ExitStack() as stack:

        def start(rank: int) -> _Worker:
            own = {**environ, **gpus[rank], **(each[rank] if each else {})}
            if is_job:
                own |= cluster_variables(Placement(addresses=addresses, rank=rank))
            name = "" if workers == 1 else f"[{rank}] "
            return stack.enter_context(_Worker(command, rank, own, name, say))

        started = [start(rank) for rank in range(workers)]
        return _wait(started, grace, say, _Again(start, apart))


def launch_groups(  # noqa: PLR0913 - what `launch` takes, and how many groups
    command: Sequence[str],
    *,
    workers: int,
    groups: int,
    environ: Mapping[str, str] = os.environ,
    grace: Seconds = 10.0,
    restarts: int = 100,
    out: IO[str] | None = None,
) -> int:
    """Run a command as loose groups of workers, which meet in a buffer of this host.

    A group that fails is started again, but where none has made the buffer yet: what
    fails before it trains would fail again.

    Args:
        command: The program and its arguments.
        workers: How many, of all groups.
        groups: How many groups, all of as many workers.
        environ: What they are started with, but for what tells them apart.
        grace: How long workers get to end when they are asked to.
        restarts: How often groups are started again, all together.
        out: Where their lines go; standard output by default.

    Returns:
        0 if all groups ended with 0, else as `launch`.

    Raises:
        ValueError: If workers cannot be parted so, or as `launch`.
    """
    if groups < 1 or workers % groups:
        raise ValueError(
            f"`workers` must be a multiple of {groups} groups, got {workers}. All "
            "groups have as many workers."
        )
    name = f"launch-{os.getpid()}-{time.monotonic_ns()}"
    gpus = _gpus(environ, workers)
    size = workers // groups
    own = [sys.executable, "-m", "lms", "launch", "-n", str(size), "--grace"]
    each = [
        {BUFFER_VARIABLE: name, **_together(gpus[i * size : (i + 1) * size])}
        for i in range(groups)
    ]
    try:
        return launch(
            [*own, str(grace), "--", *command],
            workers=groups,
            environ=environ,
            each=each,
            grace=grace + _LAST_WORDS,
            out=out,
            apart=lambda: restarts if buffer_path(name).exists() else 0,
        )
    finally:
        buffer_path(name).unlink(missing_ok=True)


def _together(gpus: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The GPUs of a group's workers."""
    names = [one[_VISIBLE] for one in gpus if one]
    return {_VISIBLE: ",".join(names)} if names else {}


def free_addresses(count: int) -> tuple[str, ...]:
    """So many ports of this host that nobody listens on now.

    Another program may take one before the worker does; `lms.join` says so then.
    """
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind((_HOST, 0))
        return tuple(f"{_HOST}:{each.getsockname()[1]}" for each in found)


class _Worker:
    """A process and the thread that passes its lines on; ends with its context."""

    def __init__(
        self,
        command: Sequence[str],
        rank: int,
        environ: Mapping[str, str],
        prefix: str,
        say: Callable[[str], None],
    ) -> None:
        self.rank = rank
        self.process = subprocess.Popen(
            [*_ENDS_WITH_LAUNCHER, *command],
            env={**environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # the launcher alone hears of the terminal
        )
        self._reader = threading.Thread(target=self._read, args=(prefix, say))
        self._reader.daemon = True
        self._reader.start()

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: Any) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join(_LAST_WORDS)

    def signal(self, number: int) -> None:
        """Send a signal to it and to what it has started, if it still runs."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def _read(self, prefix: str, say: Callable[[str], None]) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                say(prefix + line)


def _gpus(environ: Mapping[str, str], workers: int) -> list[dict[str, str]]:
    """The one GPU of each worker, of those that the launcher may use."""
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


class _Again:
    """Starts workers again that nobody waits for."""

    def __init__(
        self, start: Callable[[int], _Worker], apart: Callable[[], int] | None
    ) -> None:
        self._start = start
        self._most = apart or (lambda: 0)
        self._count = 0

    def __call__(self, worker: _Worker) -> _Worker | None:
        """The worker that takes the place of one that failed; None for the end."""
        if self._count >= self._most():
            return None
        self._count += 1
        worker.process.wait()
        return self._start(worker.rank)


def _wait(
    started: list[_Worker],
    grace: Seconds,
    say: Callable[[str], None],
    again: _Again,
) -> int:
    """Until all have ended, one has failed, or the launcher is asked to end."""
    with _heard() as asked:
        while True:
            codes = [worker.process.poll() for worker in started]
            failed = [i for i, code in enumerate(codes) if code]
            if asked:
                _end(started, asked[0], grace)
                return _BY_SIGNAL + asked[0]
            if failed:
                code, worker = codes[failed[0]] or 0, started[failed[0]]
                if other := again(worker):
                    say(f"{_how_it_ended(worker.rank, code)}; starting it again")
                    started[failed[0]] = other
                    continue
                others = "; ending the others" if len(started) > 1 else ""
                say(_how_it_ended(worker.rank, code) + others)
                _end(started, signal.SIGTERM, grace)
                return code if code > 0 else _BY_SIGNAL - code
            if all(code == 0 for code in codes):
                return 0
            time.sleep(_POLL)


@contextmanager
def _heard() -> Any:
    """Signals that ask this process to end, as they come."""
    asked: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {
        number: signal.signal(number, lambda got, _: asked.append(got))
        for number in numbers
    }
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(started: Sequence[_Worker], number: int, grace: Seconds) -> None:
    """Ask all to end; what still runs after a while is killed with its context."""
    for worker in started:
        worker.signal(number)
        worker.signal(signal.SIGCONT)  # one that was stopped hears of it
    until = time.monotonic() + grace
    while time.monotonic() < until:
        if all(worker.process.poll() is not None for worker in started):
            return
        time.sleep(_POLL)


def _how_it_ended(rank: int, code: int) -> str:
    how = f"code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
    return f"worker {rank} ended with {how}"
