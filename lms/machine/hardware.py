"""A device and the link to its host, as numbers; presets; seconds of ops.

A preset's memory is the part of the card that TensorFlow may use: CUDA's free memory,
less the bytes that TensorFlow leaves to the system, by compute capability
(`MinSystemMemory` in gpu_device.cc). It is what TensorFlow's logs state, or computed,
with 450 MiB for CUDA's context.

FLOP rates are the dense ones of NVIDIA's data sheets. From capability 8 on, float32 is
TF32, as TensorFlow computes convolutions and matrix products there. GeForce cards
accumulate float16 products in float32 at half of the advertised rate: twice their TF32
rate, which is that of their CUDA cores (2 x cores x boost clock). V100 and T4 have
neither TF32 nor bfloat16. A P100 accumulates in float32 at the rate of float32.

Seconds of ops are measured, or those of a roofline: the larger of an op's arithmetic
over the device's rate and its bytes over the rate of the device's memory (Williams,
Waterman, Patterson: "Roofline: an insightful visual performance model", CACM 52(4),
2009). Arithmetic is `Op.flops`, at the rate of the output's type; an op without flops
only moves bytes.

Known weakness: a roofline is the hardware's limit; kernels reach a part of it.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from lms.ir.graph import GraphView, Op
from lms.ir.recompute import original_name
from lms.units import MIB, Bytes, Seconds, parse_size

__all__ = ["BUILT_FOR", "LINKS", "PRESETS", "Costs", "Hardware", "check_numbers"]
__all__ += ["find_hardware", "moved_bytes", "roofline"]

# The newest major compute capability that TensorFlow 2.21's wheel holds code for
# (`tf.sysconfig.get_build_info`: 6.0, 7.0, 8.0, 8.9 and 9.0).
BUILT_FOR: Final = 9


def check_numbers(
    owner: object, names: Sequence[str], rule: str, advice: str, *, zero: bool = False
) -> None:
    """Refuse values that are not finite and above 0; `zero` allows 0."""
    for name in names:
        value = getattr(owner, name)
        if not (0 < value < math.inf or (zero and value == 0)):
            raise ValueError(f"`{name}` must be {rule}, got {value}. {advice}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One device and its link to the host.

    Args:
        name: A readable name.
        memory: Bytes of device memory.
        flops: Floating-point operations per second of convolutions and products of
            float32, as TensorFlow computes them: in TF32 where the device has it.
        memory_bandwidth: Bytes per second of device memory.
        h2d: Bytes per second from host to device.
        d2h: Bytes per second from device to host.
        latency: Fixed seconds of each copy, until the host knows that it has ended.
        launch: Seconds that the host needs to start one op.
        float16_flops: `flops` of float16; 0 where it is as fast as float32.
        bfloat16_flops: `flops` of bfloat16; 0 where it is as fast as float32.
        capability: CUDA's compute capability times ten; 0 if unknown.
        source: Where the numbers come from.
    """

    name: str
    memory: Bytes
    flops: float
    memory_bandwidth: float
    h2d: float
    d2h: float
    latency: Seconds = 0.0
    launch: Seconds = 0.0
    float16_flops: float = 0.0
    bfloat16_flops: float = 0.0
    capability: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        rates = ("memory", "flops", "memory_bandwidth", "h2d", "d2h")
        check_numbers(self, rates, "positive", "Give it in bytes, or per second.")
        others = ("float16_flops", "bfloat16_flops", "latency", "launch")
        advice = "Leave it out if it is not known."
        check_numbers(self, others, "at least 0", advice, zero=True)

    @property
    def support(self) -> str:
        """Code that TensorFlow lacks for this device; empty if it has all."""
        if self.capability < 10 * (BUILT_FOR + 1):
            return ""
        number = f"{self.capability // 10}.{self.capability % 10}"
        return (
            f"TensorFlow has no code for its compute capability {number}: the first "
            "run compiles all kernels for tens of minutes, or fails"
        )

    def rate_of(self, dtype: str) -> float:
        """Return the floating-point operations per second of an element type."""
        known = {"float16": self.float16_flops, "bfloat16": self.bfloat16_flops}
        return known.get(dtype) or self.flops

    def copy_seconds(self, size: Bytes, *, to_device: bool) -> Seconds:
        """Return the seconds of one copy on an idle link."""
        return self.latency + size / (self.h2d if to_device else self.d2h)


