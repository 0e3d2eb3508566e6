"""A subject's files, and the subjects that nnU-Net or the Decathlon lists.

    nnU-Net raw   imagesTr/<name>_0000.nii.gz  _0001 ..., labelsTr/<name>.nii.gz;
                  imagesTs, and labelsTs where test scans are to be scored
    Decathlon     one file of all volumes per subject, or of one where there is one

Source: nnU-Net's documentation of its dataset format, first version and second.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unet3d.pointers import is_dead_link, not_fetched
from unet3d.schemes import LISTING, MODALITIES, channels_in, kind_of, read_listing

__all__ = ["NIFTI", "Found", "Problem", "SubjectFiles", "Volume"]
__all__ += ["bare_subjects", "listed_subjects", "stem_of"]

NIFTI = re.compile(r"\.nii(\.gz)?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """One volume of a NIfTI file: `index` on the fourth axis, None for a 3-D file."""

    path: Path
    index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectFiles:
    """The files of one subject's volumes, one image per channel in the scheme's order.

    `labels` is None if there are none; with `is_test` labels are not required. `others`
    are files of no wanted kind; `passed` are files that another of their kind replaces.
    """

    name: str
    images: tuple[Volume, ...]
    labels: Volume | None
    is_test: bool = False
    others: tuple[Path, ...] = ()
    passed: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A subject that cannot be used, and the reason, in words for the user.

    `rest` has the files that exist; None if the subject's folder was not read.
    """

    name: str
    message: str
    rest: SubjectFiles | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The content of a folder: usable subjects, and problems of the others, by name."""

    subjects: tuple[SubjectFiles, ...]
    problems: tuple[Problem, ...] = ()

    @property
    def names(self) -> set[str]:
        """The names of all subjects."""
        return {each.name for each in (*self.subjects, *self.problems)}


def stem_of(name: str) -> str:
    """Cut the ending of NIfTI off a file's name, in capitals or not."""
    return NIFTI.sub("", name)


def listed_subjects(
    data: Path, channels: Sequence[str]
) -> Iterator[SubjectFiles | Problem]:
    """List the subjects of nnU-Net or the Decathlon, training and test."""
    path = data / LISTING
    listing = read_listing(path)
    end = str(listing.get("file_ending", ".nii"))
    if not NIFTI.search(f".{end}"):
        raise ValueError(
            f"`{path}` must list NIfTI files, got the ending {end}. Convert them, such "
            'as by SimpleITK, and write "file_ending": ".nii.gz" there.'
        )
    try:
        places = {kind: place for place, kind in enumerate(channels_in(listing))}
        order = [places[kind] for kind in channels]
        cases = list(_cases(data, listing, len(places)))
        # Raises an IndexError for a subject with too few images.
        all(i[0 if len(i) == 1 else len(places) - 1] for i, *_ in cases)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        named = listing.get("channel_names") or listing.get("modality")
        reason = f"without {error}" if isinstance(error, KeyError) else repr(error)
        advice = "Choose the label scheme of these images, or leave it out"
        if not named:
            advice = 'Name them there, such as "channel_names": {"0": "CT"}'
        raise ValueError(
            f"`{path}` must list images of {', '.join(channels)} as nnU-Net or the "
            f"Decathlon does, got channels {named} ({reason}). {advice}."
        ) from error
    for images, label, is_test in cases:
        name = re.sub(r"_0000$", "", stem_of(images[0].name))
        named = re.fullmatch(r"(.+)[-_](\w+)", name) if len(images) > 1 else None
        if named and kind_of(named[2]) in MODALITIES:
            name = named[1]
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
        dead = next(filter(is_dead_link, paths), None)
        found = f", {not_fetched(dead)}" if dead else ". Add what is missing"
        message = (
            f"`{LISTING}` must list files that exist, got subject {name} without "
            f"{' and '.join(missing)}{found}, or leave the subject out."
        )
        # The message above names a missing label.
        rest = replace(files, is_test=is_test or truth is None)
        yield Problem(name=name, message=message, rest=rest)


