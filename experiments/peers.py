"""Other ways to save memory, as Keras and TensorFlow offer them to a careful user.

Ways, as `experiments.training_trial` knows them:

    remat:MODE      built within `keras.RematScope(mode=MODE)`; for `list_of_layers`
                    those are listed that keep no state, since a layer runs twice
    mixed:POLICY    built under a dtype policy such as `mixed_bfloat16`: other numbers
    by_hand         blocks run again, as `experiments.by_hand` has it

Listed layers need names that are known before they are built: a model is built twice.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import keras

from experiments.by_hand import checkpoint_blocks

__all__ = ["built"]

_Made = tuple[Any, Any]


def built(way: str, make: Callable[[], _Made]) -> _Made:
    """A model and its batch, ready to train in a way; other ways change nothing.

    Args:
        way: As `experiments.training_trial` knows it.
        make: Builds them.
    """
    kind, _, mode = way.partition(":")
    if kind == "mixed":
        keras.mixed_precision.set_dtype_policy(mode)
    with _scope(mode, make) if kind == "remat" else nullcontext():
        model, batch = make()
    if kind == "by_hand":
        checkpoint_blocks(model)
    return model, batch


def _scope(mode: str, make: Callable[[], _Made]) -> keras.RematScope:
    if mode != "list_of_layers":
        return keras.RematScope(mode=mode)
    layers: list[Any] = make()[0].layers
    names = [layer.name for layer in layers if not layer.non_trainable_variables]
    keras.utils.clear_session()  # or layers of the next model had other names
    return keras.RematScope(mode=mode, layer_names=names)
