"""Finds subjects in a folder: which files, and which of a file's volumes, are whose.

    BraTS 2017-2021   DATA/[HGG/|LGG/]<name>/<name>_flair.nii.gz  _t1 _t1ce _t2 _seg
    BraTS 2023        DATA/<name>/<name>-t2f.nii.gz  -t1n -t1c -t2w -seg
    MSD Task01        DATA/dataset.json, one file of four volumes per subject

File names say where a modality is, so they may be recognised; what a label means is
never concluded from them. Each file may be `.nii.gz` or `.nii`.

Sources: the data descriptions of BraTS 2017, BraTS 2023 and the Medical Segmentation
Decathlon.

Known weakness: nothing is opened here but `dataset.json`; `unet3d.reading` finds out
what is inside the volumes.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

__all__ = ["MODALITIES", "Found", "Problem", "SubjectFiles", "find_subjects"]
__all__ += ["Volume", "files_in"]

MODALITIES = ("flair", "t1", "t1ce", "t2")

# What each way of naming puts between a subject's name and a kind of image.
_NAMES = (
    {"flair": "_flair", "t1": "_t1", "t1ce": "_t1ce", "t2": "_t2", "seg": "_seg"},
    {"flair": "-t2f", "t1": "-t1n", "t1ce": "-t1c", "t2": "-t2w", "seg": "-seg"},
)
_GRADES = ("HGG", "LGG")
_MSD_MODALITIES = {"flair": "flair", "t1": "t1w", "t1ce": "t1gd", "t2": "t2w"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """One volume of a file.

    Args:
        path: A NIfTI file.
        index: Position on the file's fourth axis; None if the file has three.
    """

    path: Path
    index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectFiles:
    """Where one subject's volumes are.

    Args:
        name: Unique in its data set.
        images: One volume per modality, in the order of `MODALITIES`.
        labels: The segmentation; None if there is none, as in test sets.
    """

    name: str
    images: tuple[Volume, ...]
    labels: Volume | None

    @property
    def is_test(self) -> bool:
        """Whether it is of the Decathlon's own list of images without labels."""
        return self.labels is None and any(v.index is not None for v in self.images)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A subject that cannot be used.

    Args:
        name: Unique in its data set.
        message: Why, in words for the user.
        rest: Those of its files that are there; None if nobody looked.
        missing: Modalities that are not there.
    """

    name: str
    message: str
    rest: SubjectFiles | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a folder holds.

    Args:
        subjects: Sorted by name.
        problems: Subjects of which a file is missing, sorted by name.
    """

    subjects: tuple[SubjectFiles, ...]
    problems: tuple[Problem, ...] = ()


def find_subjects(data: Path) -> Found:
    """List the subjects of a data set.

    Args:
        data: A folder in one of the three layouts.

    Raises:
        FileNotFoundError: If there is no such folder, or no subject in it.
        ValueError: If `dataset.json` cannot be understood, or two subjects share a
            name.

    Example:
        >>> find_subjects(Path("nowhere"))
        Traceback (most recent call last):
        ...
        FileNotFoundError: `data` must be a folder of subjects, got 'nowhere'. Pass \
the folder that holds the subjects' folders, or dataset.json.
    """
    data = Path(data)
    if not data.is_dir():
        raise FileNotFoundError(
            f"`data` must be a folder of subjects, got '{data}'. "
            "Pass the folder that holds the subjects' folders, or dataset.json."
        )
    decathlon = (data / "dataset.json").is_file()
    results = list(_in_decathlon(data) if decathlon else _in_folders(data))
    if not results:
        raise FileNotFoundError(
            f"`data` must hold at least one subject, got '{data}' without any. "
            "Pass the folder that holds the subjects' folders, or write synthetic "
            "ones with `python -m unet3d synthesize`."
        )
    results.sort(key=lambda result: result.name)
    _check_names([result.name for result in results])
    return Found(
        subjects=tuple(r for r in results if isinstance(r, SubjectFiles)),
        problems=tuple(r for r in results if isinstance(r, Problem)),
    )


