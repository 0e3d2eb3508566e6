"""A device and the link between it and its host, as numbers."""

import json
import math
from dataclasses import asdict, dataclass

from lms.storage.json_data import from_json
from lms.units import Bytes, Seconds

__all__ = ["Hardware"]

_RATES = ("flops", "memory_bandwidth", "h2d", "d2h")
_POSITIVE = ("memory", *_RATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One device and its link to the host.

    Args:
        name: What people call it.
        memory: Bytes of device memory.
        flops: Floating-point operations per second of convolutions and products of
            float32, as TensorFlow computes them: in TF32 where the device has it.
        memory_bandwidth: Bytes per second of device memory.
        h2d: Bytes per second from host to device.
        d2h: Bytes per second from device to host.
        latency: Seconds that each copy takes besides its bytes, until the host knows
            that it has ended.
        launch: Seconds that the host needs to start one op.
        float16_flops: The same of float16; 0 where it is as fast as float32.
        bfloat16_flops: The same of bfloat16; 0 where it is as fast as float32.
        source: Where the numbers come from.

    Example:
        >>> from lms.machine.presets import preset
        >>> preset("v100-pcie").copy_seconds(12_000_000_000, to_device=True)
        1.00008
    """

    name: str
    memory: Bytes
    flops: float
    memory_bandwidth: float
    h2d: float
    d2h: float
    latency: Seconds = 0.0
    launch: Seconds = 0.0
    float16_flops: float = 0.0
    bfloat16_flops: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        """Check the rates."""
        for name in _POSITIVE:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"`{name}` must be positive, got {getattr(self, name)}. "
                    "Give it in bytes, or per second."
                )
        for name in ("float16_flops", "bfloat16_flops"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"`{name}` must be at least 0, got {getattr(self, name)}. "
                    "Leave it out if it is as fast as float32."
                )
        for name in ("latency", "launch"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"`{name}` must be seconds, at least 0, got {getattr(self, name)}. "
                    "Leave it out if it is not known."
                )

    def rate_of(self, dtype: str) -> float:
        """Floating-point operations per second of products of a type.

        Example:
            >>> from lms.machine.presets import preset
            >>> card = preset("v100-pcie")
            >>> [card.rate_of(name) / 1e12 for name in ("float32", "float16")]
            [14.0, 112.0]
        """
        known = {"float16": self.float16_flops, "bfloat16": self.bfloat16_flops}
        return known.get(dtype) or self.flops

    def copy_seconds(self, size: Bytes, *, to_device: bool) -> Seconds:
        """Seconds of one copy when nothing else is on the link."""
        return self.latency + size / (self.h2d if to_device else self.d2h)

    def to_json(self) -> str:
        """The numbers as JSON text, to measure once and plan often.

        Example:
            >>> from lms.machine.presets import preset
            >>> Hardware.from_json(preset("gh200").to_json()) == preset("gh200")
            True
        """
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Hardware":
        """The hardware that `to_json` wrote.

        Raises:
            ValueError: If the text is no hardware.
        """
        try:
            return from_json(text, cls)
        except ValueError as error:
            raise ValueError(
                f"`text` must be written by Hardware.to_json, got {error}. "
                "Measure it with `python -m profiling.link_bandwidth --save-hardware`."
            ) from error
