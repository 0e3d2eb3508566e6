"""Facts about a machine, before anyone judges them."""

from dataclasses import dataclass

from lms.machine.nvml import Driver
from lms.units import Bytes

__all__ = ["Facts", "Installation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """TensorFlow as it is installed.

    Args:
        backend: Keras's backend.
        cuda: The CUDA version that TensorFlow was built with; None for none.
        cudnn: Likewise.
        gpus: How many GPUs TensorFlow sees.
        device: The device that steps are planned for.
        limit: Bytes that its allocator may hand out; None where there is no limit.
        growth: Whether memory of GPUs is taken bit by bit.
        capability: The device's compute capability; None where nobody says.
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
    """A machine as it was found.

    Args:
        python: Version.
        packages: Names and versions; None where one is missing.
        driver: NVIDIA's, with its GPUs, asked before TensorFlow took memory.
        installation: TensorFlow; None if it cannot be loaded.
        failure: Why it cannot be.
        host_free: Bytes of RAM that programs may still take; None if unknown.
        variables: Environment variables that matter, where they are set.
    """

    python: str
    packages: tuple[tuple[str, str | None], ...]
    driver: Driver
    installation: Installation | None
    failure: str | None = None
    host_free: Bytes | None = None
    variables: tuple[tuple[str, str], ...] = ()

    def variable(self, name: str) -> str | None:
        """An environment variable."""
        return dict(self.variables).get(name)
