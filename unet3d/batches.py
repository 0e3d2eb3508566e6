"""Feeds training: an endless, repeatable sequence of batches as a `tf.data` pipeline.

Order and augmentation of the examples depend on (seed, epoch, place in the epoch)
alone: training resumed at epoch 7 sees the batches of an uninterrupted run.

Every batch is full, so that a training step has one shape and one plan: the next
shuffle fills the last batch. TensorFlow is imported when a data set is made.

Sources: flips and permutations of a cube as in D. G. Ellis's Keras code; shifts and
scales of intensity as in Myronenko, arXiv 1810.11654, section 3.3.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from unet3d.patches import draw_patch
from unet3d.reading import Images, Labels
from unet3d.shapes import CUBE, as_shape

if TYPE_CHECKING:
    import tensorflow as tf


__all__ = ["SCALE", "SHIFT", "Load", "Shape", "augment", "epoch_order"]
__all__ += ["training_batches", "validation_batches"]

# Loads one prepared subject: `functools.partial(load_prepared, files, ...)`.
Load: TypeAlias = Callable[[], tuple[Images, Labels]]
# Voxels along each axis or (depth, height, width), channels, regions.
Shape: TypeAlias = tuple[int | Sequence[int], int, int]
# Augmentation: at most 0.1 standard deviations up or down, and 10 % more or less.
SHIFT = 0.1
SCALE = 0.1


def epoch_order(subjects: int, draws: int, *, seed: int, epoch: int) -> list[int]:
    """Return the indices of the subjects that an epoch draws, shuffle after shuffle.

    Example:
        >>> sorted(epoch_order(3, 6, seed=0, epoch=0))
        [0, 0, 1, 1, 2, 2]
    """
    rng = np.random.default_rng([seed, epoch])
    shuffles = (rng.permutation(subjects).tolist() for _ in count())
    return list(islice((index for shuffle in shuffles for index in shuffle), draws))


def training_batches(  # noqa: PLR0913 - each decides what comes
    loads: Sequence[Load],
    shape: Shape,
    *,
    steps: int,
    seed: int,
    first_epoch: int = 0,
    batch_size: int = 1,
    varied: bool = True,
    patches: bool = False,
    by_label: bool = False,
    spacing: Sequence[float] = CUBE,
    prefetch: int = 1,
    worker: tuple[int, int] = (0, 1),
) -> "tf.data.Dataset":
    """Return endless batches; an epoch has `steps` batches.

    Each `worker`, (rank, workers), draws other examples: together the examples that
    one worker draws with `workers` times the batch size. `shape` is an example's. With
    `patches` they are patches of the volumes of `loads`; `varied` augments examples;
    `by_label` is that of `draw_patch`; axes of another `spacing` do not change places.
    """

    def examples() -> Iterator[tuple[Images, Labels]]:
        rank, workers = worker
        draws = steps * batch_size * workers
        for epoch in count(first_epoch):
            order = epoch_order(len(loads), draws, seed=seed, epoch=epoch)
            for place, index in islice(enumerate(order), rank, None, workers):
                images, regions = loads[index]()
                rng = np.random.default_rng([seed, epoch, place])
                if patches:
                    images, regions = draw_patch(
                        images, regions, shape[0], rng, by_label=by_label
                    )
                if varied:
                    images, regions = augment(images, regions, rng, spacing)
                yield images, regions

    return _dataset(examples, shape, batch_size, prefetch)


def validation_batches(
    loads: Sequence[Load], shape: Shape, *, prefetch: int = 1
) -> "tf.data.Dataset":
    """Return each subject once, unaugmented, one per batch: all have one shape."""
    import tensorflow as tf

    def examples() -> Iterator[tuple[Images, Labels]]:
        for load in loads:
            yield load()

    dataset = _dataset(examples, shape, 1, prefetch)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(loads)))


def augment(
    images: Images,
    regions: Labels,
    rng: np.random.Generator,
    spacing: Sequence[float] = CUBE,
) -> tuple[Images, Labels]:
    """Turn, mirror and re-colour one example; images and regions move together.

    The background stays 0. An example turns only where its shape and voxels stay.
    """
    order = (*rng.permutation(3).tolist(), 3)
    axes = list(zip(images.shape[:3], spacing, strict=True))
    if [axes[k] for k in order[:3]] != axes:
        order = (0, 1, 2, 3)
    mirrored = tuple(np.flatnonzero(rng.random(3) < 0.5).tolist())
    channels = images.shape[-1]
    scale = rng.uniform(1 - SCALE, 1 + SCALE, channels).astype(np.float32)
    shift = rng.uniform(-SHIFT, SHIFT, channels).astype(np.float32)
    brain = (images != 0).any(axis=-1, keepdims=True)
    images = np.where(brain, images * scale + shift, 0).astype(np.float32, copy=False)
    return _move(images, order, mirrored), _move(regions, order, mirrored)


def _dataset(
    examples: Callable[[], Iterator[tuple[Images, Labels]]],
    shape: Shape,
    batch_size: int,
    prefetch: int,
) -> "tf.data.Dataset":
    import tensorflow as tf

    def batches() -> Iterator[tuple[Images, Labels]]:
        drawn = examples()
        while batch := list(islice(drawn, batch_size)):
            yield np.stack([x for x, _ in batch]), np.stack([y for _, y in batch])

    size, channels, regions = shape
    volume = (batch_size, *as_shape(size))
    signature = (
        tf.TensorSpec((*volume, channels), tf.float32),
        tf.TensorSpec((*volume, regions), tf.uint8),
    )
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    options = tf.data.Options()
    # Prefetch `prefetch` batches only: each takes a volume's bytes of host memory.
    options.experimental_optimization.inject_prefetch = False
    dataset = dataset.with_options(options)
    return dataset.prefetch(prefetch) if prefetch else dataset


def _move(
    volume: np.ndarray, order: tuple[int, ...], mirrored: tuple[int, ...]
) -> np.ndarray:
    return np.ascontiguousarray(np.flip(volume.transpose(order), mirrored))
