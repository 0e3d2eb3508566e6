"""Finds the subjects in a folder, and the files and volumes of each.

    BraTS 2017-2024   DATA/[HGG/|LGG/]<name>/<name>_flair.nii.gz  _t1 _t1ce _t2 _seg
                      or <name>-t2f.nii.gz  -t1n -t1c -t2w -seg
    nnU-Net raw       DATA/dataset.json, imagesTr/<name>_0000.nii.gz, labelsTr/
                      imagesTs alone, to predict
    Decathlon         DATA/dataset.json, one file of all volumes per subject

The last words of a file's name tell the kind of image, in any spelling
(`unet3d.schemes.kind_of`), but never the meaning of a label. A folder that holds one
file stands for that file. Where two files fit, both are named and none is taken. No
volume is read here.

Sources: the data descriptions of BraTS, nnU-Net and the Medical Segmentation Decathlon.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from unet3d.listings import (
    NIFTI,
    Found,
    Problem,
    SubjectFiles,
    Volume,
    bare_subjects,
    listed_subjects,
    stem_of,
)
from unet3d.pointers import dead_links, not_fetched
from unet3d.schemes import LISTING, MODALITIES, kind_of, refuse_folder_above

__all__ = ["MODALITIES", "Found", "Problem", "SubjectFiles", "find_subjects"]
__all__ += ["Volume", "files_in", "stem_of"]

_GRADES = ("HGG", "LGG")
_KINDS = r"(?i)^(ima?ges?|imgs?|scans?|labels?|masks?|seg(mentation)?s?|gt)(t[rs])?$"
_FIRST = 3  # files of a folder that a message names
# Other file formats, by the endings of names, and the advice for each.
_VOLUMES = r"\.(mha|mhd|nrrd|img|mgz|mnc|h5|npy)$"
_FORMATS = {
    r"(\.dcm|\.ima|^DICOMDIR)$": "Convert each series by dcm2niix, bring a subject's "
    "images to one grid",
    r"\.(zip|tgz|tar(\.[gx]z)?|7z)$": "Unpack it",
    _VOLUMES: "Convert volumes to it, such as by SimpleITK",
}


def find_subjects(
    data: Path, channels: Sequence[str] = MODALITIES, *, bare: bool = False
) -> Found:
    """List the subjects of a data set; with `bare` of a folder of images, too."""
    data = Path(data)
    if not data.is_dir():
        raise FileNotFoundError(
            f"`data` must be a folder of subjects, got '{data}'. "
            "Pass the folder that holds the subjects' folders, or dataset.json."
        )
    refuse_folder_above(data)
    listed = (data / LISTING).is_file()
    if bare and not listed and (scans := tuple(bare_subjects(data, channels))):
        return Found(subjects=scans)
    results = list((listed_subjects if listed else _in_folders)(data, channels))
    usable = any(isinstance(result, SubjectFiles) for result in results)
    is_bids = (data / "dataset_description.json").is_file()
    if not any(map(_seen, results)) or (is_bids and not usable):
        _refuse_other_layouts(data)
    if not results:
        raise FileNotFoundError(
            f"`data` must hold at least one subject, got '{data}' without any. "
            "Pass the folder that holds the subjects' folders, or dataset.json beside "
            "imagesTr/<name>_0000.nii.gz, or write synthetic ones with `python -m "
            "unet3d synthesize`."
        )
    if not listed and not usable:
        _refuse_folders_of_kinds(data, results)
    results.sort(key=lambda result: result.name)
    _check_names([result.name for result in results])
    return Found(
        subjects=tuple(r for r in results if isinstance(r, SubjectFiles)),
        problems=tuple(r for r in results if isinstance(r, Problem)),
    )


def files_in(folder: Path) -> SubjectFiles:
    """Name the files of one BraTS subject's folder; a segmentation may be missing."""
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
        passed=tuple(
            p for k, ps in there.items() if found[k] for p in ps if p != found[k]
        ),
    )
    dead = dead_links(folder)
    if doubted:
        named = _some(there[doubted[0]], folder)
        reason = (
            f"`folder` must hold one file for each kind, got subject {folder.name} "
            f"with several for '{doubted[0]}': {named}. Take one out of {folder}"
        )
    elif missing and dead:
        reason = (
            f"`folder` must hold files, got subject {folder.name} with "
            f"{_some(dead, folder)}: {not_fetched(dead[0])}"
        )
    elif missing:
        wanted = [f"{folder / folder.name}_{kind}.nii.gz" for kind in missing]
        beside = f"; there lie {_some(others, folder)}" if others else ""
        reason = (
            f"`folder` must hold every modality, got subject {folder.name} without its "
            f"{'modality' if len(missing) == 1 else 'modalities'} "
            f"{', '.join(map(repr, missing))}{beside}. Add {', '.join(wanted)}, "
            "name the images that there are in a file for --label-scheme"
        )
    else:
        return files
    message = f"{reason}, or leave the subject out."
    if "seg" in doubted:  # a segmentation exists
        files = replace(files, is_test=True)
    return Problem(name=folder.name, message=message, rest=files)


def _by_kind(
    folder: Path, channels: Sequence[str]
) -> tuple[dict[str, list[Path]], tuple[Path, ...]]:
    """Group a subject's files by kind; return also the files of no wanted kind."""
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
    foreign = (p for p in sorted(folder.iterdir()) if re.search(_VOLUMES, p.name, re.I))
    return there, (*others, *foreign)


