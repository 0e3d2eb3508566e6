"""Samples counters in a process of its own, until its input ends.

    python -m profiling.sampler --interval 0.1 --output FILE

The first line of the file describes the devices, each further line is a sample. The
parent ends the sampler by closing the pipe, or by dying. Intervals vary by half, so
that samples fall on different parts of a step.
"""

import argparse
import json
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lms.units import Seconds
from profiling.counters import describe_gpus, open_gpus, read_counters

__all__ = ["main", "read_samples", "sampling"]


@contextmanager
def sampling(interval: Seconds, output: Path) -> Iterator[None]:
    """Sample while the `with` block runs.

    Args:
        interval: Seconds between two samples.
        output: File for the samples, for `read_samples`.
    """
    words = ["--interval", str(interval), "--output", str(output)]
    sampler = subprocess.Popen(
        [sys.executable, "-m", "profiling.sampler", *words],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the program
    )
    assert sampler.stdout is not None
    sampler.stdout.readline()  # the sampler is ready
    try:
        yield
    finally:
        sampler.communicate(timeout=30)


def read_samples(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read a sampler's file: the devices, and the samples.

    Raises:
        ValueError: If the sampler did not begin, or was killed.
    """
    lines = path.read_text().splitlines() if path.exists() else []
    if len(lines) < 2:
        raise ValueError(
            f"`{path}` must hold samples, got nothing. The sampler could not start: "
            "its message is above."
        )
    head, *samples = (json.loads(line) for line in lines)
    return head, samples


def main() -> None:
    """Sample until the input ends."""
    parser = argparse.ArgumentParser(prog="python -m profiling.sampler")
    parser.add_argument("--interval", type=float, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    with options.output.open("w", buffering=1) as file:
        api = open_gpus()
        head = {"gpus": describe_gpus(api)}
        file.write(json.dumps(head) + "\n")
        print("ready", flush=True)
        _sample(api, len(head["gpus"]), options, file)


def _sample(api: Any, count: int, options: argparse.Namespace, file: Any) -> None:
    luck = random.Random(0)
    ended = False
    while True:
        sample = {
            "at": time.monotonic(),
            "gpus": [read_counters(api, index) for index in range(count)],
            "sampler_cpu_seconds": sum(os.times()[:2]),
        }
        file.write(json.dumps(sample) + "\n")
        if ended:
            return
        pause = options.interval * luck.uniform(0.5, 1.5)
        ended = bool(select.select([sys.stdin], [], [], pause)[0])  # the pipe


if __name__ == "__main__":
    main()
