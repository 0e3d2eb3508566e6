"""NVIDIA's counters of a GPU's present state, as plain numbers.

Each counter is queried alone (`lms.machine.inventory.ask`). Functions take the module
`pynvml` as an argument, so that tests can pass recorded values.

Known weakness: not yet run on a GPU.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from lms.machine.inventory import NoDriverError, ask, known, open_nvml
from lms.units import KIB

__all__ = ["describe_gpu", "describe_gpus", "open_gpus", "read_counters"]
__all__ += ["throttle_reasons"]

# Bits of nvmlClocksEventReasons in nvml.h; idle and none are not throttling.
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

# Scope of field values that count KiB over all links.
_ALL_LINKS: Final = 0xFFFFFFFF


def open_gpus(api: Any = None) -> Any:
    """Open NVML, which must count a GPU.

    Args:
        api: As for `open_nvml`.

    Raises:
        NoDriverError: If there is no driver, or no GPU.
    """
    api = open_nvml(api)
    if known(ask(api, api.nvmlDeviceGetCount)):
        return api
    raise NoDriverError(
        "no GPU found: NVML counts none. Run this where `nvidia-smi` lists one."
    )


def describe_gpus(api: Any) -> list[dict[str, Any]]:
    """Describe each GPU for a record, in NVML's order."""
    indices = range(known(ask(api, api.nvmlDeviceGetCount)) or 0)
    handles = (ask(api, api.nvmlDeviceGetHandleByIndex, index) for index in indices)
    return [describe_gpu(api, known(handle)) for handle in handles]


def describe_gpu(api: Any, handle: Any) -> dict[str, Any]:
    """Read driver, name, memory and links of a GPU.

    "nvlinks" are NVML's version of each active link, and whether the CPU is at its
    other end. An unknown fact is {"not available": NVML's reason}.
    """
    asked: dict[str, Callable[[Any], Any]] = {
        "name": api.nvmlDeviceGetName,
        "uuid": api.nvmlDeviceGetUUID,
        "memory": lambda h: api.nvmlDeviceGetMemoryInfo(h).total,
        "pcie_generation": api.nvmlDeviceGetMaxPcieLinkGeneration,
        "pcie_width": api.nvmlDeviceGetMaxPcieLinkWidth,
        "nvlinks": lambda h: _nvlinks(api, h),
    }
    driver = ask(api, api.nvmlSystemGetDriverVersion)
    found = {name: ask(api, question, handle) for name, question in asked.items()}
    return {"driver": driver, **found}


def read_counters(api: Any, index: int) -> dict[str, Any]:
    """Read the present state of a GPU.

    Shares are 0 to 1, sizes bytes, rates bytes per second, clocks hertz, power watts;
    NVLink's counters are bytes since the driver started.
    """
    asked: Mapping[str, Callable[[Any], Any]] = {
        "gpu_utilisation": lambda h: api.nvmlDeviceGetUtilizationRates(h).gpu / 100,
        "memory_utilisation": lambda h: (
            api.nvmlDeviceGetUtilizationRates(h).memory / 100
        ),
        "used_memory": lambda h: api.nvmlDeviceGetMemoryInfo(h).used,
        "pcie_received": lambda h: _pcie(api, h, api.NVML_PCIE_UTIL_RX_BYTES),
        "pcie_sent": lambda h: _pcie(api, h, api.NVML_PCIE_UTIL_TX_BYTES),
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
    """Name the reasons for lowered clocks.

    Example:
        >>> throttle_reasons(0x1 | 0x4)
        ['software power cap']
    """
    return [name for bit, name in _REASONS.items() if bits & bit]


def _nvlinks(api: Any, handle: Any) -> list[list[Any]]:
    """List active links: NVML's version, and whether the CPU is at the other end."""
    found: list[list[Any]] = []
    for link in range(api.NVML_NVLINK_MAX_LINKS):
        if not known(ask(api, api.nvmlDeviceGetNvLinkState, handle, link)):
            continue
        remote = ask(api, api.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        version = known(ask(api, api.nvmlDeviceGetNvLinkVersion, handle, link))
        found.append([version, remote == api.NVML_NVLINK_DEVICE_TYPE_IBMNPU])
    return found


def _pcie(api: Any, handle: Any, counter: int) -> int:
    """Read bytes per second over the last 20 ms; NVML's KB has 1024 by its header."""
    return api.nvmlDeviceGetPcieThroughput(handle, counter) * KIB


def _nvlink(api: Any, handle: Any, field: int) -> int:
    value = api.nvmlDeviceGetFieldValues(handle, [(field, _ALL_LINKS)])[0]
    if value.nvmlReturn != 0:
        raise api.NVMLError(value.nvmlReturn)
    return int(value.value.ullVal) * KIB
