"""An emulated card, described by the variables that its driver reads.

Sizes are bytes, rates bytes or operations per second. A rate that is not given takes no
time. Memory is what TensorFlow may use: the driver reports more, by what TensorFlow
keeps for the system (`MinSystemMemory` in TensorFlow's gpu_device.cc).
"""

import math
import os
from collections.abc import Mapping
from typing import Final

from lms.machine.hardware import PRESETS, Hardware, LinkRates
from lms.units import MIB, Bytes, parse_size

__all__ = ["CAPABILITIES", "card_variables", "emulated_memory", "memory_variable"]

_MEMORY: Final = "LMS_CARD_MEMORY"
_MOST_CARDS: Final = 8

# Below this TensorFlow's runtime itself finds no room.
_LEAST_MEMORY: Final[Bytes] = MIB

# CUDA's compute capability times ten, by the beginning of a preset's name: from 80 on
# TensorFlow leaves the channels of float32 convolutions last.
CAPABILITIES: Final[Mapping[str, int]] = {
    "v100": 70,
    "t4": 75,
    "a100": 80,
    "a10": 86,
    "rtx-a6000": 86,
    "rtx-3090": 86,
    "l4": 89,
    "rtx-4090": 89,
    "h100": 90,
    "h200": 90,
    "gh200": 90,
    "rtx-5090": 120,
}


def card_variables(
    memory: str | int | None = None,
    *,
    cards: int = 1,
    link: LinkRates | None = None,
    card: str | None = None,
    dry: bool = False,
    slow_motion: float = 1.0,
) -> dict[str, str]:
    """The variables of emulated cards that are alike.

    Args:
        memory: What TensorFlow may use of each card, such as "96MiB" or a number of
            bytes; None for that of `card`.
        cards: How many there are, from 1 to 8.
        link: The link to the host; None for that of `card`, or one without a limit.
        card: A preset whose memory, rates and link are taken; None for a card whose
            kernels take as long as the CPU does.
        dry: Whether nothing is computed: sizes and times are those of a step at its
            true size, numbers are zeros. Needs `card`.
        slow_motion: How many times as long all that is modelled takes: at least 1.
            Large enough, the host looks as fast as it is beside a card.

    Raises:
        TypeError: If `memory` is neither text nor a whole number.
        ValueError: If a value breaks its rule.

    Example:
        >>> card_variables("1.5GiB", cards=2)["LMS_CARD_MEMORY"]
        '1610612736'
    """
    hardware = _hardware(card, dry=dry)
    if memory is None and hardware is None:
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
    count = hardware.memory if hardware else 0
    if memory is not None:
        count = parse_size(memory, name="memory")
    if count < _LEAST_MEMORY:
        raise ValueError(
            f"`memory` must be at least {_LEAST_MEMORY // MIB} MiB, which TensorFlow's "
            f"runtime takes itself, got {memory!r}. Write a size such as '96MiB'."
        )
    paced = link or hardware
    return {
        _MEMORY: str(count),
        "LMS_CARD_COUNT": str(int(cards)),
        "LMS_CARD_DRY": "1" if dry else "0",
        "LMS_CARD_TIME_SCALE": repr(float(slow_motion)),
        **(_rates(card or "", hardware) if hardware else {}),
        **(_link(paced) if paced else {}),
    }


def memory_variable(memory: str | int) -> dict[str, str]:
    """The one variable in which cards of different memory differ; else as above.

    Example:
        >>> memory_variable("2MiB")
        {'LMS_CARD_MEMORY': '2097152'}
    """
    return {_MEMORY: card_variables(memory)[_MEMORY]}


def emulated_memory(environ: Mapping[str, str] = os.environ) -> Bytes | None:
    """Memory of the emulated card that a process was started with; None without one."""
    text = environ.get(_MEMORY)
    return None if text is None else int(text)


def _hardware(card: str | None, *, dry: bool) -> Hardware | None:
    if card is None and dry:
        raise ValueError(
            "`card` must be named where nothing is computed, got None. Name one of "
            f"{', '.join(PRESETS)}."
        )
    if card is not None and card not in PRESETS:
        raise ValueError(
            f"`card` must be one of {', '.join(PRESETS)}, got {card!r}. Or give "
            "`memory` alone."
        )
    return None if card is None else PRESETS[card]


def _rates(card: str, hardware: Hardware) -> dict[str, str]:
    names = (name for name in CAPABILITIES if card.startswith(name))
    return {
        "LMS_CARD_CAPABILITY": str(CAPABILITIES[max(names, key=len)]),
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
