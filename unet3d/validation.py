"""Validates: a few patches of each subject, or its labels as they would be written.

Where regions compete for a voxel, a region that is found may not be written. So the
Dice that chooses the best epoch is that of whole subjects' labels, on their own grids
inside the box of the brain, as `predict` writes and `evaluate` scores them.

Known weakness: a volume of many patches would take longer than its epoch. Then Dice is
that of the likeliest labels in a few patches, as nnU-Net's "pseudo Dice" is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import keras
import numpy as np

from unet3d.batches import Load
from unet3d.checkpoints import MONITOR
from unet3d.data import resized_labels, to_regions
from unet3d.losses import dice_of
from unet3d.patches import draw_patch, predict_volume, starts
from unet3d.schemes import LabelScheme
from unet3d.scores import dice

__all__ = ["Validated", "WrittenDice", "cut_patches"]

_PATCHES = 4  # of each subject, to validate with
MOST = 64  # patches of a volume that is validated whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """A subject to validate with: as the network sees it, and on its own grid."""

    seen: Load
    whole: Load


class WrittenDice(keras.callbacks.Callback):
    """Replaces the validation Dice by that of the labels as they would be written.

    Stands before the callbacks that read the Dice. With `patched` the network sees
    patches of a subject. `callbacks` serve the predictions.
    """

    def __init__(
        self,
        subjects: Iterable[Validated],
        scheme: LabelScheme,
        *,
        patched: bool,
        callbacks: Sequence[Any] = (),
    ) -> None:
        super().__init__()
        self._subjects, self._scheme = tuple(subjects), scheme
        self._patched, self._callbacks = patched, callbacks
        self._is_quick: bool | None = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Predict and score all subjects; put mean Dice into `logs`."""
        if self._is_quick is None:
            self._is_quick = self._find_out()
        if logs is None or not self._is_quick:
            return
        scores = np.mean([self._score(subject) for subject in self._subjects], axis=0)
        names = (metric.__name__ for metric in dice_of(self._scheme.regions))
        found = zip(names, scores.tolist(), strict=True)
        logs |= {f"val_{name}": score for name, score in found}
        logs[MONITOR] = float(scores.mean())

    def _find_out(self) -> bool:
        model: Any = self.model
        patch = model.input_shape[1:4]
        shapes = [one.seen()[0].shape[:3] for one in self._subjects if self._patched]
        every = (zip(shape, patch, strict=True) for shape in shapes)
        return all(
            prod(len(starts(max(n, size), size)) for n, size in axes) <= MOST
            for axes in every
        )

    def _score(self, subject: Validated) -> list[float]:
        images, regions = subject.seen()[0], subject.whole()[1]
        found = predict_volume(
            self.model, images, patched=self._patched, callbacks=self._callbacks
        )
        depth, height, width = regions.shape[:3]
        labels = resized_labels(found, (depth, height, width), self._scheme)
        masks = to_regions(labels, self._scheme)
        pairs = (
            (regions[..., k] > 0, masks[..., k] > 0) for k in range(masks.shape[-1])
        )
        return [dice(truth, guess) for truth, guess in pairs]


def cut_patches(loads: Sequence[Load], patch: int | Sequence[int]) -> list[Load]:
    """Return loads of a few patches of each subject, which all epochs share."""

    def cut(load: Load, number: int) -> Any:
        return draw_patch(*load(), patch, np.random.default_rng(number))

    numbered = [load for load in loads for _ in range(_PATCHES)]
    return [partial(cut, load, number) for number, load in enumerate(numbered)]
