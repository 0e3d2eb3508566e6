"""Folders of predictions: their runs, their subjects, and the labels of a file."""

import zipfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lms.storage.files import DRAFT, as_data
from unet3d.cache import SKIP
from unet3d.files import read_json
from unet3d.reading import Labels, read_segmentation
from unet3d.schemes import LabelScheme, scheme_named
from unet3d.subjects import Problem, SubjectFiles, Volume, stem_of

__all__ = ["PredictionSet", "check_complete", "common_subjects", "open_set"]
__all__ += ["read_cube", "read_prediction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionSet:
    """One folder of predictions; sets of one name are averaged, or pooled if apart.

    `predict` wrote its `runs`, and the `promised` subjects, None if not known. `suffix`
    follows the subject's name in the name of a file.
    """

    name: str
    folder: Path
    scheme: LabelScheme
    subjects: tuple[str, ...]
    runs: tuple[Path, ...] = ()
    promised: tuple[str, ...] | None = None
    suffix: str = ""


def open_set(name: str, folder: Path, scheme: LabelScheme) -> PredictionSet:
    """Read which subjects a folder of predictions has, and by which run."""
    files = [*folder.glob("*.nii.gz"), *folder.glob("*.nii")]
    names = {stem_of(path.name) for path in files}
    names = {name for name in names if not name.startswith((DRAFT, "."))}
    if not names:
        raise FileNotFoundError(
            f"`predictions` must be folders of NIfTI files, got '{folder}' without "
            "any. Pass what `predict` wrote."
        )
    runs, promised = (), None
    if (folder / "predictions.json").is_file():
        scheme, runs, promised = _origin(folder / "predictions.json")
    return PredictionSet(
        name=name,
        folder=folder,
        scheme=scheme,
        subjects=tuple(sorted(names)),
        runs=runs,
        promised=promised,
    )


def common_subjects(
    sets: Sequence[PredictionSet], *, skip_bad: bool
) -> tuple[tuple[str, ...], tuple[Problem, ...]]:
    """Return the subjects of every set, and a problem for each of some sets only.

    Sets of one name without a common subject, such as folds, count as one.
    """
    unions = [{n for one in pool for n in one.subjects} for pool in _pools(sets)]
    everywhere = set.intersection(*unions)
    problems = []
    for group in sets:
        for name in group.subjects:
            if name not in everywhere:
                message = (
                    "`predictions` must hold the same subjects, to be compared in "
                    f"pairs, got {name} in '{group.folder}' but not in every folder. "
                    "Predict it in all of them."
                )
                problems.append(Problem(name=name, message=message))
    if problems and not skip_bad:
        raise ValueError(f"{problems[0].message} {SKIP}")
    if not everywhere:
        raise ValueError(
            "`predictions` must have subjects in common, got none. "
            "Predict the same subjects in every folder."
        )
    return tuple(sorted(everywhere)), tuple(problems)


def named_alike(group: PredictionSet, known: Collection[str]) -> PredictionSet:
    """Name the set's subjects as in the truth: cut a suffix that all files share."""
    starts = [(s, k) for s in group.subjects for k in known if s.startswith(k)]
    ends = {start.removeprefix(name) for start, name in starts}
    for end in sorted(ends, key=len):
        names = tuple(name.removesuffix(end) for name in group.subjects)
        if {*names} <= {*known} and all(n.endswith(end) for n in group.subjects):
            return replace(group, subjects=names, suffix=end)
    return group


def check_complete(
    sets: Sequence[PredictionSet], labelled: Collection[str], *, skip_bad: bool
) -> tuple[Problem, ...]:
    """Name the labelled subjects without a prediction.

    A mean over fewer subjects would look like a mean over all. `predict` records which
    subjects it was asked for, by default the validation subjects. In a folder without
    the record every labelled subject is expected.
    """
    problems = []
    for pool in _pools(sets):
        group, promised = pool[0], [one.promised for one in pool]
        known = [labelled if names is None else names for names in promised]
        expected = {name for names in known for name in names}
        there = {name for one in pool for name in one.subjects}
        lost = sorted(expected & {*labelled} - there)
        rule = "`predictions` must hold every subject that has labels, got "
        if lost and not skip_bad:
            raise ValueError(
                f"{rule}'{group.folder}' without {', '.join(lost)}. It holds "
                f"{', '.join(group.subjects[:3])}. Predict them, or name files after "
                f"subjects. {SKIP}"
            )
        for name in lost:
            message = f"{rule}'{group.folder}' without {name}. Predict it."
            problems.append(Problem(name=name, message=message))
    return tuple(problems)


def read_prediction(
    group: PredictionSet, files: SubjectFiles
) -> tuple[Labels, NDArray[np.float64]]:
    """Read predicted labels on the source's grid, and their affine."""
    for end in (".nii.gz", ".nii"):
        path = group.folder / f"{files.name}{group.suffix}{end}"
        if path.is_file():
            return read_segmentation(files, Volume(path=path), group.scheme)
    raise FileNotFoundError(
        f"`predictions` must hold every subject, got '{group.folder}' without "
        f"{files.name}. Predict it."
    )


def read_cube(group: PredictionSet, files: SubjectFiles) -> Labels:
    """Read the network's labels before resizing, of shape (size, size, size)."""
    path = group.folder / "cubes" / f"{files.name}.npz"
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            return arrays["labels"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"'{path}' must hold the network's own labels of subject {files.name}, got "
            f"nothing readable ({error}). Predict again, or leave --size out."
        ) from error


def _pools(sets: Sequence[PredictionSet]) -> list[list[PredictionSet]]:
    """Group sets of one name that share no subject; each other set is a group."""
    pools: list[list[PredictionSet]] = []
    for name in dict.fromkeys(group.name for group in sets):
        own = [group for group in sets if group.name == name]
        subjects = [subject for group in own for subject in group.subjects]
        apart = len({*subjects}) == len(subjects)
        pools += [own] if apart else [[group] for group in own]
    return pools


def _origin(
    path: Path,
) -> tuple[LabelScheme, tuple[Path, ...], tuple[str, ...] | None]:
    said = read_json(path)
    try:
        named = "scheme" not in said
        scheme = (
            scheme_named(said["label scheme"])
            if named
            else as_data(said["scheme"], LabelScheme)
        )
        runs = said["runs"] if "runs" in said else [said["run"]]
        promised = tuple(said["subjects"]) if "subjects" in said else None
        return scheme, tuple(map(Path, runs)), promised
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"`{path}` must say label scheme and run, got a file without ({error!r}). "
            "Predict again, or remove it."
        ) from error
