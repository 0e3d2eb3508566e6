"""Five models at the size at which they are trained in earnest, and what grows in each.

On a dry card (`lms.emulation`) a step of any size takes little of this machine, and its
time is the card's: what kernels and copies take by its data sheet.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.runner import Book, Row, Trial, trained
from lms.units import MIB, Bytes

__all__ = ["RULES", "SUBJECTS", "Subject", "attempts", "in_mib", "step_of"]
__all__ += ["to_be_had"]

RULES = ("rule", "serialised")
_RULE_SHARES = (None, 0.8, 0.7, 0.6, 0.5)  # of the card; IBM's own is 0.9
_WARM = 2  # steps that initialise


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model and its size.

    Args:
        title: For tables.
        model: A name of `experiments.models`.
        shape: Its size.
        small: The same, for rehearsals.
        knob: The argument that grows.
        start: From where, and in steps of how much: coarse ones, then fine ones.
        coarse: See `start`.
        fine: See `start`.
        slow_motion: In which a step on a V100 takes seconds of this machine.
        peers: Ways of others that take no budget, and can be had for it.
    """

    title: str
    model: str
    shape: Mapping[str, int]
    small: Mapping[str, int]
    knob: str
    start: int
    coarse: int
    fine: int
    slow_motion: float
    peers: tuple[str, ...]

    def trial(self, way: str, *, small: bool, **more: Any) -> Trial:
        """Train it in a way, on a V100 with PCIe 3.0 if nothing else is said."""
        known: dict[str, Any] = {
            "card": "v100-pcie",
            "link": "pcie3",
            "dry": True,
            "slow_motion": self.slow_motion,
            "deterministic": False,
            "knobs": {"host_memory": "256GiB"} if way in _PLANNED else {},
        }
        shape = {**(self.small if small else self.shape), **more.pop("shape", {})}
        trial = Trial(model=self.model, shape=shape, way=way, **known)
        return replace(trial, **more)


_PLANNED = ("callback", "cheap", "kept", *RULES)
_ALL = ("remat:activations", "remat:list_of_layers", "mixed:mixed_float16")
_TEXT = {"width": 768, "depth": 12, "heads": 12}
_TINY = {"width": 64, "depth": 2, "heads": 2}

SUBJECTS: Mapping[str, Subject] = {
    "unet": Subject(
        title="3D U-Net",
        model="unet",
        shape={"size": 192, "filters": 16, "depth": 5},
        small={"size": 32, "filters": 8, "depth": 3},
        knob="size",
        start=144,
        coarse=32,
        fine=16,
        slow_motion=10,
        peers=("by_hand", *_ALL),
    ),
    "resnet50": Subject(
        title="ResNet50",
        model="resnet50",
        shape={"size": 224, "batch": 64, "count": 1000},
        small={"size": 64, "batch": 8},
        knob="batch",
        start=32,
        coarse=64,
        fine=16,
        slow_motion=10,
        peers=("by_hand", *_ALL, "accumulate:2"),
    ),
    "gpt2": Subject(
        title="GPT-2 small",
        model="gpt2",
        shape={**_TEXT, "batch": 2, "length": 1024, "words": 50257},
        small={**_TINY, "batch": 4, "length": 64},
        knob="batch",
        start=2,
        coarse=4,
        fine=1,
        slow_motion=15,
        peers=("by_hand", *_ALL, "accumulate:2"),
    ),
    "bert": Subject(
        title="BERT base",
        model="bert",
        shape={**_TEXT, "batch": 8, "length": 512, "words": 30522},
        small={**_TINY, "batch": 4, "length": 64},
        knob="batch",
        start=4,
        coarse=8,
        fine=2,
        slow_motion=15,
        peers=("by_hand", *_ALL, "accumulate:2"),
    ),
    "vit": Subject(
        title="ViT base",
        model="vit",
        shape={**_TEXT, "batch": 32, "size": 224, "patch": 16},
        small={**_TINY, "batch": 4, "size": 64},
        knob="batch",
        start=16,
        coarse=16,
        fine=4,
        slow_motion=15,
        peers=("by_hand", *_ALL, "accumulate:2"),
    ),
}


def attempts(book: Book, key: dict[str, Any], trial: Trial) -> Row:
    """The row of a way that is tuned for a part of the card, and for less if it dies.

    Each try is a row; a way that is not tuned so has one.
    """
    memory = trial.memory
    shares = _RULE_SHARES if trial.way in RULES and memory else (None,)
    row: Row = {}
    for share in shares:
        budget = trial.budget if share is None else int(share * (memory or 0))
        row = book.row({**key, "tuned_for": share}, replace(trial, budget=budget))
        if trained(row) or row.get("refused"):  # less would be refused too
            break
    return row


def step_of(row: Row) -> float:
    """The median step of a process, without those that initialise.

    Example:
        >>> step_of({"step_seconds": [9.0, 8.0, 1.0, 3.0, 2.0]})
        2.0
    """
    seconds = row["step_seconds"]
    return statistics.median(seconds[_WARM:] or seconds[-1:])


def to_be_had(ways: Sequence[str], card: str) -> list[str]:
    """Ways that a card has: an emulated one has no unified memory.

    Example:
        >>> to_be_had(["rule", "unified"], "emulated")
        ['rule']
    """
    return [way for way in ways if way != "unified" or card == "real"]


def in_mib(size: float) -> Bytes:
    """Whole MiB, downwards."""
    return int(size) // MIB * MIB
