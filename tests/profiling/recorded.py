"""Values that a GPU gave, or may give, in place of NVML's answers."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

__all__ = ["A100", "Recorded", "RecordedError"]


class RecordedError(Exception):
    """As pynvml's NVMLError: made from a number, printed as words."""

    def __str__(self) -> str:
        words = {3: "Not Supported", 6: "Not Found", 15: "GPU is lost"}
        return words[self.args[0]]


A100: dict[str, Any] = {
    "nvmlDeviceGetCount": 1,
    "nvmlSystemGetDriverVersion": "550.54.15",
    "nvmlDeviceGetHandleByIndex": 0,
    "nvmlDeviceGetName": "NVIDIA A100-SXM4-40GB",
    "nvmlDeviceGetUUID": "GPU-1",
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=42949672960, used=1073741824),
    "nvmlDeviceGetMaxPcieLinkGeneration": 4,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetNvLinkState": 6,
    "nvmlDeviceGetNvLinkRemoteDeviceType": 0,
    "nvmlDeviceGetNvLinkVersion": 4,
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=87, memory=40),
    "nvmlDeviceGetPcieThroughput": 1_000_000,
    "nvmlDeviceGetFieldValues": [
        SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=2048))
    ],
    "nvmlDeviceGetClockInfo": 1410,
    "nvmlDeviceGetPowerUsage": 250_500,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x4 | 0x20,
}


@dataclass
class Recorded:
    """Answers like the module `pynvml`.

    Args:
        values: What each function returns or is; a `RecordedError` is raised instead.
        lost: Whether the device has disappeared.
    """

    values: dict[str, Any] = field(default_factory=lambda: dict(A100))
    lost: bool = False

    NVMLError = RecordedError
    NVML_NVLINK_MAX_LINKS = 4
    NVML_NVLINK_DEVICE_TYPE_IBMNPU = 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVML_"):  # other constants
            return name
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def answer(*arguments: Any) -> Any:
            value = self.values[name]
            if self.lost and name.startswith("nvmlDevice"):
                raise RecordedError(15)
            if isinstance(value, RecordedError):
                raise value
            return value(*arguments) if callable(value) else value

        return answer
