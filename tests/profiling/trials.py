"""All commands that need TensorFlow, one after the other in one process."""

import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms import LMSCallback
from profiling import op_costs, overhead, step_timeline
from profiling.callback import UtilisationCallback

SUBJECT = f"{__file__}:layers"
ROWS, WIDTH = 2048, 64


def layers() -> tuple[Any, tuple[tf.TensorSpec, tf.TensorSpec]]:
    """Eight dense layers; each makes half a MiB, and all do not fit in the budget."""
    dense = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(8)]
    model = keras.Sequential([keras.Input((WIDTH,)), *dense])
    model.compile("sgd", "mse")
    spec = tf.TensorSpec([ROWS, WIDTH])
    return model, (spec, spec)


def fit(folder: str) -> None:
    """Two epochs of four steps, watched in the second one."""
    model, _ = layers()
    data = [np.ones((4 * ROWS, WIDTH), "float32") for _ in range(2)]
    model.compile("sgd", "mse", steps_per_execution=2)
    watch = UtilisationCallback(f"{folder}/fit.json", steps=(1, 3), interval=0.02)
    never: Any = "a sampler that ends at once"
    lost = UtilisationCallback(f"{folder}/lost.json", steps=(1, 3), interval=never)
    late = UtilisationCallback(f"{folder}/late.json", epoch=2)
    support = LMSCallback("16MiB", verbose=0)  # the data is on the device too
    callbacks = [support, watch, lost, late]
    model.fit(*data, batch_size=ROWS, epochs=2, verbose=0, callbacks=callbacks)


def main(folder: str) -> None:
    """Write all files into a folder."""
    budget = "--budget=5MiB"
    words = ["--warmup=2", "--steps=4", budget, f"--output={folder}/step.json"]
    words.append("--recompute=never")  # the link is so slow that nothing would move
    assert step_timeline.main([*words, SUBJECT]) == 0
    assert op_costs.main([f"--output={folder}/costs.json", SUBJECT]) == 0
    words = ["--rounds=2", "--steps=2", budget, f"--output={folder}/overhead.json"]
    assert overhead.main([*words, SUBJECT]) == 0
    fit(folder)


if __name__ == "__main__":
    main(sys.argv[1])
