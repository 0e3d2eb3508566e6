"""Stages of a model, each on a device of its own, and their arithmetic.

    model ──cut──> stage 0 @GPU:0 ──tensors──> stage 1 @GPU:1 ──> loss

A stage stores only its inputs of a micro-batch. Its backward pass recomputes the
forward pass, from the state of layers (random seeds, statistics) before the forward
pass. So a stage's backward pass is a training step of its own, which can be planned for
the stage's device.

Known weakness: the layers' variables move to the stage's device; functions that Keras
traced before the move still refer to the old variables.

Source: re-materialisation in GPipe (Huang et al., NeurIPS 2019, section 2.3).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from lms.errors import UnsupportedError
from lms.tf import compat

__all__ = ["Stage", "cut", "read_stages"]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of a model on a device.

    Args:
        model: A built Keras model or layer; its outputs are the next stage's inputs.
        device: Short name, such as `GPU:1`.
        is_first: Whether no stage needs the gradients of its inputs.
    """

    model: Any
    device: str
    is_first: bool = False

    @cached_property
    def trainable(self) -> list[Any]:
        """Trainable variables of the stage."""
        return list(self.model.trainable_variables)

    @cached_property
    def state(self) -> list[Any]:
        """Other variables of the stage, which a forward pass may write."""
        return list(self.model.non_trainable_variables)

    @cached_property
    def sums(self) -> list[Any]:
        """Variables on the stage's device that sum the gradients."""
        with tf.device(self.device):
            return [tf.Variable(tf.zeros(v.shape, v.dtype)) for v in self.trainable]

    @cached_property
    def without_gradient(self) -> set[int]:
        """Indices of trainable variables without a gradient; known after tracing."""
        return set()

    def forward(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the outputs for a micro-batch, and the state before the pass."""
        with tf.device(self.device):
            state = [tf.identity(variable.value) for variable in self.state]
            return self._outputs(inputs), state

    def backward(
        self,
        inputs: Sequence[Any],
        state: Sequence[Any],
        gradients: Sequence[Any],
        scaled: Callable[[Any], Any],
    ) -> tuple[Any, list[Any]]:
        """Recompute the forward pass, and add a micro-batch's gradients of weights.

        Returns:
            The sum of the layers' own losses, and the gradients of the inputs.

        Args:
            inputs: The stage's inputs.
            state: The state that `forward` returned.
            gradients: Gradients of the floating-point outputs.
            scaled: Scales a loss.
        """
        begun = [*zip(self.state, state, strict=True)]
        weights = [(v, v.value) for v in self.trainable]
        with tf.device(self.device):
            with tf.GradientTape() as tape:
                tape.watch(self._sought(inputs))
                with keras.StatelessScope([*begun, *weights], collect_losses=True):
                    made = _reals(self._outputs(inputs))
                    own = sum(self.model.losses, tf.zeros([]))
                target = scaled(own)
            seeds = [*gradients, tf.ones_like(target)]
            return own, self._added(tape, [*made, target], inputs, seeds)

    def last(
        self, inputs: Sequence[Any], loss: Callable[[Any], tuple[Any, Any]]
    ) -> tuple[Any, list[Any]]:
        """Run forward and backward of a micro-batch on the last stage.

        Args:
            inputs: The stage's inputs.
            loss: Maps the model's outputs to the loss and the scaled loss.
        """
        with tf.device(self.device):
            with tf.GradientTape() as tape:
                tape.watch(self._sought(inputs))
                made = self.model(_packed(inputs), training=True)
                value, scaled = loss(made)
            return value, self._added(tape, [scaled], inputs, None)

    def mean(self, micro_batches: int) -> list[Any]:
        """Return the mean gradients of the micro-batches, and reset the sums."""
        with tf.device(self.device):
            means: list[Any] = [one / micro_batches for one in self.sums]
            self.forget_sums()
        return [
            None if i in self.without_gradient else mean for i, mean in enumerate(means)
        ]

    def forget_sums(self) -> None:
        """Reset the sums of gradients to zero."""
        for one in self.sums:
            one.assign(tf.zeros_like(one))

    def move(self) -> None:
        """Move the stage's variables to its device."""
        full = compat.device_name(self.device)
        for variable in [*self.trainable, *self.state]:
            if variable.value.device != full:
                compat.move_variable(variable, full)

    def _sought(self, inputs: Sequence[Any]) -> list[Any]:
        """Select inputs whose gradients the previous stage needs."""
        return [] if self.is_first else _reals(inputs)

    def _outputs(self, inputs: Sequence[Any]) -> list[Any]:
        return tf.nest.flatten(self.model(_packed(inputs), training=True))

    def _added(
        self, tape: Any, made: list[Any], inputs: Sequence[Any], gradients: Any
    ) -> list[Any]:
        """Add gradients of weights to their sums; return gradients of the inputs."""
        weights, reals = [v.value for v in self.trainable], self._sought(inputs)
        found = tape.gradient(made, [*weights, *reals], gradients)
        for i, (one, total) in enumerate(zip(found, self.sums, strict=False)):
            if one is None:
                self.without_gradient.add(i)
            else:
                total.assign_add(tf.convert_to_tensor(one))
        of_inputs = zip(found[len(weights) :], reals, strict=True)
        return [tf.zeros_like(x) if one is None else one for one, x in of_inputs]


def _packed(inputs: Sequence[Any]) -> Any:
    return list(inputs) if len(inputs) > 1 else inputs[0]


def _reals(tensors: Iterable[Any]) -> list[Any]:
    return [one for one in tensors if one.dtype.is_floating]


def cut(model: Any, *, after: Sequence[str], devices: Sequence[str]) -> list[Stage]:
    """Cut a Keras model into stages, each on a device.

    The model keeps its layers: the model saves, loads and predicts as before.

    Args:
        model: A functional or sequential model, built.
        after: Names of layers: each ends a stage, in the order of `model.layers`.
        devices: The device of each stage: one more than there are cuts.

    Raises:
        TypeError: If the model is neither functional nor sequential.
        ValueError: If a layer is not the model's or is out of order, or a stage has no
            device.

    Example:
        >>> import keras
        >>> dense = [keras.layers.Dense(2, name=name) for name in "abc"]
        >>> model = keras.Sequential([keras.Input((4,)), *dense])
        >>> stages = cut(model, after=["a"], devices=["CPU:0", "CPU:0"])
        >>> [len(stage.trainable) for stage in stages]
        [2, 4]
    """
    if isinstance(model, keras.Sequential) and model.built:
        outputs: Any = model.layers[-1].output
        model = keras.Model(model.inputs, outputs)
    if not hasattr(model, "operations"):
        raise TypeError(
            f"`model` must be functional or sequential, and built, got {model!r}. Give "
            "`pipeline_step` the parts themselves: [(part, 'GPU:0'), ...]."
        )
    if len(devices) != len(after) + 1:
        raise ValueError(
            f"`devices` must name one for each of {len(after) + 1} stages, got "
            f"{len(devices)}. Name one more than there are cuts."
        )
    places = _places(model, after)
    made = _made_in(model, places)
    borders = [
        [tensor for tensor, at, read in made if at <= stage < read]
        for stage in range(len(after))
    ]
    ends = [list(model.inputs), *borders, tf.nest.flatten(model.outputs)]
    return [
        Stage(model=_part(ends[i], ends[i + 1], f"{model.name}_{i}"), device=device)
        for i, device in enumerate(devices)
    ]


def _part(inputs: list[Any], outputs: list[Any], name: str) -> Any:
    """Make the model between tensors; an input that is an output passes through."""
    own = {id(tensor) for tensor in inputs}
    made = [
        keras.layers.Identity()(tensor) if id(tensor) in own else tensor
        for tensor in outputs
    ]
    return keras.Model(inputs, _packed(made), name=name)


def _places(model: Any, after: Sequence[str]) -> dict[int, int]:
    """Map the identity of each op of a model to its stage."""
    names = [op.name for op in model.operations]
    missing = [name for name in after if name not in names]
    if missing:
        raise ValueError(
            f"`after` must name layers of the model, got {missing[0]!r}. It has "
            f"{', '.join(names)}."
        )
    ends = [names.index(name) for name in after]
    if sorted(set(ends)) != ends or (ends and ends[-1] == len(names) - 1):
        raise ValueError(
            f"`after` must name layers in the model's order, none of them its last, "
            f"got {', '.join(after)}. The order is {', '.join(names)}."
        )
    stages = (sum(i > end for end in ends) for i in range(len(names)))
    ops = zip(model.operations, stages, strict=True)
    return {id(op): stage for op, stage in ops}


def _made_in(model: Any, places: dict[int, int]) -> list[tuple[Any, int, int]]:
    """List a model's tensors, each with its producer's stage and its last reader's."""
    made, read = {}, {}
    for operation, inputs, outputs in compat.calls_in(model):
        stage = places[id(operation)] if inputs else 0
        for tensor in inputs:
            read[id(tensor)] = max(read.get(id(tensor), 0), stage)
        for tensor in outputs:
            made[id(tensor)] = tensor, stage
    for tensor in tf.nest.flatten(model.outputs):
        read[id(tensor)] = max(places.values())
    return [(tensor, at, read.get(key, at)) for key, (tensor, at) in made.items()]


def read_stages(stages: Sequence[Any]) -> tuple[Stage, ...]:
    """Read a user's stages: each a `Stage`, or a model and its device.

    Raises:
        TypeError: If a stage has no device.
        ValueError: If there is no stage, a device is not present, a model is not built,
            or two stages share a variable.
        UnsupportedError: If no stage has a trainable variable.
    """
    found = tuple(map(_read, stages))
    if not found:
        raise ValueError("`stages` must be at least one, got none. Use `lms.cut`.")
    found = replace(found[0], is_first=True), *found[1:]
    there = [
        device.name.rpartition("/device:")[2]
        for device in tf.config.list_logical_devices()
    ]
    owners: dict[int, int] = {}
    for i, stage in enumerate(found):
        if stage.device not in there:
            raise ValueError(
                f"stage {i} must be on a device that is here, got {stage.device!r}. "
                f"There are {', '.join(there)}."
            )
        if not stage.model.built:
            raise ValueError(
                f"stage {i} must be built, got {stage.model.name!r} which is not. Call "
                "it once, or give it a `keras.Input`."
            )
        for variable in [*stage.trainable, *stage.state]:
            if owners.setdefault(id(variable), i) != i:
                raise ValueError(
                    "a variable must be of one stage, got "
                    f"{variable.path!r} in stages {owners[id(variable)]} and {i}. "
                    "Cut elsewhere, so that its layer is called in one stage."
                )
    if not any(stage.trainable for stage in found):
        raise UnsupportedError(
            "`stages` must have weights to train, got none. Set `trainable`."
        )
    return found


def _read(stage: Any) -> Stage:
    if isinstance(stage, Stage):
        return stage
    if not isinstance(stage, (tuple, list)) or len(stage) != 2:
        raise TypeError(
            "each of `stages` must be a model and its device, got "
            f"{stage!r}. Write (model, 'GPU:0'), or use `lms.cut`."
        )
    model, device = stage
    if not isinstance(device, str):
        raise TypeError(
            f"the device of a stage must be a name, got {device!r}. Write 'GPU:0'."
        )
    return Stage(model=model, device=device)
