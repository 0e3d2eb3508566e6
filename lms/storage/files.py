"""Writes files so that each is complete or absent, also after a kill or a full disk.

A file is written beside its place under a name of this process, forced to the disk and
then renamed; a rename is atomic.

Known weakness: a killed process leaves its `partial-*` file behind, until somebody
calls `remove_drafts`.

JSON is read into frozen dataclasses by msgspec: every value's type is checked. msgspec
leaves out fields that it does not know; those of the outermost dataclass are refused
here, those of dataclasses within are not.
"""

import json
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DRAFT",
    "as_data",
    "draft_of",
    "from_json",
    "read_data",
    "read_json",
    "remove_drafts",
    "write_arrays",
    "write_file",
    "write_json",
    "write_text",
]

T = TypeVar("T")


# Names of files begin with this while they are written.
DRAFT = "partial-"


def from_json(text: str, kind: type[T]) -> T:
    """A dataclass from the JSON of its fields.

    Args:
        text: The JSON.
        kind: The dataclass.

    Raises:
        ValueError: If the text is no JSON, or as `as_data` says.

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
    """A dataclass from its fields by name, as JSON has them.

    Args:
        value: Of dicts, lists, texts and numbers.
        kind: The dataclass.
        exact: Whether fields that the dataclass lacks are refused, or left out.

    Raises:
        ValueError: If a value is missing, unknown or of the wrong type; says which one,
            or what the dataclass itself says of it.
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


def read_data(
    path: Path,
    kind: type[T],
    *,
    part: str | None = None,
    rule: str,
    advice: str,
    exact: bool = True,
) -> T:
    """A dataclass from a file of JSON.

    Args:
        path: The file.
        kind: The dataclass.
        part: The name in the file under which its fields lie; None for the whole file.
        rule: What the file must do, for the message.
        advice: What to do if it does not.
        exact: As for `as_data`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is something else; names file, rule, value and advice.
    """
    content = read_json(path)
    try:
        if part is None:
            return as_data(content, kind, exact=exact)
        return as_data(as_data(content, dict[str, Any])[part], kind, exact=exact)
    except KeyError as error:
        found = f"Object missing required field {error}"
        raise ValueError(f"`{path}` must {rule}, got: {found}. {advice}") from error
    except ValueError as error:
        raise ValueError(f"`{path}` must {rule}, got: {error}. {advice}") from error


def write_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file through `write`; its folder is made if missing.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "new" / "greeting"
        >>> write_file(path, lambda file: file.write(b"hello"))
        >>> [p.name for p in path.parent.iterdir()], path.read_text()
        (['greeting'], 'hello')
    """
    with draft_of(path) as draft, draft.open("wb") as file:
        write(file)


@contextmanager
def draft_of(path: Path) -> Generator[Path, None, None]:
    """A path to write to instead, for libraries that open files themselves.

    It takes the place of `path` at the end; after an error it is deleted. An `OSError`
    names `path`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "greeting.txt"
        >>> with draft_of(path) as draft:
        ...     _ = draft.write_text("hello")
        >>> [p.name for p in path.parent.iterdir()]
        ['greeting.txt']
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The name keeps its end: some writers choose the format by it.
    draft = path.with_name(f"{DRAFT}{os.getpid()}-{path.name}")
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        if error.errno is not None:  # writes name no file, and others the draft
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        draft.unlink(missing_ok=True)


def remove_drafts(folder: Path) -> None:
    """Delete what killed processes left half-written in a folder of one writer."""
    for draft in folder.glob(f"{DRAFT}*"):
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text."""
    write_file(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON; floats come back bit for bit."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def read_json(path: Path) -> Any:
    """Read what `write_json` wrote.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"`{path}` must be JSON, got a file that is not ({error}). "
            "Restore it or make it again."
        ) from error


def write_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Write named arrays as an uncompressed npz file."""
    write_file(path, lambda file: np.savez(file, allow_pickle=False, **arrays))
