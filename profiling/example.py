"""A small 3D U-Net, like the case study's, which `docs/profiling.md` measures.

    python -m profiling.step_timeline --output step.json profiling/example.py:unet
    python -m profiling.example --budget 57MiB --watch use.json

The second command trains the model, and watches steps 20 to 50.
"""

import argparse
from pathlib import Path
from typing import Any

import tensorflow as tf

from unet3d.model import build_unet

__all__ = ["main", "unet"]


def unet() -> tuple[Any, tuple[tf.TensorSpec, tf.TensorSpec]]:
    """Build a U-Net of 8 filters and 4 levels, for one volume of 48 x 48 x 48."""
    model = build_unet(size=48, filters=8, depth=4)
    x = tf.TensorSpec([1, 48, 48, 48, 4], tf.float32)
    y = tf.TensorSpec([1, 48, 48, 48, 3], tf.uint8)
    return model, (x, y)


def main() -> None:
    """Train `unet` on one made-up volume, with LMSCallback."""
    parser = argparse.ArgumentParser(prog="python -m profiling.example")
    parser.add_argument("--budget", metavar="SIZE")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--watch", type=Path, metavar="FILE")
    options = parser.parse_args()

    from lms import LMSCallback
    from profiling.callback import UtilisationCallback
    from profiling.steps import example_batch

    model, specs = unet()
    volumes = tf.data.Dataset.from_tensors(example_batch(specs)).repeat(options.steps)
    support = LMSCallback(budget=options.budget)
    watch = [UtilisationCallback(options.watch, epoch=0)] if options.watch else []
    model.fit(volumes, verbose=2, callbacks=[support, *watch])
    print(support.summary())


if __name__ == "__main__":
    main()
