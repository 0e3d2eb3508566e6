"""Prepares a whole data set before training, and finds its bad subjects.

One bad subject stops everything, unless bad ones may be skipped; then each is reported
with its reason. Nothing is left out in silence.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from unet3d.cache import load_prepared
from unet3d.schemes import LabelScheme
from unet3d.subjects import Found, Problem, SubjectFiles

__all__ = ["SKIP", "prepare_all", "usable"]

# The last words of an error that a flag can turn into a line of a list.
SKIP = "Or leave bad subjects out with --skip-bad."


def usable(found: Found, *, skip_bad: bool) -> tuple[SubjectFiles, ...]:
    """The subjects whose files are all there.

    Raises:
        FileNotFoundError: If one is not and `skip_bad` is off, or if none is left.
    """
    if found.problems and not skip_bad:
        raise FileNotFoundError(f"{found.problems[0].message} {SKIP}")
    if not found.subjects:
        raise FileNotFoundError(
            f"`data` must hold at least one usable subject, got "
            f"{len(found.problems)} bad ones. The first: {found.problems[0].message}"
        )
    return found.subjects


def prepare_all(
    subjects: Sequence[SubjectFiles],
    *,
    size: int | None,
    scheme: LabelScheme,
    cache: Path,
    skip_bad: bool,
    progress: Callable[[], None] = lambda: None,
) -> Found:
    """Put every subject into the cache; tell those that are there and those left out.

    Raises:
        FileNotFoundError, ValueError: For the first bad subject, if `skip_bad` is off.
    """
    good, problems = [], []
    for files in subjects:
        try:
            load_prepared(files, size=size, scheme=scheme, cache=cache)
            good.append(files)
        except (FileNotFoundError, ValueError) as error:
            if not skip_bad:
                raise type(error)(f"{error} {SKIP}") from error
            problems.append(Problem(name=files.name, message=str(error)))
        progress()
    return Found(subjects=tuple(good), problems=tuple(problems))
