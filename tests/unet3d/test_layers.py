"""Instance normalisation against NumPy and finite differences."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from unet3d.layers import SLOPE, InstanceNormalization, LeanLeakyReLU

pytestmark = pytest.mark.tf

SHAPE = (2, 3, 4, 5, 3)  # (batch, depth, height, width, channel)
VOXELS = (1, 2, 3)


def sample() -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    return rng.normal(5, [1, 3, 0.1], SHAPE).astype(np.float32)


def test_each_channel_of_each_sample_gets_mean_beta_and_deviation_gamma() -> None:
    layer = InstanceNormalization(epsilon=1e-9)
    layer.build(SHAPE)
    layer.set_weights([np.array([1.0, 2.0, 3.0]), np.array([0.0, -1.0, 7.0])])
    result = np.asarray(layer(sample()))
    means, deviations = result.mean(VOXELS), result.std(VOXELS)
    np.testing.assert_allclose(means, [[0, -1, 7]] * 2, atol=1e-4)
    np.testing.assert_allclose(deviations, [[1, 2, 3]] * 2, rtol=1e-4)


def test_epsilon_keeps_a_constant_channel_at_beta() -> None:
    result = InstanceNormalization()(np.full(SHAPE, 7, np.float32))
    np.testing.assert_allclose(result, 0, atol=1e-4)


def test_half_precision_statistics_are_taken_in_single_precision() -> None:
    # Squares of these inputs are beyond float16's greatest number, 65,504.
    inputs = (sample() * 100).astype(np.float16)
    layer = InstanceNormalization(dtype="mixed_float16")
    result = layer(inputs)
    assert result.dtype == "float16"
    expected = InstanceNormalization()(inputs.astype(np.float32))
    np.testing.assert_allclose(result, expected, atol=0.03)


def test_gradients_equal_finite_differences() -> None:
    rng = np.random.default_rng(1)
    layer = InstanceNormalization()
    layer.build(SHAPE)
    layer.set_weights([rng.normal(1, 0.2, 3), rng.normal(0, 0.2, 3)])
    inputs = rng.normal(0, 1, SHAPE).astype(np.float32)
    weights = rng.normal(0, 1, SHAPE).astype(np.float32)

    def value(x: NDArray[np.floating]) -> float:
        return float(np.sum(np.asarray(layer(x), np.float64) * weights))

    with tf.GradientTape() as tape:
        tape.watch(variable := tf.constant(inputs))
        total = tf.reduce_sum(layer(variable) * weights)
    found: Any = tape.gradient(total, [variable, layer.gamma.value, layer.beta.value])
    for _ in range(5):  # along random directions, for all voxels at once
        direction = rng.normal(0, 1, SHAPE).astype(np.float32)
        change = np.float32(1e-2) * direction
        slope = (value(inputs + change) - value(inputs - change)) / 2e-2
        assert np.sum(np.asarray(found[0]) * direction) == pytest.approx(
            slope, rel=1e-2, abs=1e-2
        )
    gamma, beta = layer.get_weights()
    normalised = (np.asarray(layer(inputs)) - beta) / gamma
    np.testing.assert_allclose(
        found[1], (normalised * weights).sum((0, *VOXELS)), rtol=1e-3
    )
    np.testing.assert_allclose(found[2], weights.sum((0, *VOXELS)), rtol=1e-3)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_gradients_in_16_bits_are_those_of_single_precision(kind: str) -> None:
    rng = np.random.default_rng(1)
    weights = [rng.normal(1, 0.2, 3), rng.normal(0, 0.2, 3)]
    inputs, upstream = (rng.normal(0, 1, SHAPE).astype(np.float32) for _ in range(2))
    found: dict[str, Any] = {}
    for policy in ("float32", f"mixed_{kind}"):
        layer = InstanceNormalization(dtype=policy)
        layer.build(SHAPE)
        layer.set_weights(weights)
        with tf.GradientTape() as tape:
            tape.watch(x := tf.cast(inputs, layer.compute_dtype))
            total = tf.reduce_sum(tf.cast(layer(x), tf.float32) * upstream)
        found[policy] = tape.gradient(total, [x, layer.gamma.value, layer.beta.value])
    exact, rounded = found.values()
    coarse = 0.01 if kind == "float16" else 0.06
    for one, other in zip(exact, rounded, strict=True):
        apart = np.abs(np.asarray(one) - np.asarray(tf.cast(other, tf.float32)))
        assert apart.max() < coarse * np.abs(np.asarray(one)).max()


def test_a_lean_relu_has_the_values_and_gradients_of_keras_s() -> None:
    x = tf.constant([-3.0, -0.0, 0.0, 1e-30, -1e-30, 2.0])
    results = []
    for layer in (LeanLeakyReLU(), keras.layers.LeakyReLU(SLOPE)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = layer(x)
        slope: Any = tape.gradient(result, x)
        results.append((result.numpy(), slope.numpy()))
    np.testing.assert_array_equal(results[0], results[1])


def test_a_layer_is_rebuilt_from_its_configuration() -> None:
    layer = InstanceNormalization(epsilon=0.5, name="norm")
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(layer)
    )
    assert isinstance(again, InstanceNormalization)
    assert (again.epsilon, again.name) == (0.5, "norm")
