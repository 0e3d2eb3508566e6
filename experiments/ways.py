"""Ways to train: plain Keras, the callback, IBM's rule, and other methods.

    plain            Keras without XLA; xla: with it
    callback         `LMSCallback()`
    rule             IBM's rule, tuned as its users had it
    serialised       IBM's rule with all levels serialised, and every copy waited for
    by_hand          blocks within `tf.recompute_grad`, as `experiments.blocks` has them
    remat:MODE       built within `keras.RematScope(mode=MODE)`; `list_of_layers` lists
                     layers without state, since a layer runs twice
    mixed:POLICY     built under a dtype policy such as `mixed_bfloat16`: other numbers
    accumulate:N     Keras's gradient accumulation: N batches of an N-th are one step
    swapping         plain Keras in less memory, where TensorFlow swaps by itself
    grappler         plain Keras with TensorFlow's recomputation heuristics
    unified          the driver moves pages: unified memory, which only a real card has

Each way has a careful user's form.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import keras

from experiments.blocks import checkpoint_blocks
from experiments.models import MODELS, Ready
from lms.tf import compat

__all__ = ["built", "callback_of", "recomputed_by_grappler", "running"]

# Knobs of the callback, for ways that have one.
_OURS: Mapping[str, Mapping[str, Any]] = {
    "callback": {},
    "rule": {"thresholds": {}},
    "serialised": {"thresholds": {"sync_mode": "both", "serialization": [":"]}},
}


def built(way: str, name: str, shape: Mapping[str, Any]) -> tuple[Ready, int]:
    """Build a model to train in a way; return model and batches of a step.

    Raises:
        ValueError: If the batch cannot be split for accumulation.
    """
    kind, _, mode = way.partition(":")
    make = partial(MODELS[name], **shape)
    if kind == "mixed":
        keras.mixed_precision.set_dtype_policy(mode)
    with _scope(mode, make) if kind == "remat" else nullcontext():
        model, x, y, batch = make()
    parts = int(mode) if kind == "accumulate" else 1
    if batch % parts:
        raise ValueError(
            f"a batch must be of a multiple of {parts} to be accumulated in as many "
            f"parts, got {batch}. Take another model or way."
        )
    if parts > 1:
        model.optimizer.gradient_accumulation_steps = parts
    if kind == "by_hand":
        checkpoint_blocks(model)
    model.jit_compile = kind == "xla"
    return (model, x, y, batch // parts), parts


def _scope(mode: str, make: Callable[[], Ready]) -> keras.RematScope:
    if mode != "list_of_layers":
        return keras.RematScope(mode=mode)
    layers: list[Any] = make()[0].layers
    names = [layer.name for layer in layers if not layer.non_trainable_variables]
    keras.utils.clear_session()  # or layers of the next model get other names
    return keras.RematScope(mode=mode, layer_names=names)


def callback_of(way: str, budget: int | None, knobs: Mapping[str, Any]) -> Any:
    """Make the callback of a way; None if the way has none."""
    if way not in _OURS:
        return None
    from lms import LMSCallback

    return LMSCallback(budget, verbose=0, **{**_OURS[way], **knobs})


def running(way: str) -> AbstractContextManager[Any]:
    """Return the context that a way's steps need."""
    return recomputed_by_grappler() if way == "grappler" else nullcontext()


def recomputed_by_grappler() -> AbstractContextManager[Any]:
    """Within the context, Grappler's heuristics recompute cheap ops for gradients.

    TensorFlow's own rival; `set_experimental_options` cannot switch it on. Names of a
    tape's ops do not begin with the option's default scope.
    """
    options: Any = compat.ConfigProto()
    rewriting = options.graph_options.rewrite_options
    rewriting.memory_optimization = rewriting.RECOMPUTATION_HEURISTICS
    rewriting.memory_optimizer_target_node_name_scope = "gradient_tape/"
    return compat.calls_with(options)
