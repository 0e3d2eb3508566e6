"""Splits the subjects of a data set into those for training and those for validation.

A split is a JSON file with the two lists of names, so that several runs can share it.
Scans of one patient stay on one side: a network that is validated with a brain of its
training looks better than it is. A subject's name tells the patient:

    Brats17_TCIA_101_1     BraTS 2017 to 2019: year, hospital and patient, scan
    BraTS20_Training_001   BraTS 2020 and 2021: one name for each patient
    BraTS-GLI-00001-000    BraTS 2023 and 2024: challenge, patient, time point

Of several folds each patient is in one fold's validation. nnU-Net's splits_final.json,
a list of folds with "train" and "val", is read too.

Sources: 80 to 20 as in the case study; the data descriptions of these years; nnU-Net's
folds, of scikit-learn's KFold in the order of numpy's RandomState(12345).

Known weakness: a name that hides its patient, as the Decathlon's do, is taken for a
patient of its own. `check` and `train` name scans that may be of one patient.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unet3d.files import read_data, read_json, write_json
from unet3d.lines import some

__all__ = ["NNUNET_FOLDS", "NO_GROUPS", "Split", "by_patient", "check_patients"]
__all__ += ["check_rule", "doubtful_names", "known_split", "make_fold", "make_split"]
__all__ += ["numbered_alike", "patient_of", "read_split", "without", "write_split"]

PART = 0.2  # of the subjects, for validation
NNUNET_FOLDS = "splits_final.json"
_SEED = 12345  # nnU-Net's: all runs of a study draw the same folds
# The rule that makes each scan a patient of its own.
NO_GROUPS = "none"

_KNOWN = (
    # The year is left out: hospitals kept their names for patients.
    re.compile(r"brats1[789]_(.+)_\d+", re.IGNORECASE),
    re.compile(r"(brats(?:-[a-z]+)+-\d+)-\d+", re.IGNORECASE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The names of subjects, each in one of the two lists."""

    training: tuple[str, ...]
    validation: tuple[str, ...]


def make_split(
    names: Sequence[str], seed: int, *, group_by: str | None = None
) -> Split:
    """Draw patients for validation, up to a fifth of the subjects, at least one."""
    scans = by_patient(names, group_by)
    if len(names) < 2:
        raise ValueError(
            "`data` must hold at least 2 usable subjects, one to train with and one to "
            f"validate with, got {len(names)}. Add subjects."
        )
    if len(scans) < 2:
        raise ValueError(
            "`data` must hold scans of at least 2 patients, one to train with and one "
            f"to validate with, got {len(names)} scans of patient {next(iter(scans))} "
            "alone. Add patients, or say by --group-by how names tell them apart: "
            f"'{NO_GROUPS}' takes each scan for a patient of its own."
        )
    ordered = list(scans.values())
    drawn = np.random.default_rng(seed).permutation(len(ordered)).tolist()
    chosen = _fill([ordered[index] for index in drawn], round(PART * len(names)))
    return _parted(names, chosen)


def make_fold(
    names: Sequence[str], fold: int, folds: int, *, group_by: str | None = None
) -> Split:
    """Draw folds of patients, and return one; nnU-Net's if each scan is a patient.

    Example:
        >>> [make_fold(["a", "b", "c", "d"], k, 2).validation for k in (0, 1)]
        [('a', 'd'), ('b', 'c')]
    """
    patients = list(by_patient(names, group_by).values())
    if len(patients) < folds:
        raise ValueError(
            f"`folds` must be at most the number of patients, {len(patients)}, got "
            f"{folds}. Use fewer folds, or add patients."
        )
    order = np.arange(len(patients))
    np.random.RandomState(_SEED).shuffle(order)
    chosen = {n for k in np.array_split(order, folds)[fold] for n in patients[k]}
    return _parted(names, chosen)


def check_patients(split: Split, *, group_by: str | None = None) -> None:
    """Refuse a split that has scans of one patient on both sides."""
    for patient, scans in by_patient(
        [*split.training, *split.validation], group_by
    ).items():
        validated = [name for name in scans if name in split.validation]
        if validated and len(validated) < len(scans):
            raise ValueError(
                "`split` must keep the scans of a patient on one side, got patient "
                f"{patient} with {', '.join(scans)}, of which {', '.join(validated)} "
                "for validation. Move them, or say by --group-by whose they are: "
                f"'{NO_GROUPS}' takes each scan for a patient of its own."
            )


def read_split(path: Path, fold: int | None = None) -> Split:
    """Read a split file, or a fold of nnU-Net's splits_final.json.

    A split file is JSON with the lists `training` and `validation`.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"`split` must be a file, got '{path}'. Pass the split.json of a run, or "
            "leave it out to draw a split."
        )
    if isinstance(listed := read_json(path), list):
        split = _fold_in(listed, path, fold)
    elif fold is not None:
        raise ValueError(
            f"`fold` must be left out with the one split of '{path}', got {fold}. Give "
            "a list of folds, such as nnU-Net's splits_final.json, or no --fold."
        )
    else:
        split = read_data(
            path,
            Split,
            rule="have the lists 'training' and 'validation' of names",
            advice="Pass the split.json of a run.",
            exact=False,
        )
    names = [*split.training, *split.validation]
    if not (split.training and split.validation and len(set(names)) == len(names)):
        raise ValueError(
            f"`{path}` must name each subject once, and some in each list, got "
            f"{len(split.training)} for training and {len(split.validation)} for "
            f"validation, {len(set(names))} different. Mend the lists."
        )
    return split


def write_split(path: Path, split: Split) -> None:
    """Write a split file for `read_split`."""
    write_json(path, asdict(split))


def known_split(
    run: Path,
    asked: Path | None,
    *,
    group_by: str | None = None,
    fold: int | None = None,
) -> Split | None:
    """Return the run's or the asked split; None if a split is to be drawn."""
    split = read_split(asked, fold) if asked else None
    own = run / "split.json"
    if not own.is_file():
        if split:
            check_patients(split, group_by=group_by)
        return split
    before = read_split(own)
    if split not in (None, before):
        raise ValueError(
            f"`split` must be that of the run in '{run}', got another in '{asked}'. "
            "Leave it out to go on with the run's."
        )
    return before


