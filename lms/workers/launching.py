"""Start a command several times on this host, as the workers of one job.

    [0] Epoch 1/3
    [1] Epoch 1/3
    worker 1 ended with code 1; ending the others

What workers print comes with their rank before it. The first that fails ends all: the
others would wait for it. They are asked to end, and killed after a while. If the
launcher itself is killed, Linux kills the workers.
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
from dataclasses import replace
from typing import IO, Any

from lms.machine.placement import Placement, cluster_variables
from lms.units import Seconds

__all__ = ["free_addresses", "launch"]

_HOST = "127.0.0.1"
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


def launch(
    command: Sequence[str],
    *,
    workers: int,
    environ: Mapping[str, str] = os.environ,
    each: Sequence[Mapping[str, str]] = (),
    grace: Seconds = 10.0,
    out: IO[str] | None = None,
) -> int:
    """Run a command as so many workers, and wait for all.

    Args:
        command: The program and its arguments.
        workers: How many, at least 1.
        environ: What they are started with, but for what tells them apart.
        each: More variables of each worker, by rank; none for no more.
        grace: How long workers get to end when they are asked to.
        out: Where their lines go; standard output by default.

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
    gpus = _gpus(environ, workers)
    one = Placement(addresses=free_addresses(workers) if workers > 1 else ())
    out, lock = out or sys.stdout, threading.Lock()

    def say(line: str) -> None:
        with lock:
            print(line.rstrip("\n"), file=out, flush=True)

    with ExitStack() as stack:
        started: list[_Worker] = []
        for rank, gpu in enumerate(gpus):
            own = {**environ, **gpu, **(each[rank] if each else {})}
            worker = _Worker(command, replace(one, rank=rank), own, say)
            started.append(stack.enter_context(worker))
        return _wait(started, grace, say)


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
        placement: Placement,
        environ: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self.rank = placement.rank
        own = cluster_variables(placement) if placement.size > 1 else {}
        self.process = subprocess.Popen(
            [*_ENDS_WITH_LAUNCHER, *command],
            env={**environ, **own, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # the launcher alone hears of the terminal
        )
        prefix = f"[{self.rank}] " if placement.size > 1 else ""
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
    allowed = environ.get("CUDA_VISIBLE_DEVICES")
    if allowed in ("", "-1"):
        return [{}] * workers
    names = [str(i) for i in range(workers)] if allowed is None else allowed.split(",")
    if workers > len(names):
        raise ValueError(
            f"each worker must have a GPU of its own, got {workers} workers and "
            f"{len(names)} GPUs in CUDA_VISIBLE_DEVICES={allowed}. Start fewer "
            "workers, or name more GPUs."
        )
    return [{"CUDA_VISIBLE_DEVICES": names[rank]} for rank in range(workers)]


def _wait(
    started: Sequence[_Worker], grace: Seconds, say: Callable[[str], None]
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
                code = codes[failed[0]] or 0
                say(_how_it_ended(started[failed[0]].rank, code, len(started)))
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


def _how_it_ended(rank: int, code: int, workers: int) -> str:
    how = f"code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
    return f"worker {rank} ended with {how}" + (
        "; ending the others" if workers > 1 else ""
    )
