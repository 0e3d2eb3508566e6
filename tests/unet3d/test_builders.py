"""A network of one's own trains, goes on and predicts as the U-Net does."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests.unet3d.test_validation import settings
from tests.unet3d.tiny import write_knees
from unet3d.prediction import predict
from unet3d.training import build_for, train

# Keras copies variables in a way that NumPy 2 warns of.
COPIES = "ignore:__array__ implementation:DeprecationWarning"
pytestmark = [pytest.mark.tf, pytest.mark.filterwarnings(COPIES)]

HERE = "tests.unet3d.test_builders"


def build(shape: tuple[int, ...], outputs: int) -> Any:
    """A convolution on each of two levels."""
    inputs = keras.Input(shape)
    down = keras.layers.Conv3D(4, 3, strides=2, padding="same")(inputs)
    low = keras.layers.Conv3D(outputs, 1)(down)
    up = keras.layers.UpSampling3D()(down)
    top = keras.layers.Conv3D(outputs, 1)(keras.layers.Concatenate()([inputs, up]))
    return keras.Model(inputs, [top, low])


def build_flat(shape: tuple[int, ...], outputs: int) -> Any:
    inputs = keras.Input(shape)
    return keras.Model(inputs, keras.layers.Conv3D(outputs + 1, 1)(inputs))


@pytest.mark.parametrize("recipe", ["case-study", "nnunet"])
def test_a_network_of_one_s_own_has_the_run_s_outputs(
    tmp_path: Path, recipe: str
) -> None:
    own: dict[str, Any] = {"size": 8, "model": f"{HERE}:build", "recipe": recipe}
    chosen = settings(write_knees(tmp_path, 1), **own)
    both = (1, 8**3 + 4**3, 4)  # the voxels of two levels
    wanted = both if recipe == "nnunet" else (1, 8, 8, 8, 4)
    assert build_for(chosen).output_shape == wanted
    plain = build_for(chosen, 12)
    assert plain.output_shape == (None, 12, 12, 12, 4)
    found = plain.predict(np.ones((1, 12, 12, 12, 2), np.float32), verbose=0)
    np.testing.assert_allclose(found.sum(axis=-1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        (f"{HERE}:build_flat", r"logits of shape \(8, 8, 8, 4\), got \(8, 8, 8, 5\)"),
        (f"{HERE}:nothing", r"must be package:builder, got '.*:nothing' \(module"),
        ("nowhere:build", "must be package:builder, got 'nowhere:build'"),
        ("build", "must be package:builder, got 'build'"),
    ],
)
def test_what_builds_no_network_is_refused(
    tmp_path: Path, name: str, rule: str
) -> None:
    chosen = settings(write_knees(tmp_path, 1), size=8, model=name)
    with pytest.raises(ValueError, match=rule):
        build_for(chosen)


@pytest.mark.slow
def test_a_run_of_one_s_own_network_goes_on_and_predicts(tmp_path: Path) -> None:
    data = write_knees(tmp_path / "data", 3)
    own: dict[str, Any] = {"patch": 8, "model": f"{HERE}:build", "epochs": 1}
    folder, cache = tmp_path / "run", tmp_path / "cache"
    train(settings(data, **own), folder, cache=cache)
    outcome = train(
        settings(data, **own | {"epochs": 2}), folder, cache=cache, resume=True
    )
    assert outcome.epochs == 2
    assert predict(folder, data, tmp_path / "p").names == outcome.split.validation
