"""What is tried, in the order of its worth: trials as plain data.

The network is the case study's 3D U-Net, batch 1. A card gets the largest that it
trains in little of its time and memory: the same trials fit an H100 and two cores.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lms.units import GIB, MIB, Bytes, Seconds

__all__ = ["SIZES", "Net", "Trial", "catalogue", "net_for"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """A network and its volume.

    Args:
        size: Voxels along each axis.
        filters: Of the top level.
        depth: Levels.
    """

    size: int
    filters: int
    depth: int

    @property
    def flops(self) -> float:
        """Floating-point operations of a step, about: 13.3e9 were counted at 48^3."""
        return 13.3e9 * (self.size / 48) ** 3 * (self.filters / 8) ** 2

    @property
    def peak(self) -> Bytes:
        """Bytes of a step, about: 5.7 GiB were measured at 144^3 with 16 filters."""
        return 128 * self.size**3 * self.filters


SIZES = (
    Net(size=96, filters=16, depth=5),
    Net(size=64, filters=16, depth=4),
    Net(size=48, filters=8, depth=4),
    Net(size=32, filters=8, depth=3),
    Net(size=16, filters=8, depth=2),
)
_STEP: Seconds = 0.3  # of a step at the rate of large products, and of its launches
_OPS = 600  # of a step for each level
_PART = 8  # the step's part of the card's memory


def net_for(hardware: Mapping[str, Any]) -> Net:
    """The largest network that a card trains in little of its time and memory.

    Args:
        hardware: Fields of `lms.machine.hardware.Hardware`, as measured.

    Example:
        >>> v100 = {"flops": 14e12, "launch": 5e-6, "memory": 16 * GIB}
        >>> net_for(v100).size, net_for(v100 | {"launch": 1e-3}).size
        (96, 16)
    """
    rate, launch = hardware["flops"], hardware["launch"]
    fits = (
        net
        for net in SIZES
        if net.flops / rate + _OPS * net.depth * launch <= _STEP
        and net.peak <= hardware["memory"] / _PART
    )
    return next(fits, SIZES[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One process.

    Args:
        name: Unlike any other.
        kind: What its process does: one of `worker.KINDS`.
        limit: Seconds after which it is ended.
        settings: What its kind wants to know.
        memory: Bytes of the device; None for all that there is.
        share_of: A trial, and the share of its peak that is this one's budget.
        memory_of: The same, as the device's memory.
        may_fail: Whether failing is a finding like any other.
    """

    name: str
    kind: str
    limit: Seconds
    settings: dict[str, Any] = field(default_factory=dict)
    memory: Bytes | None = None
    share_of: tuple[str, float] | None = None
    memory_of: tuple[str, float] | None = None
    may_fail: bool = False


MACHINE = Trial(name="machine", kind="machine", limit=120)

_PLAIN, _LARGE, _BUDGET, _ROOM = "unet plain", "larger plain", 0.6, 1.05


def catalogue(net: Net, flops: float, *, short: bool) -> list[Trial]:
    """All trials but the machine's, which says what they are like.

    Args:
        net: As `net_for` chooses it.
        flops: As given to it.
        short: A few steps each, and what is worth most: at most eight minutes.
    """
    trials = _all(net, flops, short=short)
    return [trial for trial, is_short in trials if is_short or not short]


def _all(net: Net, flops: float, *, short: bool) -> Iterator[tuple[Trial, bool]]:
    """Each with whether the short form has it."""
    steps = {"steps": 4 if short else 20, "seconds": 8 if short else 60}
    long = {"steps": 20, "seconds": 15} if short else {"steps": 300, "seconds": 150}
    probe = {"flops": flops, "runs": 3 if short else 20}
    yield _named("transports", "transports", probe), True
    tracked = probe | {"gpu_options": {"kernel_tracker_max_pending": 8}}
    yield _named("transports, tracker", "transports", tracked, may_fail=True), False
    yield _named("keras", "keras", {}), True

    yield _train(_PLAIN, net, steps | {"traced": 1}), True
    planned = steps | {"way": "lms"}
    lms, fallback = planned | {"traced": 1}, {"fallback": True}
    share: Any = {"share_of": (_PLAIN, _BUDGET)}
    yield _train("unet lms", net, lms, **share), True
    yield _train("unet by send and receive", net, lms | fallback, **share), True
    least = long | {"way": "lms", "budget": "least"}
    yield _train("least budget", net, least, limit=400), True
    pool = {"gpu_host_mem_limit_in_mb": 2 * net.peak // MIB + 64}
    pool["gpu_host_mem_disallow_growth"] = 1
    one = {"gpu_options": pool, "batches": True}
    yield _train("pinned pool", net, planned | {"batches": True}, **share), False
    yield _train("pinned pool in one region", net, planned | one, **share), True

    large = replace(net, size=net.size * 3 // 2)
    largest = replace(net, size=net.size * 2)
    yield _train(_LARGE, large, steps), True
    xla = steps | {"way": "XLA"}
    yield _train("larger XLA", large, xla, may_fail=True), True
    room: Any = {"memory_of": (_LARGE, _ROOM)}
    yield _train("largest plain", largest, steps, may_fail=True, **room), False
    yield _train("largest XLA", largest, xla, may_fail=True, **room), False
    yield _train("largest lms", largest, planned, **room), False

    yield _named("launches", "launches", {"ops": 1000 if short else 5000}), True
    yield _named("no room in a convolution", "refused", {}, memory=GIB // 4), True
    yield _named("link", "link", {"largest": 16 * MIB if short else GIB}), True
    held = planned | {"held": True}
    loose: Any = {"share_of": (_PLAIN, 0.9)}  # so that there are plans in less
    yield _train("unet plans anew", net, held, limit=400, **loose), True
    grown = lms | {"variables": {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}}
    yield _train("unet, memory grows", net, grown, **share), False
    yield _named("two cards", "cards", {}, may_fail=True), True


def _named(name: str, kind: str, settings: dict[str, Any], **more: Any) -> Trial:
    return Trial(name=name, kind=kind, limit=200, settings=settings, **more)


def _train(
    name: str, net: Net, settings: dict[str, Any], *, limit: Seconds = 200, **more: Any
) -> Trial:
    known = {"size": net.size, "filters": net.filters, "depth": net.depth}
    settings = known | {"way": "plain"} | settings
    return Trial(name=name, kind="train", limit=limit, settings=settings, **more)
