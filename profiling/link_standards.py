"""What a link should give at most, one direction, by its standard.

Sources: PCI Express Base Specification 6.0 for transfers per lane and their coding
(8b/10b up to generation 2, 128b/130b up to 5, 242 of 256 bytes of a flit in 6);
NVIDIA's data sheets of P100, V100, A100, H100 and B200 for NVLink (20, 25, 25, 25 and
50 GB/s per link and direction); nvml.h for its numbers of versions
(NVML_NVLINK_VERSION_*).

Packet headers are not subtracted: about a tenth of PCIe goes to them.
"""

from typing import Final

__all__ = ["nvlink_bandwidth", "pcie_bandwidth"]

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
