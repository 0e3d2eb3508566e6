"""Dice against values worked out by hand."""

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from unet3d.losses import dice_coefficient, soft_dice, weighted_dice_loss

pytestmark = pytest.mark.tf


def volume(*labels: list[float]) -> NDArray[np.float32]:
    """One sample of 1 x 1 x n voxels with one channel per list."""
    return np.array(labels, np.float32).T[None, None, None]


def test_soft_dice_is_twice_the_overlap_over_the_sum_of_sizes() -> None:
    truth = volume([1, 1, 0, 0], [1, 0, 0, 0])
    guess = volume([1, 0.5, 0.5, 0], [0.2, 0.3, 0, 0])
    # 2 * 1.5 / (2 + 2) and 2 * 0.2 / (1 + 0.5)
    expected = [[0.75, 0.4 / 1.5]]
    np.testing.assert_allclose(soft_dice(truth, guess), expected, rtol=1e-4)


def test_the_loss_weighs_labels_alike_and_samples_do_not_mix() -> None:
    truth = np.concatenate([volume([1, 1, 1, 1], [1, 0, 0, 0])] * 2)
    guess = [volume([1, 1, 1, 1], [0, 1, 0, 0]), volume([1, 1, 1, 1], [1, 0, 0, 0])]
    found = weighted_dice_loss(truth, np.concatenate(guess))
    np.testing.assert_allclose(found, [0.5, 0], atol=1e-4)  # dice 1 and 0, 1 and 1


def test_an_absent_label_that_is_not_predicted_is_perfect() -> None:
    nothing = volume([0, 0, 0])
    np.testing.assert_allclose(soft_dice(nothing, nothing), [[1]])


def test_the_metric_thresholds_and_keeps_labels_apart() -> None:
    truth = volume([1, 1, 0, 0], [1, 1, 0, 0])
    guess = volume([0.9, 0.6, 0.4, 0.1], [0.9, 0.5, 0.7, 0])
    # Second label: voxels 0 and 2 are taken, so 2 * 1 / (2 + 2).
    np.testing.assert_allclose(dice_coefficient(truth, guess), [[1, 0.5]], atol=1e-4)
    lower = dice_coefficient(truth, guess, threshold=0.3)
    np.testing.assert_allclose(lower, [[0.8, 0.8]], atol=1e-4)


def test_of_labels_that_exclude_each_other_the_background_is_one() -> None:
    truth = volume([1, 0, 0, 0], [0, 1, 0, 0])
    guess = volume([0, 0, 0.5, 0], [1, 0, 0, 0], [0, 1, 0.5, 1])
    dices = [2 * 0.5 / (2 + 0.5), 1, 2 / (1 + 2.5)]
    loss = weighted_dice_loss(truth, guess)
    np.testing.assert_allclose(loss, [1 - np.mean(dices)], rtol=1e-4)


def test_a_label_that_a_patch_lacks_leaves_its_background() -> None:
    # Voxels alike share a softmax: 40 of background, 20 of an organ, none of a lesion.
    kinds, truth = np.repeat([0, 1], [40, 20]), np.zeros((1, 1, 1, 60, 2), np.uint8)
    truth[..., 40:, 0] = 1
    start = tf.constant([[0.0, 0.0, 1.0]] * 2)  # the lesion is the likeliest
    seen = tf.Variable(start)
    for _ in range(50):
        with tf.GradientTape() as tape:
            found = tf.gather(tf.nn.softmax(seen), kinds)[None, None, None]
            loss = weighted_dice_loss(truth, found)
        seen.assign_sub(5 * tf.convert_to_tensor(tape.gradient(loss, seen)))
    assert np.argmax(seen, axis=-1).tolist() == [0, 1]


def test_half_precision_volumes_larger_than_half_precision_counts_are_exact() -> None:
    # 110,592 voxels; float16 ends at 65,504.
    truth = np.ones((1, 48, 48, 48, 1), np.uint8)
    guess = np.full(truth.shape, 0.5, np.float16)
    # 2 * n / 2 / (n + n / 2) = 2 / 3
    np.testing.assert_allclose(weighted_dice_loss(truth, guess), [1 / 3], rtol=1e-5)


def test_the_gradient_equals_finite_differences() -> None:
    truth = volume([1, 0, 1], [0, 0, 1])
    guess = volume([0.6, 0.3, 0.8], [0.2, 0.5, 0.7])
    with tf.GradientTape() as tape:
        tape.watch(variable := tf.constant(guess))
        loss = weighted_dice_loss(truth, variable)
    gradient = np.asarray(tape.gradient(loss, variable)).ravel()
    step = 1e-2
    for index in range(guess.size):
        change = np.zeros(guess.size, np.float32)
        change[index] = step
        change = change.reshape(guess.shape)
        above = float(weighted_dice_loss(truth, guess + change)[0])
        below = float(weighted_dice_loss(truth, guess - change)[0])
        assert gradient[index] == pytest.approx((above - below) / (2 * step), abs=1e-3)
