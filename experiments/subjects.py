"""Five models at real sizes, each with one argument that grows.

On a dry card (`lms.emulation`) a step of any size takes little of this machine. Its
time is the card's: kernels and copies take times by the data sheet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.runner import Book, Trial
from experiments.stats import Row, trained
from lms.emulation.card import LINKS
from lms.machine.hardware import PRESETS
from lms.units import MIB, Bytes

__all__ = [
    "LIMITED",
    "NAMES",
    "PRESET",
    "RULES",
    "SUBJECTS",
    "Subject",
    "attempts",
    "in_mib",
]
__all__ += ["named", "short", "to_be_had"]

RULES = ("rule", "serialised")
LIMITED = ("swapping", "grappler", "unified")  # of TensorFlow and the driver
_RULE_SHARES = (None, 0.8, 0.7, 0.6, 0.5)  # of the card; IBM's own is 0.9
_PLANNED = ("callback", *RULES)
PRESET = "v100-pcie"
_SLOWER = {"a100": 2.5, "h100": 7.5, "h200": 7.5, "gh200": 7.5}  # times a V100's

NAMES = {
    "plain": "plain Keras",
    "callback": "the callback",
    "rule": "IBM's rule",
    "serialised": "IBM's rule, serialised",
    "by_hand": "blocks by hand",
    "remat": "RematScope",
    "mixed": "mixed precision",
    "accumulate": "accumulation",
    "swapping": "Grappler's swapping",
    "grappler": "Grappler's recomputation",
    "unified": "unified memory",
    "xla": "XLA",
}


def short(way: str) -> str:
    """Return a way without its mode.

    Example:
        >>> short("remat:activations"), named("remat:activations")
        ('remat', 'RematScope')
    """
    return way.partition(":")[0]


def named(way: str) -> str:
    """Return a way's name for sentences."""
    return NAMES[short(way)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model and its size."""

    title: str
    model: str  # a name of `experiments.models`
    shape: Mapping[str, int]
    small: Mapping[str, int]  # the shape for rehearsals
    knob: str  # the argument that grows
    sizes: tuple[int, int, int]  # start, coarse increment, fine increment
    slow_motion: float  # so that a V100's step takes seconds of this machine
    peers: tuple[str, ...]  # ways of others that take no budget

    def slow_motion_of(self, card: str) -> float:
        """Return the slow motion of this model on a card."""
        return self.slow_motion * _SLOWER.get(card.partition("-")[0], 1)

    def trial(self, way: str, *, small: bool, **more: Any) -> Trial:
        """Make a trial of a way, by default on a V100 with PCIe 3.0."""
        # Few steps run, and they count: all effort goes before the first one.
        planned_once = {"host_memory": "256GiB", "replan": False}
        knobs = planned_once if way in _PLANNED else {}
        card = more.pop("preset", PRESET)
        link = (name for name, one in LINKS.items() if one.h2d == PRESETS[card].h2d)
        known: dict[str, Any] = {"card": card, "link": next(link), "dry": True}
        known |= {"slow_motion": self.slow_motion_of(card), "deterministic": False}
        known |= {"knobs": knobs, "model": self.model, "way": way}
        shape = {**(self.small if small else self.shape), **more.pop("shape", {})}
        return Trial(shape=shape, **{**known, **more})


_PEERS = ("by_hand", "remat:activations", "remat:list_of_layers", "mixed:mixed_float16")
_PEERS += ("xla",)
_TINY = {"width": 64, "depth": 2, "heads": 2, "batch": 4}


def _batches(model: str, title: str, shape: Mapping[str, int], *sizes: int) -> Subject:
    """Make a subject whose batch grows."""
    small, start, coarse, fine = {"size": 64, "batch": 8}, *sizes
    is_text = model != "resnet50"
    if is_text:
        shape = {"width": 768, "depth": 12, "heads": 12, **shape}
        small = _TINY | ({"size": 64} if model == "vit" else {"length": 64})
    return Subject(
        title=title,
        model=model,
        shape=shape,
        small=small,
        knob="batch",
        sizes=(start, coarse, fine),
        slow_motion=15 if is_text else 10,
        peers=(*_PEERS, "accumulate:2"),
    )


_RESNET50 = {"size": 224, "batch": 64, "count": 1000}
_GPT2 = {"batch": 2, "length": 1024, "words": 50257}
_BERT = {"batch": 8, "length": 512, "words": 30522}
_VIT = {"batch": 32, "size": 224, "patch": 16}

SUBJECTS: Mapping[str, Subject] = {
    "unet": Subject(
        title="3D U-Net",
        model="unet",
        shape={"size": 192, "filters": 16, "depth": 5},
        small={"size": 32, "filters": 8, "depth": 3},
        knob="size",
        sizes=(144, 32, 16),
        slow_motion=10,
        peers=_PEERS,
    ),
    "resnet50": _batches("resnet50", "ResNet50", _RESNET50, 32, 64, 16),
    "gpt2": _batches("gpt2", "GPT-2 small", _GPT2, 2, 4, 2),
    "bert": _batches("bert", "BERT base", _BERT, 4, 8, 2),
    "vit": _batches("vit", "ViT base", _VIT, 16, 16, 4),
}


def attempts(book: Book, key: dict[str, Any], trial: Trial) -> Row:
    """Return a trial's row; IBM's rule is tuned for less of the card until it trains.

    Each try is a row; other ways have one try.
    """
    if trial.way not in RULES or not trial.memory:
        return book.row(key, trial)
    row: Row = {}
    for share in _RULE_SHARES:
        budget = trial.budget if share is None else int(share * trial.memory)
        row = book.row({**key, "tuned_for": share}, replace(trial, budget=budget))
        if trained(row) or row.get("refused"):  # less would be refused too
            break
    return row


def to_be_had(ways: Sequence[str], card: str) -> list[str]:
    """Return ways that a card has: an emulated card lacks unified memory and XLA.

    Example:
        >>> to_be_had(["rule", "unified"], "emulated")
        ['rule']
    """
    return [way for way in ways if way not in ("unified", "xla") or card == "real"]


def in_mib(size: float) -> Bytes:
    """Round bytes down to whole MiB."""
    return int(size) // MIB * MIB
