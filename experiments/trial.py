"""One trial, in a process of its own: one training in one way, one row.

    python -m experiments.trial JSON FILE

JSON is a `Trial` of `experiments.runner`. The training is `fit`, with XLA only in the
way `xla`. A refusal (`BudgetError`) is a result. Any other error ends the process, and
`experiments.runner` finds the cause in the log.

The row has each step's seconds, its loss bit for bit, digests of all variables, the
allocator's peak without the first step, which initialises, and the callback's report.
Seconds are the card's: the clock's over the slow motion. Sizes are bytes.
"""

import ctypes
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import tensorflow as tf

from experiments.models import Ready
from experiments.runner import FRONT, NO_CARD
from experiments.turns import Turn, turn_of
from experiments.ways import built, callback_of, running
from lms import on_host
from lms.errors import BudgetError
from lms.tf import compat
from lms.units import MIB
from profiling.record import write_json
from profiling.spans import Span

__all__ = ["main"]

_DEVICE = "GPU:0"
_TIMES = ("seconds", "h2d_busy", "d2h_busy", "predicted_seconds", "unplanned_seconds")
_SEED = 7
_WORKSPACE = {False: "8", True: "32"}  # MiB of cuDNN; more where times are measured
_PR_SET_PDEATHSIG = 1
_ALLOCATION = ("requested_bytes", "allocation_bytes", "addr", "tf_op", "region_type")
_ALLOCATION += ("shape", "bytes_allocated")
_WITHOUT = (
    "TensorFlow sees no GPU. Run this where `nvidia-smi` works and "
    "tensorflow[and-cuda] is installed, or without `--card real`."
)


def main(arguments: Sequence[str]) -> int:
    """Run a trial, given as JSON, and write its row to a file."""
    asked, output = json.loads(arguments[0]), Path(arguments[1])
    _end_with_parent()
    if front := os.environ.get(FRONT):
        ctypes.CDLL(front).TF_InitKernel()
    if not tf.config.list_physical_devices("GPU"):
        sys.stderr.write(f"lms.errors.LMSError: {_WITHOUT}\n")
        return NO_CARD
    _prepare_card(asked)
    turn = turn_of(asked)
    if asked["probe"]:
        with turn.taken():
            _ask(asked["probe"], asked["knobs"], output)
        return 0
    row = _trained(asked, turn)
    if events := row.pop("events", None):
        write_json(output.with_suffix(".events.json"), events)
    if asked["workers"] > 1:
        output = output.with_suffix(f".{row['rank']}.json")
    write_json(output, row)
    return 0


