"""Train one model in one way for a few steps, and say what it took; or predict it.

    plain                Keras's own train step
    remat:MODE, mixed:POLICY, by_hand    as `experiments.peers` has them
    grappler             with TensorFlow's own recomputation heuristics
    threshold, budget    with the callback and that planner
    serialised           IBM's rule, all levels serialised, every copy waited for

The budget is what the callback takes of itself, unless another is given. One
batch is on the device and none waits beside it, so that the step alone decides; in a
`fit` on an emulated device batches that wait take some of it too.

With `--in-turns`, each step waits for a line on standard input, and a line on standard
output says that the trial waits: several trials can take turns so. With `--record N`,
so many more steps follow, in which TensorFlow's profiler says what the device did.

Times are seconds, sizes are bytes. Peaks leave the first step out, which initialises.
"""

import argparse
import os
import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.block_subjects import BLOCK_SUBJECTS
from experiments.peers import built
from experiments.predicted_steps import predicted, thinned
from experiments.quiet import delayed_seconds, is_quiet, timed
from experiments.recorded_steps import recorded_figures
from experiments.subjects import SUBJECTS
from lms import fit_in_memory
from lms.fit.fitted import FittedFunction
from lms.machine.hardware import PRESETS
from lms.machine.host import usable_cores
from lms.planning.settings import RECOMPUTE_WORDS
from lms.tf.compat import recomputed_by_grappler
from lms.tf.measure.devices import find_device
from profiling.record import write_json

__all__ = ["main"]

