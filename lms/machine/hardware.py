"""A device and the link to its host, as numbers; presets; seconds of ops.

A preset's memory is the part of the card that TensorFlow may use: CUDA's free memory,
less the bytes that TensorFlow leaves to the system, by compute capability
(`MinSystemMemory` in gpu_device.cc). TensorFlow's logs state it for the T4, V100 of
32 GB and A100; for other cards it is computed, with 450 MiB for CUDA's context.

FLOP rates are the dense ones of NVIDIA's data sheets. From capability 8 on, float32 is
TF32, as TensorFlow computes convolutions and matrix products there. GeForce cards
accumulate float16 products in float32 at half of the advertised rate. V100 and T4 have
neither TF32 nor bfloat16.

Seconds of ops are measured, or those of a roofline: the larger of an op's arithmetic
over the device's rate and its bytes over the rate of the device's memory (Williams,
Waterman, Patterson: "Roofline: an insightful visual performance model", CACM 52(4),
2009). Arithmetic is `Op.flops`, at the rate of the output's type; an op without flops
only moves bytes.

Known weaknesses: a roofline is the hardware's limit; kernels reach a part of it.
TensorFlow 2.21 has no code for the RTX 5090's capability: kernels are compiled when
they are first used, which takes tens of minutes, or fails.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from lms.ir.graph import GraphView, Op
from lms.ir.recompute import original_name
from lms.units import MIB, Bytes, Seconds

__all__ = ["PRESETS", "Costs", "Hardware", "check_numbers", "moved_bytes", "roofline"]


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
    source: str = ""

    def __post_init__(self) -> None:
        rates = ("memory", "flops", "memory_bandwidth", "h2d", "d2h")
        check_numbers(self, rates, "positive", "Give it in bytes, or per second.")
        others = ("float16_flops", "bfloat16_flops", "latency", "launch")
        advice = "Leave it out if it is not known."
        check_numbers(self, others, "at least 0", advice, zero=True)

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

# MiB that TensorFlow leaves to the system, by major compute capability, and MiB of
# CUDA's context.
_LEFT: Final = {7: 1050, 8: 1536, 9: 1800, 12: 1800}
_CONTEXT: Final = 450

# Usable MiB by TensorFlow's logs, for cards whose log was seen.
_SEEN: Final = {
    "t4": 13_664,
    "a100-pcie4": 38_367,
    "v100-32-pcie": 30_987,
    "v100-32-nvlink": 30_987,
}

# Name, readable name, MiB that CUDA counts, major capability, TFLOP/s of float32,
# float16 and bfloat16, GB/s of its memory, to the device, and back.
_CARDS: Final = """
v100-pcie       V100 16 GB, PCIe 3.0 x16               16160  7  14.0 112.0   0.0   900  12  12
v100-32-pcie    V100 32 GB, PCIe 3.0 x16               32510  7  14.0 112.0   0.0   900  12  12
v100-nvlink     V100 16 GB, NVLink 2.0 (AC922)         16160  7  15.7 125.0   0.0   900  64  64
v100-32-nvlink  V100 32 GB, NVLink 2.0 (AC922)         32510  7  15.7 125.0   0.0   900  64  64
a100-pcie4      A100 40 GB, PCIe 4.0 x16               40354  8 156.0 312.0 312.0  1555  25  25
a100-80-pcie4   A100 80 GB, PCIe 4.0 x16               81251  8 156.0 312.0 312.0  1935  25  25
h100-sxm        H100 SXM 80 GB, PCIe 5.0 x16           81090  9 494.0 989.0 989.0  3350  52  52
h100-pcie       H100 PCIe 80 GB, PCIe 5.0 x16          81090  9 378.0 756.0 756.0  2000  52  52
h200            H200 SXM 141 GB, PCIe 5.0 x16         143155  9 494.0 989.0 989.0  4800  52  52
gh200           GH200 96 GB, NVLink-C2C                97280  9 494.0 989.0 989.0  4000 375 297
t4              T4 16 GB, PCIe 3.0 x16                 15109  7   8.1  65.0   0.0   320  12  12
l4              L4 24 GB, PCIe 4.0 x16                 22478  8  60.0 121.0 121.0   300  25  25
a10             A10 24 GB, PCIe 4.0 x16                22731  8  62.5 125.0 125.0   600  25  25
rtx-a6000       RTX A6000 48 GB, PCIe 4.0 x16          48682  8  77.4 154.8 154.8   768  25  25
rtx-3090        GeForce RTX 3090 24 GB, PCIe 4.0 x16   24268  8  35.6  71.0  71.0   936  25  25
rtx-4090        GeForce RTX 4090 24 GB, PCIe 4.0 x16   24210  8  82.6 165.2 165.2  1008  25  25
rtx-5090        GeForce RTX 5090 32 GB, PCIe 5.0 x16   32120 12 104.8 209.5 209.5  1792  52  52
"""  # noqa: E501 - a line a card


def _read() -> Iterator[tuple[str, Hardware]]:
    for line in _CARDS.strip().splitlines():
        name, _, rest = line.partition(" ")
        *words, mib, capability, single, half, brain, memory, h2d, d2h = rest.split()
        seen = _SEEN.get(name)
        usable = seen or int(mib) - _LEFT[int(capability)] - _CONTEXT
        yield (
            name,
            Hardware(
                name=" ".join(words),
                memory=usable * MIB,
                flops=float(single) * 1e12,
                float16_flops=float(half) * 1e12,
                bfloat16_flops=float(brain) * 1e12,
                memory_bandwidth=float(memory) * 1e9,
                h2d=float(h2d) * 1e9,
                d2h=float(d2h) * 1e9,
                latency=_LATENCY,
                launch=_LAUNCH,
                source="NVIDIA's data sheet; the link as measured by others; memory as "
                f"TensorFlow {'reports it' if seen else 'would leave it'}",
            ),
        )


PRESETS: Final[Mapping[str, Hardware]] = MappingProxyType(dict(_read()))


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