def _end_with_parent() -> None:
    """End this process with its parent: a killed run frees the card (prctl(2)).

    Where the host's memory runs out, Linux kills this process before others.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _prepare_card(asked: Mapping[str, Any]) -> None:
    """Set the card's options, and a limit of memory where the card is real.

    Where bits are compared, cuDNN chooses among the same algorithms in all ways.
    """
    if asked["deterministic"] and not asked["probe"]:
        most = _WORKSPACE[bool(asked["traced"] or asked["held"])]
        os.environ.setdefault("TF_CUDNN_WORKSPACE_LIMIT_IN_MB", most)
    if asked["way"] == "unified":
        compat.set_gpu_options(use_unified_memory=True)
    if asked["limit"] is not None:
        for gpu in tf.config.list_physical_devices("GPU"):
            limit = tf.config.LogicalDeviceConfiguration(asked["limit"] // MIB)
            tf.config.set_logical_device_configuration(gpu, [limit])


def _ask(name: str, knobs: Mapping[str, Any], output: Path) -> None:
    """Run a probe; write each finding at once, in case the process dies."""
    from experiments.probes import questions, transports
    from lms.tf.measure.devices import find_device

    probe = getattr(transports if name == "transports" else questions, name)
    row: dict[str, Any] = {}
    for found in chain(probe(knobs, find_device()), [{"error": None}]):
        row |= found
        write_json(output, row)


def _trained(asked: Mapping[str, Any], turn: Turn) -> dict[str, Any]:
    workers = together = None
    if asked["workers"] > 1:
        from lms import DataParallel, join

        workers = join()
        together = None if asked["apart"] else DataParallel(workers)
    if asked["deterministic"]:
        tf.config.experimental.enable_op_determinism()
    ready, parts = _built(asked)
    model, x, y, batch = ready
    ours = callback_of(asked["way"], asked["budget"], asked["knobs"])
    watch = _Watch(asked, parts, workers, turn)
    callbacks = [one for one in (together, ours, watch) if one]
    tf.config.experimental.reset_memory_stats(_DEVICE)
    refused = None
    with running(asked["way"]), ExitStack() as stack:
        stack.callback(watch.close)
        try:
            model.fit(**_fed(asked, ready, parts), verbose="0", callbacks=callbacks)
        except BudgetError as error:
            known = {"op_name": error.op_name, "least_bytes": error.least_bytes}
            refused = {"error": str(error), **known}
    size = sum(one.nbytes for one in _arrays(x, y)) // max(1, _length(x) // batch)
    row = watch.row() | {"refused": refused, "batch_bytes": size, "report": None}
    gpu = tf.config.list_physical_devices("GPU")[0]
    details = tf.config.experimental.get_device_details(gpu)
    row["device"] = details.get("device_name")
    if ours is not None:
        row["report"] = _report(ours, asked["slow_motion"])
        if asked["traced"] and not refused:
            row["allocations"] = _allocations(ours, watch.spans)
        if asked["curves"] and ours.timelines:
            row["curves"] = _curves(ours.timelines[0])
    row |= {} if workers is None else {"rank": workers.rank}
    return row | ({} if refused else _digests(model))


def _built(asked: Mapping[str, Any]) -> tuple[Ready, int]:
    """Build a model as README does; within `on_host` where it does not fit."""
    given = asked["way"], asked["model"], asked["shape"]
    keras.utils.set_random_seed(_SEED)
    with suppress(tf.errors.ResourceExhaustedError):
        return built(*given)
    keras.utils.clear_session()  # layers that were made refer to each other
    keras.utils.set_random_seed(_SEED)
    with on_host() if asked["way"] == "callback" else nullcontext():
        return built(*given)


def _fed(asked: Mapping[str, Any], ready: Ready, parts: int) -> dict[str, Any]:
    """Make the data of `fit`: arrays, or one batch at a time from the host."""
    _, x, y, batch = ready
    if asked["feed"] == "arrays":
        count = max(1, _length(x) // batch)
        epochs = -(-asked["steps"] // count)
        told = {"x": x, "y": y, "batch_size": batch, "shuffle": False}
        return told | {"epochs": epochs}
    with tf.device("CPU:0"):
        data = tf.data.Dataset.from_tensor_slices(x if y is None else (x, y))
        data = data.batch(batch, drop_remainder=True).repeat()
        data = data.take(parts * asked["steps"])
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        return {"x": data.with_options(options)}


def _arrays(*data: Any) -> list[np.ndarray]:
    return [one for one in tf.nest.flatten(data) if one is not None]


def _length(x: Any) -> int:
    return len(_arrays(x)[0])


class _Watch(keras.callbacks.Callback):
    """Records seconds, losses and peaks of each step, and a trace of the last.

    A step has `parts` batches; workers of a job begin the third step together.
    """

    def __init__(
        self, asked: Mapping[str, Any], parts: int, workers: Any, turn: Turn
    ) -> None:
        super().__init__()
        self._turn, self._turns = turn, ExitStack()
        self._asked, self._parts, self._workers = asked, parts, workers
        self._slow: float = asked["slow_motion"]
        self._losses: list[str] = []
        self._seconds: list[float] = []
        self._peaks: list[int] = []
        self._begun = self._started = 0.0
        self._first = self._resident = None
        self._recorded: Any = None
        self._trace = ExitStack()
        self._held: Any = None
        self._batches = 0

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self._started = time.perf_counter()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        if self._batches % self._parts:
            return
        step = len(self._seconds)
        if self._workers is not None and step == 2:
            self._workers.gather("", "steps that count")
        if step == 1:  # the first plans and initialises
            self._turns.enter_context(self._turn.taken())
        if step:
            tf.config.experimental.reset_memory_stats(_DEVICE)
        if self._asked["held"] and step == 2 and self._peaks:
            self._held = _held_beside(self._peaks[-1])
        if self._asked["traced"] and step == self._asked["steps"] - 1:
            self._record()
        self._begun = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        loss = float((logs or {})["loss"])  # the device has ended the step
        self._batches += 1
        if self._batches % self._parts:
            return
        self._seconds.append((time.perf_counter() - self._begun) / self._slow)
        self._losses.append(loss.hex())
        self._peaks.append(tf.config.experimental.get_memory_info(_DEVICE)["peak"])
        if self._first is None:
            self._first = time.perf_counter() - self._started
            self._resident = psutil.Process().memory_info().rss
        self._trace.close()

    def close(self) -> None:
        """End a trace that a failing step left open, and free held memory."""
        self._held = None
        with self._turns, suppress(Exception):
            self._trace.close()

    @property
    def spans(self) -> list[Span]:
        """Spans of the recorded step; none where none was recorded."""
        return self._recorded.spans if self._recorded else []

    def row(self) -> dict[str, Any]:
        """Return the numbers of the steps so far."""
        later = self._peaks[1:] or self._peaks
        peak = tf.config.experimental.get_memory_info(_DEVICE)["peak"]
        found = {
            "losses": self._losses,
            # A recorded step takes longer.
            "step_seconds": self._seconds[:-1] if self._recorded else self._seconds,
            "first_seconds": self._first,
            "peak_bytes": max(later, default=peak),
            "resident_bytes": self._resident,
            "waited_seconds": self._turn.waited,
        }
        if not self._recorded:
            return found
        return found | {"lanes": self._lanes(), "events": self._events()}

    def _record(self) -> None:
        """Record one step, as `profiling.sessions` does."""
        from lms.emulation import counters
        from lms.emulation.card import emulated_memory
        from profiling.sessions import MARK, Session, recording

        session = self._recorded = Session()

        def moment() -> None:
            if emulated_memory() is not None:
                session.moments.append(counters.now())

        self._trace.enter_context(recording(session))
        self._trace.callback(moment)
        moment()
        mark = tf.profiler.experimental.Trace(MARK, step_num=0, _r=1)
        self._trace.enter_context(mark)

    def _events(self) -> dict[str, Any]:
        """Return the recorded step's allocations and kernels, in nanoseconds."""
        from profiling.sessions import MARK

        known = ("model", "way", "shape", "budget", "deterministic", "limit")
        found: dict[str, Any] = {name: self._asked[name] for name in known}
        found |= {"marks": [], "memory": [], "kernels": []}
        for span in self._recorded.spans:
            facts, length = span.facts, span.end - span.start
            times = [round(1e9 * span.start), round(1e9 * length)]
            if span.name == MARK:
                found["marks"].append(times)
            elif span.plane.startswith("/device:GPU"):
                op = facts.get("tf_op") or facts.get("memcpy_details")
                told = [span.name[:90], str(op)[:140], span.line[:24]]
                found["kernels"].append(times + told)
            elif "GPU" in str(facts.get("allocator_name")):
                told = [facts.get(name) for name in _ALLOCATION]
                is_new = span.name == "MemoryAllocation"
                found["memory"].append([times[0], is_new, *told])
        return found

    def _lanes(self) -> dict[str, float]:
        from profiling.measured import measured_steps
        from profiling.sessions import MARK
        from profiling.timelines import figures_of

        (step,) = measured_steps(self._recorded.spans, 1, mark=MARK, waits={})
        return _paced(figures_of(step), self._slow)


