"""Prepares the subjects of a data set once, keeps them on disk, and finds the bad ones.

An entry's name is a hash of all that decides its content: the files with their sizes
and times of change, the cube's size, the label scheme, and the version of the
preparing code. So an entry never goes stale, a change makes a new one, and several
runs and processes may share a folder.

A bad subject stops preparation, unless bad subjects may be skipped. Either way every
bad subject is named, and a reason that several share is printed once.

Known weakness: entries of changed data or settings stay until someone deletes them.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from unet3d.data import Common, check_size, prepare
from unet3d.files import write_arrays
from unet3d.lines import grouped, several, some
from unet3d.reading import Images, Labels, read_subject
from unet3d.schemes import LabelScheme
from unet3d.subjects import Found, Problem, SubjectFiles

__all__ = ["SKIP", "cache_entry", "load_prepared", "prepare_all", "usable"]

# The version of cached arrays: raise it when `prepare` or reading changes them.
VERSION = 3
# Ends an error of bad subjects, which --skip-bad turns into a list.
SKIP = "Or leave bad subjects out with --skip-bad."
_OWN = Common()
_ENOUGH = 20  # bad subjects after which reading stops


def load_prepared(
    files: SubjectFiles,
    *,
    size: int | None,
    scheme: LabelScheme,
    cache: Path,
    common: Common = _OWN,
) -> tuple[Images, Labels]:
    """Take a prepared subject from the cache, or prepare it and put it there."""
    if size is not None:
        check_size(size)
    path = cache_entry(files, size=size, scheme=scheme, cache=cache, common=common)
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            return arrays["images"], arrays["regions"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # absent, or damaged by something outside: make it anew
    images, regions = prepare(read_subject(files, scheme), size, scheme, common)
    write_arrays(path, {"images": images, "regions": regions})
    return images, regions


def cache_entry(
    files: SubjectFiles,
    *,
    size: int | None,
    scheme: LabelScheme,
    cache: Path,
    common: Common = _OWN,
) -> Path:
    """Name a subject's entry, which may not exist yet."""
    volumes = [*files.images, *([files.labels] if files.labels else [])]
    decisive: dict[str, Any] = {
        "version": VERSION,
        "size": size,
        "labels": list(scheme.regions.values()),
        "files": [_fingerprint(volume.path, volume.index) for volume in volumes],
    }
    if common != _OWN:
        decisive["common"] = asdict(common)
    text = json.dumps(decisive, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:20]
    return cache / f"{files.name}-{size or 'whole'}-{digest}.npz"


def usable(found: Found, *, skip_bad: bool) -> tuple[SubjectFiles, ...]:
    """Return the subjects with complete files; refuse bad subjects unless skipped."""
    if found.problems and not skip_bad:
        raise FileNotFoundError(_together(found.problems))
    if not found.subjects:
        raise FileNotFoundError(
            f"`data` must hold at least one usable subject, got "
            f"{len(found.problems)} bad ones. The first: {found.problems[0].message}"
        )
    return found.subjects


def prepare_all(  # noqa: PLR0913 - of whom, how, and where to
    subjects: Sequence[SubjectFiles],
    *,
    size: int | None,
    scheme: LabelScheme,
    cache: Path,
    skip_bad: bool,
    common: Common = _OWN,
    progress: Callable[[], None] = lambda: None,
) -> Found:
    """Put every subject into the cache; return the prepared and the bad subjects."""
    good, problems = [], []
    for files in subjects:
        try:
            load_prepared(files, size=size, scheme=scheme, cache=cache, common=common)
            good.append(files)
        except (FileNotFoundError, ValueError) as error:
            problems.append(Problem(name=files.name, message=str(error)))
            if not skip_bad and len(problems) == _ENOUGH:
                break
        progress()
    if problems and not skip_bad:
        rest = len(subjects) - len(good) - len(problems)
        unread = f"{several(rest, 'subject')} not read yet.\n" if rest else ""
        raise ValueError(unread + _together(problems))
    return Found(subjects=tuple(good), problems=tuple(problems))


def _fingerprint(path: Path, index: int | None) -> list[Any]:
    state = path.stat()
    return [str(path.resolve()), index, state.st_size, state.st_mtime_ns]


def _together(problems: Sequence[Problem]) -> str:
    """Join the reasons, each once, with the names of its subjects."""
    reasons = grouped((problem.name, problem.message) for problem in problems)
    told = [
        f"{len(names)} subjects are bad, {some(names)}; the first: {reason}"
        if len(names) > 1
        else reason
        for reason, names in reasons.items()
    ]
    return "\n".join(told) + f" {SKIP}"
