"""Finds subjects in a folder: which files, and which of a file's volumes, are whose.

    BraTS 2017-2024   DATA/[HGG/|LGG/]<name>/<name>_flair.nii.gz  _t1 _t1ce _t2 _seg
                      or <name>-t2f.nii.gz  -t1n -t1c -t2w -seg
    nnU-Net raw       DATA/dataset.json, imagesTr/<name>_0000.nii.gz, labelsTr/
    Decathlon         DATA/dataset.json, one file of all volumes per subject

The last words of a file's name say which kind of image it is, however they are written
(`unet3d.schemes.kind_of`); what a label means is never concluded from them. A folder
that holds one file stands for it. Where two files could be meant, both are named and
none is taken. Each file may be `.nii.gz` or `.nii`.

Sources: the data descriptions of BraTS, nnU-Net and the Medical Segmentation Decathlon.

Known weakness: nothing is opened here but `dataset.json`; `unet3d.reading` finds out
what is inside the volumes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from unet3d.schemes import LISTING, MODALITIES, kind_of, read_listing

__all__ = ["MODALITIES", "Found", "Problem", "SubjectFiles", "find_subjects"]
__all__ += ["Volume", "files_in", "stem_of"]

_GRADES = ("HGG", "LGG")
_FIRST = 3  # so many files of a folder are named
_NIFTI = re.compile(r"\.nii(\.gz)?$", re.IGNORECASE)


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
        images: One volume per channel, in the order of the scheme's.
        labels: The segmentation; None if there is none, as in test sets.
        is_test: Whether the data's own list says that there are no labels.
        others: Files beside them that nothing was made of.
    """

    name: str
    images: tuple[Volume, ...]
    labels: Volume | None
    is_test: bool = False
    others: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A subject that cannot be used.

    Args:
        name: Unique in its data set.
        message: Why, in words for the user.
        rest: Those of its files that are there; None if nobody looked.
    """

    name: str
    message: str
    rest: SubjectFiles | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a folder holds.

    Args:
        subjects: Sorted by name.
        problems: Subjects of which a file is missing, sorted by name.
    """

    subjects: tuple[SubjectFiles, ...]
    problems: tuple[Problem, ...] = ()


def find_subjects(data: Path, channels: Sequence[str] = MODALITIES) -> Found:
    """List the subjects of a data set.

    Raises:
        FileNotFoundError: If there is no such folder, or no subject in it.
        ValueError: If it is another layout, `dataset.json` cannot be understood, or
            two subjects share a name.

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
    listed = (data / LISTING).is_file()
    results = list((_in_list if listed else _in_folders)(data, channels))
    if not any(map(_seen, results)):
        _refuse_other_layouts(data)
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
    """Name the files of one BraTS subject's folder.

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
    found = _look_in(folder, MODALITIES)
    if isinstance(found, Problem):
        raise FileNotFoundError(found.message)
    return found


def stem_of(name: str) -> str:
    """A NIfTI file's name without its ending, in capitals or not."""
    return _NIFTI.sub("", name)


def _look_in(folder: Path, channels: Sequence[str]) -> SubjectFiles | Problem:
    there, others = _by_kind(folder, channels)
    found = {kind: _one_of(paths, folder.name) for kind, paths in there.items()}
    doubted = [kind for kind, path in found.items() if path is None]
    volumes = {kind: Volume(path=path) for kind, path in found.items() if path}
    missing = tuple(c for c in channels if c not in there)
    files = SubjectFiles(
        name=folder.name,
        images=tuple(volumes[kind] for kind in channels if kind in volumes),
        labels=volumes.get("seg"),
        others=others,
    )
    if doubted:
        named = _some(there[doubted[0]], folder)
        reason = (
            f"`folder` must hold one file for each kind, got subject {folder.name} "
            f"with several for '{doubted[0]}': {named}. Take one out of {folder}"
        )
    elif missing:
        wanted = [f"{folder / folder.name}_{kind}.nii.gz" for kind in missing]
        beside = f"; there lie {_some(others, folder)}" if others else ""
        reason = (
            f"`folder` must hold every modality, got subject {folder.name} without its "
            f"{'modality' if len(missing) == 1 else 'modalities'} "
            f"{', '.join(map(repr, missing))}{beside}. Add {', '.join(wanted)}"
        )
    else:
        return files
    message = f"{reason}, or leave the subject out."
    return Problem(name=folder.name, message=message, rest=files)