def _kind(stem: str) -> str:
    """Return the kind of image that the last one or two words of a name tell."""
    words = re.split(r"[_\-. ]+", stem)
    kinds = [kind_of("".join(words[-count:])) for count in (2, 1)]
    two, one = kinds
    known = {*MODALITIES, "seg"}
    return two if two == "brain" or (two in known and one not in known) else one


def _volumes(folder: Path) -> list[tuple[str, Path]]:
    """List the NIfTI files of a folder, and of subfolders with a single file.

    Of two files of one name the compressed file counts.
    """
    found: dict[str, Path] = {}
    for entry in sorted(folder.iterdir(), reverse=True):
        if entry.name.startswith("."):
            continue
        inner = [entry]
        if entry.is_dir():
            inner = [p for p in entry.iterdir() if not p.name.startswith(".")]
            inner = [p for p in inner if NIFTI.search(p.name)]
        elif not NIFTI.search(entry.name):
            continue
        if len(inner) == 1 and inner[0].is_file():
            found.setdefault(stem_of(entry.name), inner[0])
    return sorted(found.items())


def _one_of(paths: Sequence[Path], name: str) -> Path | None:
    """Return the only file, or the only match of subject name or tumour; else None."""
    for words in ("", rf"^{re.escape(name)}[_-][^\W_]+\.nii", r"tumou?r|lesion"):
        own = [p for p in paths if re.search(words, p.name, re.IGNORECASE)]
        if len(own) == 1:
            return own[0]
    return None


def _some(paths: Sequence[Path], folder: Path) -> str:
    more = f" and {len(paths) - _FIRST} more" if len(paths) > _FIRST else ""
    return ", ".join(str(path.relative_to(folder)) for path in paths[:_FIRST]) + more


def _in_folders(
    data: Path, channels: Sequence[str]
) -> Iterator[SubjectFiles | Problem]:
    """Yield subjects as folders, directly below `data` or below BraTS's grades."""
    subjects, above = [], []
    for folder in sorted(data.iterdir()):
        if folder.is_symlink() and not folder.exists():
            message = (
                f"`data` must hold folders, got subject {folder.name}, a link that "
                f"leads nowhere. Mend or remove {folder}."
            )
            yield Problem(name=folder.name, message=message)
        if not folder.is_dir() or folder.name.startswith((".", "@", "__MACOSX")):
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
    return files is not None and bool(
        files.images or any(NIFTI.search(path.name) for path in files.others)
    )


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
    """Count the subjects' folders in a folder; 0 if the folder is a subject itself."""
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
    """Refuse data in another layout, and name the layout."""
    names = [path.name for path in data.iterdir()]
    own = [name for name in names if NIFTI.search(name)]
    deeper = [path for depth in ("*", "*/*", "*/*/*") for path in data.glob(depth)]
    if "dataset_description.json" in names or any(data.glob("sub-*/**/anat")):
        raise ValueError(
            f"`data` must hold a folder of files for each subject, got '{data}', "
            "which is BIDS, not read yet. Copy the files of each subject to a folder, "
            "named such as sub-01/sub-01_flair.nii.gz and sub-01/sub-01_seg.nii.gz."
        )
    if own and (data.parent / LISTING).is_file():
        raise ValueError(
            f"`data` must be the folder of {LISTING}, got '{data}'. Pass {data.parent}."
        )
    if own:
        raise ValueError(
            f"`data` must hold a folder for each subject, got '{data}' with files, "
            f"such as {min(own)}. Pass the folder above if it is one subject's, or put "
            "each subject's files into a folder of its name."
        )
    for path in filter(Path.is_file, deeper):
        for ends, advice in _FORMATS.items():
            if re.search(ends, _typed(path), re.IGNORECASE):
                raise ValueError(
                    f"`data` must hold NIfTI files, got {path}. {advice}, and name "
                    "images such as a1/a1_flair.nii.gz."
                )


def _refuse_folders_of_kinds(
    data: Path, results: Sequence[SubjectFiles | Problem]
) -> None:
    """Refuse a folder for images beside one for masks, and say how to list both."""
    kinds = [result for result in results if re.search(_KINDS, result.name)]
    if len(kinds) > 1:
        truths = [r.name for r in kinds if re.match(r"(?i)label|mask|seg|gt", r.name)]
        other = next(iter(truths), "labelsTr")
        first = next((r.name for r in kinds if r.name not in truths), kinds[0].name)
        there = f"{kinds[0].name} and {kinds[1].name}"
        raise ValueError(
            f"`data` must hold a folder for each subject, or {LISTING}, got '{data}' "
            f"with {there} alone. Write {LISTING} there as nnU-Net does, "
            'with "channel_names", "labels" and, where files are not named as its '
            f'are, "training": [{{"image": "{first}/a.nii.gz", "label": '
            f'"{other}/a.nii.gz"}}].'
        )


def _typed(path: Path) -> str:
    """Return a file's name, with the ending .dcm if its content is DICOM."""
    with path.open("rb") as file:
        return path.name + ".dcm" * (file.read(132)[128:] == b"DICM")


def _check_names(names: list[str]) -> None:
    """Refuse two subjects of one name: predictions are named after subjects."""
    twice = sorted({first for first, second in pairwise(names) if first == second})
    if twice:
        raise ValueError(
            f"`data` must hold each subject once, got {', '.join(twice)} twice. "
            "Rename or remove one of them."
        )
