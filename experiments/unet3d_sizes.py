"""In one fixed device memory, which sizes train with plain Keras and with the callback?

The case study's question, scaled down: on a GPU of 16 GB, 144^3 was the largest that
trained without TFLMS, and 192^3, 2.37 times the voxels, trained with it. Here the
device is emulated, and each size is one run of `python -m unet3d train` on synthetic
subjects in a process of its own: two epochs of two steps, validation included. Sizes
rise until one fails, with plain Keras and with the callback.

Known weakness: one trial per size. Seconds of a step come from the second epoch; they
hold reading from the cache and validation, planning again where a step ran out of
memory, and the machine's other work.
"""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.ledger import Head, Ledger, Rows
from experiments.question import (
    DEVICE,
    Answer,
    Finding,
    cubed,
    how_it_ended,
    settings_of,
    shortened,
)
from experiments.runner import why_it_failed
from experiments.servers import PUBLISHED_LARGER
from lms.emulation import emulate
from lms.units import format_bytes, parse_size
from unet3d.synthesis import synthesize

__all__ = ["ANSWER", "main"]

_FOLDER = Path("build") / "experiments" / "unet3d_sizes"
_LONGEST = 900  # seconds
_STEPS = 2
_FLAGS = {"without": "--no-lms", "with": "--lms"}
_WAYS = {"without": "plain Keras", "with": "the callback"}


def _add_settings(parser: Any) -> None:
    parser.add_argument("--memory", default="128MiB", help="of the emulated device")
    parser.add_argument("--smallest", type=int, default=48, help="size to begin with")
    parser.add_argument("--filters", type=int, default=8, help="of the top level")
    parser.add_argument("--depth", type=int, default=4, help="levels of the network")


def _run(options: Any) -> None:
    if not (_FOLDER / "data").exists():
        synthesize(_FOLDER / "data", subjects=2, seed=0)
    names = ("memory", "smallest", "filters", "depth")
    settings = settings_of(options, *names) | {"steps": _STEPS}
    ledger = Ledger(options.results, settings, anew=options.anew)
    for support in _FLAGS:
        _climb(support, options, ledger)


def _climb(support: str, options: Any, ledger: Ledger) -> None:
    """One row per size, from the smallest to the first that fails."""
    for size in count(options.smallest, 2 ** (options.depth - 1)):
        row = ledger.once(
            {"support": support, "size": size},
            lambda size=size: _trial(support, size, options),
        )
        how = row["error"] or "trained"
        Console().print(f"{size}^3, {_WAYS[support]}: {how}")
        if row["error"]:
            return


def _trial(support: str, size: int, options: Any) -> dict[str, Any]:
    run = _FOLDER / f"{support}-{size}"
    for old in run.glob("*"):
        old.unlink()
    words = [sys.executable, "-m", "unet3d", "train", "--data", _FOLDER / "data"]
    words += ["--label-scheme", "brats2017", "--size", size, "--epochs", 2]
    words += ["--steps-per-epoch", _STEPS, "--filters", options.filters]
    words += ["--depth", options.depth, "--cache", _FOLDER / "cache"]
    words += ["--output", run, _FLAGS[support]]
    error = _error(words, options.memory)
    return {"error": error} if error else {"error": None} | _measured(run)


def _error(words: Sequence[Any], memory: str) -> str | None:
    try:
        done = emulate.run(
            [str(word) for word in words],
            memory=memory,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST,
        )
    except subprocess.TimeoutExpired:
        return f"TimeoutError: not done after {_LONGEST} s"
    return why_it_failed(done.stderr, done.returncode)


def _measured(run: Path) -> dict[str, Any]:
    """What a run wrote beside its weights."""
    memory = json.loads((run / "memory.json").read_text())
    epochs = list(csv.DictReader((run / "log.csv").read_text().splitlines()))
    step = next((step for step in memory["steps"] if step["kind"] == "train"), {})
    names = ("unplanned_peak_bytes", "predicted_peak_bytes", "lower_bound_bytes")
    names += ("persistent_bytes", "swapped_out_bytes", "swap_count", "replans")
    return {
        "peak_bytes": memory["device peak bytes"],
        "epoch_seconds": [float(epoch["seconds"]) for epoch in epochs],
        "loss": float(epochs[-1]["loss"]),
        **{name: step.get(name) for name in names},
    }


def _finding(head: Head, rows: Rows) -> Finding:
    largest = {way: _largest(rows, way) for way in _FLAGS}
    memory = format_bytes(parse_size(head["settings"]["memory"], name="memory"))
    ratio = cubed(largest["with"], largest["without"])
    text = (
        f"In {memory}, whole trainings with validation reach {largest['without']}^3 "
        f"with plain Keras and {largest['with']}^3 with the callback, {ratio:.2f} "
        "times the voxels. In the case study, TFLMS reached "
        f"{cubed(192, 144):.2f} times: from 144^3 to 192^3. {PUBLISHED_LARGER}"
    )
    body = [
        [
            _WAYS[row["support"]],
            f"{row['size']}^3",
            f"{cubed(row['size'], largest['without']):.2f}",
            *(
                ["", "", "", shortened(row["error"])]
                if row["error"]
                else [
                    format_bytes(row["peak_bytes"]),
                    format_bytes(row["swapped_out_bytes"] or 0),
                    f"{row['epoch_seconds'][-1]:.1f} s",
                    how_it_ended(row["replans"]),
                ]
            ),
        ]
        for row in rows
    ]
    columns = ["way", "size", "voxels", "peak", "swapped out", "second epoch"]
    columns += ["how it ended"]
    return text, (f"In {memory}", columns, body)


def _largest(rows: Rows, support: str) -> int:
    """The largest size that trained."""
    return max(
        row["size"] for row in rows if row["support"] == support and not row["error"]
    )


def _goals(_: Head, rows: Rows) -> list[tuple[str, bool]]:
    reached = cubed(_largest(rows, "with"), _largest(rows, "without"))
    text = "the callback trains as many times plain Keras's voxels as IBM's TFLMS did"
    published = cubed(192, 144)
    said = f"{text}, {published:.2f}: {reached:.2f}."
    return [(said, reached >= published)]


ANSWER = Answer(
    name="unet3d_sizes",
    title="Sizes that train, from files to weights",
    emulated=DEVICE,
    about=__doc__,
    add_settings=_add_settings,
    run=_run,
    finding=_finding,
    goals=_goals,
)
main = ANSWER.main

if __name__ == "__main__":
    raise SystemExit(main())
