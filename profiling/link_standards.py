"""The most that a link should give, in one direction, by its standard.

Sources: PCI Express Base Specification 6.0 for transfers per lane and their coding
(8b/10b up to generation 2, 128b/130b up to 5, 242 of 256 bytes of a flit in 6);
NVIDIA's data sheets of P100, V100, A100, H100 and B200 for NVLink (20, 25, 25, 25 and
50 GB/s per link and direction); nvml.h for its numbers of versions
(NVML_NVLINK_VERSION_*).

Packet headers are not subtracted: about a tenth of PCIe goes to them.
"""

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["nvlink_bandwidth", "pcie_bandwidth", "stated_link"]

# Generation: transfers per second and lane, and the share that is data.
_PCIE: Final = {
    1: (2.5e9, 8 / 10),
    2: (5e9, 8 / 10),
    3: (8e9, 128 / 130),
    4: (16e9, 128 / 130),
    5: (32e9, 128 / 130),
    6: (64e9, 242 / 256),
}

# NVML's number of the version: bytes per second of one link in one direction.
_NVLINK: Final = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 25e9, 6: 25e9, 7: 50e9}


def pcie_bandwidth(generation: int, width: int) -> float | None:
    """Bytes per second in one direction; None for a generation not listed.

    Example:
        >>> round(pcie_bandwidth(3, 16) / 1e9, 2)
        15.75
        >>> pcie_bandwidth(99, 16) is None
        True
    """
    if generation not in _PCIE:
        return None
    transfers, share = _PCIE[generation]
    return transfers * share / 8 * width


def nvlink_bandwidth(version: int, count: int) -> float | None:
    """Bytes per second in one direction of some links; None if it is not listed.

    Args:
        version: NVML's number, 2 for NVLink 2.0.
        count: How many links there are.

    Example:
        >>> nvlink_bandwidth(2, 3) / 1e9
        75.0
    """
    return _NVLINK[version] * count if version in _NVLINK else None


def stated_link(device: Mapping[str, Any]) -> dict[str, Any] | None:
    """The link between host and GPU and what its standard gives, one direction.

    Args:
        device: One of `profiling.counters.describe_gpus`.

    Returns:
        Its "link" and "bandwidth" in bytes per second; None if NVML does not say.

    Example:
        >>> device = {"pcie_generation": 4, "pcie_width": 16, "nvlinks": []}
        >>> stated_link(device)["link"]
        'PCIe 4 x16'
    """
    links = device["nvlinks"]
    versions = [v for v, remote in links if remote] if isinstance(links, list) else []
    if versions:
        bandwidth = nvlink_bandwidth(versions[0], len(versions))
        name = f"NVLink (NVML version {versions[0]}) x{len(versions)} to the CPU"
        return {"link": name, "bandwidth": bandwidth}
    generation, width = device["pcie_generation"], device["pcie_width"]
    if not isinstance(generation, int) or not isinstance(width, int):
        return None
    bandwidth = pcie_bandwidth(generation, width)
    return {"link": f"PCIe {generation} x{width}", "bandwidth": bandwidth}
