"""One trial, in a process of its own: python -m experiments.gpu_validation.worker.

The result is written whenever something is known, and says at its end how it went; a
process that dies before says nothing of that, and the one that started it does.
"""

import argparse
import ctypes
import json
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from profiling.record import write_json

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1

# What running out of memory looks like; names, because TensorFlow comes later.
_OUT_OF_MEMORY = ("ResourceExhaustedError", "OutOfMemoryError", "BudgetError")


def main() -> int:
    """Run the trial; 3 means that there is no GPU, 1 that it failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trial", required=True, help="JSON")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args()
    _die_with_parent()
    known: dict[str, Any] = {}

    def note(**results: Any) -> None:
        known.update(results)
        write_json(options.output, known)

    try:
        _run(json.loads(options.trial), options.output, note)
    except Exception as error:  # whatever it is, it is a finding
        traceback.print_exc()
        name = type(error).__name__
        memory = name in _OUT_OF_MEMORY
        note(
            outcome="out of memory" if memory else "failed",
            error=f"{name}: {_first_words(error)}",
        )
        return 3 if name == "NoGpuError" else 1
    note(outcome="done", error=None)
    return 0


def _die_with_parent() -> None:
    """A run that is killed must not leave a process that holds the GPU (prctl(2))."""
    system = ctypes.CDLL(None)
    if hasattr(system, "prctl"):
        system.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _run(trial: dict[str, Any], output: Path, note: Callable[..., None]) -> None:
    from experiments.gpu_validation import measuring, probes, training

    settings, kind = trial["settings"], trial["kind"]
    make = partial(
        measuring.make_device,
        trial["device"],
        trial["memory"],
        settings.get("gpu_options"),
    )
    trace = output.parent.parent / "traces" / output.stem
    trace.parent.mkdir(exist_ok=True)
    if kind == "link":
        measuring.time_link(settings, make, note, trace)
    elif kind == "timeline":
        measuring.time_step(settings, make(), note, trace)
    elif kind == "fit":
        training.fit(settings, make(), note)
    elif kind == "train":
        training.train(settings, make(), note, trace)
    elif kind == "machine":
        measuring.describe(make(), note)
    else:
        getattr(probes, kind)(settings, make(), note)


def _first_words(error: Exception) -> str:
    """TensorFlow's and Keras's messages are long; the reason is a line of them."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    oom = next(
        (line for line in lines if "OOM" in line or "unable to allo" in line), ""
    )
    return (oom or " ".join(lines[:3]) or "no message")[:500]


if __name__ == "__main__":
    sys.exit(main())