# Seconds of a copy of a few bytes: the driver, a polled event, and the way through two
# threads (device_event_mgr.cc).
_LATENCY: Final = 80e-6

# Seconds to start one kernel from TensorFlow's executor.
_LAUNCH: Final = 10e-6

# MiB that TensorFlow leaves to the system, by major compute capability, MiB of CUDA's
# context, and the part of a card's memory that the driver keeps (ECC aside): 1/50.
_LEFT: Final = {6: 500, 7: 1050, 8: 1536, 9: 1800, 12: 1800}
_CONTEXT: Final = 450
_KEPT: Final = 50

# Bytes per second to the device and back that others measured from pinned memory, one
# direction at a time: PCIe x16 of three generations and half of it for 8 lanes, NVLink
# 2.0 x3 (IBM AC922), NVLink-C2C (GH200).
LINKS: Final[Mapping[str, tuple[float, float]]] = {
    "pcie3": (12e9, 12e9),
    "pcie4": (25e9, 25e9),
    "pcie5": (52e9, 52e9),
    "pcie3x8": (6e9, 6e9),
    "pcie4x8": (12.5e9, 12.5e9),
    "pcie5x8": (26e9, 26e9),
    "nvlink2": (64e9, 64e9),
    "c2c": (375e9, 297e9),
}

# An example of a card by its numbers, and the capability where none is given.
_BY_NUMBERS: Final = "12GiB,12.7TF,360GB/s,pcie4"
_USUAL: Final = 86


def _read() -> Iterator[tuple[str, Hardware]]:
    sheet, text = "", files("lms.machine").joinpath("cards.txt").read_text("utf-8")
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if not name or name[0] == "#":
            sheet = rest
            continue
        *words, mib, number, single, half, brain, memory, link = rest.split()
        capability, is_seen = int(number.replace(".", "")), mib.endswith("*")
        usable = int(mib.rstrip("*"))
        usable -= 0 if is_seen else _LEFT[capability // 10] + _CONTEXT
        yield (
            name,
            _card(
                name=" ".join(words),
                memory=usable * MIB,
                flops=[float(rate) * 1e12 for rate in (single, half, brain)],
                bandwidth=float(memory) * 1e9,
                link=link,
                capability=capability,
                source=f"NVIDIA's {sheet}; the link as measured by others; memory as "
                f"TensorFlow {'reports it' if is_seen else 'would leave it'}",
            ),
        )


def _card(
    *, flops: Sequence[float], bandwidth: float, link: str, **more: Any
) -> Hardware:
    return Hardware(
        flops=flops[0],
        float16_flops=flops[1],
        bfloat16_flops=flops[2],
        memory_bandwidth=bandwidth,
        h2d=LINKS[link][0],
        d2h=LINKS[link][1],
        latency=_LATENCY,
        launch=_LAUNCH,
        **more,
    )


PRESETS: Final[Mapping[str, Hardware]] = MappingProxyType(dict(_read()))


def find_hardware(text: str) -> Hardware:
    """Return a card of the table, or the card that numbers describe.

    Args:
        text: A name, in any case, or numbers with commas between: memory as on the box,
            TFLOP/s of float32 (and of float16, if it differs), GB/s of its memory, the
            link, and the compute capability, 8.6 unless given.

    Raises:
        ValueError: If there is no such card, or a number is missing or unknown.

    Example:
        >>> find_hardware("RTX 3060").name
        'GeForce RTX 3060 12 GB, PCIe 4.0 x16'
        >>> find_hardware("12GiB,12.7TF,360GB/s,pcie4").flops
        12700000000000.0
    """
    if "," in text:
        return _by_numbers(text)
    plain = {re.sub(r"[^a-z0-9]", "", name): name for name in PRESETS}
    key = re.sub(r"[^a-z0-9]", "", text.lower())
    if key in plain:
        return PRESETS[plain[key]]
    near = [name for one, name in plain.items() if key and one.startswith(key)]
    near = near or [plain[one] for one in get_close_matches(key, plain)]
    meant = f"Did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(
        f"a card must be one of {', '.join(PRESETS)}, got {text!r}. {meant}"
        f"Describe any other card by its numbers: '{_BY_NUMBERS}'."
    )


