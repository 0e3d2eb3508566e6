"""The network against numbers worked out by hand from the case study's description."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from unet3d.losses import weighted_dice_loss
from unet3d.model import build_unet

pytestmark = pytest.mark.tf


def block(kernel: int, before: int, after: int) -> int:
    """Weights of one convolution with bias, and of its normalisation's two vectors."""
    return kernel**3 * before * after + after + 2 * after


@pytest.fixture
def half_precision() -> Iterator[None]:
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(policy)


def test_the_case_study_s_network_has_8_269_579_parameters() -> None:
    widths = [16, 32, 64, 128, 256]
    down = sum(
        block(3, before, after) + 2 * block(3, after, after)
        for before, after in zip([4, *widths], widths, strict=False)
    )
    up = sum(
        block(3, 2 * width, width) + block(3, 2 * width, width) + block(1, width, width)
        for width in (128, 64, 32, 16)
    )
    heads = sum(block(1, width, 3) for width in (64, 32, 16))
    model = build_unet(size=16)
    assert down + up + heads == 8_269_579
    assert model.count_params() == 8_269_579
    assert model.output_shape == (None, 16, 16, 16, 3)
    # 5 levels of 3 convolutions down, 4 of 3 up, 3 heads; a norm and a ReLU for each.
    kinds = [type(layer).__name__ for layer in model.layers]
    assert kinds.count("Conv3D") == 15 + 12 + 3
    assert kinds.count("InstanceNormalization") == kinds.count("LeakyReLU") == 30
    assert kinds.count("SpatialDropout3D") == 5


def test_each_level_halves_the_volume_and_doubles_the_channels() -> None:
    model = build_unet(size=144, filters=16, depth=5, batch_size=1)
    for level, (side, width) in enumerate(
        [(144, 16), (72, 32), (36, 64), (18, 128), (9, 256)]
    ):
        total = model.get_layer(f"down{level}_sum").output
        assert total.shape == (1, side, side, side, width)
    for level, (side, width) in enumerate([(144, 16), (72, 32), (36, 64), (18, 128)]):
        joined = model.get_layer(f"up{level}_concat").output
        assert joined.shape == (1, side, side, side, 2 * width)
        local = model.get_layer(f"up{level}_1_relu").output
        assert local.shape == (1, side, side, side, width)
    for level, side in enumerate([144, 72, 36]):
        head = model.get_layer(f"head{level}_relu").output
        assert head.shape == (1, side, side, side, 3)
    assert model.output_shape == (1, 144, 144, 144, 3)


@pytest.mark.slow
def test_the_network_learns_a_bright_cube() -> None:
    model: Any = build_unet(16, filters=4, depth=2, batch_size=1, seed=0)
    assert isinstance(model.optimizer, keras.optimizers.Adam)
    assert float(model.optimizer.learning_rate) == pytest.approx(5e-4)
    model.optimizer.learning_rate = 0.01  # to see it learn in seconds
    rng = np.random.default_rng(0)
    y = np.zeros((1, 16, 16, 16, 3), np.uint8)
    y[:, 4:10, 4:10, 4:10] = 1
    x = rng.normal(size=(1, 16, 16, 16, 4)).astype(np.float32) + 2 * y[..., :1]
    history = model.fit(x, y, epochs=15, verbose=0).history
    assert history["loss"][-1] < history["loss"][0] - 0.03
    assert history["dice_coefficient"][-1] > history["dice_coefficient"][0] + 0.2
    assert all(0 <= loss <= 1 for loss in history["loss"])


def test_a_seed_fixes_weights_and_dropout() -> None:
    x = np.ones((1, 8, 8, 8, 4), np.float32)

    def outputs(seed: int | None) -> np.ndarray:
        model = build_unet(8, filters=2, depth=2, seed=seed)
        return np.asarray(model(x + np.arange(8)[:, None], training=True))

    np.testing.assert_array_equal(outputs(1), outputs(1))
    assert (outputs(1) != outputs(2)).any()
    assert (outputs(None) != outputs(None)).any()


# Keras copies variables in a way that NumPy 2 warns of.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_saved_model_is_loaded_with_its_layers_loss_and_metric(
    tmp_path: Path,
) -> None:
    model: Any = build_unet(8, filters=2, depth=2, seed=3)
    model.optimizer.build(model.trainable_variables)  # as training does
    path = tmp_path / "model.keras"
    model.save(path)
    loaded: Any = keras.saving.load_model(path)
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 8, 4)).astype(np.float32)
    np.testing.assert_array_equal(loaded(x), model(x))
    assert loaded.loss is weighted_dice_loss
    assert loaded.get_compile_config() == model.get_compile_config()


def test_half_precision_has_finite_gradients_and_its_output_and_weights_stay_single(
    half_precision: None,
) -> None:
    model: Any = build_unet(8, filters=2, depth=2, seed=0)
    assert model.get_layer("up0_1_relu").output.dtype == "float16"
    assert model.output.dtype == "float32"
    assert {weight.dtype for weight in model.trainable_weights} == {"float32"}
    x = np.random.default_rng(0).normal(size=(1, 8, 8, 8, 4))
    y = (x[..., :3] > 1).astype(np.uint8)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(weighted_dice_loss(y, model(x, training=True)))
    assert loss.dtype == tf.float32
    gradients: Any = tape.gradient(loss, model.trainable_variables)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


DIVISIBLE = r"`size` must be divisible by 2\^\(depth - 1\) = 8, got 100. Use 104 or 96"


@pytest.mark.parametrize(
    ("options", "error", "rule"),
    [
        ({"size": 100, "depth": 4}, ValueError, DIVISIBLE),
        ({"size": 8, "depth": 5}, ValueError, r"= 16, got 8. Use 16\."),
        ({"size": 16, "depth": 1}, ValueError, "`depth` must be at least 2, got 1"),
        ({"size": 16, "filters": 0}, ValueError, "`filters` must be at least 1, got 0"),
        ({"size": 0}, ValueError, "`size` must be at least 1, got 0"),
        ({"size": 16.0}, TypeError, "`size` must be an integer, got float"),
        ({"size": 16, "labels": True}, TypeError, "`labels` must be an integer"),
    ],
)
def test_sizes_that_cannot_work_are_refused(
    options: dict, error: type[Exception], rule: str
) -> None:
    with pytest.raises(error, match=rule):
        build_unet(**options)


def test_linear_heads_lack_what_follows_a_convolution() -> None:
    plain = build_unet(16, filters=1, depth=4, linear_heads=True)
    heads = {layer.name for layer in plain.layers if layer.name.startswith("head")}
    assert {name for name in heads if name.endswith(("norm", "relu"))} == set()
    # Two vectors of three numbers for each of three normalisations are gone.
    whole = build_unet(16, filters=1, depth=4)
    assert whole.count_params() - plain.count_params() == 3 * 2 * 3
