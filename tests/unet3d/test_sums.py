"""Sums over 256^3 voxels, 2^24, against float64.

Two channels and more: of one channel TensorFlow makes a sum over all axes, which it
adds as a tree.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from unet3d import losses
from unet3d.layers import InstanceNormalization
from unet3d.losses import soft_dice
from unet3d.sums import mean, moments, spread, total

pytestmark = pytest.mark.tf

VOXELS = (1, 2, 3)
SIDE = 256
EXACT = 2e-6  # relative; TensorFlow's own sums miss by 1e-3 and more


def volume(channels: int, *, least: float = 0.0, most: float = 1.0) -> NDArray[Any]:
    """Random voxels of one sample, the same every time."""
    rng = np.random.default_rng(0)
    voxels = rng.random((1, SIDE, SIDE, SIDE, channels), np.float32)
    voxels *= np.float32(most - least)
    voxels += np.float32(least)
    return voxels


def wide(values: NDArray[Any], **how: Any) -> NDArray[np.float64]:
    """The sum over the voxels of each sample and channel."""
    return values.sum(axis=VOXELS, dtype=np.float64, **how)


def dice_of(truth: NDArray[Any], guess: NDArray[Any]) -> NDArray[np.float64]:
    both = np.einsum("bdhwc,bdhwc->bc", truth, guess, dtype=np.float64)
    return 2 * both / (wide(truth) + wide(guess))


@pytest.mark.slow
def test_sums_means_and_variances_of_256_cubed_voxels_equal_float64() -> None:
    voxels = volume(2, least=0.5)
    true = wide(voxels)
    np.testing.assert_allclose(total(voxels, VOXELS), true, rtol=EXACT)
    np.testing.assert_allclose(mean(voxels, VOXELS), true / SIDE**3, rtol=EXACT)
    middle, variance = (
        np.asarray(part)[:, 0, 0, 0] for part in moments(voxels, VOXELS)
    )
    voxels -= (true / SIDE**3).astype(np.float32)
    np.testing.assert_allclose(middle, true / SIDE**3, rtol=EXACT)
    np.testing.assert_allclose(variance, wide(np.square(voxels)) / SIDE**3, rtol=EXACT)


@pytest.mark.slow
def test_metrics_count_more_than_2_to_the_24_voxels() -> None:
    # A running sum of ones in float32 ends at 2^24; here are 1.25 times as many.
    truth = np.zeros((1, 320, SIDE, SIDE, 3), np.uint8)
    for label, planes in enumerate((160, 80, 320)):
        truth[:, :planes, ..., label] = 1
    guess = np.full(truth.shape, 0.9, np.float16)
    exact = [2 * 160 / (160 + 320), 2 * 80 / (80 + 320), 1.0]
    found = losses.dice_coefficient(truth, guess)
    np.testing.assert_allclose(found, [exact], rtol=EXACT)
    metrics = losses.dice_of(("whole", "core", "enhancing"))
    alone = [float(metric(truth, guess)[0]) for metric in metrics]
    np.testing.assert_allclose(alone, exact, rtol=EXACT)


@pytest.mark.slow
def test_the_loss_s_gradient_at_256_cubed_voxels_equals_float64() -> None:
    guess = tf.constant(volume(2))
    truth = np.zeros((1, SIDE, SIDE, SIDE, 2), np.float32)
    truth[:, :, ::2] = 1
    with tf.GradientTape() as tape:
        tape.watch(guess)
        dice = soft_dice(truth, guess)
    found = np.asarray(tape.gradient(dice, guess))[0, :2, :2, :2]
    sizes = wide(truth) + wide(guess.numpy())
    slope = (2 * truth[0, :2, :2, :2] - dice_of(truth, guess.numpy())) / sizes
    np.testing.assert_allclose(found, slope, rtol=10 * EXACT)


@pytest.mark.slow
def test_normalisation_of_256_cubed_voxels_and_its_gradients_equal_float64() -> None:
    voxels = volume(2, least=-1.0)
    voxels[..., 1] += 3
    layer = InstanceNormalization(epsilon=0.0)
    layer.build(voxels.shape)
    with tf.GradientTape() as tape:
        normal = layer(tf.constant(voxels))
        upstream = volume(2, least=0.5)
        value = tf.reduce_sum(normal * upstream)
    found: Any = tape.gradient(value, [layer.gamma.value, layer.beta.value])
    result = normal.numpy()
    np.testing.assert_allclose(wide(result) / SIDE**3, 0, atol=EXACT)
    np.testing.assert_allclose(wide(np.square(result)) / SIDE**3, 1, rtol=EXACT)
    np.testing.assert_allclose(found[1], wide(upstream)[0], rtol=EXACT)
    voxels -= (wide(voxels) / SIDE**3).astype(np.float32)
    voxels /= np.sqrt(wide(np.square(voxels)) / SIDE**3).astype(np.float32)
    # The gradient of gamma is a difference of two sums, each 60 times as large.
    slope = np.einsum("bdhwc,bdhwc->c", voxels, upstream, dtype=np.float64)
    np.testing.assert_allclose(found[0], slope, rtol=60 * EXACT)


def test_gradients_of_small_volumes_are_tensorflow_s_but_for_rounding() -> None:
    rng = np.random.default_rng(2)
    voxels = tf.constant(rng.random((2, 4, 5, 6, 3), np.float32))
    scale = tf.constant(rng.random((2, 1, 1, 1, 3), np.float32))
    bias = tf.constant(rng.random((1, 1, 1, 1, 3), np.float32))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([scale, bias])
        ours = tf.square(voxels * spread(scale, voxels) + spread(bias, voxels))
        theirs = tf.square(voxels * scale + bias)
    np.testing.assert_array_equal(ours, theirs)
    gradients: Any = [tape.gradient(way, [scale, bias]) for way in (ours, theirs)]
    for found, expected in zip(*gradients, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_unknown_sizes_are_those_of_the_call() -> None:
    layer = InstanceNormalization()
    voxels = np.random.default_rng(3).random((2, 4, 5, 6, 3), np.float32)
    expected = layer(voxels)
    unknown = tf.TensorSpec((None, None, None, None, 3), tf.float32)
    traced = tf.function(layer, input_signature=[unknown])
    np.testing.assert_allclose(traced(voxels), expected, rtol=1e-5, atol=1e-6)
