"""Label schemes: the meaning of a segmentation's values, and a subject's channels.

A value means different tissue in different years of BraTS, so a scheme is chosen or
read from the data's own `dataset.json`, never guessed from the values that occur.
A file for --label-scheme has the form of nnU-Net's dataset.json:

    {"channel_names": {"0": "CT"}, "labels": {"liver": [1, 2], "tumour": 2}}

Regions stand from the outside in: where two overlap, the later one is written. With
nnU-Net's "regions_class_order", a value for each region, each region is written over
earlier ones, and they may overlap in any way. Labels without a common value exclude
each other.

Sources: Menze et al., IEEE TMI 34(10), 2015, for BraTS's regions; the data descriptions
of BraTS 2017 to 2021, 2023 and 2024 (glioma); the Medical Segmentation Decathlon
(Antonelli et al., arXiv 2106.05735); nnU-Net's documentation of its dataset format.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

__all__ = ["BRATS2017", "LISTING", "MODALITIES", "REGIONS", "SCHEMES", "LabelScheme"]
__all__ += ["as_text", "channels_in", "choose_scheme", "kind_of", "read_listing"]
__all__ += ["refuse_folder_above", "scheme_named"]

LISTING = "dataset.json"
MODALITIES = ("flair", "t1", "t1ce", "t2")
REGIONS: tuple[str, ...] = ("whole tumour", "tumour core", "enhancing tumour")

_SYNONYMS = {
    "flair": "flair t2f t2flair",
    "t1": "t1 t1n t1w t1pre",
    "t1ce": "t1ce t1c t1gd t1post t1wce t1cew t1contrast",
    "t2": "t2 t2w",
    "seg": "seg segm segmentation tumorsegmentation mask label labels gt truth",
    "brain": "brainmask betmask skullmask",  # where tissue is, and no tumour
}
_KINDS = {word: kind for kind, words in _SYNONYMS.items() for word in words.split()}
# Words of data sets for BraTS's tissues and regions; the first match counts.
_TISSUES = {
    "oedema": r"o?edema|snfh|^ed$",
    "cavity": r"cavity|^rc$",
    "whole tumour": r"whole|^wt$",
    "core": r"non.?enhanc|necro|^ncr|netc|^core$",
    "tumour core": r"tumou?r core|^tc$",
    "enhancing": r"enhanc|^et$",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelScheme:
    """The regions of one family of data sets, by their label values; 0 is background.

    Args:
        name: The scheme's name on a command line and in a run's folder.
        regions: The values of each region, an outer region before its inner ones.
        tissues: The values of each tissue, to compare schemes by names.
        channels: The kinds of image that a subject has, in order.
        order: nnU-Net's `regions_class_order`: the value that each region writes over
            earlier ones; None if the regions' values decide.

    Example:
        >>> SCHEMES["msd"].regions["tumour core"], SCHEMES["msd"].written
        ((2, 3), (1, 2, 3))
    """

    name: str
    regions: dict[str, tuple[int, ...]]
    tissues: dict[str, tuple[int, ...]]
    channels: tuple[str, ...] = MODALITIES
    order: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse a scheme that no segmentation can be written with."""
        if self.order is not None:
            self._check_order(self.order)
        if not self.regions or not self.channels or None in self.written:
            raise ValueError(
                f"`labels` of {self.name} must give each region whole numbers from 1 "
                "to 255, at least one of them its own, and each region must lie inside "
                f"or apart from earlier ones, got {self.regions} for channels "
                f"{self.channels}. Number labels so, and list the outer region first."
            )

    @property
    def values(self) -> tuple[int, ...]:
        """Every value a segmentation may hold, in ascending order."""
        return tuple(sorted({0}.union(*self.regions.values(), *self.tissues.values())))

    @property
    def is_exclusive(self) -> bool:
        """True if there are several regions, and no two share a value."""
        numbers = [value for values in self.regions.values() for value in values]
        return len(self.regions) > 1 and len({*numbers}) == len(numbers)

    @property
    def competes(self) -> bool:
        """True if a voxel may be written as another region than its likely ones."""
        pairs = combinations(map(set, self.regions.values()), 2)
        return self.order is not None or any(a.isdisjoint(b) for a, b in pairs)

    @property
    def written(self) -> tuple[int | None, ...]:
        """The value of each region that no later region has; None if there is none."""
        if self.order is not None:
            return self.order
        sets, own = list(self.regions.values()), []
        for place, values in enumerate(sets):
            later = [*map(set, sets[place + 1 :])]
            left = sorted(set(values).difference(*later))
            good = all(0 < value < 256 for value in values)
            good &= all(each.isdisjoint(values) or each < {*values} for each in later)
            own.append(left[0] if left and good else None)
        return tuple(own)

    def _check_order(self, order: tuple[int, ...]) -> None:
        sets = list(self.regions.values())
        good = len({*order}) == len(order) == len(sets)
        if not good or any(v not in s for v, s in zip(order, sets, strict=True)):
            raise ValueError(
                f"`regions_class_order` of {self.name} must give each region one of "
                f"its values, and no value twice, got {list(order)} for "
                f"{self.regions}. Mend it, in the order of `labels`."
            )


