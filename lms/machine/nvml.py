"""What NVIDIA's driver says of each GPU, as plain data; each question asked alone.

Known weakness: not yet run on a GPU.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from lms.units import Bytes

__all__ = ["Driver", "Gpu", "read_driver"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; None is what the driver did not say.

    Args:
        name: What NVIDIA calls it.
        memory: Bytes.
        used: Bytes in use, by anyone.
        pcie: Generation and width of the link now.
        pcie_most: The same at most, by GPU and slot.
        nvlinks: Active links, to other GPUs or the CPU.
    """

    name: str | None
    memory: Bytes | None = None
    used: Bytes | None = None
    pcie: tuple[int, int] | None = None
    pcie_most: tuple[int, int] | None = None
    nvlinks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """NVIDIA's driver.

    Args:
        version: Of the driver; None if there is none.
        cuda: The newest CUDA version that it can run.
        gpus: Every GPU, hidden from TensorFlow or not.
        reason: Why there is nothing to say; None if there is.
    """

    version: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    reason: str | None = None


def read_driver(api: Any = None) -> Driver:
    """Ask the driver, before TensorFlow takes memory of the GPUs.

    Args:
        api: The module `pynvml`, or what answers like it.
    """
    if api is None:
        try:
            api = import_module("pynvml")  # it comes without types
        except ImportError:
            return Driver(reason="the package nvidia-ml-py is missing")
    try:
        api.nvmlInit()
    except api.NVMLError as error:
        return Driver(reason=str(error))
    cuda = _ask(api, api.nvmlSystemGetCudaDriverVersion)
    count = _ask(api, api.nvmlDeviceGetCount) or 0
    return Driver(
        version=_ask(api, api.nvmlSystemGetDriverVersion),
        # CUDA writes 12.4 as 12040.
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        gpus=tuple(_gpu(api, index) for index in range(count)),
    )


def _gpu(api: Any, index: int) -> Gpu:
    handle = _ask(api, api.nvmlDeviceGetHandleByIndex, index)
    memory = _ask(api, api.nvmlDeviceGetMemoryInfo, handle)
    return Gpu(
        name=_ask(api, api.nvmlDeviceGetName, handle),
        memory=None if memory is None else memory.total,
        used=None if memory is None else memory.used,
        pcie=_both(
            _ask(api, api.nvmlDeviceGetCurrPcieLinkGeneration, handle),
            _ask(api, api.nvmlDeviceGetCurrPcieLinkWidth, handle),
        ),
        pcie_most=_both(
            _ask(api, api.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            _ask(api, api.nvmlDeviceGetMaxPcieLinkWidth, handle),
        ),
        nvlinks=sum(
            bool(_ask(api, api.nvmlDeviceGetNvLinkState, handle, link))
            for link in range(api.NVML_NVLINK_MAX_LINKS)
        ),
    )


def _ask(api: Any, question: Callable[..., Any], *arguments: Any) -> Any:
    with suppress(api.NVMLError):
        return question(*arguments)
    return None


def _both(generation: int | None, width: int | None) -> tuple[int, int] | None:
    return None if generation is None or width is None else (generation, width)
