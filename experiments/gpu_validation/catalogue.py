"""What is tried, in the order of its worth: trials as plain data.

Sizes are the case study's: a 3D U-Net with 16 filters and 5 levels, batch 1. A
rehearsal takes the same trials with a quarter of the size along each axis.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lms.units import GIB, MIB, Bytes

__all__ = ["FULL", "PARTS", "TINY", "Scale", "Trial", "catalogue"]

PARTS = ("machine", "swap", "study", "link", "predicted", "peers")

# Options of GPUs that may change how copies, launches and memory get along.
_RUNTIMES: dict[str, dict[str, Any]] = {
    "timestamped_allocator": {"gpu_options": {"timestamped_allocator": True}},
    "kernel_tracker_max_pending": {"gpu_options": {"kernel_tracker_max_pending": 8}},
    "timestamps and kernel tracker": {
        "gpu_options": {
            "timestamped_allocator": True,
            "kernel_tracker_max_pending": 8,
        }
    },
    "cuda_malloc_async": {"variables": {"TF_GPU_ALLOCATOR": "cuda_malloc_async"}},
    "layout optimizer off": {"layout": False},
}

_PEERS = ("RematScope", "recomputation heuristics", "swapping heuristics", "XLA")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large trials are.

    Args:
        filters: Of the network's top level.
        depth: Levels of the network.
        memory: Bytes of the device that stands for the case study's.
        small: Bytes of the device in which nothing but the swap is looked at.
        shrink: How many times smaller volumes are along each axis.
        largest: Bytes of the largest copy over the link.
        seconds: Times time limits.
    """

    filters: int
    depth: int
    memory: Bytes
    small: Bytes
    shrink: int
    largest: Bytes
    seconds: float = 1.0

    def size(self, voxels: int) -> int:
        """Voxels along an axis, as the network can halve them.

        Example:
            >>> FULL.size(192), TINY.size(192)
            (192, 48)
        """
        step = 2 ** (self.depth - 1)
        return max(1, voxels // self.shrink // step) * step


FULL = Scale(filters=16, depth=5, memory=16 * GIB, small=4 * GIB, shrink=1, largest=GIB)
TINY = Scale(filters=4, depth=3, memory=48 * MIB, small=48 * MIB, shrink=4, largest=MIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One process.

    Args:
        part: Its number; an index of `PARTS`.
        name: Unlike any other.
        kind: `machine`, `train`, `fit`, `link` or `timeline`.
        limit: Seconds after which it is ended.
        memory: Bytes of the device; None for all that there is.
        settings: What its kind wants to know.
        needs: Trials that must have ended well before.
        share_of: A trial and a share of its peak: the budget of this one.
        may_fail: Whether failing is a finding like any other.
    """

    part: int
    name: str
    kind: str
    limit: float
    memory: Bytes | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    share_of: tuple[str, float] | None = None
    may_fail: bool = False


def catalogue(scale: Scale, *, short: bool) -> list[Trial]:
    """All trials, or those of the short form.

    Args:
        scale: How large they are.
        short: At most eight minutes: the machine, the swap, the link, a step.
    """
    parts = [_machine(scale), *_swap(scale, short=short)]
    if not short:
        parts += _study(scale)
    parts += _link(scale, short=short)
    if not short:
        parts += [*_predicted(scale), *_peers(scale)]
    return parts


def _machine(scale: Scale) -> Trial:
    return Trial(part=0, name="machine", kind="machine", limit=120 * scale.seconds)


def _train(scale: Scale, part: int, name: str, voxels: int, **more: Any) -> Trial:
    """A training; what a `Trial` does not know is one of its settings."""
    own = {key: more.pop(key) for key in ("memory", "needs", "share_of") if key in more}
    limit = more.pop("limit", 600) * scale.seconds
    may_fail = more.pop("may_fail", False)
    kind = more.pop("kind", "train")
    settings = {
        "size": scale.size(voxels),
        "filters": scale.filters,
        "depth": scale.depth,
        "way": "plain",
        "steps": 8,
    }
    return Trial(
        part=part,
        name=name,
        kind=kind,
        limit=limit,
        settings=settings | more,
        may_fail=may_fail,
        **own,
    )


def _swap(scale: Scale, *, short: bool) -> Iterator[Trial]:
    same = {
        "memory": scale.small,
        "steps": 8 if short else 20,
        "deterministic": True,
        "traced": 2,
        "limit": 130 if short else 400,
    }
    yield _train(scale, 1, "swap: plain", 96, **same)
    ways = ("lms", "callback") if short else ("lms", "callback", "threshold")
    for way in ways:
        yield _train(
            scale,
            1,
            f"swap: {way}",
            96,
            way=way,
            kind="fit" if way == "callback" else "train",
            needs=("swap: plain",),
            share_of=("swap: plain", 0.6),
            **same,
        )


def _study(scale: Scale) -> Iterator[Trial]:
    fixed, whole = {"memory": scale.memory}, {"memory": None}
    yield _train(scale, 2, "192 lms", 192, way="lms", **fixed)
    yield _train(scale, 2, "192 plain", 192, **fixed)
    for voxels in (192, 144, 160, 176):
        yield _train(scale, 2, f"{voxels} whole GPU", voxels, **whole)
        if voxels != 192:
            yield _train(scale, 2, f"{voxels} lms", voxels, way="lms", **fixed)
    yield from _climb(scale, "plain", (144, 160, 176), None)
    yield from _climb(scale, "plain", (208, 224, 240, 256), "192 plain")
    yield from _climb(scale, "lms", (256, 288, 320), "192 lms", limit=1200)
    yield _train(scale, 2, "192 threshold", 192, way="threshold", **fixed)
    yield _train(scale, 2, "192 half", 192, precision="mixed_float16", **whole)
    yield _train(
        scale, 2, "192 half lms", 192, way="lms", precision="mixed_float16", **fixed
    )


def _climb(
    scale: Scale, way: str, sizes: tuple[int, ...], first: str | None, **more: Any
) -> Iterator[Trial]:
    """Rising volumes, as long as they train."""
    before = first
    for voxels in sizes:
        name = f"{voxels} {way}"
        yield _train(
            scale,
            2,
            name,
            voxels,
            way=way,
            steps=4,
            memory=scale.memory,
            needs=() if before is None else (before,),
            **more,
        )
        before = name


def _link(scale: Scale, *, short: bool) -> Iterator[Trial]:
    yield Trial(
        part=3,
        name="link",
        kind="link",
        limit=(90 if short else 240) * scale.seconds,
        memory=scale.small,
        settings={"largest": scale.largest, "seconds": 0.02 if short else 0.2},
    )
    base, voxels = ("swap: plain", 96) if short else ("192 whole GPU", 192)
    yield Trial(
        part=3,
        name="timeline",
        kind="timeline",
        limit=(165 if short else 600) * scale.seconds,
        memory=scale.small if short else None,
        settings={
            "size": scale.size(voxels),
            "filters": scale.filters,
            "depth": scale.depth,
            "steps": 3 if short else 8,
        },
        needs=(base,),
        share_of=(base, 0.6),
    )


def _predicted(scale: Scale) -> Iterator[Trial]:
    base = "144 whole GPU"
    known = {"way": "lms", "needs": (base,)}
    for share in (0.8, 0.65, 0.5, 0.4):
        name = f"144 in {share:.0%}"
        yield _train(scale, 4, name, 144, share_of=(base, share), **known)
    for name, runtime in _RUNTIMES.items():
        yield _train(
            scale,
            4,
            f"144 in 50%, {name}",
            144,
            share_of=(base, 0.5),
            may_fail=True,
            **known,
            **runtime,
        )


def _peers(scale: Scale) -> Iterator[Trial]:
    for peer in _PEERS:
        yield _train(scale, 5, f"144 {peer}", 144, way=peer, may_fail=True)
    yield _train(
        scale,
        5,
        "144 unified memory",
        144,
        memory=scale.memory,
        gpu_options={"use_unified_memory": True},
        may_fail=True,
    )
