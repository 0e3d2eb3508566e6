"""One process of `experiments.scaling`: trains the U-Net, alone or with others.

    python -m experiments.scaling_trial OUTPUT.json --size 32 ... [--lms] [--alone]

With `--alone` it knows the workers that run beside it only to begin with them. Steps
are timed from the end of one to the end of the next. Reductions are timed afterwards:
eager ones of the gradients' sizes, all workers at once.
"""

import argparse
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from profiling.record import write_json

__all__ = ["main"]

_REDUCTIONS = 10


def main(arguments: list[str] | None = None) -> int:
    """Train and write what was seen to `OUTPUT.RANK.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    for name in ("size", "filters", "depth", "steps", "idle"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--lms", action="store_true")
    parser.add_argument("--alone", action="store_true")
    options = parser.parse_args(arguments)
    from lms import join

    workers = join()
    found = _train(options, workers)
    rank = workers.rank
    write_json(options.output.with_suffix(f".{rank}.json"), found)
    return 0


def _train(options: argparse.Namespace, workers: Any) -> dict[str, Any]:
    import keras
    import numpy as np
    import tensorflow as tf

    from lms import DataParallel, LMSCallback
    from unet3d.model import build_unet

    model = build_unet(options.size, options.filters, options.depth, seed=0)
    cube = (options.size,) * 3
    values = np.random.default_rng(workers.rank)
    x = values.normal(size=(1, *cube, 4)).astype(np.float32)
    y = (values.random((1, *cube, 3)) > 0.7).astype(np.float32)
    count = options.idle + options.steps
    data = tf.data.Dataset.from_tensors((x, y)).repeat(count)
    ends: list[float] = []

    def note(batch: int, logs: Any = None) -> None:  # noqa: ARG001 - Keras's form
        if batch == options.idle - 1:
            workers.barrier("steps that count")
        ends.append(time.perf_counter())

    clock = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    callback = LMSCallback(verbose=0)
    own = [callback] if options.lms else []
    job = [] if options.alone else [DataParallel(workers)]
    callbacks = [*job, *own, clock]
    model.fit(data, epochs=1, verbose="0", callbacks=callbacks)
    seconds = [after - before for before, after in pairwise(ends)]
    memory = tf.config.experimental.get_memory_info("GPU:0")
    reports = callback.report if options.lms else []
    return {
        "step_seconds": seconds[options.idle - 1 :],
        "reduction_seconds": _reductions(workers, model),
        "gradient_bytes": sum(v.numpy().nbytes for v in model.trainable_variables),
        "peak_bytes": memory["peak"],
        "predicted_peak_bytes": [one.predicted_peak_bytes for one in reports],
        "swapped_out_bytes": [one.swapped_out_bytes for one in reports],
        "replans": [one.replans for one in reports],
    }


def _reductions(workers: Any, model: Any) -> float:
    """Seconds of the mean of all gradients; none where there is one worker."""
    if workers.size == 1:
        return 0.0
    gradients = [variable.value + 0.0 for variable in model.trainable_variables]
    taken: list[float] = []
    for _ in range(_REDUCTIONS):
        workers.barrier("a reduction")
        begun = time.perf_counter()
        for one in workers.mean(gradients, "timed"):
            one.numpy()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


if __name__ == "__main__":
    sys.exit(main())
