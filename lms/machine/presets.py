"""Hardware that people own or rent, by name.

Rates are what the maker states for the device and what others measured for the link
(pinned memory, one direction); `source` says which.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lms.machine.hardware import Hardware
from lms.units import GIB

__all__ = ["PRESETS", "preset"]

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
# (`tf.config.experimental.enable_tensor_float_32_execution`, which is on by default).
# V100 and T4 have neither TF32 nor bfloat16. GeForce cards add products of halves up in
# float32 at half of the advertised rate, which is that of sums in halves.
_RATES_V100_PCIE: Final = (14.0, 112.0, 0.0)
_RATES_V100: Final = (15.7, 125.0, 0.0)
_RATES_A100: Final = (156.0, 312.0, 312.0)
_RATES_H100: Final = (494.0, 989.0, 989.0)

_RATES_3090: Final = (35.6, 71.0, 71.0)
_RATES_A6000: Final = (77.4, 154.8, 154.8)
_RATES_A10: Final = (62.5, 125.0, 125.0)
_RATES_4090: Final = (82.6, 165.2, 165.2)
_RATES_L4: Final = (60.0, 121.0, 121.0)
_RATES_5090: Final = (104.8, 209.5, 209.5)
_RATES_T4: Final = (8.1, 65.0, 0.0)

_V100 = "NVIDIA V100 data sheet (SXM2: 15.7 TFLOP/s float32, 900 GB/s)"
_V100_PCIE = "NVIDIA V100 data sheet (PCIe: 14 TFLOP/s float32, 900 GB/s)"
_PCIE3 = "PCIe 3.0 x16: 12 GB/s as commonly measured from pinned memory"
_PCIE4 = "PCIe 4.0 x16: 25 GB/s as commonly measured"
_PCIE5 = "PCIe 5.0 x16: 50-55 GB/s as commonly measured"
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
            f"NVIDIA A100 data sheet (156 TFLOP/s TF32, 1555 GB/s); {_PCIE4}",
        ),
        "h100-pcie5": _gpu(
            "H100 SXM 80 GB, PCIe 5.0 x16",
            80,
            _RATES_H100,
            3350,
            52,
            52,
            f"NVIDIA H100 data sheet (SXM5: 494 TFLOP/s TF32, 3.35 TB/s); {_PCIE5}",
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
        "t4": _gpu(
            "T4 16 GB, PCIe 3.0 x16",
            16,
            _RATES_T4,
            320,
            12,
            12,
            f"NVIDIA T4 data sheet (8.1 TFLOP/s float32, 320 GB/s); {_PCIE3}",
        ),
        "l4": _gpu(
            "L4 24 GB, PCIe 4.0 x16",
            24,
            _RATES_L4,
            300,
            25,
            25,
            f"NVIDIA L4 data sheet (TF32 60 TFLOP/s dense, 300 GB/s); {_PCIE4}",
        ),
        "a10": _gpu(
            "A10 24 GB, PCIe 4.0 x16",
            24,
            _RATES_A10,
            600,
            25,
            25,
            f"NVIDIA A10 data sheet (TF32 62.5 TFLOP/s dense, 600 GB/s); {_PCIE4}",
        ),
        "rtx-a6000": _gpu(
            "RTX A6000 48 GB, PCIe 4.0 x16",
            48,
            _RATES_A6000,
            768,
            25,
            25,
            f"NVIDIA GA102 whitepaper (TF32 77.4 TFLOP/s dense, 768 GB/s); {_PCIE4}",
        ),
        "rtx-3090": _gpu(
            "GeForce RTX 3090 24 GB, PCIe 4.0 x16",
            24,
            _RATES_3090,
            936,
            25,
            25,
            f"NVIDIA GA102 whitepaper (TF32 35.6 TFLOP/s dense, 936 GB/s); {_PCIE4}",
        ),
        "rtx-4090": _gpu(
            "GeForce RTX 4090 24 GB, PCIe 4.0 x16",
            24,
            _RATES_4090,
            1008,
            25,
            25,
            f"NVIDIA Ada whitepaper (TF32 82.6 TFLOP/s dense, 1008 GB/s); {_PCIE4}",
        ),
        "rtx-5090": _gpu(
            "GeForce RTX 5090 32 GB, PCIe 5.0 x16",
            32,
            _RATES_5090,
            1792,
            52,
            52,
            "NVIDIA RTX Blackwell whitepaper (TF32 104.8 TFLOP/s dense, 1792 GB/s); "
            f"{_PCIE5}",
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
