"""Worker processes: spawned programs, and forks of a server with TensorFlow imported.

    launcher ──> server: imports, once ──> fork ──> program, program, ...

An import takes seconds of a core, more than the rest of a small group's restart.
TensorFlow has run nothing in the server, so each fork makes its own devices. Linux
kills all of these processes when the launcher ends.

Known weakness: variables that a fork sets in `os.environ` for TensorFlow's or Keras's
import come too late. Set them before the launcher starts.
"""

import atexit
import ctypes
import gc
import os
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe, get_context, set_start_method
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Worker", "copied", "is_program", "spawned"]

_IMPORTED = ["lms.workers.data_parallel", "lms.workers.joining", "lms.fit.callback"]
_POLL = 0.01
_LAST_WORDS = 2.0

# Replaces itself by the program; PR_SET_PDEATHSIG (1) kills it with the launcher.
_BECOME = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
os.execvp(sys.argv[1], sys.argv[1:])
"""
_ENDS_WITH_LAUNCHER = (sys.executable, "-S", "-c", _BECOME)


class Worker:
    """A process and the thread that forwards its lines."""

    def __init__(
        self, start: Callable[[Connection], Any], say: Callable[[str], None]
    ) -> None:
        lines, out = Pipe(duplex=False)
        with out:
            self._process = start(out)
        self._reader = threading.Thread(target=_read, args=(lines, say), daemon=True)
        self._reader.start()

    def code(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        if isinstance(self._process, subprocess.Popen):
            return self._process.poll()
        return self._process.exitcode

    def signal(self, number: int) -> None:
        """Send a signal to the process and its children, if it still runs."""
        if self.code() is None:
            with suppress(ProcessLookupError):  # the process has just begun, or ended
                os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Kill the process, and wait for its last lines."""
        while self.code() is None:
            self.signal(signal.SIGKILL)
            time.sleep(_POLL)
        self._reader.join(_LAST_WORDS)


def is_program(command: Sequence[str]) -> bool:
    """Tell whether a command runs a script or module in this Python.

    Example:
        >>> is_program([sys.executable, "train.py"]), is_program(["true", "train.py"])
        (True, False)
    """
    this, own = Path(sys.executable), Path(shutil.which(command[0]) or "").absolute()
    if own.parent != this.parent or not own.samefile(this):
        return False
    words = command[1:2]
    return words == ["-m"] or any(word.endswith(".py") for word in words)


def spawned(command: Sequence[str], environ: Mapping[str, str], out: Connection) -> Any:
    """Start a program whose lines go to `out`."""
    return subprocess.Popen(
        [*_ENDS_WITH_LAUNCHER, *command],
        env={**environ, "PYTHONUNBUFFERED": "1"},
        stdout=out.fileno(),
        stderr=subprocess.STDOUT,
        start_new_session=True,  # the terminal signals the launcher alone
    )


def copied(
    command: Sequence[str],
    environ: Mapping[str, str],
    out: Connection,
    imported: Sequence[str] = (),
) -> Any:
    """Start a program in a fork, with `imported` loaded; its lines go to `out`."""
    context = get_context("forkserver")
    context.set_forkserver_preload([*_IMPORTED, *imported])
    process = context.Process(target=_become, args=(command[1:], dict(environ), out))
    process.start()
    return process


def _become(words: Sequence[str], environ: Mapping[str, str], out: Connection) -> None:
    from lms.tf.measure.free_memory import limit_pinned_memory

    gc.freeze()  # imported objects stay: collections skip them
    set_start_method(None, force=True)  # the program may choose
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, 9)  # the server's end kills this process
    for number in (1, 2):
        os.dup2(out.fileno(), number)
    out.close()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # pyright: ignore
    os.environ.clear()
    os.environ.update(environ)
    limit_pinned_memory()  # as an import of lms does
    np.random.seed()  # noqa: NPY002 - else all draw equal numbers
    try:
        if words[0] == "-m":
            sys.argv = list(words[1:])
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(words)
            sys.path[0] = str(Path(words[0]).resolve().parent)
            runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001 - multiprocessing does not


def _read(lines: Connection, say: Callable[[str], None]) -> None:
    with lines, open(lines.fileno(), errors="replace", closefd=False) as text:
        for line in text:
            say(line)