def _by_kind(
    folder: Path, channels: Sequence[str]
) -> tuple[dict[str, list[Path]], tuple[Path, ...]]:
    """A subject's files by their kind, and those of no kind that is wanted."""
    there: dict[str, list[Path]] = {}
    others = []
    for said, path in _volumes(folder):
        names = (said, stem_of(path.name))
        kinds = [k for k in map(_kind, names) if k in (*channels, "seg")]
        if kinds:
            there.setdefault(kinds[0], []).append(path)
        else:
            others.append(path)
    if len(channels) == 1 and channels[0] not in there and len(others) == 1:
        there[channels[0]] = [others.pop()]
    return there, tuple(others)


def _kind(stem: str) -> str:
    """Of the last one or two words of a name, or of all that stands alone."""
    words = re.split(r"[_\-. ]+", stem)
    kinds = [kind_of("".join(words[-count:])) for count in (2, 1)]
    two, one = kinds
    known = {*MODALITIES, "seg"}
    return two if two in known and one not in known else one


def _volumes(folder: Path) -> list[tuple[str, Path]]:
    """The NIfTI files of a folder, and those that lie alone in a folder of it.

    Of one name, compressed or not, the compressed one counts.
    """
    found: dict[str, Path] = {}
    for entry in sorted(folder.iterdir(), reverse=True):
        if entry.name.startswith("."):
            continue
        inner = [entry]
        if entry.is_dir():
            inner = [p for p in entry.iterdir() if not p.name.startswith(".")]
            inner = [p for p in inner if _NIFTI.search(p.name)]
        elif not _NIFTI.search(entry.name):
            continue
        if len(inner) == 1 and inner[0].is_file():
            found.setdefault(stem_of(entry.name), inner[0])
    return sorted(found.items())


def _one_of(paths: Sequence[Path], name: str) -> Path | None:
    """The only one, or the only one that is named after its subject; else None."""
    named = re.compile(rf"{re.escape(name)}[_-]\w+\.nii")
    own = [path for path in paths if named.match(path.name)]
    chosen = paths if len(paths) == 1 else own
    return chosen[0] if len(chosen) == 1 else None


def _some(paths: Sequence[Path], folder: Path) -> str:
    more = f" and {len(paths) - _FIRST} more" if len(paths) > _FIRST else ""
    return ", ".join(str(path.relative_to(folder)) for path in paths[:_FIRST]) + more


def _in_folders(
    data: Path, channels: Sequence[str]
) -> Iterator[SubjectFiles | Problem]:
    """Subjects as folders, directly below `data` or below the grades of BraTS."""
    subjects, above = [], []
    for folder in sorted(data.iterdir()):
        if folder.is_symlink() and not folder.exists():
            message = (
                f"`data` must hold folders, got subject {folder.name}, a link that "
                f"leads nowhere. Mend or remove {folder}."
            )
            yield Problem(name=folder.name, message=message)
        if not folder.is_dir() or folder.name.startswith((".", "__MACOSX")):
            continue
        if folder.name in _GRADES:
            yield from _in_folders(folder, channels)
        elif count := _subjects_below(folder):
            above.append((folder, count))
        else:
            subjects.append(folder)
    results = [_readable(folder, channels) for folder in subjects]
    if not above or any(map(_seen, results)):
        yield from results
    elif len(above) == 1:
        yield from _in_folders(above[0][0], channels)
    else:
        told = ", ".join(f"{folder} ({count})" for folder, count in above[:5])
        raise ValueError(
            f"`data` must be the folder of the subjects' folders, got '{data}': "
            f"subjects lie in {told}. Pass one of these."
        )


def _seen(result: SubjectFiles | Problem) -> bool:
    files = result if isinstance(result, SubjectFiles) else result.rest
    return files is not None and bool(files.images or files.others)


def _readable(folder: Path, channels: Sequence[str]) -> SubjectFiles | Problem:
    try:
        return _look_in(folder, channels)
    except OSError as error:
        message = (
            f"`folder` must be readable, got subject {folder.name} in {folder}, "
            f"which is not ({error.strerror}). Mend its permissions or its name."
        )
        return Problem(name=folder.name, message=message)


def _subjects_below(folder: Path) -> int:
    """How many subjects' folders a folder holds that is none itself."""
    try:
        if _volumes(folder):
            return 0
        below = [f for f in folder.iterdir() if f.is_dir() and f.name[0] != "."]
        if any(re.match("anat$|ses-", f.name) for f in below):  # a subject of BIDS
            return 0
        return sum(len(_volumes(f)) > 1 or f.name in _GRADES for f in below)
    except OSError:
        return 0


