"""From JSON to frozen dataclasses, by msgspec: every value's type is checked."""

from typing import TypeVar

import msgspec

__all__ = ["from_json"]

T = TypeVar("T")


def from_json(text: str, kind: type[T]) -> T:
    """A dataclass from the JSON of its fields; unknown fields are left out.

    Args:
        text: The JSON.
        kind: The dataclass.

    Raises:
        ValueError: If the text is no JSON, or a value is missing or of the wrong type;
            says which one, or what the dataclass itself says of it.

    Example:
        >>> from_json('{"sizes": [1, "2"]}', dict[str, list[int]])
        Traceback (most recent call last):
        ...
        ValueError: Expected `int`, got `str` - at `$[...][1]`
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
