"""An emulated card, described by the variables that its driver reads.

Sizes are bytes, rates bytes or operations per second. Work without a rate takes no
time. Memory is TensorFlow's limit: the driver reports more, by the bytes that
TensorFlow keeps for the system (`MinSystemMemory` in TensorFlow's gpu_device.cc).
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lms.machine import hardware
from lms.machine.hardware import PRESETS, Hardware, check_numbers, find_hardware
from lms.units import MIB, Bytes, Seconds, parse_size

__all__ = ["LINKS", "LinkRates", "card_variables", "checked_memory"]
__all__ += ["emulated_memory", "memory_variable"]

_MEMORY: Final = "LMS_CARD_MEMORY"
_MOST_CARDS: Final = 8

# Least memory of a card: TensorFlow's runtime itself takes 1 MiB.
_LEAST_MEMORY: Final[Bytes] = MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRates:
    """The link between the host and an emulated card.

    Args:
        h2d: Bytes per second from host to card.
        d2h: Bytes per second from card to host.
        latency: Fixed seconds of each copy.

    Raises:
        ValueError: If a rate is not above 0, or the latency is below 0.
    """

    h2d: float
    d2h: float
    latency: Seconds = 0.0

    def __post_init__(self) -> None:
        rule = "bytes per second above 0"
        check_numbers(self, ("h2d", "d2h"), rule, "Write a rate such as 12GB.")
        advice = "Leave it out if it is not known."
        check_numbers(self, ("latency",), "seconds, at least 0", advice, zero=True)


# Links by name, from pinned memory.
LINKS: Final[Mapping[str, LinkRates]] = {
    name: LinkRates(h2d=there, d2h=back, latency=1e-5)
    for name, (there, back) in hardware.LINKS.items()
}


def card_variables(  # noqa: PLR0913 - a card's properties
    memory: str | int | None = None,
    *,
    cards: int = 1,
    link: LinkRates | None = None,
    card: str | None = None,
    dry: bool = False,
    slow_motion: float = 1.0,
    timed: bool = True,
) -> dict[str, str]:
    """Return the variables of equal emulated cards.

    Args:
        memory: TensorFlow's limit on each card, such as "96MiB" or a number of bytes;
            None for the memory of `card`.
        cards: Number of cards, from 1 to 8.
        link: The link to the host; None for the link of `card`, else an unlimited one.
        card: Memory, rates and link: a name or numbers that
            `lms.machine.hardware.find_hardware` knows; None for a card whose kernels
            take as long as the CPU does.
        dry: Whether kernels compute nothing: memory and times are the step's, numbers
            are zeros. Needs `card`.
        slow_motion: Factor on all modelled times, at least 1. A large factor makes the
            host as fast beside the emulated card as beside a real one.
        timed: Whether work takes the time of `card`; else it takes none.

    Raises:
        TypeError: If `memory` is neither text nor a whole number.
        ValueError: If a value breaks its rule.

    Example:
        >>> card_variables("1.5GiB", cards=2)["LMS_CARD_MEMORY"]
        '1610612736'
    """
    known = _hardware(card, dry=dry)
    if memory is None and known is None:
        raise ValueError(
            "`memory` must be given without a card, got None. Write a size such as "
            "'96MiB'."
        )
    if cards not in range(1, _MOST_CARDS + 1):
        raise ValueError(
            f"`cards` must be from 1 to {_MOST_CARDS}, got {cards!r}. Write a whole "
            "number, or leave it out for 1."
        )
    if not 1 <= slow_motion < math.inf:
        raise ValueError(
            f"`slow_motion` must be at least 1, got {slow_motion}. Leave it out for 1."
        )
    count = known.memory if known else 0
    if memory is not None:
        count = parse_size(memory, name="memory")
    if count < _LEAST_MEMORY:
        raise ValueError(
            f"`memory` must be at least {_LEAST_MEMORY // MIB} MiB, which TensorFlow's "
            f"runtime takes itself, got {memory!r}. Write a size such as '96MiB'."
        )
    paced = link or (known if timed else None)
    return {
        _MEMORY: str(count),
        "LMS_CARD_COUNT": str(int(cards)),
        "LMS_CARD_DRY": "1" if dry else "0",
        "LMS_CARD_TIME_SCALE": repr(float(slow_motion)),
        **(_rates(known, timed=timed) if known else {}),
        **(_link(paced) if paced else {}),
    }


def memory_variable(memory: str | int) -> dict[str, str]:
    """Return the variable that sets a card's memory.

    Example:
        >>> memory_variable("2MiB")
        {'LMS_CARD_MEMORY': '2097152'}
    """
    return {_MEMORY: card_variables(memory)[_MEMORY]}


def checked_memory(text: str) -> str:
    """Return a card's memory as it is written.

    Raises:
        ValueError: If it is no size, or too small for a card.
    """
    card_variables(text)
    return text


def emulated_memory(environ: Mapping[str, str] = os.environ) -> Bytes | None:
    """Return the memory of this process's emulated card; None without a card."""
    text = environ.get(_MEMORY)
    return None if text is None else int(text)


def _hardware(card: str | None, *, dry: bool) -> Hardware | None:
    if card is None and dry:
        raise ValueError(
            "`card` must be named for a dry card, got None. Name one of "
            f"{', '.join(PRESETS)}."
        )
    return None if card is None else find_hardware(card)


def _rates(hardware: Hardware, *, timed: bool) -> dict[str, str]:
    kind = {"LMS_CARD_CAPABILITY": str(hardware.capability)}
    if not timed:
        return kind
    return {
        **kind,
        "LMS_CARD_FLOPS": repr(hardware.flops),
        "LMS_CARD_HALF_FLOPS": repr(hardware.rate_of("float16")),
        "LMS_CARD_BFLOAT16_FLOPS": repr(hardware.rate_of("bfloat16")),
        "LMS_CARD_BANDWIDTH": repr(hardware.memory_bandwidth),
    }


def _link(link: LinkRates | Hardware) -> dict[str, str]:
    return {
        "LMS_CARD_H2D": repr(float(link.h2d)),
        "LMS_CARD_D2H": repr(float(link.d2h)),
        "LMS_CARD_LATENCY": repr(float(link.latency)),
    }