_PLANNERS: dict[str, dict[str, Any]] = {
    "threshold": {"thresholds": {}},
    "serialised": {"thresholds": {"sync_mode": "both", "serialization": [":"]}},
    "budget": {},
}
_SUBJECTS = {**SUBJECTS, **BLOCK_SUBJECTS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one trial; the result goes to `--output`. A training that fails raises."""
    options = _parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    if options.core is not None:
        _stay_on(options.core)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(options.seed)
    model, arrays = _subject(options)
    if options.predict:
        planned = options.way in _PLANNERS
        result = predicted(_step_of(model), arrays, options, planned=planned)
    else:
        result = _trained(options, model, arrays)
    write_json(options.output, result)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.training_trial",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=_SUBJECTS, required=True)
    text = "arguments of the model's function"
    parser.add_argument("--shape", nargs="*", default=(), metavar="NAME=N", help=text)
    parser.add_argument("--way", required=True, help="how to train; see above")
    parser.add_argument("--steps", type=int, default=3)
    text = "steps, as long as fewer than --steps of them were undisturbed"
    parser.add_argument("--at-most", type=int, default=0, help=text)
    parser.add_argument("--seed", type=int, default=0)
    text = "with TensorFlow's op determinism"
    parser.add_argument("--deterministic", action="store_true", help=text)
    parser.add_argument("--predict", action="store_true", help="into --memory")
    parser.add_argument("--memory", type=int, help="bytes to predict for")
    text = "a preset to predict for, instead of the present device"
    parser.add_argument("--hardware", choices=PRESETS, help=text)
    parser.add_argument("--budget", help="instead of all that the device has")
    parser.add_argument("--in-turns", action="store_true", help="see above")
    parser.add_argument("--record", type=int, default=0, help="see above")
    parser.add_argument("--core", type=int, help="of the CPU, the only one to use")
    text = "the budget planner's, on or off; it chooses where this is not given"
    parser.add_argument(
        "--recompute", choices=RECOMPUTE_WORDS, default="auto", help=text
    )
    parser.add_argument("--curves", action="store_true", help="memory over the step")
    parser.add_argument("--output", type=Path, required=True)
    return parser


def _stay_on(core: int) -> None:
    """Begin again on one core: threads that are there already would stay on all.

    TensorFlow makes its own when `lms` takes an emulated device's memory, at import.
    """
    usable = os.sched_getaffinity(0)
    if usable == {core}:
        return
    if core not in usable:
        raise ValueError(
            f"--core must be one of {sorted(usable)}, the cores that this process may "
            f"use, got {core}. Give one of them, or leave --core out."
        )
    os.sched_setaffinity(0, {core})
    os.execv(sys.executable, sys.orig_argv)


def _go_first() -> None:
    """Where the host's memory runs out, this process is ended, and no other."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _subject(options: argparse.Namespace) -> tuple[keras.Model, Sequence[Any]]:
    shape = {name: int(n) for name, _, n in (w.partition("=") for w in options.shape)}
    return built(options.way, lambda: _SUBJECTS[options.model](**shape))


def _step_of(model: keras.Model) -> Callable[..., Any]:
    # Slots made while a step is traced would make it traced again.
    model.optimizer.build(model.trainable_variables)

    def step(x: Any, y: tf.Tensor) -> Any:
        return model.train_step((x, y))

    return step


def _trained(
    options: argparse.Namespace, model: keras.Model, arrays: Sequence[Any]
) -> dict[str, Any]:
    step = _step_of(model)
    # NumPy's memory would not count as the device's. The batch is there before the plan
    # is: one that came later could lie in the middle of the room that was planned for.
    batch = tf.nest.map_structure(_on_device, list(arrays))
    fitted = None
    if options.way in _PLANNERS:
        if options.budget is None and find_device().limit is None:
            raise ValueError(
                "--budget must be given where the device has no limit, got none. Give "
                "one, or start this with `python -m lms emulate`."
            )
        knobs = {"budget": options.budget, **_PLANNERS[options.way]}
        if options.way == "budget":
            knobs["recompute"] = RECOMPUTE_WORDS[options.recompute]
        fitted = fit_in_memory(step, batch, **knobs)
    wait = _wait_for_turn if options.in_turns else lambda: None
    run = fitted or tf.function(step)
    with recomputed_by_grappler() if options.way == "grappler" else nullcontext():
        measured = _run(
            run,
            batch,
            (options.steps, max(options.steps, options.at_most)),
            lambda: fitted.report[0].replans if fitted else 0,
            wait,
        )
    if options.record:
        measured["recorded"] = recorded_figures(run, batch, options.record, wait)
    return measured | (_planned(fitted, curves=options.curves) if fitted else {})


def _on_device(array: np.ndarray) -> tf.Tensor:
    return tf.raw_ops.DeepCopy(x=tf.constant(array))


def _run(
    step: Callable[..., Any],
    batch: Sequence[Any],
    counts: tuple[int, int],
    replans: Callable[[], int],
    wait: Callable[[], None],
) -> dict[str, Any]:
    """Numbers of steps in a row in which nothing was planned anew.

    So many, or more until so many were not disturbed.
    """
    memory = find_device().memory
    seconds: list[float] = []
    stolen: list[float] = []
    delayed: list[float] = []
    losses: list[float] = []
    peaks: list[int | None] = []
    enough, most = counts

    def run() -> None:
        losses.append(float(step(*batch)["loss"]))  # its results are awaited

    def are_missing() -> bool:
        undisturbed = sum(map(is_quiet, seconds, stolen))
        return len(seconds) < enough or (undisturbed < enough and len(seconds) < most)

    while are_missing():
        wait()
        before = replans()
        memory.reset_peak()
        waited = delayed_seconds()
        taken, lost = timed(run)
        delayed.append(max(0.0, delayed_seconds() - waited))
        seconds.append(taken)
        stolen.append(lost)
        peaks.append(memory.peak_bytes)
        if replans() != before:
            seconds.clear()
            stolen.clear()
            delayed.clear()
            peaks.clear()
    return {
        "cores": _cores_of_threads(),
        "threads": os.environ.get("TF_NUM_INTEROP_THREADS"),
        "peak_bytes": max(peak or 0 for peak in peaks[1:]),
        "first_step_peak_bytes": peaks[0],
        "step_seconds": seconds,
        "stolen_seconds": stolen,
        "delayed_seconds": delayed,
        "losses": losses,
        "process_peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def _cores_of_threads() -> int:
    """On how many cores the threads of this process, TensorFlow's too, may be."""
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():  # not Linux
        return usable_cores()
    cores: set[int] = set()
    for thread in tasks.iterdir():
        with suppress(ProcessLookupError):  # it has ended since
            cores |= os.sched_getaffinity(int(thread.name))
    return len(cores)


def _wait_for_turn() -> None:
    print("waiting", flush=True)
    sys.stdin.readline()


def _planned(fitted: FittedFunction, *, curves: bool) -> dict[str, Any]:
    report = fitted.report[0]
    numbers = report.numbers()
    del numbers["signature"]
    if not curves:
        return {"report": numbers}
    timeline = fitted.timelines[0]
    drawn = {
        "unplanned": thinned(timeline.unplanned.device),
        "planned": thinned(timeline.planned.device),
        "host": thinned(timeline.planned.host),
    }
    return {"report": numbers, "curves": drawn}


if __name__ == "__main__":
    _go_first()
    raise SystemExit(main())