def without(split: Split, bad: Collection[str]) -> Split:
    """Remove bad subjects from a split."""
    left = Split(
        training=tuple(name for name in split.training if name not in bad),
        validation=tuple(name for name in split.validation if name not in bad),
    )
    if not left.training or not left.validation:
        raise ValueError(
            "`split` must leave subjects in both lists, got only bad ones in one: "
            f"{', '.join(sorted(bad))}. Repair them, or use another split."
        )
    return left


def patient_of(name: str, rule: str | None = None) -> str:
    """Return the patient of a scan.

    A rule is a regular expression that is searched for in the name: its first group is
    the patient, or the whole match. `NO_GROUPS` takes the name itself.

    Example:
        >>> [patient_of(name) for name in ("BraTS-GLI-00001-101", "Brats18_2013_0_1")]
        ['BraTS-GLI-00001', '2013_0']
        >>> patient_of("sub-07_ses-02", "sub-[0-9]+")
        'sub-07'
    """
    if rule == NO_GROUPS:
        return name
    if rule is None:
        matches = (pattern.fullmatch(name) for pattern in _KNOWN)
        return next((match[1] for match in matches if match), name)
    check_rule(rule)
    match = re.search(rule, name)
    patient = match and match[match.re.groups and 1]
    if not patient:
        raise ValueError(
            f"`group by` must find a patient in every subject's name, got '{rule}', "
            f"which finds none in {name}. Try it with Python's re.search, or 'none'."
        )
    return patient


def numbered_alike(names: Iterable[str]) -> tuple[str, ...]:
    """Return names that may be scans of one patient: their last number alone differs.

    So do all names of a data set such as BRATS_001. A patient has a number, too, and
    another patient has another.

    Example:
        >>> numbered_alike(["P01_1", "P01_2", "P02_1", "BRATS_001", "BRATS_002"])
        ('P01_1', 'P01_2')
    """
    scans, patients = dict[str, list[str]](), dict[str, set[str]]()
    for name in sorted(names):
        before = re.sub(r"\d+\D*$", "", name)
        if patient_of(name) == name and re.search(r"\d", before):
            scans.setdefault(before, []).append(name)
            patients.setdefault(re.sub(r"\d+", "0", before), set()).add(before)
    several = (s for p in patients.values() if len(p) > 1 for s in sorted(p))
    return tuple(n for s in several if len(scans[s]) > 1 for n in scans[s])


def doubtful_names(names: Iterable[str], rule: str | None) -> Iterator[str]:
    """Warn of scans that may be of one patient, where no rule tells patients apart."""
    if rule is None and (alike := numbered_alike(names)):
        yield (
            "names that differ in their last number alone are taken for patients of "
            f"their own: {some(alike)}. Say by --group-by how names tell patients "
            f"apart, such as '^[^0-9]*[0-9]+', or '{NO_GROUPS}' if each is one"
        )


def check_rule(rule: str | None) -> None:
    """Refuse a rule that is no regular expression."""
    try:
        re.compile(rule or "")
    except re.error as error:
        raise ValueError(
            f"`group by` must be a regular expression or '{NO_GROUPS}', got '{rule}' "
            f"({error}). Quote it for the shell, such as 'sub-[0-9]+'."
        ) from error


def by_patient(
    names: Iterable[str], rule: str | None = None
) -> dict[str, tuple[str, ...]]:
    """Group scans by patient, both in the order of scans' names."""
    scans: dict[str, tuple[str, ...]] = {}
    for name in sorted(names):
        patient = patient_of(name, rule)
        scans[patient] = (*scans.get(patient, ()), name)
    return scans


def _parted(names: Iterable[str], chosen: Collection[str]) -> Split:
    return Split(
        training=tuple(name for name in sorted(names) if name not in chosen),
        validation=tuple(name for name in sorted(names) if name in chosen),
    )


def _fold_in(listed: list[Any], path: Path, fold: int | None) -> Split:
    if fold is None or fold >= len(listed):
        raise ValueError(
            f"`fold` must be one of the {len(listed)} folds of '{path}', from 0, got "
            f"{fold}. Choose one by --fold."
        )
    try:
        train, val = (tuple(map(str, listed[fold][key])) for key in ("train", "val"))
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"`{path}` must list folds with 'train' and 'val' as nnU-Net does, got "
            f"fold {fold} without ({error!r}). Mend it, or leave it out."
        ) from error
    return Split(training=train, validation=val)


def _fill(drawn: Sequence[tuple[str, ...]], room: int) -> set[str]:
    """Take the drawn patients whose scans fit into `room`, else the fewest scans."""
    chosen: set[str] = set()
    for scans in drawn:
        if len(chosen) + len(scans) <= room:
            chosen.update(scans)
    return chosen or set(min(drawn, key=len))
