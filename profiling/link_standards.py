"""Bandwidth of links in one direction, by their standards.

Sources: PCI Express Base Specification 6.0 for transfers per lane and their coding
(8b/10b up to generation 2, 128b/130b up to 5, 242 of 256 bytes of a flit in 6);
NVIDIA's data sheets of P100, V100, A100, H100 and B200 for NVLink (20, 25, 25, 25 and
50 GB/s per link and direction); nvml.h for its numbers of versions
(NVML_NVLINK_VERSION_*).

Packet headers are not subtracted: about a tenth of PCIe goes to them.
"""

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["stated_link"]

# Data bits per second and lane, by generation.
_PCIE: Final = {
    1: 2.5e9 * 8 / 10,
    2: 5e9 * 8 / 10,
    3: 8e9 * 128 / 130,
    4: 16e9 * 128 / 130,
    5: 32e9 * 128 / 130,
    6: 64e9 * 242 / 256,
}

# Bytes per second of a link in one direction, by NVML's number of the version.
_NVLINK: Final = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 25e9, 6: 25e9, 7: 50e9}


def stated_link(device: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the link between host and GPU, with its standard's bandwidth.

    Args:
        device: An entry of `profiling.counters.describe_gpus`.

    Returns:
        "link", and "bandwidth" in bytes per second and direction (None for an unlisted
        standard); None if NVML knows no link.

    Example:
        >>> device = {"pcie_generation": 4, "pcie_width": 16, "nvlinks": []}
        >>> stated_link(device)["link"]
        'PCIe 4 x16'
    """
    links = device["nvlinks"]
    versions = [v for v, remote in links if remote] if isinstance(links, list) else []
    if versions:
        bandwidth = _NVLINK.get(versions[0], 0) * len(versions) or None
        name = f"NVLink (NVML version {versions[0]}) x{len(versions)} to the CPU"
        return {"link": name, "bandwidth": bandwidth}
    generation, width = device["pcie_generation"], device["pcie_width"]
    if not isinstance(generation, int) or not isinstance(width, int):
        return None
    bandwidth = _PCIE.get(generation, 0) / 8 * width or None
    return {"link": f"PCIe {generation} x{width}", "bandwidth": bandwidth}
