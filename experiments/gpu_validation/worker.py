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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from profiling.record import write_json

__all__ = ["KINDS", "main"]

KINDS = (
    "machine",
    "transports",
    "keras",
    "train",
    "launches",
    "refused",
    "link",
    "cards",
)

_PR_SET_PDEATHSIG = 1

# What running out of memory looks like; names, because TensorFlow comes later.
_OUT_OF_MEMORY = ("ResourceExhaustedError", "OutOfMemoryError", "BudgetError")

_NO_GPU = (
    "TensorFlow sees no GPU. Run this where `nvidia-smi` works and "
    "tensorflow[and-cuda] is installed, or under `python -m lms emulate`."
)


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
        return _run(json.loads(options.trial), options.output, note)
    except Exception as error:  # whatever it is, it is a finding
        traceback.print_exc()
        name = type(error).__name__
        skipped = str(error).startswith("skipped: ")
        memory = name in _OUT_OF_MEMORY
        outcome = "skipped" if skipped else "out of memory" if memory else "failed"
        note(outcome=outcome, error=f"{name}: {_first_words(error)}")
        return 1


def _die_with_parent() -> None:
    """A run that is killed must not leave a process that holds the GPU (prctl(2))."""
    system = ctypes.CDLL(None)
    if hasattr(system, "prctl"):
        system.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _run(trial: Mapping[str, Any], output: Path, note: Callable[..., None]) -> int:
    import tensorflow as tf

    from experiments.gpu_validation import defaults, probes, training, transports
    from lms.tf import compat
    from lms.tf.measure.devices import find_device
    from lms.units import MIB

    settings, kind = trial["settings"], trial["kind"]
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        note(outcome="failed", error=_NO_GPU)
        return 3
    if settings.get("gpu_options"):
        compat.set_gpu_options(**settings["gpu_options"])
    if trial["memory"] is not None:
        limit = tf.config.LogicalDeviceConfiguration(
            memory_limit=trial["memory"] // MIB
        )
        tf.config.set_logical_device_configuration(gpus[0], [limit])
    device = find_device()
    trace = output.parent.parent / "traces" / output.stem
    trace.parent.mkdir(exist_ok=True)
    if kind == "train":
        training.train(settings, device, note, trace)
    elif kind == "link":
        probes.link(settings, device, note, trace)
    elif kind == "keras":
        defaults.fit_with_defaults(settings, device, note)
    elif kind == "transports":
        transports.transports(settings, device, note)
    else:
        getattr(probes, kind)(settings, device, note)
    note(outcome="done", error=None)
    return 0


def _first_words(error: Exception) -> str:
    """TensorFlow's and Keras's messages are long; the reason is a line of them."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    oom = next(
        (line for line in lines if "OOM" in line or "unable to allo" in line), ""
    )
    return (oom or " ".join(lines[:3]) or "no message")[:500]


if __name__ == "__main__":
    sys.exit(main())
