"""Ways to train a model in little memory: TensorFlow's own, ours, and the peers.

`tf.function` without XLA is what the others are compared with: Keras turns XLA on by
itself where there is a GPU, which is a peer here.

Known weakness: in a rehearsal the batch lies in the device's memory already, and counts
twice in what is predicted. On a GPU it comes from the host.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms.pipeline import FittedFunction
from lms.planning.settings import read_settings
from lms.tf import compat
from unet3d.model import build_unet

__all__ = ["make_batch", "make_model", "prepare", "report_of"]

_PLANNERS = {"lms": "budget", "threshold": "threshold"}
_REWRITERS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "recomputation heuristics": compat.recomputed_by_grappler,
    "swapping heuristics": compat.swapped_by_grappler,
}


def make_model(settings: Mapping[str, Any]) -> keras.Model:
    """The case study's network, its optimizer's slots made."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(settings.get("precision", "float32"))
    remat = settings["way"] == "RematScope"
    with keras.RematScope(mode="activations") if remat else nullcontext():
        model = build_unet(
            settings["size"],
            settings["filters"],
            settings["depth"],
            batch_size=1,
            seed=0,
        )
    optimizer: Any = model.optimizer
    optimizer.build(model.trainable_variables)
    return model


def make_batch(size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """One made-up volume and its labels, on the host as Keras's `fit` has them."""
    random = np.random.default_rng(0)
    cube = (1, size, size, size)
    x = random.standard_normal((*cube, 4), dtype=np.float32)
    y = random.integers(0, 2, (*cube, 3), dtype=np.uint8)
    with tf.device("CPU:0"):
        return tf.constant(x), tf.constant(y)


def prepare(
    settings: Mapping[str, Any], model: keras.Model, batch: Sequence[tf.Tensor]
) -> Callable[..., Any]:
    """What runs one step on a batch; planned already where there is a plan.

    Args:
        settings: "way", and "budget" in bytes for ours.
        model: Of `make_model`.
        batch: Of `make_batch`.
    """
    way = settings["way"]

    def step(x: tf.Tensor, y: tf.Tensor) -> Any:
        return model.train_step((x, y))

    if way in _PLANNERS:
        knobs = read_settings(budget=settings.get("budget"), planner=_PLANNERS[way])
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in batch]
        fitted = FittedFunction(step, knobs, kind="train", signature=specs)
        fitted.prepare()
        return fitted
    function = tf.function(step, autograph=False, jit_compile=way == "XLA")
    rewriter = _REWRITERS.get(way, nullcontext)

    def call(*arguments: tf.Tensor) -> Any:
        with rewriter():
            return function(*arguments)

    return call


def report_of(run: Callable[..., Any]) -> dict[str, Any] | None:
    """What was planned and measured; None where nothing plans."""
    if not isinstance(run, FittedFunction):
        return None
    report = run.report[0]
    return asdict(report) | {"plan": None, "fits_unplanned": report.fits_unplanned}