def bare_subjects(data: Path, channels: Sequence[str]) -> Iterator[SubjectFiles]:
    """List the scans of a folder such as nnU-Net's imagesTs, which have no labels.

    The number of a file, or of a volume in a file, is that of its channel in the
    dataset.json above, if there is one. A folder of other files yields nothing.
    """
    above = data.parent / LISTING
    named = channels_in(read_listing(above)) if above.is_file() else channels
    if not {*channels} <= {*named}:
        return
    order = [named.index(kind) for kind in channels]
    visible = [path for path in sorted(data.iterdir()) if path.name[0] != "."]
    if any(path.is_dir() for path in visible):  # subjects are in folders
        return
    files = {stem_of(path.name): path for path in visible if NIFTI.search(path.name)}
    names = {re.sub(r"_\d{4}$", "", stem): stem for stem in files}
    if {*names} == {*files} and len(channels) > 1 and not above.is_file():
        return
    known = {f"{name}_{k:04d}" for name in names for k in range(len(named))} | {*names}
    if beyond := sorted({*files} - known):
        raise ValueError(
            f"`data` must hold files of {len(named)} channels, {', '.join(named)}, "
            f"named _0000 and so on, got {beyond[0]} in '{data}'. Name the files of "
            "different subjects without four digits at the end."
        )
    for name, stem in names.items():
        if name == stem:
            index = [None] if len(named) == 1 else order
            images = tuple(Volume(path=files[stem], index=k) for k in index)
        else:
            parts = [files.get(f"{name}_{k:04d}") for k in order]
            images = tuple(Volume(path=part) for part in parts if part)
        if len(images) < len(channels):
            raise ValueError(
                f"`data` must hold {len(channels)} images of each subject, "
                f"{', '.join(channels)}, got {name} with {len(images)} in '{data}'. "
                f"Name them {name}_0000.nii.gz and so on, as nnU-Net does."
            )
        yield SubjectFiles(name=name, images=images, labels=None, is_test=True)


def _cases(
    data: Path, listing: Mapping[str, Any], channels: int
) -> Iterator[tuple[list[Path], Path | None, bool]]:
    """Yield each subject's images, its label, and whether it is a test subject."""
    for entry in listing.get("training", []):
        image = entry["image"]  # a list in MONAI's files
        several = isinstance(image, list)
        parts = [data / i for i in image] if several else _parts(data / image, channels)
        yield parts, data / entry["label"], False
    tested = _in_folder(data, "labelsTs")
    for image in listing.get("test", []):
        parts = _parts(data / image, channels)
        yield parts, tested.get(stem_of(Path(image).name)), True
    for entry in listing.get("dataset", {}).values():
        yield [data / image for image in entry["images"]], data / entry["label"], False
    if "training" in listing or "dataset" in listing:
        return
    trained = _in_folder(data, "labelsTr")
    for folder, labels in (("imagesTr", trained), ("imagesTs", tested)):
        images, is_test = _in_folder(data, folder), folder == "imagesTs"
        numbered = {s[:-5] for s in images if re.search(r"_\d{4}$", s)}
        for name in sorted(numbered if is_test else numbered | {*labels}):
            stems = [f"{name}_{k:04d}" for k in range(channels)]
            parts = [images.get(s, data / folder / f"{s}.nii.gz") for s in stems]
            if name in images and name not in numbered:
                parts = [images[name]]
            label = None if is_test else data / "labelsTr" / f"{name}.nii.gz"
            yield parts, labels.get(name, label), is_test


def _in_folder(data: Path, name: str) -> dict[str, Path]:
    """List a folder's NIfTI files by stem; packed or not, in capitals or not."""
    files = sorted(
        file
        for folder in data.iterdir()
        if folder.name.lower() == name.lower() and folder.is_dir()
        for file in folder.iterdir()
        if NIFTI.search(file.name) and not file.name.startswith(".")
    )
    return {stem_of(file.name): file for file in files}


def _parts(image: Path, channels: int) -> list[Path]:
    """Return the file if it exists, else the files of its channels."""
    if image.is_file():
        return [image]
    stem = stem_of(image.name)
    end = image.name.removeprefix(stem)
    parts = [image.with_name(f"{stem}_{k:04d}{end}") for k in range(channels)]
    return parts if any(part.is_file() for part in parts) else [image]
