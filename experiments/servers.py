"""The case study's two servers: the links, and the published seconds of an epoch.

IBM's Large Model Support case study, one V100 of 16 GB, 228 steps to an epoch. "x86"
has PCIe 3.0 x16, "AC922" has NVLink 2.0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lms.machine.hardware import preset
from lms.units import Bytes, Seconds

__all__ = ["EPOCH_STEPS", "LATENCY", "PUBLISHED_LARGER", "SERVERS", "Server"]

EPOCH_STEPS = 228

# IBM's TFLMS, its second version: how much larger models trained than without it.
# Le, Imai, Negishi, Kawachiya: "Automatic GPU memory management for large neural models
# in TensorFlow", ISMM 2019, abstract.
PUBLISHED_LARGER = (
    "IBM published for TFLMS's second version, on GPUs of its own, a 3D U-Net with 5.6 "
    "times the image and a ResNet-50 with 4.9 times the batch (Le, Imai, Negishi, "
    'Kawachiya: "Automatic GPU memory management for large neural models in '
    'TensorFlow", ISMM 2019).'
)

# Seconds of each copy on a scaled link, as on a real one.
LATENCY: Seconds = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server of the case study.

    Args:
        link: What its link is, readable.
        hardware: The preset of its card and link.
        epochs: Published seconds of an epoch, by voxels along an axis: 144 without
            TFLMS, 192 with it.
    """

    link: str
    hardware: str
    epochs: Mapping[int, int]

    def scaled_rate(self, *, peak: Bytes, step: Seconds) -> float:
        """Bytes per second at which copying weighs as much against computing as here.

        The weight is the time to copy a card's memory once over the published step of
        144^3, which filled that card.

        Args:
            peak: What plain Keras takes of another device.
            step: How long its step takes there.

        Example:
            >>> rate = SERVERS["x86"].scaled_rate(peak=2**30, step=1.0)
            >>> round(rate / 1e6)  # 16 times less memory than the card's, a like step
            711
        """
        card = preset(self.hardware)
        published = self.epochs[144] / EPOCH_STEPS
        return peak / step * published * card.h2d / card.memory


SERVERS: Mapping[str, Server] = MappingProxyType(
    {
        "x86": Server(
            link="PCIe 3.0 x16",
            hardware="v100-pcie",
            epochs=MappingProxyType({144: 216, 192: 1467}),
        ),
        "AC922": Server(
            link="NVLink 2.0",
            hardware="v100-nvlink",
            epochs=MappingProxyType({144: 197, 192: 590}),
        ),
    }
)
