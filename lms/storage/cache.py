"""A cache of measurements and plans on disk, kept from one run to the next.

    <folder>/<kind>/<digest of the entry's inputs>.json

The folder is the user's cache folder. The environment variable LMS_CACHE names another
one, or "off" for none. An entry that cannot be read or written is logged and skipped:
no run fails by its cache. Readers check each entry as if a stranger had written it.
"""

import hashlib
import logging
import os
import time
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lms.storage.files import write_file

__all__ = ["OFF", "VARIABLE", "cache_folder", "digest", "read_entry", "sources"]
__all__ += ["write_entry"]

_LOG = logging.getLogger("lms")

VARIABLE, OFF = "LMS_CACHE", "off"

# Most entries of a kind, and their longest age, 30 days in seconds: a machine changes,
# and a rate that was measured while it was busy must not last for ever.
_MOST, _LONGEST = 64, 30 * 24 * 3600.0

T = TypeVar("T")


def cache_folder() -> Path | None:
    """Return the folder of entries; None if caching is off."""
    named = os.environ.get(VARIABLE, "")
    if named.lower() == OFF:
        return None
    if named:
        return Path(named)
    import platformdirs  # not needed if caching is off

    return platformdirs.user_cache_path("lms")


def digest(*parts: Any) -> str:
    """Return a name for values: dataclasses, numbers, texts, and their containers.

    Example:
        >>> digest({"b": 1, "a": (2.0, None)}) == digest({"a": (2.0, None), "b": 1})
        True
        >>> digest(1) == digest(2)
        False
    """
    text = msgspec.json.encode(parts, order="sorted")
    return hashlib.sha256(text).hexdigest()


@cache
def sources() -> str:
    """Return a digest of the installed lms: another version may plan differently."""
    root = Path(__file__).parents[1]
    found = sorted((str(p), p.stat()) for p in root.rglob("*.py"))
    return digest([(path, stat.st_size, stat.st_mtime_ns) for path, stat in found])


def read_entry(kind: str, name: str, of: type[T]) -> T | None:
    """Read an entry; None if it is missing, too old or not a valid `of`.

    The types of all values are checked.
    """
    path = _path(kind, name)
    if path is None:
        return None
    try:
        if time.time() - path.stat().st_mtime > _LONGEST:
            return None
        return msgspec.json.decode(path.read_bytes(), type=of)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        _LOG.warning("Could not read %s: %s. It is made anew.", path, error)
        return None


def write_entry(kind: str, name: str, value: Any) -> None:
    """Write a dataclass as an entry; delete the oldest beyond `_MOST`."""
    path = _path(kind, name)
    if path is None:
        return
    try:
        write_file(path, lambda file: file.write(msgspec.json.encode(value)))
        entries = sorted(path.parent.glob("[!p]*.json"), key=os.path.getmtime)
        for old in entries[:-_MOST]:
            old.unlink(missing_ok=True)
    except OSError as error:
        advice = f"Set {VARIABLE} to a folder that can be written, or to {OFF!r}."
        _LOG.warning("Could not write %s: %s. %s", path, error, advice)


def _path(kind: str, name: str) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / kind / f"{name}.json"
