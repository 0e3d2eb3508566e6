"""Trainings of two processes that share a cache, for `test_measurements`."""

import os
from typing import Any

import numpy as np

from lms.storage.cache import VARIABLE
from lms.tf.measure.microbenchmark import Bench
from tests.models import SILENT, conv_net

__all__ = ["train"]


def train(folder: str) -> dict[str, Any]:
    """Train into little memory with a cache in a folder.

    Returns:
        How many ops were timed, the plan, and the losses.
    """
    import keras
    import tensorflow as tf

    from lms import LMSCallback

    os.environ[VARIABLE] = folder
    timed: list[str] = []
    own = Bench.seconds

    def noted(bench: Bench) -> float | None:
        timed.append(bench.key)
        return own(bench)

    Bench.seconds = noted  # type: ignore[method-assign]
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(1)
    callback = LMSCallback("8MiB", verbose=0)
    draw = np.random.default_rng(0)
    history = conv_net().fit(
        draw.standard_normal((64, 32, 32, 3)).astype("float32"),
        draw.integers(0, 5, 64),
        batch_size=32,
        verbose=SILENT,
        shuffle=False,
        callbacks=[callback],
    )
    (report,) = callback.report
    return {
        "timed": len(timed),
        "plan": report.plan.to_json(),
        "losses": [loss.hex() for loss in history.history["loss"]],
    }
