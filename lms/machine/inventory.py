"""Facts about a machine, without a judgement.

NVIDIA's driver is asked for each fact separately: if a GPU, its driver or the user's
rights refuse one, or a GPU disappears, the other facts are still found.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from lms.errors import LMSError
from lms.units import Bytes

__all__ = ["Driver", "Facts", "Gpu", "Installation", "NoDriverError", "ask", "known"]
__all__ += ["installed_version", "open_nvml", "read_driver"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, and its bytes `used` by all programs; None is without an answer."""

    name: str | None
    memory: Bytes | None = None
    used: Bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """NVIDIA's driver.

    Args:
        version: The driver's version; None if there is no driver.
        cuda: The newest CUDA version that it can run.
        gpus: Every GPU, hidden from TensorFlow or not.
        reason: Why the driver could not be asked; None if it could.
    """

    version: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    reason: str | None = None


class NoDriverError(LMSError):
    """No NVIDIA driver could be asked; `__cause__` is the error of NVML or Python."""


def open_nvml(api: Any = None) -> Any:
    """Return the module `pynvml`, initialised.

    Args:
        api: A replacement with the same functions; None takes the module itself.

    Raises:
        NoDriverError: If there is no driver; quotes NVML.
    """
    if api is None:
        try:
            api = import_module("pynvml")  # it comes without types
        except ImportError as error:
            raise NoDriverError(
                "Could not ask NVIDIA's driver: the package nvidia-ml-py is missing. "
                "Install it: pip install nvidia-ml-py."
            ) from error
    try:
        api.nvmlInit()
    except api.NVMLError as error:
        raise NoDriverError(
            f"Could not find an NVIDIA driver: NVML says '{error}'. Run this where "
            "`nvidia-smi` works, or on an emulated card (`python -m lms emulate`)."
        ) from error
    return api


def ask(api: Any, question: Callable[..., Any], *arguments: Any) -> Any:
    """Ask NVML; return its answer, or {"not available": its reason}.

    `question` is one of the functions of `api`, or a function that calls one. Older
    packages answer with names as bytes.
    """
    try:
        found = question(*arguments)
    except api.NVMLError as error:
        return {"not available": str(error)}
    return found.decode(errors="replace") if isinstance(found, bytes) else found


def read_driver(api: Any = None) -> Driver:
    """Ask the driver, before TensorFlow takes memory of the GPUs."""
    try:
        api = open_nvml(api)
    except NoDriverError as error:
        return Driver(reason=str(error.__cause__))
    cuda = known(ask(api, api.nvmlSystemGetCudaDriverVersion))
    count = known(ask(api, api.nvmlDeviceGetCount)) or 0
    return Driver(
        version=known(ask(api, api.nvmlSystemGetDriverVersion)),
        # CUDA writes 12.4 as 12040.
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        gpus=tuple(_gpu(api, index) for index in range(count)),
    )


def _gpu(api: Any, index: int) -> Gpu:
    handle = known(ask(api, api.nvmlDeviceGetHandleByIndex, index))
    memory = known(ask(api, api.nvmlDeviceGetMemoryInfo, handle))
    return Gpu(
        name=known(ask(api, api.nvmlDeviceGetName, handle)),
        memory=None if memory is None else memory.total,
        used=None if memory is None else memory.used,
    )


def known(answer: Any) -> Any:
    """Return an answer of `ask`; None if it is not available."""
    return None if isinstance(answer, dict) else answer


def installed_version(package: str) -> str | None:
    """Return a package's version; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An installed TensorFlow.

    Args:
        cuda: The CUDA version that TensorFlow was built with; None for none.
        cudnn: The cuDNN version likewise.
        gpus: How many GPUs TensorFlow sees.
        device: The device that steps are planned for.
        limit: Bytes that its allocator may hand out; None where there is no limit.
        growth: Whether TensorFlow takes GPU memory on demand.
        capability: The device's compute capability; None if unknown.
    """

    backend: str
    cuda: str | None
    cudnn: str | None
    gpus: int
    device: str
    limit: Bytes | None
    growth: bool
    capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a machine.

    Args:
        packages: Package names and versions; None where a package is missing.
        driver: NVIDIA's driver, asked before TensorFlow took GPU memory.
        installation: TensorFlow; None if it cannot be loaded.
        failure: Why TensorFlow cannot be loaded.
        host_free: Bytes of RAM that programs may still take; None if unknown.
        variables: Relevant environment variables that are set.
    """

    python: str
    packages: tuple[tuple[str, str | None], ...]
    driver: Driver
    installation: Installation | None
    failure: str | None = None
    host_free: Bytes | None = None
    variables: tuple[tuple[str, str], ...] = ()

    def variable(self, name: str) -> str | None:
        """Return an environment variable; None if it is not set."""
        return dict(self.variables).get(name)
