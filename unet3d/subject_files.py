"""Files of a subject, or the reason why it cannot be used."""

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NIFTI", "Found", "Problem", "SubjectFiles", "Volume", "stem_of"]

NIFTI = re.compile(r"\.nii(\.gz)?$", re.IGNORECASE)


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
    """The files of one subject's volumes.

    Args:
        name: Unique in its data set.
        images: One volume per channel, in the order of the scheme's.
        labels: The segmentation; None if there is none, as in test sets.
        is_test: Whether no labels are to be asked for, as the data's own list says.
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
    """The content of a folder.

    Args:
        subjects: Sorted by name.
        problems: Subjects of which a file is missing, sorted by name.
    """

    subjects: tuple[SubjectFiles, ...]
    problems: tuple[Problem, ...] = ()


def stem_of(name: str) -> str:
    """A NIfTI file's name without its ending, in capitals or not."""
    return NIFTI.sub("", name)
