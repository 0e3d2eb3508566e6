"""Chooses the subjects of the gallery, and reads slices and logs from disk."""

import csv
from collections.abc import Sequence

import numpy as np

from unet3d.data import brain_box, to_regions
from unet3d.evaluation import Score
from unet3d.figures import Log, Slice
from unet3d.prediction_sets import PredictionSet, read_prediction
from unet3d.reading import Labels, read_images, read_labels
from unet3d.schemes import LabelScheme
from unet3d.subjects import SubjectFiles

__all__ = ["choose_subjects", "gather_slice", "read_logs"]

_SHOWN = 0  # FLAIR in BraTS, where oedema and core are brighter than the brain


def choose_subjects(scores: Sequence[Score]) -> list[str]:
    """Choose the subjects of best, middle and worst mean Dice over all sets."""
    values: dict[str, list[float]] = {}
    for score in scores:
        values.setdefault(score.subject, []).append(score.dice)
    # NaN, of masks that are both empty, is left out; the 0 defines an empty mean.
    means = {name: np.nan_to_num(np.nanmean([*v, 0])) for name, v in values.items()}
    ranked = sorted(means, key=lambda name: (-means[name], name))
    places = {0, len(ranked) // 2, len(ranked) - 1}
    return [ranked[place] for place in sorted(places)]


def gather_slice(
    files: SubjectFiles,
    sets: Sequence[PredictionSet],
    scheme: LabelScheme,
    scores: Sequence[Score],
) -> Slice:
    """Read the axial slice with most regions: truth, and a set of each name.

    Of slices with equally many, each region's share of its largest slice decides.
    """
    images = read_images(files).images
    box = brain_box(images)
    truth = read_labels(files, scheme)[box]
    there = [group for group in sets if files.name in group.subjects]
    by_name = {group.name: group for group in reversed(there)}
    regions = {"truth": _nested(truth, scheme)}
    for name in dict.fromkeys(group.name for group in sets):
        labels = read_prediction(by_name[name], files)[0][box]
        regions[name] = _nested(labels, by_name[name].scheme)
    areas = to_regions(truth, scheme).sum(axis=(1, 2), dtype=np.int64)
    shares = (areas / np.maximum(areas.max(axis=0), 1)).mean(axis=1)
    most = int(np.argmax((areas > 0).sum(axis=1) + shares))
    return Slice(
        name=files.name,
        image=images[box][most, ..., _SHOWN],
        regions={name: values[most] for name, values in regions.items()},
        scores={name: _text(scores, name, files.name) for name in by_name},
    )


def read_logs(sets: Sequence[PredictionSet]) -> dict[str, list[Log]]:
    """Read the logs of the sets' runs, where they are known, by set name."""
    logs: dict[str, list[Log]] = {}
    runs = dict.fromkeys((group.name, run) for group in sets for run in group.runs)
    for name, run in runs:
        if (path := run / "log.csv").is_file():
            rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
            own = [{k: float(v) for k, v in row.items()} for row in rows]
            logs.setdefault(name, []).append(own)
    return logs


def _nested(labels: Labels, scheme: LabelScheme) -> Labels:
    """Number each voxel by its last region, from 1; 0 outside of all regions."""
    shown = np.zeros(labels.shape, np.uint8)
    for number, values in enumerate(scheme.regions.values(), start=1):
        shown[np.isin(labels, values)] = number
    return shown


def _text(scores: Sequence[Score], name: str, subject: str) -> str:
    """Write the Dice of the regions, for below a picture."""
    values = [s.dice for s in scores if (s.set, s.subject) == (name, subject)]
    return "Dice " + " / ".join(f"{value:.2f}" for value in values)
