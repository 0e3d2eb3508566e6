"""Shapes of patches, and levels and presets of nnU-Net's networks."""

import pytest

from unet3d.shapes import (
    CUBE,
    PRESETS,
    choose_patch,
    feature_voxels,
    find_levels,
    in_words,
    read_shape,
    read_spacing,
)


def test_an_axis_of_long_voxels_is_halved_later() -> None:
    levels = find_levels((3.0, 0.8, 0.8), (40, 256, 256))
    assert levels.strides[:4] == ((1, 1, 1), (1, 2, 2), (2, 2, 2), (2, 2, 2))
    # 3 mm is less than twice 1.6 mm: kernels see the long axis from the second level.
    assert levels.kernels[:2] == ((1, 3, 3), (3, 3, 3))
    assert levels.divisor == (8, 64, 64)


def test_voxels_of_equal_sides_are_halved_down_to_four() -> None:
    levels = find_levels(CUBE, (128, 128, 128))
    assert levels.strides == ((1, 1, 1), *[(2, 2, 2)] * 5)
    assert find_levels(CUBE, most=3).divisor == (4, 4, 4)


def test_feature_maps_count_as_in_nnunet_s_own_comment() -> None:
    # 558,319,104 with the logits of 3 labels on the five upper levels.
    lower = sum((128 // 2**level) ** 3 for level in range(1, 5))
    shape = (128, 128, 128)
    own = feature_voxels(shape, find_levels(CUBE, shape), 3)
    assert own == 558_319_104 - 3 * lower


@pytest.mark.parametrize(
    ("preset", "patch"),
    [("m", (128, 128, 128)), ("l", (192, 192, 192)), ("xl", (256, 224, 224))],
)
def test_a_preset_takes_the_largest_patch_that_it_holds(
    preset: str, patch: tuple[int, ...]
) -> None:
    chosen, batch = choose_patch(preset, CUBE, (400, 400, 400))
    assert (chosen, batch) == (patch, 2)
    assert feature_voxels(chosen, find_levels(CUBE, chosen), 1) <= PRESETS[preset]


def test_small_volumes_fill_a_preset_by_a_larger_batch() -> None:
    # BraTS's median box: 3.6e9 holds 5.5 examples of 160 x 192 x 160.
    assert choose_patch("xl", CUBE, (140, 171, 137)) == ((160, 192, 160), 6)


def test_shapes_and_spacings_are_read_and_written() -> None:
    assert read_shape("48x160x160") == (48, 160, 160)
    assert read_shape("96") == read_shape("96x96x96") == 96
    assert in_words((48, 160, 160)) == "48x160x160"
    assert read_spacing("3x0.8x0.8") == (3.0, 0.8, 0.8)
    with pytest.raises(ValueError, match=r"`patch` must be voxels .* got '48x160'"):
        read_shape("48x160")
    with pytest.raises(ValueError, match="`spacing` must be median, keep, or mm"):
        read_spacing("3x0x1")
