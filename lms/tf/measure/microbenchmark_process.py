"""Scratch of ops for which an emulated device has no room, found in another process.

    this process: 44 MiB ──the ops, pickled──> a process with plenty of memory
                         <──bytes of scratch──

An op that is run alone where it has too little room waits ten seconds before it fails,
or takes the process with it (oneDNN), or takes a chunk of up to twice what it needs.
What it needs does not depend on the device's memory, so another process can tell. A GPU
has no such twin: there, what is free must do.

The other process runs this file: it reads the ops, and prints what it found.
"""

import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from lms.machine import emulate
from lms.tf import compat
from lms.tf.measure.devices import find_device
from lms.tf.measure.host_memory import available_host_bytes
from lms.tf.measure.microbenchmark import Bench
from lms.units import Bytes, format_bytes

__all__ = ["scratch_elsewhere"]

_LOG = logging.getLogger("lms")

# Of the host's memory that is free, the process gets one part of so many; it takes from
# it what its largest op needs.
_PART = 2

# Bytes that an op may need for each byte that it reads and makes.
_NEEDED = 4

# TensorFlow takes seconds to start; each op a few runs.
_LONGEST = 300


def scratch_elsewhere(benches: Sequence[tuple[Bench, int]]) -> dict[str, int]:
    """Measure the scratch of ops in a process with plenty of memory.

    Args:
        benches: The ops, each with the bytes that it reads and makes.

    Returns:
        Bytes by the benches' keys; without those that do not run alone, and empty
        where the host has no room or the process fails.
    """
    room = (available_host_bytes() or 0) // _PART
    asked = {b.key: (b, moved) for b, moved in benches if moved * _NEEDED <= room}
    if not asked:
        return {}
    _LOG.info("Measuring %d ops in a process of their own.", len(asked))
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            input=_packed([*asked.values()]),
            capture_output=True,
            timeout=_LONGEST,
            check=True,
            env=_environment(room),
        )
        found: list[int | None] = json.loads(ended.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        _LOG.warning(
            "Ops could not be measured in a process with %s: %s. What they need is "
            "taken from ops like them.",
            format_bytes(room),
            error,
        )
        return {}
    return {
        key: scratch
        for key, scratch in zip(asked, found, strict=True)
        if scratch is not None
    }


def _environment(room: Bytes) -> dict[str, str]:
    """Find the same packages there, by whatever way, and run the same kernels."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    onednn = {"TF_ENABLE_ONEDNN_OPTS": str(int(compat.onednn_is_on()))}
    return emulate.started_environment(
        emulate.environment(room) | onednn, {**os.environ, "PYTHONPATH": path}
    )


def _packed(benches: Sequence[tuple[Bench, int]]) -> bytes:
    """Pack ops for the other process."""
    threading = tf.config.threading
    return pickle.dumps(
        {
            "threads": (
                threading.get_inter_op_parallelism_threads(),
                threading.get_intra_op_parallelism_threads(),
            ),
            "is_deterministic": compat.ops_are_deterministic(),
            "benches": [
                (
                    [node.SerializeToString() for node in bench.nodes],
                    [
                        (name, spec.shape.as_list(), spec.dtype.name)
                        for name, spec, _ in bench.arguments
                    ],
                    bench.outputs,
                    bench.key,
                    moved,
                )
                for bench, moved in benches
            ],
        }
    )


def _unpacked(packed: Sequence[Any]) -> tuple[Bench, int]:
    nodes, arguments, outputs, key, moved = packed
    bench = Bench(
        nodes=tuple(compat.NodeDef.FromString(node) for node in nodes),
        arguments=tuple(
            (name, tf.TensorSpec(shape, tf.as_dtype(dtype)), None)
            for name, shape, dtype in arguments
        ),
        outputs=tuple(outputs),
        key=key,
    )
    return bench, moved


def _answer() -> None:
    """Measure what comes in, and print it as one line."""
    asked = pickle.loads(sys.stdin.buffer.read())
    inter, intra = asked["threads"]
    tf.config.threading.set_inter_op_parallelism_threads(inter)
    tf.config.threading.set_intra_op_parallelism_threads(intra)
    if asked["is_deterministic"]:
        tf.config.experimental.enable_op_determinism()
    memory = find_device().memory
    found = [
        bench.scratch(memory, moved)
        for bench, moved in map(_unpacked, asked["benches"])
    ]
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    _answer()
