"""A worker of `MultiWorkerMirroredStrategy`.

A launcher runs `python -m tests.workers.strategy_trials FOLDER` with `TF_CONFIG` set.
Nothing here but `fit_in_memory` is of this library. Each worker writes its result to
`FOLDER/RANK.json`.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from lms import fit_in_memory

_STEPS, _BATCH, _WIDTH, _LAYERS = 4, 1024, 512, 6


def main(folder: str) -> None:
    """Train with plain TensorFlow, then planned, each from the first weights."""
    tf.config.experimental.enable_op_determinism()
    # The emulated cards of two processes have no NCCL between them.
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
    strategy: Any = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=options
    )
    rank = strategy.cluster_resolver.task_id
    budget = ("17MiB", "19MiB")[rank]
    found = {
        "plain": _train(strategy, lambda step, _: tf.function(step)),
        "planned": _train(
            strategy, lambda step, specs: fit_in_memory(step, specs, budget=budget)
        ),
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(found))


def _train(strategy: Any, made: Callable[[Any, Any], Any]) -> dict[str, Any]:
    data = iter(strategy.experimental_distribute_dataset(_data()))
    with strategy.scope():
        random = tf.random.Generator.from_seed(1)
        shapes = [(_WIDTH, _WIDTH)] * _LAYERS
        weights = [tf.Variable(random.normal(shape) * 0.05) for shape in shapes]

    def replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.nn.relu(x @ weight)
            loss = tf.reduce_sum((tf.reduce_sum(x, 1) - y) ** 2) / _BATCH
        gradients: Any = tape.gradient(loss, weights)
        here: Any = tf.distribute.get_replica_context()
        # Each gradient is reduced apart: workers could come in unlike orders.
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(1e-4 * here.all_reduce("SUM", gradient))
        return loss

    def step(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(x, y)), axis=None)

    run = made(step, list(data.element_spec))
    losses = [float(run(*next(data))) for _ in range(_STEPS)]
    bits = b"".join(weight.numpy().tobytes() for weight in weights)
    found = {"losses": losses, "digest": hashlib.sha256(bits).hexdigest()}
    if reports := getattr(run, "report", None):
        (report,) = reports
        found["changes"] = report.swap_count + len(report.plan.recomputed)
        found["over"] = report.measured_peak_bytes - report.budget_bytes
    return found


def _data() -> Any:
    x = np.random.default_rng(0).random((2 * _BATCH, _WIDTH)).astype("float32")
    data: Any = tf.data.Dataset.from_tensor_slices((x, x.sum(1)))
    options: Any = tf.data.Options()
    shards = tf.data.experimental.AutoShardPolicy.DATA
    options.experimental_distribute.auto_shard_policy = shards
    return data.batch(_BATCH).repeat().with_options(options)


if __name__ == "__main__":
    main(sys.argv[1])
