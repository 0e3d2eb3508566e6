"""From JSON to frozen dataclasses, by msgspec: every value's type is checked.

Known weakness: msgspec leaves out fields that it does not know. Those of the outermost
dataclass are refused here; those of dataclasses within are not.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from lms.storage.files import read_json

__all__ = ["as_data", "from_json", "read_data"]

T = TypeVar("T")


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
