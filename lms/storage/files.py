"""Writes of files, each complete or absent, also after a kill or a full disk.

A file is written under a temporary name in its folder, flushed to the disk and then
renamed; a rename is atomic.

Known weakness: a killed process leaves its `partial-*` file behind.

msgspec reads JSON into frozen dataclasses and checks every value's type. It ignores
unknown fields; this file refuses them in the outermost dataclass, not in nested ones.
"""

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import msgspec

__all__ = ["DRAFT", "as_data", "draft_of", "from_json", "write_file", "write_text"]

T = TypeVar("T")

# Prefix of a file's name while the file is written.
DRAFT = "partial-"


def from_json(text: str, kind: type[T]) -> T:
    """Read a dataclass from JSON text.

    Raises:
        ValueError: If the text is no JSON, or as for `as_data`.

    Example:
        >>> from_json('{"sizes": [1, "2"]}', dict[str, list[int]])
        Traceback (most recent call last):
        ...
        ValueError: Expected `int`, got `str` - at `$[...][1]`
    """
    try:
        return as_data(msgspec.json.decode(text), kind)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


def as_data(value: Any, kind: type[T], *, exact: bool = True) -> T:
    """Convert data, as JSON has it, to a dataclass; `exact` refuses unknown fields.

    Raises:
        ValueError: If a field is missing, unknown, of the wrong type, or refused by the
            dataclass; says which field or why.
    """
    if exact and is_dataclass(kind) and isinstance(value, Mapping):
        known = {field.name for field in fields(kind)}
        unknown = [name for name in cast(Mapping[str, Any], value) if name not in known]
        if unknown:
            raise ValueError(f"Object contains unknown field `{unknown[0]}`")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def write_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file through `write`; its folder is made if missing."""
    with draft_of(path) as draft, draft.open("wb") as file:
        write(file)


@contextmanager
def draft_of(path: Path) -> Generator[Path, None, None]:
    """Yield a temporary path that is renamed to `path` at the end.

    For libraries that open files themselves. After an error the temporary file is
    deleted. An `OSError` names `path`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "greeting.txt"
        >>> with draft_of(path) as draft:
        ...     _ = draft.write_text("hello")
        >>> [p.name for p in path.parent.iterdir()]
        ['greeting.txt']
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The name keeps its suffix: some writers choose the format by it.
    draft = path.with_name(f"{DRAFT}{os.getpid()}-{path.name}")
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        if error.errno is not None:  # it names no file, or the temporary one
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text."""
    write_file(path, lambda file: file.write(text.encode()))