def _by_numbers(text: str) -> Hardware:
    found: dict[str, Any] = {"flops": [], "capability": _USUAL}
    for part in (one.strip() for one in text.split(",")):
        if number := re.fullmatch(
            r"([0-9]+(?:[.][0-9]+)?) *TF(LOPS|LOP/s)?", part, re.IGNORECASE
        ):
            found["flops"].append(float(number[1]) * 1e12)
        elif part.lower() in LINKS:
            found["link"] = part.lower()
        elif re.fullmatch(r"[0-9]{1,2}\.[0-9]", part):
            found["capability"] = int(part.replace(".", ""))
        elif part.lower().endswith("/s"):
            found["bandwidth"] = float(parse_size(part[:-2], name="memory bandwidth"))
        else:
            found["memory"] = parse_size(part, name="memory of a card")
    missing = {"memory", "flops", "bandwidth", "link"} - {k for k in found if found[k]}
    if missing or len(found["flops"]) > 2 or len(found) + len(found["flops"]) < 6:
        raise ValueError(
            f"a card must have memory, TFLOP/s, GB/s and a link ({', '.join(LINKS)}), "
            f"got {text!r}. Write such as '{_BY_NUMBERS}'."
        )
    major, flops = found["capability"] // 10, [*found["flops"], found["flops"][-1]]
    if major not in _LEFT:
        raise ValueError(
            f"the compute capability must be of {', '.join(map(str, _LEFT))}, got "
            f"{text!r}. Leave it out for {_USUAL / 10}."
        )
    memory = found["memory"] - found["memory"] // _KEPT
    memory -= (_LEFT[major] + _CONTEXT) * MIB
    if memory <= 0:
        raise ValueError(
            f"the memory of a card must exceed the {_LEFT[major] + _CONTEXT} MiB that "
            f"TensorFlow and CUDA keep, got {text!r}. Write the card's whole memory."
        )
    found["memory"] = memory
    found["flops"] = [flops[0], flops[1], flops[1] * (major >= 8)]
    found["source"] = "given; memory as TensorFlow would leave it"
    return _card(name=text, **found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of each op on one device.

    Args:
        seconds: By op name; an op that is missing takes none.
        source: "measured" or "roofline", for reports.
    """

    seconds: Mapping[str, Seconds]
    source: str

    def of(self, name: str) -> Seconds:
        """Return the seconds of an op or of its recomputed copy."""
        return self.seconds.get(original_name(name), 0.0)

    @property
    def total(self) -> Seconds:
        """Seconds of all ops one after the other."""
        return sum(self.seconds.values())


def roofline(graph: GraphView, hardware: Hardware) -> Costs:
    """Estimate costs by a roofline, without running anything."""
    seconds = {
        op.name: max(
            op.flops / hardware.rate_of(op.outputs[0].dtype if op.outputs else ""),
            moved_bytes(graph, op) / hardware.memory_bandwidth,
        )
        for op in graph.ops
        if op.alias is None and not op.persistent
    }
    return Costs(seconds=seconds, source="roofline")


def moved_bytes(graph: GraphView, op: Op) -> int:
    """Return the bytes that an op reads and writes, each tensor once."""
    read = sum(graph.tensors[name].size for name in dict.fromkeys(op.inputs))
    return read + sum(tensor.size for tensor in op.outputs)
