"""NVIDIA's counters, as plain numbers: what a GPU is, and what it does at a moment.

Every counter is asked for alone. One that a GPU, its driver or the user's rights do not
give is recorded as {"not available": NVML's reason}, and so is a GPU that disappears.
Functions take the module `pynvml` as an argument (`open_nvml`), so that recorded values
can be read by the same code.

Known weakness: not yet run on a GPU.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from lms.errors import LMSError
from lms.units import KIB
from profiling.link_standards import nvlink_bandwidth, pcie_bandwidth

__all__ = [
    "NoDriverError",
    "describe_devices",
    "open_nvml",
    "read_counters",
    "stated_link",
    "throttle_reasons",
]

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


class NoDriverError(LMSError):
    """There is no NVIDIA driver, so there is nothing to ask."""


def open_nvml() -> Any:
    """The module `pynvml`, ready to be asked.

    Raises:
        NoDriverError: If there is no driver; says what NVML said.
    """
    try:
        import pynvml
    except ImportError as error:
        raise NoDriverError(
            "no NVIDIA driver can be asked: the package nvidia-ml-py is missing. "
            "Install it: pip install nvidia-ml-py."
        ) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoDriverError(
            f"no NVIDIA driver found: NVML says '{error}'. Run this where "
            "`nvidia-smi` works, or in an emulated device (`python -m lms emulate`)."
        ) from error
    return pynvml


def describe_devices(api: Any) -> list[dict[str, Any]]:
    """What does not change: name, driver, memory and link of each GPU."""
    found: list[dict[str, Any]] = []
    for index in range(api.nvmlDeviceGetCount()):
        handle = api.nvmlDeviceGetHandleByIndex(index)
        asked = {
            "name": api.nvmlDeviceGetName,
            "uuid": api.nvmlDeviceGetUUID,
            "memory": lambda h: api.nvmlDeviceGetMemoryInfo(h).total,
            "pcie_generation": api.nvmlDeviceGetMaxPcieLinkGeneration,
            "pcie_width": api.nvmlDeviceGetMaxPcieLinkWidth,
            "nvlinks": lambda h: _nvlinks(api, h),
        }
        driver = _ask(api, lambda _: api.nvmlSystemGetDriverVersion(), handle)
        found.append(
            {"index": index, "driver": driver}
            | {name: _ask(api, question, handle) for name, question in asked.items()}
        )
    return found


def read_counters(api: Any, index: int) -> dict[str, Any]:
    """What one GPU does now.

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
    return {name: _ask(api, question, handle) for name, question in asked.items()}


def stated_link(device: Mapping[str, Any]) -> dict[str, Any] | None:
    """The link between host and GPU and what its standard gives, one direction.

    Args:
        device: One of `describe_devices`.

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


def throttle_reasons(bits: int) -> list[str]:
    """Why clocks are lower than they could be.

    Example:
        >>> throttle_reasons(0x1 | 0x4)
        ['software power cap']
    """
    return [name for bit, name in _REASONS.items() if bits & bit]


def _ask(api: Any, question: Callable[[Any], Any], handle: Any) -> Any:
    try:
        return question(handle)
    except api.NVMLError as error:
        return {"not available": str(error)}


def _pcie(api: Any, handle: Any, counter: int) -> int:
    """Bytes per second over the last 20 ms; NVML counts KB, of 1024 by its header."""
    return api.nvmlDeviceGetPcieThroughput(handle, counter) * KIB


def _nvlink(api: Any, handle: Any, field: int) -> int:
    value = api.nvmlDeviceGetFieldValues(handle, [(field, _ALL_LINKS)])[0]
    if value.nvmlReturn != 0:
        raise api.NVMLError(value.nvmlReturn)
    return int(value.value.ullVal) * KIB


def _nvlinks(api: Any, handle: Any) -> list[list[Any]]:
    """NVML's version of each active link, and whether the CPU is at its other end."""
    found: list[list[Any]] = []
    for link in range(api.NVML_NVLINK_MAX_LINKS):
        with suppress(api.NVMLError):
            if not api.nvmlDeviceGetNvLinkState(handle, link):
                continue
            remote = api.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
            version = api.nvmlDeviceGetNvLinkVersion(handle, link)
            found.append([version, remote == api.NVML_NVLINK_DEVICE_TYPE_IBMNPU])
    return found