def _refuse_other_layouts(data: Path) -> None:
    """Say of data in another layout what it is."""
    names = [path.name for path in data.iterdir()]
    own = [name for name in names if _NIFTI.search(name)]
    deeper = [path for depth in ("*", "*/*", "*/*/*") for path in data.glob(depth)]
    scans = [p for p in deeper if p.is_file() and _is_dicom(p)]
    if "dataset_description.json" in names or any(data.glob("sub-*/**/anat")):
        raise ValueError(
            f"`data` must hold a folder of files for each subject, got '{data}', "
            "which is BIDS, not read yet. Copy the files of each subject to a folder, "
            "named such as sub-01/sub-01_flair.nii.gz and sub-01/sub-01_seg.nii.gz."
        )
    if scans:
        raise ValueError(
            f"`data` must hold NIfTI files, got DICOM, such as {scans[0]}. Convert "
            "each series by dcm2niix, bring a subject's images to one grid, and name "
            "them such as a1/a1_flair.nii.gz."
        )
    if own:
        raise ValueError(
            f"`data` must hold a folder for each subject, got '{data}' with files, "
            f"such as {min(own)}. Pass the folder above if it is one subject's, or put "
            "each subject's files into a folder of its name."
        )


def _is_dicom(path: Path) -> bool:
    if path.suffix.lower() in (".dcm", ".ima") or path.name == "DICOMDIR":
        return True
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"


def _in_list(data: Path, channels: Sequence[str]) -> Iterator[SubjectFiles | Problem]:
    """Subjects of nnU-Net or the Decathlon, training and test."""
    path = data / LISTING
    listing = read_listing(path)
    named = listing.get("channel_names") or listing.get("modality") or {}
    try:
        places = {kind_of(str(value)): int(key) for key, value in named.items()}
        if len(places) < len(named):  # such as "MRI" twice
            places = {f"channel{k}": k for k in range(len(named))}
        order = [places[kind] for kind in channels]
        cases = list(_cases(data, listing, len(places)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"`{path}` must list images of {', '.join(channels)} as nnU-Net or the "
            f"Decathlon does, got channels {named} ({error!r}). Choose the label "
            "scheme of these images, or leave it out, to take the data's own."
        ) from error
    for images, label, is_test in cases:
        name = re.sub(r"_0000$", "", stem_of(images[0].name))
        one_file = len(images) == 1 and len(places) > 1
        wanted = [images[0] if one_file else images[k] for k in order]
        volumes = tuple(
            Volume(path=image, index=k if one_file else None)
            for image, k in zip(wanted, order, strict=True)
            if image.is_file()
        )
        truth = Volume(path=label) if label and label.is_file() else None
        files = SubjectFiles(name=name, images=volumes, labels=truth, is_test=is_test)
        paths = [*dict.fromkeys(wanted), *([label] if label else [])]
        missing = [str(path) for path in paths if not path.is_file()]
        if not missing:
            yield files
            continue
        message = (
            f"`{LISTING}` must list files that exist, got subject {name} without "
            f"{' and '.join(missing)}. Add what is missing or leave the subject out."
        )
        yield Problem(name=name, message=message, rest=files)


def _cases(
    data: Path, listing: Mapping[str, Any], channels: int
) -> Iterator[tuple[list[Path], Path | None, bool]]:
    """Of each subject its images, its label, and whether it is to have none."""
    end = listing.get("file_ending", ".nii.gz")
    if not _NIFTI.search(end):
        raise ValueError(f"files end in {end}: convert them to NIfTI")
    for entry in listing.get("training", []):
        yield _parts(data / entry["image"], channels), data / entry["label"], False
    for image in listing.get("test", []):
        yield _parts(data / image, channels), None, True
    for entry in listing.get("dataset", {}).values():
        yield [data / image for image in entry["images"]], data / entry["label"], False
    if "training" in listing or "dataset" in listing:
        return
    for folder, truth in (("imagesTr", "labelsTr"), ("imagesTs", None)):
        parts = data.glob(f"{folder}/*_????{end}")
        names = {part.name.removesuffix(end)[:-5] for part in parts}
        if truth:
            names |= {p.name.removesuffix(end) for p in data.glob(f"{truth}/*{end}")}
        for name in sorted(n for n in names if not n.startswith(".")):
            label = data / truth / f"{name}{end}" if truth else None
            yield _parts(data / folder / f"{name}{end}", channels), label, not truth


def _parts(image: Path, channels: int) -> list[Path]:
    """The file itself if it is there, or one for each channel."""
    if image.is_file():
        return [image]
    stem = stem_of(image.name)
    end = image.name.removeprefix(stem)
    parts = [image.with_name(f"{stem}_{k:04d}{end}") for k in range(channels)]
    return parts if any(part.is_file() for part in parts) else [image]


def _check_names(names: list[str]) -> None:
    """Predictions are named after subjects, so two must not share a name."""
    twice = sorted({first for first, second in pairwise(names) if first == second})
    if twice:
        raise ValueError(
            f"`data` must hold each subject once, got {', '.join(twice)} twice. "
            "Rename or remove one of them."
        )