def files_in(folder: Path) -> SubjectFiles:
    """Name the files of one subject's folder, in either of BraTS's ways.

    Args:
        folder: Its name starts the name of every file.

    Raises:
        FileNotFoundError: If the folder or a modality is missing. A segmentation may
            be; whoever needs it says so.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"`folder` must be a subject's folder, got '{folder}'. "
            f"Pass one that holds {folder.name}_flair.nii.gz and its siblings."
        )
    found = _look_in(folder)
    if isinstance(found, Problem):
        raise FileNotFoundError(found.message)
    return found


def _look_in(folder: Path) -> SubjectFiles | Problem:
    paths = [
        {kind: _existing(folder, end) for kind, end in ends.items()} for ends in _NAMES
    ]
    # The naming that explains more files; the older one if neither explains any.
    best = max(
        range(len(_NAMES)), key=lambda k: sum(p is not None for p in paths[k].values())
    )
    found, ends = paths[best], _NAMES[best]
    missing = tuple(modality for modality in MODALITIES if found[modality] is None)
    volumes = {kind: Volume(path=path) for kind, path in found.items() if path}
    images = tuple(volumes[kind] for kind in MODALITIES if kind in volumes)
    files = SubjectFiles(name=folder.name, images=images, labels=volumes.get("seg"))
    if not missing:
        return files
    wanted = [f"{folder / folder.name}{ends[modality]}.nii.gz" for modality in missing]
    message = (
        f"`folder` must hold every modality, got subject {folder.name} without its "
        f"{'modality' if len(missing) == 1 else 'modalities'} "
        f"{', '.join(map(repr, missing))}. Add {', '.join(wanted)} or leave the "
        "subject out."
    )
    return Problem(name=folder.name, message=message, rest=files, missing=missing)


def _in_folders(data: Path) -> Iterator[SubjectFiles | Problem]:
    """Subjects as folders, directly below `data` or below the grades of BraTS."""
    for folder in sorted(data.iterdir()):
        if folder.is_symlink() and not folder.exists():
            message = (
                f"`data` must hold folders, got subject {folder.name}, a link that "
                f"leads nowhere. Mend or remove {folder}."
            )
            yield Problem(name=folder.name, message=message)
        if not folder.is_dir() or folder.name.startswith("."):
            continue
        if folder.name in _GRADES:
            yield from _in_folders(folder)
            continue
        try:
            yield _look_in(folder)
        except OSError as error:
            message = (
                f"`folder` must be readable, got subject {folder.name} in {folder}, "
                f"which is not ({error.strerror}). Mend its permissions or its name."
            )
            yield Problem(name=folder.name, message=message)


def _existing(folder: Path, end: str) -> Path | None:
    """Path of one of a subject's files, compressed or not; None if there is none."""
    for extension in (".nii.gz", ".nii"):
        path = folder / f"{folder.name}{end}{extension}"
        if path.is_file():
            return path
    return None


def _in_decathlon(data: Path) -> Iterator[SubjectFiles | Problem]:
    """Subjects that `dataset.json` lists, training and test."""
    path = data / "dataset.json"
    try:
        listing = json.loads(path.read_text(encoding="utf-8"))
        order = [_position(listing["modality"], name) for name in MODALITIES]
        training = [(entry["image"], entry["label"]) for entry in listing["training"]]
        pairs: list[tuple[Path, Path | None]]
        pairs = [(Path(image), Path(label)) for image, label in training]
        pairs += [(Path(image), None) for image in listing.get("test", [])]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"`{path}` must be a dataset.json of the Decathlon's brain tumours, got "
            f"one that cannot be understood ({error!r}). Download it again, or lay the "
            "subjects out as BraTS does."
        ) from error
    for image, label in pairs:
        yield _decathlon_subject(data, image, label, order)


def _position(modalities: dict[str, Any], name: str) -> int:
    """Place on the fourth axis of a modality."""
    places = {str(value).lower(): int(key) for key, value in modalities.items()}
    return places[_MSD_MODALITIES[name]]


def _decathlon_subject(
    data: Path, image: Path, label: Path | None, order: list[int]
) -> SubjectFiles | Problem:
    name = image.name.removesuffix(".gz").removesuffix(".nii")
    volumes, truth = data / image, data / label if label else None
    files = SubjectFiles(
        name=name,
        images=tuple(Volume(path=volumes, index=k) for k in order if volumes.is_file()),
        labels=Volume(path=truth) if truth and truth.is_file() else None,
    )
    missing = [str(path) for path in (volumes, truth) if path and not path.is_file()]
    if not missing:
        return files
    message = (
        f"`dataset.json` must list files that exist, got subject {name} without "
        f"{' and '.join(missing)}. Add what is missing or leave the subject out."
    )
    return Problem(name=name, message=message, rest=files)


def _check_names(names: list[str]) -> None:
    """Predictions are named after subjects, so two must not share a name."""
    twice = sorted({first for first, second in pairwise(names) if first == second})
    if twice:
        raise ValueError(
            f"`data` must hold each subject once, got {', '.join(twice)} twice. "
            "Rename or remove one of them."
        )
