"""Feeds training: an endless, repeatable sequence of batches as a `tf.data` pipeline.

Which subject comes when, and how it is varied, is a function of (seed, epoch, place in
the epoch) alone: training that starts again at epoch 7 sees what it would have seen.

Every batch is full, so that a training step has one shape and one plan: where the
subjects do not fill the last batch, the next shuffle of them does. Importing this does
not import TensorFlow; its data sets do when they are made.

Sources: flips and permutations of a cube as in D. G. Ellis's Keras code; shifts and
scales of intensity as in Myronenko, arXiv 1810.11654, section 3.3.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from unet3d.patches import draw_patch
from unet3d.reading import Images, Labels

if TYPE_CHECKING:
    import tensorflow as tf


__all__ = ["SCALE", "SHIFT", "Load", "Shape", "augment", "epoch_order"]
__all__ += ["training_batches", "validation_batches"]

# Gives one prepared subject: `functools.partial(load_prepared, files, ...)`.
Load: TypeAlias = Callable[[], tuple[Images, Labels]]
# Voxels along each axis, channels, regions.
Shape: TypeAlias = tuple[int, int, int]
# In deviations of a normalised modality, and as a part of it.
SHIFT = 0.1
SCALE = 0.1


def epoch_order(subjects: int, draws: int, *, seed: int, epoch: int) -> list[int]:
    """Indices of the subjects that an epoch draws: shuffles, one after the other.

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
    prefetch: int = 1,
    worker: tuple[int, int] = (0, 1),
) -> "tf.data.Dataset":
    """Batches without end; an epoch is `steps` of them.

    Each worker, a rank of so many, draws other examples: together what one would draw
    with as many times the batch size. `shape` is an example's; with `patches`, `loads`
    give volumes that patches are drawn from; `varied` examples are augmented.
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
                    images, regions = draw_patch(images, regions, shape[0], rng)
                if varied:
                    images, regions = augment(images, regions, rng)
                yield images, regions

    return _dataset(examples, shape, batch_size, prefetch)


def validation_batches(
    loads: Sequence[Load], shape: Shape, *, prefetch: int = 1
) -> "tf.data.Dataset":
    """Each subject once, as it is, one per batch: so all batches have one shape."""
    import tensorflow as tf

    def examples() -> Iterator[tuple[Images, Labels]]:
        for load in loads:
            yield load()

    dataset = _dataset(examples, shape, 1, prefetch)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(loads)))


def augment(
    images: Images, regions: Labels, rng: np.random.Generator
) -> tuple[Images, Labels]:
    """Turn, mirror and re-colour one example; images and regions move together.

    The background stays 0.
    """
    order = (*rng.permutation(3).tolist(), 3)
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
    volume = (batch_size, size, size, size)
    signature = (
        tf.TensorSpec((*volume, channels), tf.float32),
        tf.TensorSpec((*volume, regions), tf.uint8),
    )
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    options = tf.data.Options()
    # Only those asked for wait: each takes as much of the host's memory as a volume.
    options.experimental_optimization.inject_prefetch = False
    dataset = dataset.with_options(options)
    return dataset.prefetch(prefetch) if prefetch else dataset


def _move(
    volume: np.ndarray, order: tuple[int, ...], mirrored: tuple[int, ...]
) -> np.ndarray:
    return np.ascontiguousarray(np.flip(volume.transpose(order), mirrored))
