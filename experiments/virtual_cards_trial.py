"""One trial of `virtual_cards`: some steps on a dry card, and what they took.

Seconds are the card's: those of the clock, over the slow motion. Copies are those of
the last step that are large enough to be a tensor's, without the batch's. The peak
leaves out the first step, which initialises.
"""

import argparse
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.block_subjects import gpt2
from lms import LMSCallback
from lms.emulation.counters import begin_trace, end_trace
from lms.tf import compat
from lms.tf.measure.devices import Device
from lms.tf.rewrite.transports import CopyOps, made_node
from profiling.record import write_json
from unet3d.model import build_unet

__all__ = ["main", "read_trace"]

_LEAST = 64 << 10  # bytes of a tensor's copy; scalars are smaller
_TO_DEVICE, _TO_HOST = 1, 2  # lanes of a trace
_GPU = "GPU:0"


def _unet(size: int) -> Any:
    shape = (1, size, size, size)
    return build_unet(size, 16, 5, batch_size=1), (_zeros(*shape, 4), _zeros(*shape, 3))


def _resnet50(batch: int) -> Any:
    model = keras.applications.ResNet50(**_NO_WEIGHTS)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model, (_zeros(batch, 224, 224, 3), _zeros(batch))


def _gpt2(batch: int) -> Any:
    sizes = {"width": 768, "depth": 12, "heads": 12, "words": 50257}
    return gpt2(length=1024, batch=batch, **sizes)


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, "float32")


_MODELS = {"unet": _unet, "resnet50": _resnet50, "gpt2": _gpt2}


@dataclass(frozen=True, slots=True)
class _HostCopy:
    """How tensors travelled at first: `Identity` on the host, copies by the runtime."""

    host: str

    def swap_out(
        self, name: str, source: str, spec: tf.TensorSpec, *, device: str
    ) -> CopyOps:
        del device
        node = made_node(name, "Identity", [source], self.host, T=spec.dtype)
        return CopyOps(nodes=(node,), start=node, end=node)

    def swap_in(
        self, name: str, out: CopyOps, spec: tf.TensorSpec, *, device: str
    ) -> CopyOps:
        return self.swap_out(name, out.end.name, spec, device=device)


class _Steps(keras.callbacks.Callback):
    """Seconds of each step, and a trace of the last."""

    def __init__(self, options: Any) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._options = options
        self._begun = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        if batch == 1:
            tf.config.experimental.reset_memory_stats(_GPU)
        if batch == self._options.steps - 1:
            begin_trace()
        self._begun = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        float(logs["loss"])
        seconds = time.perf_counter() - self._begun
        self.seconds.append(seconds / self._options.slow_motion)
        if batch == self._options.steps - 1:
            end_trace(str(self._options.trace))


_NO_WEIGHTS: Any = {"weights": None}  # typed as text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one trial; the result goes to `--output`. A training that fails raises.

    Args:
        arguments: The words after `python -m experiments.virtual_cards_trial`.
    """
    options = _parser().parse_args(arguments)
    model, arrays = _MODELS[options.model](options.number)
    model.compile(model.optimizer, model.loss, jit_compile=False)
    if options.host_copies:
        host = compat.device_name("CPU:0")
        Device.transport = lambda self: _HostCopy(host)  # noqa: ARG005
    ours = LMSCallback(options.budget, host_memory="256GiB", plan=options.plan)
    steps = _Steps(options)
    with tf.device("CPU:0"):
        data = tf.data.Dataset.from_tensors(arrays).repeat(options.steps)
    planned = options.budget is not None
    model.fit(data, verbose="0", callbacks=[*([ours] if planned else []), steps])
    found: dict[str, Any] = {
        "step_seconds": steps.seconds,
        "peak_bytes": tf.config.experimental.get_memory_info(_GPU)["peak"],
        **read_trace(
            options.trace, [np.asarray(a).nbytes for a in tf.nest.flatten(arrays)]
        ),
    }
    if planned:
        found |= _promised(ours, options)
    write_json(options.output, found)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.virtual_cards_trial", description=__doc__
    )
    parser.add_argument("--model", choices=_MODELS, required=True)
    parser.add_argument("--number", type=int, required=True, help="size, or the batch")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--slow-motion", type=float, required=True)
    parser.add_argument("--budget", help="of the callback; plain Keras if absent")
    parser.add_argument("--plan", help="a file to train by")
    text = "copy as at first: by `Identity` on the host"
    parser.add_argument("--host-copies", action="store_true", help=text)
    parser.add_argument("--trace", type=Path, required=True, help="file to write")
    parser.add_argument("--keep-plan", type=Path, help="file to write")
    parser.add_argument("--output", type=Path, required=True, help="file to write")
    return parser


def _promised(ours: LMSCallback, options: Any) -> dict[str, Any]:
    """What the report said before the first step."""
    (report,) = ours.report
    if options.keep_plan:
        options.keep_plan.write_text(report.plan.to_json())
    slow = options.slow_motion
    return {
        "budget_bytes": report.budget_bytes,
        "promised_seconds": (report.predicted_seconds or 0.0) / slow,
        "promised_plain_seconds": (report.unplanned_seconds or 0.0) / slow,
        "promised_peak_bytes": report.predicted_peak_bytes,
        "promised_plain_peak_bytes": report.unplanned_peak_bytes,
        "planned_out": len(report.plan.swaps),
        "planned_in": sum(len(swap.swap_ins) for swap in report.plan.swaps),
        "planned_out_bytes": report.swapped_out_bytes,
        "planned_in_bytes": report.swapped_in_bytes,
        "recomputed_ops": len(report.plan.recomputed),
        "planning_seconds": report.planning_seconds,
        "preparation_seconds": report.preparation_seconds,
        "replans": report.replans,
    }


def read_trace(path: Path, batch: Sequence[int]) -> dict[str, Any]:
    """What a step copied beside the batch, and how much of it beside kernels.

    Args:
        path: Of the trace.
        batch: Bytes of each of its arrays.
    """
    spans = [line.split(" ", 5) for line in path.read_text().splitlines()]
    kernels = _united((float(s[1]), float(s[2])) for s in spans if s[0] == "0")
    found: dict[str, Any] = {"busy_seconds": _length(kernels)}
    for lane, way in ((_TO_DEVICE, "in"), (_TO_HOST, "out")):
        copies = [s for s in spans if int(s[0]) == lane and int(s[4]) >= _LEAST]
        for size in batch if lane == _TO_DEVICE else ():
            fed = next((s for s in copies if int(s[4]) == size), None)
            copies = [s for s in copies if s is not fed]
        taken = _united((float(s[1]), float(s[2])) for s in copies)
        found[f"copies_{way}"] = len(copies)
        found[f"copied_{way}_bytes"] = sum(int(s[4]) for s in copies)
        found[f"copying_{way}_seconds"] = _length(taken)
        either = _length(_united([*taken, *kernels]))
        found[f"hidden_{way}_seconds"] = _length(taken) + _length(kernels) - either
    return found


def _united(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Disjoint intervals in which at least one of them is.

    Example:
        >>> _united([(2.0, 3.0), (0.0, 1.0), (0.5, 1.5)])
        [(0.0, 1.5), (2.0, 3.0)]
    """
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _length(spans: Iterable[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in spans)


if __name__ == "__main__":
    raise SystemExit(main())
