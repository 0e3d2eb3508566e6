"""Keeps prepared subjects on disk: reading and resizing happen once.

An entry's name is a hash of all that decides its content: the files with their sizes
and times of change, the cube's size, the label scheme, and the version of the
preparing code. So an entry never goes stale, a change makes a new one, and several
runs and processes may share a folder.

Known weakness: entries of changed data or settings stay until someone deletes them.
"""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from lms.storage.files import write_arrays
from unet3d.data import check_size, prepare
from unet3d.reading import Images, Labels, read_subject
from unet3d.schemes import LabelScheme
from unet3d.subjects import SubjectFiles

__all__ = ["cache_entry", "load_prepared"]

# Raise it when `prepare` or the reading of files changes what comes out.
VERSION = 3


def load_prepared(
    files: SubjectFiles, *, size: int | None, scheme: LabelScheme, cache: Path
) -> tuple[Images, Labels]:
    """Take a prepared subject from the cache, or prepare it and put it there.

    Returns:
        As `unet3d.data.prepare` gives.

    Raises:
        FileNotFoundError, ValueError, TypeError: As `read_subject` and `prepare` do.
    """
    if size is not None:
        check_size(size)
    path = cache_entry(files, size=size, scheme=scheme, cache=cache)
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            return arrays["images"], arrays["regions"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # absent, or damaged by something outside: make it anew
    images, regions = prepare(read_subject(files, scheme), size, scheme)
    write_arrays(path, {"images": images, "regions": regions})
    return images, regions


def cache_entry(
    files: SubjectFiles, *, size: int | None, scheme: LabelScheme, cache: Path
) -> Path:
    """Name a subject's entry, which may not exist yet.

    Raises:
        FileNotFoundError: If one of the subject's files is gone.
    """
    volumes = [*files.images, *([files.labels] if files.labels else [])]
    decisive: dict[str, Any] = {
        "version": VERSION,
        "size": size,
        "labels": list(scheme.regions.values()),
        "files": [_fingerprint(volume.path, volume.index) for volume in volumes],
    }
    text = json.dumps(decisive, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:20]
    return cache / f"{files.name}-{size or 'whole'}-{digest}.npz"


def _fingerprint(path: Path, index: int | None) -> list[Any]:
    state = path.stat()
    return [str(path.resolve()), index, state.st_size, state.st_mtime_ns]
