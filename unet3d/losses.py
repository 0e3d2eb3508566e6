"""Soft Dice as a loss, and the Dice coefficient as a metric.

For one sample and one label, with truth t and prediction p summed over all voxels:

    dice(t, p) = (2 * sum(t * p) + smooth) / (sum(t) + sum(p) + smooth)

Sources: Milletari et al., arXiv 1606.04797; one Dice per label, averaged so that small
regions weigh as much as large ones, Isensee et al., BraTS 2017; the smoothing of 1e-5
as in D. G. Ellis's Keras code, which minimises -dice; the loss here is 1 - dice, of the
same gradient, and 0 when perfect.

A prediction with one channel more than the truth is that of labels which exclude each
other: the first channel is the background's. In the loss the background is a label like
the others: without its Dice nothing would keep the smallest label off the background.

Everything is computed in float32, one axis at a time (see `unet3d.sums`): a volume of
144^3 has more voxels than float16 can count.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

import keras
from keras import ops

from unet3d.sums import total

__all__ = ["SMOOTH", "dice_coefficient", "dice_of", "soft_dice", "weighted_dice_loss"]

SMOOTH = 1e-5


def soft_dice(y_true: Any, y_pred: Any) -> Any:
    """Compute Dice of each sample and label, of shape (batch, label).

    A label that is absent and not predicted has Dice 1.
    """
    y_true = ops.cast(y_true, "float32")
    if more := y_pred.shape[-1] - y_true.shape[-1]:  # the background
        y_pred = y_pred[..., more:]
    y_pred = ops.cast(y_pred, "float32")
    voxels = tuple(range(1, len(y_pred.shape) - 1))
    overlap = total(y_true * y_pred, voxels)
    sizes = total(y_true, voxels) + total(y_pred, voxels)
    return (2 * overlap + SMOOTH) / (sizes + SMOOTH)


@keras.saving.register_keras_serializable(package="unet3d")
def weighted_dice_loss(y_true: Any, y_pred: Any, *, background: bool = True) -> Any:
    """Compute 1 - mean soft Dice over labels, of shape (batch,); 0 is perfect.

    Shapes are (batch, depth, height, width, label). Without `background` its Dice does
    not count, as in runs of earlier versions.
    """
    dice: Any = soft_dice(y_true, y_pred)
    if background and y_pred.shape[-1] > y_true.shape[-1]:
        labelled: Any = total(ops.cast(y_true, "float32"), [4], keepdims=True)
        others = soft_dice(1 - labelled, y_pred[..., :1])
        dice = ops.concatenate([others, dice], axis=-1)
    mean: Any = ops.mean(dice, axis=-1)
    return 1 - mean


@keras.saving.register_keras_serializable(package="unet3d")
def dice_coefficient(y_true: Any, y_pred: Any, threshold: float = 0.5) -> Any:
    """Compute Dice of the thresholded prediction, as in the case study's box plots.

    Of labels that exclude each other the likeliest is taken, the background included.
    The shape is (batch, label); Keras averages a metric over both axes.
    """
    if y_pred.shape[-1] > y_true.shape[-1]:
        likeliest = ops.argmax(y_pred, axis=-1)
        return soft_dice(y_true, ops.one_hot(likeliest, y_pred.shape[-1]))
    return soft_dice(y_true, ops.greater(y_pred, threshold))


def dice_of(regions: Iterable[str]) -> list[Callable[[Any, Any], Any]]:
    """Make a metric for each region: Dice of the thresholded prediction."""

    def metric(index: int, region: str) -> Callable[[Any, Any], Any]:
        def dice(y_true: Any, y_pred: Any) -> Any:
            if y_pred.shape[-1] > y_true.shape[-1]:
                return dice_coefficient(y_true, y_pred)[:, index]
            one = slice(index, index + 1)
            return dice_coefficient(y_true[..., one], y_pred[..., one])[:, 0]

        # Column names of a log: short words, "tumour" where no other is left.
        words = re.findall(r"\w+", region.lower())
        short = [word for word in words if word != "tumour"] or words
        dice.__name__ = "_".join(["dice", *short])
        return dice

    return [metric(index, region) for index, region in enumerate(regions)]
