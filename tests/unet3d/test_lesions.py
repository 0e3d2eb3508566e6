"""Lesion by lesion, as BraTS 2023 scores."""

import math
import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest

from unet3d.lesions import lesion_scores
from unet3d.scores import EmptyRule


def reference(truth: Any, found: Any, spacing: Any) -> tuple[float, float]:
    """The published rule by floods from voxel to voxel, with nothing of `lesions`."""
    import surface_distance

    grown = truth
    for _ in range(3):
        grown = spread(grown, [s for s in product((-1, 0, 1), repeat=3) if 0 in s])
    merged, finds = flood(grown), flood(found)
    dices, distances, touched = [], [], set[int]()
    for number in range(1, merged.max() + 1):
        lesion = truth & (merged == number)
        near = lesion
        for _ in range(3):
            near = spread(near, [s for s in product((-1, 0, 1), repeat=3) if 0 in s])
        own = {int(n) for n in finds[near]} - {0}
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


def spread(mask: Any, steps: Any) -> Any:
    padded = np.pad(mask, 1)
    return np.any([np.roll(padded, step, (0, 1, 2)) for step in steps], axis=0)[
        1:-1, 1:-1, 1:-1
    ]


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
