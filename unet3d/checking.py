"""Checks a whole data set before training, and gathers all of its faults.

    folder --find--> files --look--> a Checked each --compare--> DataSet

A *reason* is a fault for which `train` refuses a subject, which is then bad. A
*warning* is a fault that `train` accepts. Reasons come from the code that `train` reads
with, so both commands agree.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unet3d.extras import ndimage
from unet3d.lines import differing_spacings, some
from unet3d.orientation import voxel_sizes
from unet3d.reading import Looked, look, missing_segmentation
from unet3d.schemes import MODALITIES, SCHEMES, LabelScheme
from unet3d.splits import by_patient, check_rule, doubtful_names, make_split
from unet3d.subjects import Found, Problem, SubjectFiles, find_subjects

__all__ = ["Checked", "DataSet", "check_data", "check_subject"]

Mask = NDArray[np.bool_]

# A brain fills at least 0.25 of its bounding box; an ellipsoid fills 0.52.
_FILLED = 0.25
_OUTSIDE = 0.01  # share of the labelled voxels that may lie outside of the brain


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A checked subject: reasons why `train` refuses it, and warnings.

    `shape` and `spacing` (mm) are along (x, y, z) of the turned subject; both and
    `labels` are None where nothing was read. Subjects with equal images share `digest`.
    """

    name: str
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None
    spacing: tuple[float, ...] | None = None
    labels: tuple[int, ...] | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A checked data set; `reasons` say why its good subjects cannot train together.

    `patients` have the names of their good scans; `warnings` concern several subjects.
    `unlabelled` scans are no part of a training.
    """

    subjects: tuple[Checked, ...]
    patients: dict[str, tuple[str, ...]]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    unlabelled: tuple[str, ...] = ()

    @property
    def bad(self) -> tuple[Checked, ...]:
        """The subjects that `train` refuses."""
        return tuple(subject for subject in self.subjects if subject.reasons)

    @property
    def is_sound(self) -> bool:
        """True if `train` accepts the data set."""
        return not self.bad and not self.reasons


def check_data(
    data: Path,
    scheme: LabelScheme | None,
    *,
    group_by: str | None = None,
    labelled: bool = True,
    progress: Callable[[int], None] = lambda _: None,
) -> DataSet:
    """Look at every subject of a data set."""
    check_rule(group_by)
    channels = scheme.channels if scheme else MODALITIES
    found = find_subjects(data, channels, bare=not labelled)
    if not labelled:
        found = _without_labels(found)
    results = sorted((*found.subjects, *found.problems), key=lambda r: r.name)
    by_patient([files.name for files in found.subjects if not files.is_test], group_by)
    subjects = []
    for result in results:
        subjects.append(_check(result, scheme, channels))
        progress(len(results))
    return _together(found, subjects, scheme, group_by, labelled=labelled)


def check_subject(
    files: SubjectFiles,
    scheme: LabelScheme | None,
    channels: Sequence[str] = MODALITIES,
) -> Checked:
    """Look at one subject."""
    looked = look(files, scheme)
    reasons = list(looked.reasons)
    if files.labels is None and files.images and not files.is_test:
        reasons.append(str(missing_segmentation(files)))
    first = next(iter(looked.images), looked.labels)
    values = None if looked.labels is None else _values(looked.labels.voxels)
    return Checked(
        name=files.name,
        reasons=tuple(reasons),
        warnings=tuple(_warnings(files, looked, channels)),
        shape=None if first is None else first.voxels.shape[::-1],
        spacing=None if first is None else voxel_sizes(first.affine)[::-1],
        labels=values,
        digest=_digest([image.voxels for image in looked.images], len(channels)),
    )


def _without_labels(found: Found) -> Found:
    subjects = (*found.subjects, *(p.rest for p in found.problems if p.rest))
    bare = tuple(replace(s, labels=None, is_test=True) for s in subjects)
    names = {s.name for s in found.subjects}
    rest = {s.name: s for s in bare if s.name not in names}
    return Found(
        subjects=tuple(s for s in bare if s.name in names),
        problems=tuple(replace(p, rest=rest.get(p.name)) for p in found.problems),
    )


def _check(
    result: SubjectFiles | Problem, scheme: LabelScheme | None, channels: Sequence[str]
) -> Checked:
    if isinstance(result, SubjectFiles):
        return check_subject(result, scheme, channels)
    if result.rest is None:
        return Checked(name=result.name, reasons=(result.message,))
    rest = check_subject(result.rest, scheme, channels)
    return replace(rest, reasons=(result.message, *rest.reasons))


def _warnings(
    files: SubjectFiles, looked: Looked, channels: Sequence[str]
) -> Iterator[str]:
    volumes = [*files.images, *([files.labels] if files.labels else [])]
    for path in dict.fromkeys(volume.path for volume in volumes):
        if path.suffix == ".gz" and path.with_suffix("").is_file():
            yield f"{path.name} is read, {path.stem} beside it is not"
    for path in files.passed:
        yield f"{path.name} is not read, another file of its kind is"
    turned = [*looked.images, *([looked.labels] if looked.labels else [])]
    yield from dict.fromkeys(doubt for one in turned for doubt in one.stored.doubts)
    images = [image.voxels for image in looked.images]
    if len(images) == len(channels):
        named = dict(zip(channels, images, strict=True))
        yield from _one_value(named)
        if looked.labels is not None:
            named["the segmentation"] = looked.labels.voxels
        yield from _alike(named)
    if len({image.shape for image in images}) == 1:
        brain = np.logical_or.reduce([image != 0 for image in images])
        yield from _about_brain(brain, skull="flair" in channels)
        if looked.labels is not None:
            yield from _about_labels(looked.labels.voxels != 0, brain)


def _one_value(images: Mapping[str, NDArray[np.float32]]) -> Iterator[str]:
    """Warn of images without contrast, which the network gets as zeros.

    `unet3d.reading` refuses images of one value in all voxels.
    """
    for name, image in images.items():
        inside = image[image != 0]
        if image.min() < image.max() and inside.min() == inside.max():
            yield f"{name} holds one value where it is not 0: is it a mask?"


def _alike(images: Mapping[str, NDArray[np.float32]]) -> Iterator[str]:
    for (one, first), (other, second) in combinations(images.items(), 2):
        if np.array_equal(first, second):
            yield f"{one} and {other} hold the same voxels"


def _about_brain(brain: Mask, *, skull: bool) -> Iterator[str]:
    if brain.all() and skull:
        yield "no voxel is 0 in every modality: is the skull stripped?"
    elif brain.any():
        box = brain[ndimage.find_objects(brain.astype(np.int8))[0]]
        if min(box.shape) == 1:
            yield "the brain, all voxels but 0, is one voxel thick"
        if box.mean() < _FILLED:
            yield (
                f"only {box.mean():.0%} of the box around the brain is not 0: is there "
                "noise outside of the brain?"
            )


def _about_labels(labelled: Mask, brain: Mask) -> Iterator[str]:
    if not labelled.any():
        yield "the segmentation is empty"
    elif labelled.shape == brain.shape:
        outside = np.count_nonzero(labelled & ~brain) / np.count_nonzero(labelled)
        if outside > _OUTSIDE:
            yield f"{outside:.0%} of the labelled voxels lie where images are 0"


def _values(labels: NDArray[np.float32]) -> tuple[int, ...] | None:
    """Return the distinct values; None unless all are whole numbers of 8 bits."""
    with np.errstate(invalid="ignore"):
        whole = labels.astype(np.uint8)
    if not np.array_equal(whole, labels):
        return None
    return tuple(np.flatnonzero(np.bincount(whole.ravel())).tolist())


def _digest(images: Sequence[NDArray[np.float32]], channels: int) -> str | None:
    digest = hashlib.blake2b(digest_size=16)
    for image in images:
        digest.update(np.ascontiguousarray(image.T).data)
    return digest.hexdigest() if len(images) == channels else None


def _together(
    found: Found,
    subjects: list[Checked],
    scheme: LabelScheme | None,
    rule: str | None,
    *,
    labelled: bool,
) -> DataSet:
    tests = {files.name for files in found.subjects if files.is_test}
    bare = tests & {files.name for files in found.subjects if files.labels is None}
    truths = [subject for subject in subjects if subject.name not in tests]
    usable = [subject.name for subject in truths if not subject.reasons]
    patients = by_patient(usable, rule)
    reasons = []
    try:
        if labelled:
            make_split(usable, 0, group_by=rule)
    except ValueError as error:
        reasons.append(str(error))
    spacings = {subject.name: subject.spacing for subject in subjects}
    warnings = [*_several(patients), *differing_spacings(spacings), *_twice(subjects)]
    warnings += _labels(truths, scheme)
    warnings += doubtful_names(usable, rule)
    return DataSet(
        subjects=tuple(subjects),
        patients=patients,
        reasons=tuple(reasons),
        warnings=tuple(warnings),
        unlabelled=tuple(sorted(bare)) if labelled else (),
    )


def _several(patients: dict[str, tuple[str, ...]]) -> Iterator[str]:
    several = [p for p, scans in patients.items() if len(scans) > 1]
    if several:
        yield (
            f"{len(several)} of {len(patients)} patients have several scans, which "
            f"stay on one side of a split: {some(several)}"
        )


def _twice(subjects: Sequence[Checked]) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for subject in subjects:
        if subject.digest:
            groups.setdefault(subject.digest, []).append(subject.name)
    for names in groups.values():
        if len(names) > 1:
            yield f"several subjects have the same images: {some(names)}"


def _labels(subjects: Sequence[Checked], scheme: LabelScheme | None) -> Iterator[str]:
    values = sorted({v for subject in subjects for v in subject.labels or ()})
    if values == [0]:
        yield "every segmentation is empty: nothing can be learnt"
    if scheme is None and values:
        fitting = [s.name for s in SCHEMES.values() if set(values) <= set(s.values)]
        yield (
            "labels were not checked without a label scheme: the values "
            f"{', '.join(map(str, values))} are allowed by "
            f"{' and '.join(fitting) or 'no scheme'}"
        )
