"""Files of the case study: JSON and arrays, each complete or absent."""

import json
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lms.storage.files import DRAFT, as_data, write_file, write_text

__all__ = ["read_data", "read_json", "remove_drafts", "write_arrays", "write_json"]

T = TypeVar("T")


def read_data(
    path: Path,
    kind: type[T],
    *,
    part: str | None = None,
    rule: str,
    advice: str,
    exact: bool = True,
) -> T:
    """Read a dataclass from a JSON file.

    Args:
        path: The file.
        kind: The dataclass.
        part: Name of the field that holds the dataclass; None for the whole file.
        rule: The rule for the file, for the message.
        advice: The next step, for the message.
        exact: As for `as_data`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file holds anything else; names file, rule, value, advice.
    """
    content = read_json(path)
    try:
        if part is not None:
            content = as_data(content, dict[str, Any])[part]
        return as_data(content, kind, exact=exact)
    except KeyError as error:
        found = f"Object missing required field {error}"
        raise ValueError(f"`{path}` must {rule}, got: {found}. {advice}") from error
    except ValueError as error:
        raise ValueError(f"`{path}` must {rule}, got: {error}. {advice}") from error


def remove_drafts(folder: Path) -> None:
    """Delete half-written files of killed processes in a folder with one writer."""
    for draft in folder.glob(f"{DRAFT}*"):
        draft.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON; floats come back bit for bit."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

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
