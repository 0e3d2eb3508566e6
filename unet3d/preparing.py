"""Prepares a whole data set before training, and finds its bad subjects.

Bad subjects stop everything, unless they may be skipped; either way each is told, a
reason that many share once. Nothing is left out in silence.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from unet3d.cache import load_prepared
from unet3d.lines import grouped, several, some
from unet3d.schemes import LabelScheme
from unet3d.subjects import Found, Problem, SubjectFiles

__all__ = ["SKIP", "prepare_all", "usable"]

# The last words of an error that a flag can turn into a line of a list.
SKIP = "Or leave bad subjects out with --skip-bad."
_ENOUGH = 20  # bad subjects, after which no more are read


def usable(found: Found, *, skip_bad: bool) -> tuple[SubjectFiles, ...]:
    """The subjects whose files are all there.

    Raises:
        FileNotFoundError: If one is not and `skip_bad` is off, or if none is left.
    """
    if found.problems and not skip_bad:
        raise FileNotFoundError(_together(found.problems))
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
        ValueError: If subjects are bad and `skip_bad` is off, with all reasons.
    """
    good, problems = [], []
    for files in subjects:
        try:
            load_prepared(files, size=size, scheme=scheme, cache=cache)
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


def _together(problems: Sequence[Problem]) -> str:
    """Reasons, each once with the names of those that have it in common."""
    reasons = grouped((problem.name, problem.message) for problem in problems)
    told = [
        f"{len(names)} subjects are bad, {some(names)}; the first: {reason}"
        if len(names) > 1
        else reason
        for reason, names in reasons.items()
    ]
    return "\n".join(told) + f" {SKIP}"
