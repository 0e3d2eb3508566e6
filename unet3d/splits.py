"""Splits the subjects of a data set into those for training and those for validation.

A split is a JSON file with the two lists of names, so that several runs can share it.

Source: 80 to 20 as in the case study.

Known weakness: a new split is drawn from the subjects' names; where one patient has
several scans, as in BraTS 2023, put them on one side with a split file of your own.
"""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from lms.storage.files import write_json
from lms.storage.json_data import read_data

__all__ = ["Split", "known_split", "make_split", "read_split", "without", "write_split"]

VALIDATION_PART = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Names of subjects, each in one of the two."""

    training: tuple[str, ...]
    validation: tuple[str, ...]


def make_split(names: Sequence[str], seed: int) -> Split:
    """Draw a fifth of the subjects for validation, at least one.

    Args:
        names: At least two, each once.
        seed: The same seed and names give the same split, in whatever order.

    Raises:
        ValueError: If there are fewer than two.

    Example:
        >>> split = make_split([f"s{k}" for k in range(285)], seed=0)
        >>> len(split.training), len(split.validation)
        (228, 57)
    """
    if len(names) < 2:
        raise ValueError(
            "`data` must hold at least 2 usable subjects, one to train with and one to "
            f"validate with, got {len(names)}. Add subjects."
        )
    ordered = sorted(names)
    count = max(1, round(VALIDATION_PART * len(ordered)))
    drawn = np.random.default_rng(seed).permutation(len(ordered))[:count].tolist()
    chosen = {ordered[index] for index in drawn}
    return Split(
        training=tuple(name for name in ordered if name not in chosen),
        validation=tuple(name for name in ordered if name in chosen),
    )


def read_split(path: Path) -> Split:
    """Read a split file: JSON with the lists `training` and `validation`.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is not such a file, a list is empty, or a name is in both.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"`split` must be a file, got '{path}'. Pass the split.json of a run, or "
            "leave it out to draw a split."
        )
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
    """Write what `read_split` reads."""
    write_json(path, asdict(split))


def known_split(run: Path, asked: Path | None) -> Split | None:
    """The split that a run has, or is asked to take.

    Args:
        run: The run's folder; its own split comes first.
        asked: A split file, or None.

    Returns:
        None if a split is still to be drawn.

    Raises:
        FileNotFoundError, ValueError: As `read_split` does, or if the two differ.
    """
    split = read_split(asked) if asked else None
    own = run / "split.json"
    if not own.is_file():
        return split
    before = read_split(own)
    if split not in (None, before):
        raise ValueError(
            f"`split` must be that of the run in '{run}', got another in '{asked}'. "
            "Leave it out to go on with the run's."
        )
    return before


def without(split: Split, bad: Collection[str]) -> Split:
    """The split without some subjects.

    Raises:
        ValueError: If a list becomes empty.
    """
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
