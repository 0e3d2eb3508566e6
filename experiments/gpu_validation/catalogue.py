"""What is tried, in the order of its worth: trials as plain data.

Sizes are the case study's: a 3D U-Net with 16 filters and 5 levels, batch 1. A
rehearsal takes the same trials with a quarter of the size along each axis.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lms.units import GIB, MIB, Bytes

__all__ = ["FULL", "PARTS", "TINY", "Scale", "Trial", "catalogue"]

PARTS = ("machine", "link", "swap", "costs", "headline", "predicted", "peers")

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

_PEERS = ("RematScope", "recomputation heuristics", "swapping heuristics")

# Plain Keras at 144^3 on the whole GPU, without XLA. The headline's device has 1.05
# times its peak: the smaller volume fits, and the larger one does not.
_BASE, _ROOM = "144 plain", 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large trials are.

    Args:
        filters: Of the network's top level.
        depth: Levels of the network.
        memory: Bytes of the case study's device.
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
        kind: What its process does: one of `worker`'s.
        limit: Seconds after which it is ended.
        memory: Bytes of the device; None for all that there is.
        settings: What its kind wants to know.
        needs: Trials that must have ended well before.
        share_of: A trial and a share of its peak: the budget of this one.
        memory_of: The same, as the device's memory.
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
    memory_of: tuple[str, float] | None = None
    may_fail: bool = False


def catalogue(scale: Scale, *, short: bool) -> list[Trial]:
    """All trials, or those of the short form.

    Args:
        scale: How large they are.
        short: At most eight minutes: the machine, the swap, the link, a step.
    """
    parts = [_machine(scale), *_link(scale, short=short), *_swap(scale, short=short)]
    if short:
        return [*parts, _timeline(scale, short=True)]
    parts += [*_costs(scale), *_headline(scale), *_predicted(scale)]
    return [*parts, _timeline(scale, short=False), *_peers(scale)]


def _machine(scale: Scale) -> Trial:
    return Trial(part=0, name="machine", kind="machine", limit=120 * scale.seconds)


_OWN = ("memory", "needs", "share_of", "memory_of")


def _train(scale: Scale, part: int, name: str, voxels: int, **more: Any) -> Trial:
    """A training; what a `Trial` does not know is one of its settings."""
    own = {key: more.pop(key) for key in _OWN if key in more}
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
    yield _train(scale, 2, "swap: plain", 96, **same)
    ways = ("lms", "callback") if short else ("lms", "callback", "threshold")
    for way in ways:
        yield _train(
            scale,
            2,
            f"swap: {way}",
            96,
            way=way,
            kind="fit" if way == "callback" else "train",
            needs=("swap: plain",),
            share_of=("swap: plain", 0.6),
            **same,
        )
    if not short:
        yield _train(
            scale,
            2,
            "swap: variables on the host",
            96,
            way="lms",
            weights="CPU:0",
            needs=("swap: plain",),
            share_of=("swap: plain", 0.6),
            **same,
        )


def _link(scale: Scale, *, short: bool) -> Iterator[Trial]:
    """Copies of all sizes, then beside a convolution."""
    yield Trial(
        part=1,
        name="link",
        kind="link",
        limit=(90 if short else 150) * scale.seconds,
        memory=scale.small,
        settings={"largest": scale.largest, "seconds": 0.02 if short else 0.1},
    )
    runtimes: dict[str, dict[str, Any]] = {"": {}}
    if not short:
        runtimes[", timestamped_allocator"] = _RUNTIMES["timestamped_allocator"]
    for name, runtime in runtimes.items():
        yield Trial(
            part=1,
            name=f"copies beside convolutions{name}",
            kind="beside",
            limit=60 * scale.seconds,
            memory=scale.small,
            settings={"size": scale.size(96), "bytes": scale.largest // 4, **runtime},
            may_fail=bool(runtime),
        )


def _costs(scale: Scale) -> Iterator[Trial]:
    """Each op alone, with TF32 and without; and a chain of small ops."""
    for name, tf32 in (("with TF32", True), ("without TF32", False)):
        yield Trial(
            part=3,
            name=f"costs {name}",
            kind="costs",
            limit=240 * scale.seconds,
            settings={
                "size": scale.size(144),
                "filters": scale.filters,
                "depth": scale.depth,
                "tf32": tf32,
            },
        )
    yield Trial(
        part=3,
        name="launches",
        kind="launches",
        limit=60 * scale.seconds,
        settings={"ops": 5000},
    )


def _headline(scale: Scale) -> Iterator[Trial]:
    yield _train(scale, 4, _BASE, 144, steps=20)
    fixed = {"memory_of": (_BASE, _ROOM), "needs": (_BASE,), "steps": 20, "traced": 1}
    yield _train(scale, 4, "192 plain", 192, **fixed)
    yield _train(scale, 4, "192 lms", 192, way="lms", **fixed)
    yield _train(scale, 4, "192 whole GPU", 192, steps=20)
    once = {"way": "lms", "recompute": False}
    yield _train(scale, 4, "192 nothing twice", 192, **once, **fixed)
    yield _train(scale, 4, "192 threshold", 192, way="threshold", **fixed)
    yield _train(scale, 4, "144 plain, XLA", 144, way="XLA", may_fail=True)
    yield _train(scale, 4, "192 whole GPU, XLA", 192, way="XLA", may_fail=True)
    yield _train(scale, 4, "192 plain, XLA", 192, way="XLA", may_fail=True, **fixed)
    yield from _climb(scale, (256,), "192 lms", memory_of=(_BASE, _ROOM))
    yield _train(scale, 4, "256 whole GPU", 256, steps=8)
    yield from _climb(scale, (256, 288, 320), None, memory=scale.memory)
    half = {"precision": "mixed_float16"}
    yield _train(scale, 4, "192 half whole GPU", 192, **half)
    yield _train(scale, 4, "192 half lms", 192, way="lms", **fixed, **half)


def _climb(
    scale: Scale, sizes: tuple[int, ...], before: str | None, **more: Any
) -> Iterator[Trial]:
    """Rising volumes, as long as they train."""
    there = "in the case study's memory" if "memory" in more else "lms"
    for voxels in sizes:
        name = f"{voxels} {there}"
        needs = () if before is None else (before,)
        known = {"way": "lms", "steps": 8, "needs": needs, **more}
        yield _train(scale, 4, name, voxels, **known)
        before = name


def _timeline(scale: Scale, *, short: bool) -> Trial:
    base, voxels = ("swap: plain", 96) if short else (_BASE, 144)
    return Trial(
        part=5,
        name="timeline",
        kind="timeline",
        limit=(165 if short else 300) * scale.seconds,
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
    known = {"way": "lms", "needs": (_BASE,)}
    for share in (0.8, 0.65, 0.5, 0.4):
        name = f"144 in {share:.0%}"
        yield _train(scale, 5, name, 144, share_of=(_BASE, share), **known)
    for name, runtime in _RUNTIMES.items():
        yield _train(
            scale,
            5,
            f"144 in 50%, {name}",
            144,
            share_of=(_BASE, 0.5),
            may_fail=True,
            **known,
            **runtime,
        )


def _peers(scale: Scale) -> Iterator[Trial]:
    for peer in _PEERS:
        yield _train(scale, 6, f"144 {peer}", 144, way=peer, may_fail=True)
    yield _train(
        scale,
        6,
        "144 unified memory",
        144,
        memory=scale.memory,
        gpu_options={"use_unified_memory": True},
        may_fail=True,
    )
