"""NVIDIA's counters, as plain numbers: what a GPU does at a moment.

Every counter is asked for alone (`lms.machine.inventory.ask`). Functions take the
module `pynvml` as an argument, so that recorded values can be read by the same code.

Known weakness: not yet run on a GPU.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from lms.machine.inventory import ask
from lms.units import KIB

__all__ = ["read_counters", "throttle_reasons"]

# Bits of nvmlClocksEventReasons in nvml.h; idleness and none are no throttling.
_REASONS: Final = {
    0x2: "applications clocks setting",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clock setting",
}

# Field values that count KiB over all links when the scope is the largest number.
_ALL_LINKS: Final = 0xFFFFFFFF


def read_counters(api: Any, index: int) -> dict[str, Any]:
    """The present state of one GPU.

    Shares are 0 to 1, sizes bytes, rates bytes per second, clocks hertz, power watts;
    NVLink's are bytes since the driver started.
    """
    asked: Mapping[str, Callable[[Any], Any]] = {
        "gpu_utilisation": lambda h: api.nvmlDeviceGetUtilizationRates(h).gpu / 100,
        "memory_utilisation": lambda h: (
            api.nvmlDeviceGetUtilizationRates(h).memory / 100
        ),
        "used_memory": lambda h: api.nvmlDeviceGetMemoryInfo(h).used,
        "pcie_received": lambda h: _pcie(api, h, api.NVML_PCIE_UTIL_RX_BYTES),
        "pcie_sent": lambda h: _pcie(api, h, api.NVML_PCIE_UTIL_TX_BYTES),
        "pcie_generation": api.nvmlDeviceGetCurrPcieLinkGeneration,
        "pcie_width": api.nvmlDeviceGetCurrPcieLinkWidth,
        "nvlink_received": lambda h: _nvlink(
            api, h, api.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
        ),
        "nvlink_sent": lambda h: _nvlink(
            api, h, api.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
        ),
        "sm_clock": lambda h: api.nvmlDeviceGetClockInfo(h, api.NVML_CLOCK_SM) * 1e6,
        "memory_clock": lambda h: (
            api.nvmlDeviceGetClockInfo(h, api.NVML_CLOCK_MEM) * 1e6
        ),
        "power": lambda h: api.nvmlDeviceGetPowerUsage(h) / 1000,
        "throttling": lambda h: throttle_reasons(
            api.nvmlDeviceGetCurrentClocksEventReasons(h)
        ),
    }
    try:
        handle = api.nvmlDeviceGetHandleByIndex(index)
    except api.NVMLError as error:
        return {name: {"not available": str(error)} for name in asked}
    return {name: ask(api, question, handle) for name, question in asked.items()}


def throttle_reasons(bits: int) -> list[str]:
    """Why clocks are lower than they could be.

    Example:
        >>> throttle_reasons(0x1 | 0x4)
        ['software power cap']
    """
    return [name for bit, name in _REASONS.items() if bits & bit]


def _pcie(api: Any, handle: Any, counter: int) -> int:
    """Bytes per second over the last 20 ms; NVML counts KB, of 1024 by its header."""
    return api.nvmlDeviceGetPcieThroughput(handle, counter) * KIB


def _nvlink(api: Any, handle: Any, field: int) -> int:
    value = api.nvmlDeviceGetFieldValues(handle, [(field, _ALL_LINKS)])[0]
    if value.nvmlReturn != 0:
        raise api.NVMLError(value.nvmlReturn)
    return int(value.value.ullVal) * KIB
