"""Seed and epoch decide the order of batches; variation keeps truth and image."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.unet3d.tiny import example
from unet3d.batches import augment, epoch_order, training_batches, validation_batches

LOADS = [partial(example, 4, seed) for seed in range(3)]


def test_an_epoch_draws_every_subject_and_differs_from_the_next() -> None:
    orders = [epoch_order(50, 50, seed=1, epoch=epoch) for epoch in range(2)]
    assert [sorted(order) for order in orders] == [list(range(50))] * 2
    assert orders[0] != orders[1]
    assert orders[0] == epoch_order(50, 50, seed=1, epoch=0)
    assert orders[0] != epoch_order(50, 50, seed=2, epoch=0)


def test_variation_moves_images_and_regions_together() -> None:
    images, regions = example(6)
    for seed in range(8):
        varied, moved = augment(images, regions, np.random.default_rng(seed))
        # Regions are where the first three channels exceed 0.5: same ranks still.
        for channel, region in zip(varied.T, moved.T, strict=False):
            assert channel[region == 1].min() > channel[region == 0].max()
        assert (varied == 0).all(axis=-1).sum() == 1  # the corner of background
        assert varied.dtype == np.float32


def test_variation_reaches_all_48_ways_to_lay_a_cube() -> None:
    cube = np.arange(1, 9, dtype=np.float32).reshape(2, 2, 2, 1)
    regions = cube.astype(np.uint8)
    rng = np.random.default_rng(0)
    seen = {augment(cube, regions, rng)[1].tobytes() for _ in range(600)}
    assert len(seen) == 48


def take(dataset: Any, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(x.numpy(), y.numpy()) for x, y in dataset.take(count)]


@pytest.mark.tf
@pytest.mark.parametrize("batch_size", [1, 2])
def test_starting_at_a_later_epoch_gives_what_would_have_come(batch_size: int) -> None:
    options: dict[str, Any] = {"steps": 2, "seed": 3, "batch_size": batch_size}
    whole = take(training_batches(LOADS, (4, 4, 3), **options), 6)
    later = take(training_batches(LOADS, (4, 4, 3), first_epoch=1, **options), 4)
    for (x, y), (later_x, later_y) in zip(whole[2:], later, strict=True):
        np.testing.assert_array_equal(x, later_x)
        np.testing.assert_array_equal(y, later_y)
    assert whole[0][0].shape == (batch_size, 4, 4, 4, 4)
    assert whole[0][1].dtype == np.uint8


@pytest.mark.tf
def test_without_variation_examples_are_as_they_were() -> None:
    batches = take(training_batches(LOADS, (4, 4, 3), steps=3, seed=0, varied=False), 3)
    order = epoch_order(3, 3, seed=0, epoch=0)
    for (x, _), index in zip(batches, order, strict=True):
        np.testing.assert_array_equal(x[0], LOADS[index]()[0])


@pytest.mark.tf
def test_validation_takes_each_subject_once_alone_and_in_order() -> None:
    dataset = validation_batches(LOADS, (4, 4, 3))
    assert int(dataset.cardinality()) == 3
    for (x, y), load in zip(take(dataset, 9), LOADS, strict=True):
        np.testing.assert_array_equal(x, load()[0][None])
        np.testing.assert_array_equal(y, load()[1][None])
