"""Scores sets of predictions against the truth, and tests pairs of sets.

    truth, predictions --score--> Score per set, subject, region --summarise--> Summary
                                                                 --compare--> Comparison

Sets of one name are models of one kind: a subject's score is the mean over the models,
as in the case study, where four models per resolution went into one box. Sets of one
name without a common subject, such as five folds, are pooled.

Scores are on the source's grid by default. With a `size`, as in the case study, the
cropped truth and the network's own cubes are resized to size^3 and compared there.

Sources: Wilcoxon, Biometrics Bulletin 1(6), 1945, by way of scipy; Holm, Scandinavian
Journal of Statistics 6(2), 1979, for the correction for multiple tests.

Known weakness: with five subjects or fewer no two-sided p-value can be below 0.05.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet3d.data import Subject, brain_box, resize_labels, to_regions
from unet3d.orientation import describe_difference, same_grid, voxel_sizes
from unet3d.prediction_sets import PredictionSet, read_cube, read_prediction
from unet3d.reading import Labels, read_subject
from unet3d.schemes import LabelScheme
from unet3d.scores import EmptyRule, Mask, Spacing, dice, hd95, lesion_scores
from unet3d.subjects import SubjectFiles

__all__ = ["MEASURES", "Comparison", "Score", "Summary", "compare", "holm"]
__all__ += ["score_subject", "summarise", "wilcoxon"]

MEASURES = ("dice", "hd95", "lesion_dice", "lesion_hd95")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The scores of one subject's region in a set; NaN where the rule gives no number.

    `missed` counts the set's models for which the region is empty in either truth or
    prediction, but not in both.
    """

    set: str
    subject: str
    region: str
    dice: float
    hd95: float
    lesion_dice: float
    lesion_hd95: float
    missed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One measure of one region over the subjects of a set, as a box plot shows it."""

    set: str
    region: str
    measure: str
    subjects: int
    missed: int
    mean: float
    lower_quartile: float
    median: float
    upper_quartile: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A paired test of two sets on one region.

    `subjects` counts pairs in which both have a score, `median_difference` is of second
    minus first, `p` two-sided, and corrected by Holm over all tests of one measure.
    """

    region: str
    first: str
    second: str
    subjects: int
    median_difference: float
    p: float
    corrected_p: float


def score_subject(
    files: SubjectFiles,
    sets: Sequence[PredictionSet],
    scheme: LabelScheme,
    *,
    rule: EmptyRule,
    size: int | None = None,
) -> tuple[Score, ...]:
    """Score one subject in every set."""
    subject = read_subject(files, scheme)
    truth, spacing = subject.labels, voxel_sizes(subject.affine)
    if size is not None:
        truth = truth[brain_box(subject.images)]
        sides = [s * n / size for s, n in zip(spacing, truth.shape, strict=True)]
        spacing = (sides[0], sides[1], sides[2])
        truth = resize_labels(truth, size)
    true_regions = to_regions(truth, scheme).astype(np.bool_)
    found: dict[str, list[NDArray[np.float64]]] = {}
    for group in (one for one in sets if files.name in one.subjects):
        labels = _prediction(group, files, subject, size)
        regions = to_regions(labels, group.scheme).astype(np.bool_)
        values = [
            _measure(true_regions[..., k], regions[..., k], spacing, rule)
            for k in range(len(scheme.regions))
        ]
        found.setdefault(group.name, []).append(np.array(values))
    return tuple(
        Score(
            set=name,
            subject=files.name,
            region=region,
            **{m: _mean([v[k, i] for v in values]) for i, m in enumerate(MEASURES)},
            missed=int(sum(v[k, -1] for v in values)),
        )
        for name, values in found.items()
        for k, region in enumerate(scheme.regions)
    )


def summarise(scores: Sequence[Score]) -> tuple[Summary, ...]:
    """Compute mean and quartiles of each set, region and measure, without NaNs."""
    summaries = []
    for name, region, measure in _groups(scores):
        known = np.array(_values(scores, name, region, measure))
        known = known[np.isfinite(known)]
        quartiles = np.percentile(known, [25, 50, 75]) if known.size else [np.nan] * 3
        summaries.append(
            Summary(
                set=name,
                region=region,
                measure=measure,
                subjects=int(known.size),
                missed=sum(
                    s.missed > 0 for s in scores if (s.set, s.region) == (name, region)
                ),
                mean=_mean(known.tolist()),
                lower_quartile=float(quartiles[0]),
                median=float(quartiles[1]),
                upper_quartile=float(quartiles[2]),
            )
        )
    return tuple(summaries)


