"""Sizes are bytes and times are seconds; only this file divides by 1024.

Binary prefixes (KiB, MiB, GiB, TiB) are powers of 1024 and decimal prefixes
(KB, MB, GB, TB) powers of 1000, as in IEC 80000-13. A bare letter (K, M, G, T) is
binary, as on the command lines of most memory tools. Case does not matter.
"""

import math
import numbers
import re
from fractions import Fraction
from typing import Final, SupportsIndex, TypeAlias

__all__ = ["GIB", "KIB", "MIB", "TIB", "Bytes", "Seconds", "format_bytes"]
__all__ += ["format_seconds", "parse_size"]

Bytes: TypeAlias = int
Seconds: TypeAlias = float

KIB: Final[Bytes] = 1024
MIB: Final[Bytes] = 1024 * KIB
GIB: Final[Bytes] = 1024 * MIB
TIB: Final[Bytes] = 1024 * GIB

_BINARY: Final = {"K": KIB, "M": MIB, "G": GIB, "T": TIB}
_SCALES: Final[dict[str, Bytes]] = (
    {"": 1, "B": 1}
    | _BINARY
    | {f"{prefix}IB": scale for prefix, scale in _BINARY.items()}
    | {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", start=1)}
)

# At most 20 digits before and after the point: enough for any size, fast to parse.
_SIZE: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-z]*)")


def parse_size(size: str | SupportsIndex, *, name: str = "size") -> Bytes:
    """Read a size that a person wrote.

    Args:
        size: A text such as "1.5GiB" or "96 MB", or a whole number of bytes (NumPy
            integers too). A fraction of a byte is dropped. A text without a unit counts
            bytes, but must be at least 1 MiB: "24" is probably not meant as 24 bytes.
        name: The argument's name, for the error message.

    Returns:
        The size in bytes, at least 1.

    Raises:
        TypeError: If `size` is neither text nor a whole number.
        ValueError: If `size` is less than one byte or is not a size.

    Example:
        >>> parse_size("1.5 GiB"), parse_size("96MB"), parse_size(1024)
        (1610612736, 96000000, 1024)
    """
    if isinstance(size, str):
        count = _count_bytes(size, name)
    elif isinstance(size, bool) or not isinstance(size, numbers.Integral):
        raise TypeError(
            f"`{name}` must be text such as '1.5GiB' or a whole number of bytes, "
            f"got {size!r} of type {type(size).__name__}. Write the unit in a text, "
            "or convert the number of bytes with int()."
        )
    else:
        count = int(size)
    if count < 1:
        raise ValueError(
            f"`{name}` must be at least 1 byte, got {size!r}. "
            "Write a positive size such as '1.5GiB'."
        )
    return count


def format_bytes(count: SupportsIndex, *, at_least: bool = False) -> str:
    """Write a number of bytes for people, in the largest unit that fits.

    Args:
        count: Bytes; a difference of sizes may be negative.
        at_least: Whether to round up, so that a size that is enough stays enough.

    Returns:
        Two rounded decimals and a binary unit, or whole bytes below 1 KiB.

    Example:
        >>> format_bytes(1610612736), format_bytes(-2048), format_bytes(512)
        ('1.50 GiB', '-2.00 KiB', '512 B')
        >>> format_bytes(1025), format_bytes(1025, at_least=True)
        ('1.00 KiB', '1.01 KiB')
    """
    whole = int(count)
    if abs(whole) < KIB:
        return f"{whole} B"
    for scale, unit in ((KIB, "KiB"), (MIB, "MiB"), (GIB, "GiB"), (TIB, "TiB")):
        hundredths = Fraction(100 * whole, scale)
        rounded = math.ceil(hundredths) if at_least else round(hundredths)
        if abs(rounded) < 1024 * 100 or unit == "TiB":
            break
    return f"{rounded / 100:.2f} {unit}"


def format_seconds(seconds: Seconds) -> str:
    """Write a time for people: seconds, or milliseconds below one.

    Example:
        >>> format_seconds(1.5), format_seconds(0.0123)
        ('1.50 s', '12.3 ms')
    """
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _count_bytes(text: str, name: str) -> Bytes:
    """Parse a text into bytes; a sign is refused."""
    match = _SIZE.fullmatch(text.strip())
    number, unit = match.groups() if match else ("", "?")
    scale = _SCALES.get(unit.upper())
    if scale is None or (scale == 1 and "." in number):
        raise ValueError(
            f"`{name}` must be a size such as '1.5GiB', got {text!r}. Write a number "
            "and a unit: B, KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, GB, TB "
            "(powers of 1000)."
        )
    count = int(Fraction(number) * scale)
    if not unit and count < MIB:
        raise ValueError(
            f"`{name}` must be a size such as '1.5GiB', got {text!r}. Write "
            f"'{number}GiB', or '{number}B' if bytes are meant."
        )
    return count