def _brats(name: str, **tissues: int) -> LabelScheme:
    core, oedema, enhancing = (tissues[t] for t in ("core", "oedema", "enhancing"))
    nested = ((core, oedema, enhancing), (core, enhancing), (enhancing,))
    regions = dict(zip(REGIONS, nested, strict=True))
    if "cavity" in tissues:
        regions["resection cavity"] = (tissues["cavity"],)
    return LabelScheme(
        name=name, regions=regions, tissues={t: (v,) for t, v in tissues.items()}
    )


BRATS2017 = _brats("brats2017", core=1, oedema=2, enhancing=4)
SCHEMES = {
    scheme.name: scheme
    for scheme in (
        BRATS2017,
        _brats("brats2023", core=1, oedema=2, enhancing=3),
        _brats("brats2024", core=1, oedema=2, enhancing=3, cavity=4),
        _brats("msd", core=2, oedema=1, enhancing=3),
    )
}


def kind_of(text: str) -> str:
    """Return one word for each kind of image, in any spelling."""
    plain = re.sub(r"[^a-z0-9]", "", text.lower())
    return _KINDS.get(plain, plain)


def scheme_named(name: str) -> LabelScheme:
    """Find a scheme by its name, or in a file."""
    if name in SCHEMES:
        return SCHEMES[name]
    if Path(name).is_file():
        return _scheme_in(read_listing(Path(name)), Path(name))
    raise ValueError(
        f"`label scheme` must be one of {', '.join(SCHEMES)}, or a JSON file, got "
        f"'{name}'. Choose the one that the data's description gives."
    )


def choose_scheme(
    name: str | None, data: Path, *, bare: bool = False
) -> LabelScheme | None:
    """Find a data set's scheme: by name, or the data's own; None if none is known.

    With `bare` that of the folder above counts for a folder of images.
    """
    refuse_folder_above(data)
    path = data / LISTING
    is_part = re.match(r"(?i)(images|labels)t[rs]$", data.name) and not path.is_file()
    if is_part and (data.parent / LISTING).is_file():
        if bare:
            return choose_scheme(name, data.parent)
        raise ValueError(
            f"`data` must be the folder of {LISTING}, got '{data}'. Pass {data.parent}."
        )
    said = read_listing(path) if path.is_file() else {}
    own = _scheme_in(said, path) if "labels" in said or (said and not name) else None
    if name is None or own is None:
        return own if name is None else scheme_named(name)
    chosen = scheme_named(name)
    clash = next(_clashes(own, chosen), None)
    if clash is None:
        return chosen
    agreeing = [n for n, s in SCHEMES.items() if next(_clashes(own, s), None) is None]
    advice = f"Use {agreeing[0]}, or leave" if agreeing else "Leave"
    raise ValueError(
        f"`label scheme` must agree with '{path}', which {clash}. {advice} "
        "--label-scheme out, to take the data's own."
    )


