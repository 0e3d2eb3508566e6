"""Networks by name: `--model residual-encoder`, or package:builder for the user's own.

    builder((depth, height, width, channel), outputs) -> keras.Model

The functional model returns logits of shape (batch, depth, height, width, outputs), or
a list of logits with lower levels after the top, for a recipe that trains them. The run
has activation, loss and optimizer. Predictions of another size call the builder again.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import keras

from unet3d.model import LEARNING_RATE, as_probabilities, check_divisible
from unet3d.residual import build_residual
from unet3d.runs import RESIDUAL, Configuration
from unet3d.shapes import as_shape, find_levels

__all__ = ["build_own"]


def build_own(
    configuration: Configuration, size: int | Sequence[int], *, supervised: bool
) -> Any:
    """Build the network of `configuration.model`, for volumes of `size` voxels."""
    task, name = configuration.task, configuration.model or ""
    shape = (*as_shape(size), len(task.channels))
    outputs = len(task.regions) + configuration.softmax
    keras.utils.set_random_seed(configuration.seed)  # the builder has no seed
    if name.startswith(RESIDUAL):
        levels = find_levels(configuration.voxel, configuration.shape)
        check_divisible(shape[:3], levels.divisor, "patch")
        inner = build_residual(shape, outputs, levels)
    else:
        inner = _builder(name)(shape, outputs)
    if not configuration.follows_nnunet and len(inner.outputs) > 1:
        inner = keras.Model(inner.inputs, inner.outputs[0])  # no untrained weights
    inputs = keras.Input(shape, configuration.batch_size if supervised else None)
    found = inner(inputs)
    logits = list(found) if isinstance(found, list | tuple) else [found]
    if tuple(logits[0].shape[1:]) != (*shape[:3], outputs):
        raise ValueError(
            f"`model` must return logits of shape {(*shape[:3], outputs)}, got "
            f"{tuple(logits[0].shape[1:])} of {name}. Return {outputs} channels of the "
            "input's size, the background's first where labels exclude each other."
        )
    wanted = logits if supervised else logits[:1]
    every = as_probabilities(wanted, softmax=configuration.softmax)
    model = keras.Model(inputs, every, name="own")
    model.compile(optimizer=keras.optimizers.Adam(LEARNING_RATE))
    return model


def _builder(name: str) -> Any:
    package, _, function = name.partition(":")
    try:
        found = getattr(import_module(package), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"`model` must be package:builder, got '{name}' ({error}). Name a function "
            "that Python can import, such as networks:build for networks.py here."
        ) from error
    return found
