"""Dice and HD95 against a brute force that shares no code with them."""

import math
import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.strategies import examples
from unet3d.scores import FARTHEST, EmptyRule, dice, hd95, lesion_scores

Mask = NDArray[np.bool_]


def voxels(mask: Mask) -> list[tuple[int, ...]]:
    return [tuple(int(n) for n in place) for place in np.argwhere(mask)]


def on_surface(mask: Mask, place: tuple[int, ...]) -> bool:
    for axis, step in product(range(3), (-1, 1)):
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


@examples(40)
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


def test_hd95_counts_voxels_and_lesion_wise_hd95_the_area() -> None:
    truth = np.zeros((6, 10, 10), np.bool_)
    truth[1:5, 1:9, 1:9] = True
    found = truth.copy()
    found[1, 1, 1:9], found[1, 8, 1:9] = False, False
    # 16 of the truth's 184 surface voxels, an edge each, are 1 mm away; the surface
    # moves by half a voxel there.
    assert hd95(truth, found, (1.0, 1.0, 1.0)) == 1
    dice_of_it, distance = lesion_scores(truth, found, (1.0, 1.0, 1.0))
    assert dice_of_it == pytest.approx(2 * 240 / (256 + 240))
    assert distance == 0


def reference(truth: Any, found: Any, spacing: Any) -> tuple[float, float]:
    """The published rule by floods from voxel to voxel, with nothing of the code."""
    import surface_distance

    merged, finds = flood(thrice(truth)), flood(found)
    dices, distances, touched = [], [], set[int]()
    for number in range(1, merged.max() + 1):
        lesion = truth & (merged == number)
        own = {int(n) for n in finds[thrice(lesion)]} - {0}
        touched |= own
        if lesion.sum() * math.prod(spacing) <= 50:
            continue
        theirs = np.isin(finds, list(own))
        dices.append(2 * (lesion & theirs).sum() / (lesion.sum() + theirs.sum()))
        if not own:
            distances.append(374)
            continue
        apart = surface_distance.compute_surface_distances(lesion, theirs, spacing)
        distances.append(surface_distance.compute_robust_hausdorff(apart, 95))
    strangers = finds.max() - len(touched)
    count = len(dices) + strangers
    if not count:
        return 1.0, 0.0
    return sum(dices) / count, (sum(distances) + 374 * strangers) / count


def thrice(mask: Any) -> Any:
    steps = [step for step in product((-1, 0, 1), repeat=3) if 0 in step]
    for _ in range(3):
        mask = spread(mask, steps)
    return mask


def spread(mask: Any, steps: Any) -> Any:
    moved = [np.roll(np.pad(mask, 1), step, (0, 1, 2)) for step in steps]
    return np.any(moved, axis=0)[1:-1, 1:-1, 1:-1]


def flood(mask: Any) -> Any:
    labels = np.zeros(mask.shape, int)
    for start in zip(*np.nonzero(mask), strict=True):
        if labels[start]:
            continue
        labels[start] = number = labels.max() + 1
        open_ = [start]
        while open_:
            z, y, x = open_.pop()
            for a, b, c in product((-1, 0, 1), repeat=3):
                place = z + a, y + b, x + c
                inside = all(0 <= p < n for p, n in zip(place, mask.shape, strict=True))
                if inside and mask[place] and not labels[place]:
                    labels[place] = number
                    open_.append(place)
    return labels


def blobs(rng: np.random.Generator, balls: int) -> Any:
    grid = np.stack(np.meshgrid(*[np.arange(n) for n in (16, 18, 20)], indexing="ij"))
    mask = np.zeros(grid.shape[1:], bool)
    for _ in range(balls):
        centre = rng.uniform(0, 18, 3)[:, None, None, None]
        mask |= ((grid - centre) ** 2).sum(0) < rng.uniform(1, 4) ** 2
    return mask


@pytest.mark.filterwarnings("ignore:Please import:DeprecationWarning")
def test_100_random_masks_score_as_by_the_published_rule() -> None:
    rng = np.random.default_rng(44)
    for case in range(100):
        truth, found = blobs(rng, case % 4), blobs(rng, case // 4 % 4)
        spacing = (1.0, 1.0, 1.0) if case % 2 else (2.5, 1.0, 0.8)
        expected = reference(truth, found, spacing)
        assert lesion_scores(truth, found, spacing) == pytest.approx(expected)


def test_nothing_to_find_has_a_number_by_one_rule_alone() -> None:
    empty = np.zeros((4, 4, 4), bool)
    assert lesion_scores(empty, empty, (1, 1, 1)) == (1, 0)
    assert np.isnan(lesion_scores(empty, empty, (1, 1, 1), EmptyRule.NAN)).all()


def test_no_warning_comes_through() -> None:
    cube = np.zeros((8, 8, 8), bool)
    cube[1:7, 1:7, 1:7] = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lesion_scores(cube, cube, (1, 1, 1)) == (1, 0)