def refuse_folder_above(data: Path) -> None:
    """Refuse a folder of data sets, and name the data sets."""
    inner = sorted(path.parent for path in data.glob(f"*/{LISTING}"))
    if inner and not (data / LISTING).is_file():
        raise ValueError(
            f"`data` must be one data set, got '{data}' above "
            f"{', '.join(map(str, inner[:5]))}. Pass "
            f"{'one of these' if inner[1:] else inner[0]}."
        )


def as_text(path: Path) -> str:
    """Read text of any editor: UTF-8 with or without a BOM, or UTF-16 with a BOM."""
    content = path.read_bytes()
    marked = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    return content.decode("utf-16" if marked else "utf-8-sig")


def read_listing(path: Path) -> dict[str, Any]:
    """Read a dataset.json, or a file of a scheme."""
    try:
        content = json.loads(as_text(path))
        if isinstance(content, dict):
            return content
        reason = "no JSON object"
    except ValueError as error:
        reason = str(error)
    raise ValueError(
        f"`{path}` must be a {LISTING} of nnU-Net or the Decathlon, got one that "
        f"cannot be understood ({reason}). Mend it, or copy it again."
    )


def channels_in(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds of image that a dataset.json names, in order."""
    named = content.get("channel_names") or content.get("modality") or {}
    numbered = enumerate(named) if isinstance(named, list) else named.items()
    names = sorted(numbered, key=lambda item: int(item[0]))
    kinds = tuple(kind_of(str(name)) for _, name in names)
    alike = len({*kinds}) < len(kinds)  # such as "MRI" twice
    return tuple(f"channel{k}" for k in range(len(kinds))) if alike else kinds


def _scheme_in(content: Mapping[str, Any], path: Path) -> LabelScheme:
    """Make the scheme that a file describes."""
    try:
        labels = dict(_labels(content["labels"]))
        channels = channels_in(content) or MODALITIES
        order = tuple(int(n) for n in content.get("regions_class_order") or ())
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"`{path}` must give each label a whole number or a list of them, got "
            f"{content.get('labels')}, channels {content.get('channel_names')}, order "
            f"{content.get('regions_class_order')} ({error}). Mend it."
        ) from error
    name = LISTING if path.name == LISTING else str(path.resolve())
    single = [(_tissue(n), v[0]) for n, v in labels.items() if len(v) == 1]
    tissues = dict(single)
    is_brats = {"core", "oedema", "enhancing"} <= {*tissues} <= {*_TISSUES}
    if is_brats and len(tissues) == len(single):
        return replace(_brats(name, **tissues), channels=channels)
    # nnU-Net: the order counts for regions alone.
    kept = None if len(single) == len(labels) else order or None
    return LabelScheme(
        name=name, regions=labels, tissues=labels, channels=channels, order=kept
    )


def _labels(labels: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield regions by name; nnU-Net lists names first, the Decathlon values first."""
    for key, value in labels.items():
        name, number = (value, key) if key.isdigit() else (key, value)
        numbers = number if isinstance(number, list) else [number]
        values = tuple(int(n) for n in numbers)
        if name == "ignore":
            raise ValueError("a label 'ignore' is not read: make it another label")
        if values != (0,):
            yield str(name), values


def _tissue(name: str) -> str:
    said = name.lower()
    fits = (t for t, words in _TISSUES.items() if re.search(words, said))
    return next(fits, said)


def _clashes(own: LabelScheme, chosen: LabelScheme) -> Iterator[str]:
    """Describe contradictions between the chosen scheme and the data's own."""
    if missing := set(chosen.channels) - set(own.channels):
        yield (
            f"has the channels {', '.join(own.channels)}: {chosen.name} wants "
            f"{', '.join(sorted(missing))} too"
        )
    meant = {_tissue(n): v for n, v in {**chosen.tissues, **chosen.regions}.items()}
    for name, values in {**own.tissues, **own.regions}.items():
        expected = meant.get(_tissue(name), values)
        if set(expected) != set(values):
            yield (
                f"names {_numbers(values)} '{name}': {chosen.name} takes "
                f"{_numbers(expected)} for it"
            )
        elif _tissue(name) not in meant and set(values) & set(chosen.values):
            yield f"names {_numbers(values)} '{name}', unknown to {chosen.name}"


def _numbers(values: tuple[int, ...]) -> str:
    return " and ".join(map(str, values))
