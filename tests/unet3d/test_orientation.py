"""Turning volumes: nothing moves in space, and the way back is exact."""

import itertools

import nibabel
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unet3d.orientation import from_canonical, to_canonical, voxel_sizes

CODES = [
    "".join(code)
    for order in itertools.permutations(["LR", "PA", "SI"])
    for code in itertools.product(*order)
]


def affine_of(code: str, *, tilt: float = 0.0) -> np.ndarray:
    """An affine of 1, 2 and 3 mm whose axes run as `code` says, turned about x."""
    ornt = nibabel.orientations.axcodes2ornt(tuple(code))
    affine = np.eye(4)
    affine[:3, :3] = 0
    for axis, (to, sign) in enumerate(ornt):
        affine[int(to), axis] = sign * (axis + 1)
    cosine, sine = np.cos(tilt), np.sin(tilt)
    turn = np.array([[1, 0, 0], [0, cosine, -sine], [0, sine, cosine]])
    affine[:3, :3] = turn @ affine[:3, :3]
    affine[:3, 3] = [10, -20, 5]
    return affine


@given(
    code=st.sampled_from(CODES),
    tilt=st.floats(-0.5, 0.5),
    place=st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 5)),
)
def test_each_voxel_keeps_its_place_in_space_and_comes_back(
    code: str, tilt: float, place: tuple[int, int, int]
) -> None:
    affine = affine_of(code, tilt=tilt)
    stored = np.zeros((4, 5, 6), np.uint8)
    stored[place] = 1
    turned, turned_affine = to_canonical(stored, affine)
    depth, height, width = np.argwhere(turned)[0]
    there = turned_affine @ [width, height, depth, 1]
    np.testing.assert_allclose(there, affine @ [*place, 1], atol=1e-9)
    np.testing.assert_array_equal(from_canonical(turned, affine), stored)
    assert nibabel.aff2axcodes(turned_affine) == ("L", "P", "S")


def test_the_brats_grid_is_canonical_already() -> None:
    stored = np.arange(24).reshape(2, 3, 4)
    turned, affine = to_canonical(stored, np.diag([-1.0, -1.0, 1.0, 1.0]))
    np.testing.assert_array_equal(turned, stored.T)
    np.testing.assert_array_equal(affine, np.diag([-1, -1, 1, 1]))


def test_voxel_sizes_follow_the_turn_and_ignore_the_tilt() -> None:
    _, affine = to_canonical(np.zeros((2, 2, 2)), affine_of("SRA", tilt=0.3))
    # Stored axes of 1, 2, 3 mm run up, right, forward: depth, width, height.
    np.testing.assert_allclose(voxel_sizes(affine), (1, 3, 2))


def test_an_affine_that_flattens_space_is_refused() -> None:
    with pytest.raises(ValueError, match="`affine` must map voxels to a volume"):
        to_canonical(np.zeros((2, 2, 2)), np.diag([1.0, 1.0, 0.0, 1.0]))
