"""Make the CPU a device of a given memory, so that running out of it needs no GPU.

TensorFlow can give its CPU device the best-fit allocator that it uses on GPUs, with a
hard limit. A step that does not fit then ends in a real ResourceExhaustedError, and
`tf.config.experimental.get_memory_info("CPU:0")` counts its bytes.

The limit is a whole number of MiB (the variable says MB) and 64 GiB if it is not set:
`ProcessState::GetCPUAllocator` in tensorflow/core/common_runtime/process_state.cc reads
both variables when the first tensor is made; `ReadBoolFromEnvVar` in
tensorflow/core/util/env_var.cc says which words are true.

The allocator takes its memory in one piece, as a GPU's does (`lms.startup`), where
`limit_memory` was called, and in every Python that is started by `run`, by
`python -m lms emulate`, or with `started_environment`.

Known weakness: only this allocator is limited. NumPy arrays, and tensors that wrap one
without a copy, are outside of it, as is everything else in the process.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import lms.startup
from lms.errors import LMSError, UnsupportedError
from lms.machine.link import LinkRates
from lms.startup.lms_one_region import install
from lms.units import MIB, Bytes, parse_size

__all__ = ["device_limit", "environment", "limit_memory", "run", "started_environment"]

_USE_BFC: Final = "TF_CPU_ALLOCATOR_USE_BFC"
_LIMIT: Final = "TF_CPU_BFC_MEM_LIMIT_IN_MB"

# Its `sitecustomize` runs at the start of every Python that a command starts.
_STARTUP: Final = Path(lms.startup.__file__).parent

# Read by `NumInterOpThreadsFromEnvironment` in TensorFlow's process_util.cc.
_THREADS: Final = "TF_NUM_INTEROP_THREADS"


def environment(
    memory: str | int, *, link: LinkRates | None = None, threads: int | None = None
) -> dict[str, str]:
    """Return the variables that make the CPU a device of `memory`.

    Besides the two variables of the allocator, oneDNN is switched on: without it, 3D
    convolutions on a CPU need about three times the memory, and ten times the time.
    GPUs are hidden, because TensorFlow would prefer one to the CPU.

    Args:
        memory: Size of the device, such as "96MiB" or a number of bytes; at least
            1 MiB, rounded down to whole MiB.
        link: None: a CPU has no link.
        threads: How many ops may run at a time, at least 1; None for TensorFlow's
            choice, one on each core unless the variable is set already. More make steps
            slower on few cores. But where a plan orders no ops, as IBM's rule does
            not, a copy over a link holds a thread until it has ended.

    Raises:
        TypeError: If `memory` is neither text nor a whole number.
        UnsupportedError: If a link is given.
        ValueError: If `memory` is not a size or is less than 1 MiB, or `threads` is
            less than 1.

    Example:
        >>> environment("1.5GiB")["TF_CPU_BFC_MEM_LIMIT_IN_MB"]
        '1536'
    """
    count = parse_size(memory, name="memory")
    if count < MIB:
        raise ValueError(
            f"`memory` must be at least 1 MiB, got {memory!r}. "
            "TensorFlow takes whole MiB: write a size such as '96MiB'."
        )
    if link is not None:
        raise UnsupportedError(
            "`link` must be left out where the CPU is the device, got one: its copies "
            "are the host's. Leave it out."
        )
    if threads is not None and threads < 1:
        raise ValueError(
            f"`threads` must be at least 1, got {threads}. Leave it out for one on "
            "each core."
        )
    return {
        _USE_BFC: "true",
        _LIMIT: str(count // MIB),
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
        **({} if threads is None else {_THREADS: str(threads)}),
    }


def limit_memory(
    memory: str | int, *, link: LinkRates | None = None, threads: int | None = None
) -> None:
    """Make the CPU a device of `memory` in this process, before TensorFlow is there.

    Args:
        memory: As in `environment`.
        link: As in `environment`.
        threads: As in `environment`.

    Raises:
        LMSError: If TensorFlow was imported already, so that it is too late.
        TypeError: If `memory` is neither text nor a whole number.
        ValueError: If `memory` is not a size or is less than 1 MiB.

    Example:
        The first lines of a program (not run here: they would limit this process):

            from lms.machine import emulate
            emulate.limit_memory("96MiB")
            import tensorflow as tf
    """
    variables = environment(memory, link=link, threads=threads)
    if "tensorflow" in sys.modules:
        raise LMSError(
            "`emulate.limit_memory` must be called before TensorFlow is imported, "
            "got a process in which it already is. Call it on the first line of the "
            "program, or start the program with `python -m lms emulate`."
        )
    os.environ.update(variables)
    install()


def run(
    command: Sequence[str],
    *,
    memory: str | int,
    link: LinkRates | None = None,
    threads: int | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command on a CPU device of `memory` and wait for its end.

    Args:
        command: The program and its arguments; at least the program.
        memory: As in `environment`.
        link: As in `environment`.
        threads: As in `environment`.
        env: Variables to add those of `environment` to; None for this process's.
        check: Whether an exit code other than 0 is an error.
        **options: The other arguments of `subprocess.run`.

    Raises:
        CalledProcessError: If `check` is given and the command fails.
        OSError: If the program cannot be started.
        TypeError: If `memory` is neither text nor a whole number.
        ValueError: If `memory` is not a size or is less than 1 MiB.

    Example:
        >>> code = "import os; print(os.environ['TF_CPU_BFC_MEM_LIMIT_IN_MB'], end='')"
        >>> command = [sys.executable, "-c", code]
        >>> run(command, memory="96MiB", capture_output=True, text=True).stdout
        '96'
    """
    variables = environment(memory, link=link, threads=threads)
    started = started_environment(variables, os.environ if env is None else env)
    return cast(Any, subprocess.run)(command, env=started, check=check, **options)


