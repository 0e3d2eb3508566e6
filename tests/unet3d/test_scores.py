"""Dice and HD95 against a brute force that shares no code with them."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from unet3d.scores import FARTHEST, EmptyRule, dice, hd95

Mask = NDArray[np.bool_]


def voxels(mask: Mask) -> list[tuple[int, ...]]:
    return [tuple(int(n) for n in place) for place in np.argwhere(mask)]


def on_surface(mask: Mask, place: tuple[int, ...]) -> bool:
    for axis, step in itertools.product(range(3), (-1, 1)):
        near = list(place)
        near[axis] += step
        inside = all(0 <= n < size for n, size in zip(near, mask.shape, strict=True))
        if not inside or not mask[tuple(near)]:
            return True
    return False


def percentile_95(values: list[float]) -> float:
    ordered = sorted(values)
    place = 0.95 * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def brute_hd95(a: Mask, b: Mask, spacing: tuple[float, float, float]) -> float:
    surfaces = [[v for v in voxels(m) if on_surface(m, v)] for m in (a, b)]

    def distance(p: tuple[int, ...], q: tuple[int, ...]) -> float:
        parts = zip(p, q, spacing, strict=True)
        return math.sqrt(sum(((x - y) * mm) ** 2 for x, y, mm in parts))

    directed = [
        percentile_95([min(distance(p, q) for q in target) for p in start])
        for start, target in (surfaces, surfaces[::-1])
    ]
    return max(directed)


def brute_dice(a: Mask, b: Mask) -> float:
    both = len(set(voxels(a)) & set(voxels(b)))
    return 2 * both / (len(voxels(a)) + len(voxels(b)))


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    density=st.floats(0, 0.9),
    shape=st.tuples(*[st.integers(1, 6)] * 3),
    spacing=st.tuples(*[st.floats(0.5, 3)] * 3),
    rule=st.sampled_from(EmptyRule),
)
def test_scores_equal_brute_force_and_the_rule_where_a_mask_is_empty(
    seed: int,
    density: float,
    shape: tuple[int, int, int],
    spacing: tuple[float, float, float],
    rule: EmptyRule,
) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.random(shape) < density, rng.random(shape) < density / 2
    found = dice(a, b, rule), hd95(a, b, spacing, rule)
    if a.any() and b.any():
        expected = brute_dice(a, b), brute_hd95(a, b, spacing)
        assert found == pytest.approx(expected, abs=1e-6)
    else:
        assert found == pytest.approx(by_rule(a, b, rule), nan_ok=True)


def by_rule(a: Mask, b: Mask, rule: EmptyRule) -> tuple[float, float]:
    both = not a.any() and not b.any()
    if rule is EmptyRule.NAN:
        return (math.nan, math.nan) if both else (0.0, math.nan)
    return (1.0, 0.0) if both else (0.0, FARTHEST)


def cube(start: int, stop: int) -> Mask:
    mask = np.zeros((12, 12, 12), bool)
    mask[2:6, 2:6, start:stop] = True
    return mask


def test_hd95_is_the_larger_direction_in_millimetres() -> None:
    # Every voxel of the small cube is in the large one; the large one's far face, 16
    # of its 104 surface voxels, is 4 voxels of 2 mm away from the small one.
    assert hd95(cube(2, 6), cube(2, 10), (1.0, 1.0, 2.0)) == pytest.approx(8.0)