def _held_beside(peak: int) -> Any:
    """Take all memory that a step leaves free, and a twentieth of its peak."""
    from experiments.probes.questions import hold
    from lms.tf.measure.devices import find_device

    device = find_device()
    return hold(device, (device.limit or peak) - peak + peak // 20)


def _report(ours: Any, slow: float) -> dict[str, Any] | None:
    """Return the numbers of the training step; None before its first plan."""
    numbers = (report.numbers() for report in ours.report if report.kind == "train")
    return next((_paced(each, slow) for each in numbers), None)


def _allocations(ours: Any, spans: Sequence[Span]) -> dict[str, Any] | None:
    """Compare expected and logged memory of ops; None for a step without a plan."""
    from profiling.allocations import compare, expected, logged
    from profiling.sessions import MARK

    step = next((one for one in ours.timelines if one.kind == "train"), None)
    plan = ours.plan
    if step is None or plan is None or not plan.chain:
        return None
    unlike = compare(step.graph, plan, spans, mark=MARK)
    totals = expected(step.graph, plan), logged(spans, mark=MARK)
    sums = [sum(one.size for one in each) for each in totals]
    return {
        "ops": len({one.op for one in totals[1]}),
        "expected_bytes": sums[0],
        "logged_bytes": sums[1],
        "unlike": [[d.type, d.op, d.expected, d.logged] for d in unlike],
    }


def _paced(values: dict[str, Any], slow: float) -> dict[str, Any]:
    """Convert seconds and rates of a card in slow motion to the card's own."""
    for key, value in values.items():
        if value and key.endswith(("throughput", "_per_second")):
            values[key] = value * slow
        elif value and (key in _TIMES or key.startswith("idle")):
            values[key] = value / slow
    return values


def _curves(timeline: Any) -> dict[str, list[int]]:
    """Return curves of bytes over the step, of at most 400 points, and their ops."""
    planned = timeline.planned
    curves = {"plain": timeline.unplanned.device, "planned": planned.device}
    curves |= {"host": planned.host}
    parts = {n: np.array_split(each, min(400, len(each))) for n, each in curves.items()}
    found = {n: [int(part.max()) for part in own] for n, own in parts.items()}
    return found | {"ops": [len(each) for each in curves.values()]}


def _digests(model: keras.Model) -> dict[str, Any]:
    """Hash all variables, the optimizers' too: together, and each to 12 digits."""
    whole, each = hashlib.sha256(), []
    known = {id(one): one for one in vars(model).values()}.values()
    own = [one for one in known if isinstance(one, keras.optimizers.Optimizer)]
    for variable in chain(model.variables, *(one.variables for one in own)):
        value = np.asarray(variable.value).tobytes()
        whole.update(value)
        each.append([variable.path, hashlib.sha256(value).hexdigest()[:12]])
    return {"sha256": whole.hexdigest(), "variables": each}


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    raise SystemExit(main(sys.argv[1:]))