def started_environment(
    variables: Mapping[str, str], inherited: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return what a program is started with on an emulated device.

    Each Python lets its allocator take its memory in one piece (`lms.startup`).

    Args:
        variables: Those of `environment`.
        inherited: What they are added to; by default this process's variables.

    Example:
        >>> started = started_environment(environment("96MiB"), {"PYTHONPATH": "mine"})
        >>> started["PYTHONPATH"].split(os.pathsep)[1:]
        ['mine']
    """
    path = [str(_STARTUP), *filter(None, [inherited.get("PYTHONPATH")])]
    return {**inherited, **variables, "PYTHONPATH": os.pathsep.join(path)}


def device_limit(environ: Mapping[str, str] = os.environ) -> Bytes | None:
    """Return the size of the emulated device, if there is one.

    Args:
        environ: Environment variables; those of this process by default.

    Returns:
        Bytes, or None if the CPU has its usual allocator or no limit is set.

    Raises:
        ValueError: If a variable has a value that TensorFlow would not understand and
            replace by its default.

    Example:
        >>> device_limit(environment("96MiB")) == 96 * MIB
        True
        >>> device_limit({}) is None
        True
    """
    limit = environ.get(_LIMIT)
    if not _is_true(environ.get(_USE_BFC, "false")) or limit is None:
        return None
    if not re.fullmatch(r"0*[1-9][0-9]{0,11}", limit.strip()):
        raise ValueError(
            f"`{_LIMIT}` must be a whole number of MiB, at least 1, got {limit!r}. "
            "Unset it, or let `python -m lms emulate --memory 96MiB` set it."
        )
    return int(limit) * MIB


def _is_true(word: str) -> bool:
    """Read a boolean variable the way TensorFlow does."""
    known = {"1": True, "true": True, "0": False, "false": False}
    if word.lower() not in known:
        raise ValueError(
            f"`{_USE_BFC}` must be true, false, 1 or 0, got {word!r}. "
            "Unset it, or let `python -m lms emulate --memory 96MiB` set it."
        )
    return known[word.lower()]
