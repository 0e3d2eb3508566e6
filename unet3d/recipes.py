"""How a network is trained: loss, optimizer and learning rate, by recipe.

    case-study   weighted soft Dice; Adam, halved where validation makes no progress
    nnunet       Dice and cross entropy on the top levels; SGD, a rate that falls to 0;
                 a third of the patches lie around a label, each label as often

Sources: `unet3d.training` for the case study. nnU-Net's: Isensee et al., Nature Methods
18, 2021, and its nnUNetTrainer: SGD of rate 0.01, Nesterov momentum 0.99, decay 3e-5,
gradients of norm 12 at most; rate * (1 - epoch / epochs)^0.9; weights of the levels
halved from level to level and divided by their sum.

Known weaknesses: nnU-Net has 1000 epochs of 250 steps and more augmentation. Keras
subtracts the decay from weights, where PyTorch adds the decay to gradients.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any

import keras
from keras import ops

from unet3d.checkpoints import MONITOR
from unet3d.losses import dice_coefficient, dice_of, soft_dice, weighted_dice_loss
from unet3d.runs import Configuration
from unet3d.sums import mean, total

__all__ = ["PolynomialRate", "compile_for", "dice_and_cross_entropy", "of_levels"]
__all__ += ["watchers_of"]

PATIENCE = 10  # epochs
STOP_AFTER = 50  # epochs
RATE = 0.01
_POWER = 0.9
_LEAST = 1e-7  # probability in a logarithm


class PolynomialRate(keras.callbacks.Callback):
    """Lets the learning rate fall from `start` to 0 over all epochs."""

    def __init__(self, start: float, epochs: int) -> None:
        super().__init__()
        self._start, self._all = start, epochs

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Set the rate of an epoch."""
        model: Any = self.model
        rate = self._start * (1 - epoch / self._all) ** _POWER
        model.optimizer.learning_rate.assign(rate)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Log the rate."""
        model: Any = self.model
        if logs is not None:
            logs["learning_rate"] = float(model.optimizer.learning_rate)


def compile_for(model: Any, configuration: Configuration) -> None:
    """Compile a network with the recipe's loss and optimizer, and the metrics."""
    metrics = [dice_coefficient, *dice_of(configuration.task.regions)]
    if not configuration.follows_nnunet:
        loss: Any = weighted_dice_loss
        if configuration.softmax and not configuration.background:
            loss = partial(weighted_dice_loss, background=False)
        model.compile(optimizer=model.optimizer, loss=loss, metrics=metrics)
        return
    options: dict[str, Any] = {"momentum": 0.99, "nesterov": True, "weight_decay": 3e-5}
    model.compile(
        optimizer=keras.optimizers.SGD(RATE, global_clipnorm=12.0, **options),
        loss=of_levels(dice_and_cross_entropy, shapes := _shapes(model)),
        metrics=[_of_first(metric, shapes) for metric in metrics],
    )


def watchers_of(configuration: Configuration, *, workers: int) -> list[Any]:
    """Make the callbacks that set the learning rate, or end the training."""
    if configuration.follows_nnunet:
        return [PolynomialRate(RATE * workers, configuration.epochs)]
    best: dict[str, Any] = {"monitor": MONITOR, "mode": "max"}
    return [
        keras.callbacks.ReduceLROnPlateau(**best, factor=0.5, patience=PATIENCE),
        keras.callbacks.EarlyStopping(**best, patience=STOP_AFTER),
    ]


def dice_and_cross_entropy(y_true: Any, y_pred: Any) -> Any:
    """Add 1 - mean soft Dice and the mean cross entropy, of shape (batch,).

    Shapes are (batch, depth, height, width, region). With one channel more `y_pred` are
    probabilities that add up to 1, the background's first, which has no Dice here.
    """
    truth: Any = ops.cast(y_true, "float32")
    found: Any = ops.clip(ops.cast(y_pred, "float32"), _LEAST, 1 - _LEAST)
    if y_pred.shape[-1] > y_true.shape[-1]:
        background: Any = 1 - total(truth, [4], keepdims=True)
        both: Any = ops.concatenate([background, truth], axis=-1)
        agreed: Any = total(both * ops.log(found), [4])
    else:
        logs: Any = [ops.log(found), ops.log(1 - found)]
        agreed = mean(truth * logs[0] + (1 - truth) * logs[1], [4])
    return 1 - mean(soft_dice(y_true, y_pred), [1]) - mean(agreed, (1, 2, 3))


def of_levels(loss: Callable[[Any, Any], Any], shapes: Sequence[Sequence[int]]) -> Any:
    """Weigh the loss of levels of these shapes; the truth shrinks to nearest voxels."""
    whole = sum(0.5**level for level in range(len(shapes)))
    ends = [0, *accumulate(map(prod, shapes))]

    def loss_of_levels(y_true: Any, y_pred: Any) -> Any:
        losses = []
        for level, shape in enumerate(shapes):
            part = y_pred
            if len(y_pred.shape) == 3:
                part = part[:, ends[level] : ends[level + 1]]
                part = ops.reshape(part, (-1, *shape, y_pred.shape[-1]))
            steps = [n // few for n, few in zip(shapes[0], shape, strict=True)]
            truth = y_true[:, :: steps[0], :: steps[1], :: steps[2]]
            losses.append(0.5**level / whole * loss(truth, part))
        return sum(losses[1:], losses[0])

    return loss_of_levels


def _shapes(model: Any) -> list[Any]:
    """Return (depth, height, width) of the levels that are trained, the top first."""
    found = [x for x in model.layers if re.fullmatch(r"labels\d*", x.name)]
    return [layer.output.shape[1:4] for layer in found]


def _of_first(metric: Callable[[Any, Any], Any], shapes: Sequence[Any]) -> Any:
    first = of_levels(metric, shapes[:1])
    first.__name__ = metric.__name__
    return first
