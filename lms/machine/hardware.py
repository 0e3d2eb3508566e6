"""Devices and the links between them and their hosts, as numbers.

Rates of the presets are what the maker states for the device and what others measured
for the link (pinned memory, one direction); `source` says which.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Final

from lms.storage.json_data import from_json
from lms.units import GIB, Bytes, Seconds

__all__ = ["PRESETS", "Hardware", "preset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One device and its link to the host.

    Args:
        name: What people call it.
        memory: Bytes of device memory.
        flops: Floating-point operations per second of convolutions and products of
            float32, as TensorFlow computes them: in TF32 where the device has it.
        memory_bandwidth: Bytes per second of device memory.
        h2d: Bytes per second from host to device.
        d2h: Bytes per second from device to host.
        latency: Seconds that each copy takes besides its bytes.
        launch: Seconds that the host needs to start one op.
        asynchronous: Whether the host starts ops ahead of the device, as it does on
            GPUs: a copy then waits for all ops started before it.
        copy_load: Seconds of computing that each byte copied costs: none where copy
            engines copy, as GPUs have.
        float16_flops: The same of float16; 0 where it is as fast as float32.
        bfloat16_flops: The same of bfloat16; 0 where it is as fast as float32.
        source: Where the numbers come from.

    Example:
        >>> preset("v100-pcie").copy_seconds(12_000_000_000, to_device=True)
        1.00001
    """

    name: str
    memory: Bytes
    flops: float
    memory_bandwidth: float
    h2d: float
    d2h: float
    latency: Seconds = 0.0
    launch: Seconds = 0.0
    asynchronous: bool = True
    copy_load: Seconds = 0.0
    float16_flops: float = 0.0
    bfloat16_flops: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        """Check the rates."""
        for name in ("memory", "flops", "memory_bandwidth", "h2d", "d2h"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"`{name}` must be positive, got {getattr(self, name)}. "
                    "Give it in bytes, or per second."
                )
        for name in ("float16_flops", "bfloat16_flops"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"`{name}` must be at least 0, got {getattr(self, name)}. "
                    "Leave it out if it is as fast as float32."
                )
        for name in ("latency", "launch", "copy_load"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"`{name}` must be seconds, at least 0, got {getattr(self, name)}. "
                    "Leave it out if it is not known."
                )

    def rate_of(self, dtype: str) -> float:
        """Floating-point operations per second of products of a type.

        Example:
            >>> card = preset("v100-pcie")
            >>> [card.rate_of(name) / 1e12 for name in ("float32", "float16")]
            [14.0, 112.0]
        """
        known = {"float16": self.float16_flops, "bfloat16": self.bfloat16_flops}
        return known.get(dtype) or self.flops

    def copy_seconds(self, size: Bytes, *, to_device: bool) -> Seconds:
        """Seconds of one copy when nothing else is on the link."""
        return self.latency + size / (self.h2d if to_device else self.d2h)

    def to_json(self) -> str:
        """The numbers as JSON text, to measure once and plan often.

        Example:
            >>> Hardware.from_json(preset("gh200").to_json()) == preset("gh200")
            True
        """
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Hardware":
        """The hardware that `to_json` wrote.

        Raises:
            ValueError: If the text is no hardware.
        """
        try:
            return from_json(text, cls)
        except ValueError as error:
            raise ValueError(
                f"`text` must be written by Hardware.to_json, got {error}. "
                "Measure it with `python -m profiling.link_bandwidth --save-hardware`."
            ) from error


# A copy of a few bytes takes about this long on any of them: CUDA's launch and
# completion (NVIDIA's bandwidthTest and others report 5 to 20 microseconds).
_LATENCY: Final = 10e-6

# Starting one kernel from TensorFlow's executor.
_LAUNCH: Final = 10e-6


