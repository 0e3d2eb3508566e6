"""The host: cores that this process may use, memory to pin, calls beside it.

Tensors leave a GPU through TensorFlow's pool of pinned memory, `gpu_host_bfc`. The pool
is created with the devices, grows by doubling regions, and never shrinks. Pinned memory
is taken at once, pageable memory when it is touched. The pool's limit, 128 GiB in 2.21,
may exceed the host's memory: then Linux kills processes.

Sources: `GPUProcessState::GetGpuHostAllocator` in gpu_process_state.cc and
`BFCAllocator::Extend` in bfc_allocator.cc of TensorFlow.
"""

import ctypes
import os
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final
from weakref import finalize

import psutil

from lms.units import GIB, MIB, Bytes

__all__ = ["PINNED_VARIABLE", "Beside", "is_number", "pinned_limit", "processor_name"]
__all__ += ["swappable", "usable_cores"]

PINNED_VARIABLE: Final = "TF_GPU_HOST_MEM_LIMIT_IN_MB"

_MOST: Final = 128 * GIB  # TensorFlow's own limit of pinned memory

# 1/32 of the free memory is left to programs that grow meanwhile, this one too, and
# 1/32 to the allocator's bookkeeping: 8 bytes for each 256.
_MARGIN, _NOTES = 32, 32

# The other process's variable with its parent's number, the option of prctl(2) that
# ends a process with its parent, and the lowest priority of nice(2).
_PARENT, _PR_SET_PDEATHSIG, _NICEST = "LMS_BESIDE", 1, 19


def pinned_limit(environ: Mapping[str, str] = os.environ) -> Bytes:
    """Return the bytes that TensorFlow may pin: by the variable, else its own limit."""
    written = environ.get(PINNED_VARIABLE, "")
    return int(written) * MIB if is_number(written) else _MOST


def is_number(written: str) -> bool:
    """Tell whether TensorFlow can read a limit; it ignores other texts."""
    return re.fullmatch(r"\s*[0-9]+\s*", written) is not None


def swappable(free: Bytes, limit: Bytes) -> Bytes:
    """Return the bytes of `free` host memory for swapped tensors, below `limit`."""
    return min(limit, free - free // _MARGIN - free // _NOTES)


def processor_name() -> str | None:
    """Return the processor's model from Linux, which psutil lacks; None if missing."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        found = re.search(r"^model name\s*:(.*)$", text, re.MULTILINE)
        return found and found[1].strip()
    return None


def usable_cores() -> int:
    """Return the number of cores for this process; all cores if unknown."""
    try:
        return len(psutil.Process().cpu_affinity() or ()) or os.cpu_count() or 1
    except AttributeError:  # macOS
        return os.cpu_count() or 1


class Beside:
    """A call of a function in another process, of the lowest priority.

    The process imports the function's module and no script of the user's. It ends with
    the thread that made it, and with this object.

    Args:
        function: A function of a module.
        arguments: What the function gets, as `pickle` can write it.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._answer: IO[bytes] | None = None
        code = "import sys, pickle; sys.path[:] = pickle.load(sys.stdin.buffer); "
        code += "from lms.machine import host; host.answer()"
        if not sys.executable or getattr(sys, "frozen", False):
            return  # the executable is no Python
        with suppress(Exception), TemporaryFile() as call:  # the call is never needed
            for said in (sys.path, (function, arguments)):
                pickle.dump(said, call)
            call.seek(0)
            self._answer = TemporaryFile()  # noqa: SIM115 - read at the process's end
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", code],
                stdin=call,
                stdout=self._answer,
                stderr=subprocess.DEVNULL,
                env=os.environ | {_PARENT: str(os.getpid())},
                start_new_session=True,  # Ctrl-C is for the training
            )
        finalize(self, _end, self._process, self._answer)

    @property
    def is_running(self) -> bool:
        """Tell whether the function has not ended yet."""
        return self._process is not None and self._process.poll() is None

    def wait(self) -> Any:
        """Return what the function returned; None if it could not."""
        if self._process is None or self._answer is None or self._process.wait() != 0:
            return None
        self._answer.seek(0)
        with suppress(Exception):  # others may have written there, or nobody
            return pickle.load(self._answer)
        return None


def _end(process: subprocess.Popen[bytes] | None, answer: IO[bytes] | None) -> None:
    if answer is not None:
        answer.close()
    if process is not None:
        process.kill()
        process.wait()


def answer() -> None:
    """Call a function for `Beside` in the other process; write what it returns."""
    with suppress(AttributeError, OSError):  # only Linux can end it with its parent
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if str(os.getppid()) != os.environ[_PARENT]:
        sys.exit(1)  # the parent ended before
    os.nice(_NICEST)
    function, arguments = pickle.load(sys.stdin.buffer)
    own, sys.stdout = sys.stdout, sys.stderr  # what the function prints is no answer
    own.buffer.write(pickle.dumps(function(*arguments)))
