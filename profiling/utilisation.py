"""Measure how busy the device is during a command: python -m profiling.utilisation.

    python -m profiling.utilisation --output use.json -- python train.py

A process of its own samples NVIDIA's counters; the file has the sampler's CPU time and
the counters that a card lacks. An emulated card has few counters: see a step's timeline
instead (`profiling.step_timeline`).
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from lms.machine.inventory import NoDriverError
from lms.units import Seconds
from profiling.counters import open_gpus
from profiling.record import write_result
from profiling.sampler import read_samples, sampling

__all__ = ["main", "summarise"]

# Counters of a GPU that are averaged.
_AVERAGED = (
    "gpu_utilisation",
    "memory_utilisation",
    "used_memory",
    "pcie_received",
    "pcie_sent",
    "sm_clock",
    "memory_clock",
    "power",
)
_COUNTED = ("nvlink_received", "nvlink_sent")  # bytes since the driver started


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and sample; the exit code is the command's, 3 without a GPU."""
    options = _parser().parse_args(arguments)
    command = options.command[options.command[:1] == ["--"] :]
    if not command:
        _parser().error("COMMAND must name a program, got nothing. Write it after --.")
    try:
        open_gpus()
        with tempfile.TemporaryDirectory() as folder:
            samples = Path(folder, "samples")
            code, seconds = _run(command, options.interval, samples)
            results = summarise(*read_samples(samples))
    except (NoDriverError, ValueError) as error:
        print(f"utilisation: {error}", file=sys.stderr)
        return 3 if isinstance(error, NoDriverError) else 2
    settings = {"command": command, "interval": options.interval, "exit_code": code}
    write_result(
        options.output, "utilisation", settings, {"seconds": seconds, **results}
    )
    for gpu in results["gpus"]:
        busy = _number(gpu["gpu_utilisation"])
        told = "busy: unknown" if busy is None else f"busy {busy:.0%}"
        print(f"{gpu['name']}: {told} of {seconds:.1f} s")
    print(f"written: {options.output}")
    return code


def summarise(
    head: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Summarise samples.

    Args:
        head: Facts of the devices.
        samples: At least one sample.

    Returns:
        "device", "sampler_cores" (the sampler's share of a core), an entry in "gpus"
        for each GPU, and the utilisation of all samples.
    """
    times = [sample["at"] for sample in samples]
    length = max(times[-1] - times[0], 1e-9)
    own = [sample["sampler_cpu_seconds"] for sample in samples]
    return {
        "device": ", ".join(str(gpu["name"]) for gpu in head["gpus"]),
        "samples": len(samples),
        "sampler_cores": (own[-1] - own[0]) / length,
        "gpus": [
            dict(about) | _summary([s["gpus"][i] for s in samples], times)
            for i, about in enumerate(head["gpus"])
        ],
        "curve": {
            "at": [round(at - times[0], 4) for at in times],
            "gpu_utilisation": [
                [_number(s["gpus"][i]["gpu_utilisation"]) for s in samples]
                for i in range(len(head["gpus"]))
            ],
        },
    }


def _summary(
    counters: Sequence[Mapping[str, Any]], times: Sequence[Seconds]
) -> dict[str, Any]:
    """Average counters of a GPU; a counter without numbers keeps its reason."""
    found: dict[str, Any] = {}
    for name in (*_AVERAGED, *_COUNTED):
        told = [
            (at, value)
            for at, counter in zip(times, counters, strict=True)
            if (value := _number(counter[name])) is not None
        ]
        missing = len(counters) - len(told)
        if not told:
            found[name] = counters[-1][name]
        elif name in _COUNTED:
            (began, first), (ended, last) = told[0], told[-1]
            found[name] = (last - first) / (ended - began) if ended > began else 0.0
        else:
            found[name] = mean(value for _, value in told)
        if told and missing:
            found[f"{name}_missing"] = missing
    reasons = [c["throttling"] for c in counters if isinstance(c["throttling"], list)]
    found["throttling"] = sorted({reason for some in reasons for reason in some})
    return found


def _number(value: Any) -> float | None:
    return None if isinstance(value, Mapping) else value


def _run(
    command: Sequence[str], interval: Seconds, samples: Path
) -> tuple[int, Seconds]:
    started = time.monotonic()
    try:
        process = subprocess.Popen(command)
    except OSError as error:
        raise ValueError(
            f"COMMAND must be a program that can be started, got {command[0]!r} "
            f"({error.strerror}). Check its name and path."
        ) from error
    # Ctrl-C reaches the command, too: wait for its end.
    former = signal.signal(signal.SIGINT, lambda *_: None)
    with sampling(interval, samples):
        code = process.wait()
    signal.signal(signal.SIGINT, former)
    return code, time.monotonic() - started


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m profiling.utilisation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--interval", type=float, default=0.1, help="seconds between samples (0.1)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    return parser


if __name__ == "__main__":
    sys.exit(main())