def _gpu(  # noqa: PLR0913 - a row of the table below
    name: str,
    gib: int,
    teraflops: tuple[float, float, float],
    memory_gb: float,
    h2d_gb: float,
    d2h_gb: float,
    source: str,
) -> Hardware:
    float32, float16, bfloat16 = teraflops
    return Hardware(
        name=name,
        memory=gib * GIB,
        flops=float32 * 1e12,
        float16_flops=float16 * 1e12,
        bfloat16_flops=bfloat16 * 1e12,
        memory_bandwidth=memory_gb * 1e9,
        h2d=h2d_gb * 1e9,
        d2h=d2h_gb * 1e9,
        latency=_LATENCY,
        launch=_LAUNCH,
        source=source,
    )


# TeraFLOP/s of float32, float16 and bfloat16, dense, from NVIDIA's data sheets. From
# the A100 on float32 is in TF32, as TensorFlow computes convolutions and products there
# (`tf.config.experimental.enable_tensor_float_32_execution`, which is on by default). A
# V100 has neither TF32 nor bfloat16.
_RATES_V100_PCIE: Final = (14.0, 112.0, 0.0)
_RATES_V100: Final = (15.7, 125.0, 0.0)
_RATES_A100: Final = (156.0, 312.0, 312.0)
_RATES_H100: Final = (494.0, 989.0, 989.0)

_V100 = "NVIDIA V100 data sheet (SXM2: 15.7 TFLOP/s float32, 900 GB/s)"
_V100_PCIE = "NVIDIA V100 data sheet (PCIe: 14 TFLOP/s float32, 900 GB/s)"
_PCIE3 = "PCIe 3.0 x16: 12 GB/s as commonly measured from pinned memory"
_NVLINK2 = (
    "AC922, 4 GPUs, NVLink 2.0 x3: 75 GB/s stated each way, 60-68 measured; 64 taken"
)

PRESETS: Final[Mapping[str, Hardware]] = MappingProxyType(
    {
        "v100-pcie": _gpu(
            "V100 16 GB, PCIe 3.0 x16",
            16,
            _RATES_V100_PCIE,
            900,
            12,
            12,
            f"{_V100_PCIE}; {_PCIE3}",
        ),
        "v100-32-pcie": _gpu(
            "V100 32 GB, PCIe 3.0 x16",
            32,
            _RATES_V100_PCIE,
            900,
            12,
            12,
            f"{_V100_PCIE}; {_PCIE3}",
        ),
        "v100-nvlink": _gpu(
            "V100 16 GB, NVLink 2.0 (AC922)",
            16,
            _RATES_V100,
            900,
            64,
            64,
            f"{_V100}; {_NVLINK2}",
        ),
        "v100-32-nvlink": _gpu(
            "V100 32 GB, NVLink 2.0 (AC922)",
            32,
            _RATES_V100,
            900,
            64,
            64,
            f"{_V100}; {_NVLINK2}",
        ),
        "a100-pcie4": _gpu(
            "A100 40 GB, PCIe 4.0 x16",
            40,
            _RATES_A100,
            1555,
            25,
            25,
            "NVIDIA A100 data sheet (156 TFLOP/s TF32, 1555 GB/s); PCIe 4.0 x16: "
            "25 GB/s as commonly measured",
        ),
        "h100-pcie5": _gpu(
            "H100 SXM 80 GB, PCIe 5.0 x16",
            80,
            _RATES_H100,
            3350,
            52,
            52,
            "NVIDIA H100 data sheet (SXM5: 494 TFLOP/s TF32, 3.35 TB/s); PCIe 5.0 "
            "x16: 50-55 GB/s as commonly measured",
        ),
        "gh200": _gpu(
            "GH200 96 GB, NVLink-C2C",
            96,
            _RATES_H100,
            4000,
            375,
            297,
            "NVIDIA GH200 data sheet (494 TFLOP/s TF32, 4 TB/s); NVLink-C2C: 375 "
            "GB/s to the device, 297 GB/s back, as measured by others",
        ),
    }
)


def preset(name: str) -> Hardware:
    """Named hardware.

    Raises:
        ValueError: If there is no such name; lists those there are.

    Example:
        >>> preset("gh200").name
        'GH200 96 GB, NVLink-C2C'
    """
    if name not in PRESETS:
        raise ValueError(
            f"`hardware` must be one of {', '.join(PRESETS)}, got {name!r}. "
            "Or make a `Hardware` of your own."
        )
    return PRESETS[name]
