"""Checkpointing by block, as a careful user writes it with `tf.recompute_grad`.

Only a block's inputs are kept; its activations are recomputed for its gradients (Chen
et al., 2016, arXiv 1604.06174). A block of a transformer is one of its layers. In
ResNet50 and the U-Net the names of layers tell the blocks.

A block runs twice, but its state (seeds of dropout, statistics of batch normalisation)
must advance once only. So both runs begin from the state before the step, and the first
run's state is assigned.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

__all__ = ["checkpoint_blocks"]

# Names of layers in blocks of ResNet50, and in levels of the U-Net.
_BLOCK = re.compile(r"(conv\d_block\d+|down\d|up\d)_")

_Function = Callable[..., Any]


def checkpoint_blocks(model: keras.Model) -> int:
    """Make a model recompute its blocks in the backward pass; return their number.

    The model's calls change, its variables do not. Then the model can only train.

    Args:
        model: A model of keras-hub with a backbone of transformer layers; or ResNet50
            or the U-Net, as functional models.

    Raises:
        ValueError: If no block is found.
    """
    blocks = list(_transformer_layers(model))
    for layer in blocks:
        _checkpoint_layer(layer)
    count = len(blocks) or _checkpoint_parts(model)
    if not count:
        raise ValueError(
            f"`model` must have blocks that are known, got {model.name!r}. "
            "Take one of `experiments.subjects`."
        )
    return count


def _transformer_layers(model: Any) -> Iterator[Any]:
    backbone = getattr(model, "backbone", None)
    yield from getattr(backbone, "transformer_layers", ())
    for layer in getattr(backbone, "layers", ()):  # of ViT
        yield from getattr(layer, "encoder_layers", ())


class _Training(keras.layers.Layer):
    """Runs a function in training mode where no model calls it: in backward passes."""

    def call(self, x: Any, run: _Function) -> Any:
        return run(x)


def _checkpoint_layer(layer: Any) -> None:
    run, around = layer.call, _Training(name="training")

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        def block(x: Any) -> Any:
            return around(x, run=lambda x: run(x, *args, **kwargs), training=True)

        return _recomputed(block, layer.non_trainable_variables)(x)

    layer.call = call


def _recomputed(block: _Function, state: Sequence[Any]) -> _Function:
    """Wrap a block: it runs again for its gradients, its state advances once."""

    def call(*tensors: Any) -> Any:
        # Read now, or the second run would begin where the first one ended.
        before = [(one, tf.identity(one.value)) for one in state]
        after: list[list[Any]] = []

        def pure(*tensors: Any) -> Any:
            with keras.StatelessScope(before) as scope:
                made = block(*tensors)
            after.append([scope.get_current_value(variable) for variable in state])
            return made

        made = tf.recompute_grad(pure)(*tensors)
        for variable, value in zip(state, after[0], strict=True):
            variable.assign(value)
        return made

    return call


# Layers that run together: their function, and the symbolic tensors read and made.
_Part = tuple[_Function, Sequence[Any], Sequence[Any]]


def _checkpoint_parts(model: Any) -> int:
    """Cut a functional model into its blocks and the layers between; count blocks."""
    groups: dict[str, list[Any]] = {}
    for layer in model.layers:
        found = _BLOCK.match(layer.name)
        if not isinstance(layer, keras.layers.InputLayer):
            groups.setdefault(found[0] if found else layer.name, []).append(layer)
    parts = _in_order(_parts(model, groups), {id(one) for one in model.inputs})

    def call(inputs: Any, **options: Any) -> Any:
        known = {id(model.inputs[0]): inputs}
        for run, reads, makes in parts:
            made = run(*(known[id(one)] for one in reads), options.get("training"))
            known |= zip(map(id, makes), tf.nest.flatten(made), strict=True)
        return known[id(model.outputs[0])]

    model.call = call
    return sum(bool(_BLOCK.match(name)) for name in groups)


def _parts(model: Any, groups: dict[str, list[Any]]) -> list[_Part]:
    # A layer that is part of a second model no longer knows its tensors.
    every = [layer for layers in groups.values() for layer in layers]
    reads = {one: tf.nest.flatten(one.input) for one in every}
    makes = {one: tf.nest.flatten(one.output) for one in every}
    parts: list[_Part] = []
    for name, layers in groups.items():
        own = {id(each) for one in layers for each in makes[one]}
        read = {id(each): each for one in layers for each in reads[one]}
        others = {id(each) for one in reads if one not in layers for each in reads[one]}
        others |= {id(one) for one in model.outputs}
        inputs = [each for key, each in read.items() if key not in own]
        made = [each for one in layers for each in makes[one] if id(each) in others]
        parts.append((_run(name, keras.Model(inputs, made)), inputs, made))
    return parts


def _run(name: str, inner: Any) -> _Function:
    def run(*given: Any) -> Any:
        *tensors, training = given

        def block(*tensors: Any) -> Any:
            return inner(list(tensors), training=training)

        if not _BLOCK.match(name):
            return block(*tensors)
        return _recomputed(block, inner.non_trainable_variables)(*tensors)

    return run


def _in_order(left: list[_Part], known: set[int]) -> list[_Part]:
    """Sort the parts: each behind the parts whose outputs it reads."""
    ordered: list[_Part] = []
    while left:
        part = next(one for one in left if known.issuperset(map(id, one[1])))
        left.remove(part)
        ordered.append(part)
        known.update(map(id, part[2]))
    return ordered