def compare(scores: Sequence[Score], measure: str = "dice") -> tuple[Comparison, ...]:
    """Test each pair of sets on each region; correct for the number of tests."""
    names = list(dict.fromkeys(score.set for score in scores))
    pairs = [(a, b, r) for a, b in combinations(names, 2) for r in _regions(scores)]
    apart = [
        np.subtract(_values(scores, b, r, measure), _values(scores, a, r, measure))
        for a, b, r in pairs
    ]
    known = [differences[np.isfinite(differences)] for differences in apart]
    p_values = [wilcoxon(differences) for differences in known]
    return tuple(
        Comparison(
            region=region,
            first=one,
            second=other,
            subjects=int(numbers.size),
            median_difference=float(np.median(numbers)) if numbers.size else np.nan,
            p=p,
            corrected_p=corrected,
        )
        for (one, other, region), numbers, p, corrected in zip(
            pairs, known, p_values, holm(p_values), strict=True
        )
    )


def wilcoxon(differences: NDArray[np.float64]) -> float:
    """Return the signed-rank test's two-sided p-value; 1 where no pair differs."""
    if not differences.any():
        return 1.0 if differences.size else float("nan")
    from scipy import stats  # takes half a second

    result: Any = stats.wilcoxon(differences)
    return float(result.pvalue)


def holm(values: Sequence[float]) -> tuple[float, ...]:
    """Correct p-values for their number; NaNs stay and do not count."""
    known = [k for k, value in enumerate(values) if not np.isnan(value)]
    corrected = [float(value) for value in values]
    largest = 0.0
    for rank, k in enumerate(sorted(known, key=lambda k: values[k])):
        largest = max(largest, min(1.0, (len(known) - rank) * values[k]))
        corrected[k] = largest
    return tuple(corrected)


def _measure(
    truth: Mask, prediction: Mask, spacing: Spacing, rule: EmptyRule
) -> tuple[float, ...]:
    """Return `MEASURES` in order, and whether exactly one of the masks is empty."""
    return (
        dice(truth, prediction, rule),
        hd95(truth, prediction, spacing, rule),
        *lesion_scores(truth, prediction, spacing, rule),
        truth.any() != prediction.any(),
    )


def _prediction(
    group: PredictionSet, files: SubjectFiles, truth: Subject, size: int | None
) -> Labels:
    if size is not None:
        return resize_labels(read_cube(group, files), size)
    labels, affine = read_prediction(group, files)
    shape = truth.labels.shape
    if labels.shape != shape:
        raise ValueError(
            f"prediction of subject {files.name} in '{group.folder}' must have the "
            f"truth's shape, {shape[::-1]}, got {labels.shape[::-1]}. Predict with the "
            "data that it is compared with."
        )
    if not same_grid(truth.affine, affine, shape):
        right, got = describe_difference(truth.affine, affine)
        raise ValueError(
            f"prediction of subject {files.name} in '{group.folder}' must lie on the "
            f"truth's grid, {right} when turned to LPS, got {got}. Predict with the "
            "data that it is compared with, or mend the prediction's header."
        )
    return labels


def _groups(scores: Sequence[Score]) -> list[tuple[str, str, str]]:
    names = list(dict.fromkeys(score.set for score in scores))
    return [(n, r, m) for m in MEASURES for r in _regions(scores) for n in names]


def _regions(scores: Sequence[Score]) -> list[str]:
    return list(dict.fromkeys(score.region for score in scores))


def _values(
    scores: Sequence[Score], name: str, region: str, measure: str
) -> list[float]:
    """Return a measure's values in the order of the subjects."""
    return [
        getattr(score, measure)
        for score in scores
        if score.set == name and score.region == region
    ]


def _mean(values: Sequence[float]) -> float:
    """Return the mean of the finite values; NaN if there are none."""
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")
