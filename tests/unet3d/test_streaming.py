"""Volumes put together from pieces have the numbers of volumes made at once."""

from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from lms.errors import HostMemoryError
from tests.unet3d.test_validation import settings
from tests.unet3d.tiny import save, write_knees
from unet3d.data import resize_channels
from unet3d.patches import slide
from unet3d.prediction import Style, predict
from unet3d.schemes import choose_scheme
from unet3d.shapes import Shape
from unet3d.streaming import cut_pieces, find_room, patched_pieces, resized_pieces
from unet3d.subjects import find_subjects
from unet3d.training import train

# Keras copies variables in a way that NumPy 2 warns of.
COPIES = "ignore:__array__ implementation:DeprecationWarning"
pytestmark = [pytest.mark.tf, pytest.mark.filterwarnings(COPIES)]


def guess(patch: NDArray[np.float32]) -> NDArray[np.float32]:
    """Three probabilities that depend on the place in the patch."""
    place = np.arange(patch.shape[2])
    return np.stack([np.sin(patch[..., 0] * k + place) for k in range(3)], axis=-1)


def together(shape: Shape, rows: int, parts: Any) -> NDArray[np.float32]:
    whole = np.full((*shape, 3), np.nan, np.float32)
    for row in cut_pieces(shape, rows):
        for piece, found in zip(row, parts(row), strict=True):
            whole[piece] = found
    return whole


@pytest.mark.parametrize("shape", [(30, 25, 21), (5, 25, 9)])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_patches_in_pieces_have_the_numbers_of_the_whole(
    shape: Shape, rows: int
) -> None:
    images = np.random.default_rng(0).random((*shape, 1), np.float32)
    patch = (8, 8, 8)
    pieces = together(
        shape, rows, lambda row: patched_pieces(images, patch, guess, shape, row)
    )
    np.testing.assert_array_equal(pieces, slide(images, patch, guess))
    larger: Shape = (40, 30, 20)
    pieces = together(
        larger, rows, lambda row: patched_pieces(images, patch, guess, larger, row)
    )
    whole = resize_channels(slide(images, patch, guess), larger)
    np.testing.assert_allclose(pieces, whole, atol=1e-6)


def test_a_resized_cube_in_pieces_is_the_whole_to_rounding() -> None:
    cube = np.random.default_rng(0).random((9, 9, 9, 3), np.float32)
    shape: Shape = (20, 30, 10)
    pieces = together(shape, 3, lambda row: resized_pieces(cube, shape, row))
    np.testing.assert_allclose(pieces, resize_channels(cube, shape), atol=1e-6)


def test_pieces_cover_a_grid_once() -> None:
    seen = np.zeros((19, 11), np.uint8)
    for piece in chain(*cut_pieces((19, 11, 4), 3)):
        seen[piece] += 1
    assert seen.min() == seen.max() == 1


def test_the_fewest_pieces_are_chosen_and_too_little_memory_is_named(
    tmp_path: Path,
) -> None:
    data = write_knees(tmp_path, 1)
    image = np.ones((512, 512, 100), np.int16)
    image[0, 0] = 0
    for channel in range(2):
        save(data / "imagesTr" / f"knee_0_{channel:04d}.nii.gz", image)
    scheme = choose_scheme(None, data)
    assert scheme is not None
    (files,) = find_subjects(data, scheme.channels).subjects
    shape = (1, 32, 32, 32)
    network: Any = SimpleNamespace(input_shape=(*shape, 2), output_shape=(*shape, 100))
    models = [(network, settings(data, patch=32))]
    rows = []
    held = psutil.Process().memory_info().rss  # by tests before
    for free in (80, 12, 6, 3.5):
        limit = held + int(free * 2**30)
        room = find_room(files, models, None, limit, kept=False)
        assert room.host <= limit
        rows.append(0 if room.whole else room.rows)
    assert rows == sorted(rows)
    assert rows[0] == 0
    assert rows[-1] > 1
    rule = r"`host memory` must be at least .* got 1.00 GiB. Raise --host-memory\.$"
    with pytest.raises(HostMemoryError, match=rule):
        find_room(files, models, None, 2**30, kept=False)
    with pytest.raises(HostMemoryError, match="memory, or leave out --save-probabilit"):
        find_room(files, models, None, 6 * 2**30, kept=True)


@pytest.mark.slow
def test_a_prediction_in_pieces_writes_the_labels_of_one_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, run = write_knees(tmp_path / "data", 3), tmp_path / "run"
    train(settings(data, patch=8, epochs=1), run, cache=tmp_path / "cache")
    style = Style(kept=True)
    predict(run, data, tmp_path / "whole", subjects="all", style=style)

    def in_pieces(*args: Any, **options: Any) -> Any:
        room = find_room(*args, **options)
        assert room.whole
        return SimpleNamespace(rows=2, whole=False, labels=room.labels, in_words="")

    monkeypatch.setattr("unet3d.prediction.find_room", in_pieces)
    predict(run, data, tmp_path / "pieces", subjects="all", style=style)
    written = sorted((tmp_path / "whole").rglob("knee_*.nii.gz"))
    assert len(written) == 6
    for path in written:
        other = tmp_path / "pieces" / path.relative_to(tmp_path / "whole")
        assert path.read_bytes() == other.read_bytes()
