"""The settings of a training: of the command line, the resumed run, or defaults.

A run's folder has its settings, so `train --resume FOLDER` needs no other option.
"""

import argparse
import os
from collections.abc import Collection, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from unet3d.common import CT, find_windows, median_grid
from unet3d.runs import (
    RESIDUAL,
    Configuration,
    Surroundings,
    check_same,
    read_configuration,
    read_surroundings,
)
from unet3d.schemes import SCHEMES, LabelScheme, choose_scheme, scheme_named
from unet3d.shapes import PRESETS, choose_patch
from unet3d.subjects import find_subjects

__all__ = ["check_folder", "settle"]

_UNSET = object()
_SETTINGS = tuple(field.name for field in fields(Configuration))
# Options that another one makes void, and why.
_UNET = ("model", "only the U-Net has it")
_VOID = {"filters": _UNET, "depth": _UNET, "linear_heads": _UNET}
_VOID |= {"size": ("patch", "patches are not resized")}
_AROUND = tuple(field.name for field in fields(Surroundings))


def settle(
    options: argparse.Namespace, words: Sequence[str], workers: int
) -> Configuration:
    """Return the settings; set `output`, `cache` and `workers` of `options`."""
    given = _given(options.parser, words)
    _take_folder(options)
    before: dict[str, Any] = {}
    if options.resume and (options.output / "configuration.json").is_file():
        kept = read_configuration(options.output)
        before = {name: getattr(kept, name) for name in _SETTINGS}  # not nested
        if given.get("lms") is False:
            before["budget"] = None
        if given.get("label_scheme"):
            given["label_scheme"] = scheme_named(given["label_scheme"]).name
        if isinstance(given.get("spacing"), str):  # it was decided when the run began
            del given["spacing"]
        _take_surroundings(options, given, workers)
    settings = {name: vars(options)[name] for name in _SETTINGS}
    settings |= before | {n: given[n] for n in _SETTINGS if n in given}
    if settings["data"] is None:
        raise _missing("--data")
    settings["data"] = str(Path(settings["data"]).resolve())
    if not before:
        _begin(settings, given)
    if options.output is None:
        raise _missing("--output")
    configuration = Configuration(**settings)
    if before:
        check_same(options.output, configuration)
        _check_there(configuration)
    return configuration


def _begin(settings: dict[str, Any], given: dict[str, Any]) -> None:
    """Set what the data decides when a run begins."""
    for name, (other, reason) in _VOID.items():
        if name in given and given.get(other):
            option = "--" + name.replace("_", "-")
            raise ValueError(
                f"`{option}` must come without --{other}, as {reason}, got "
                f"{given[name]} with {given[other]}. Leave out {option} or --{other}."
            )
    chosen = choose_scheme(settings["label_scheme"], Path(settings["data"]))
    if chosen is None:
        raise _missing("--label-scheme")
    settings["label_scheme"] = chosen.name
    settings["scheme"] = None if chosen.name in SCHEMES else chosen
    settings["softmax"] = settings["background"] = chosen.is_exclusive
    # A normalised head is high somewhere in each patch, with its label or without.
    settings["linear_heads"] |= chosen.is_exclusive and not settings["model"]
    _fit_to_data(settings, chosen, given)


def check_folder(path: Path, name: str) -> None:
    """Refuse a folder that cannot be written to, before slow work begins."""
    nearest = path.absolute()
    while not os.path.lexists(nearest):
        nearest = nearest.parent
    start, of_it = f"`{name}` must be a folder", f"'{nearest}'"
    if not nearest.is_dir():
        raise ValueError(
            f"{start}, got '{path}', where {of_it} is a file. Choose another path."
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(
            f"{start} that this user may write to, got '{path}', where {of_it} may not "
            "be written to. Change its permissions, or choose another path."
        )


def _given(command: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, Any]:
    """Return the settings that the command line names."""
    unset = argparse.Namespace(**dict.fromkeys((*_SETTINGS, *_AROUND), _UNSET))
    read = vars(command.parse_args(words, unset))
    return {n: read[n] for n in (*_SETTINGS, *_AROUND) if read[n] is not _UNSET}


def _take_folder(options: argparse.Namespace) -> None:
    """Set `output` to the folder that `--resume` names."""
    if options.resume is True and options.output is None:
        raise ValueError("`--resume` must name a run, got none. Add the run's folder.")
    if not isinstance(options.resume, Path):
        return
    if options.output not in (None, options.resume):
        raise ValueError(
            f"`--resume` must name the run that --output names, got '{options.resume}' "
            f"and '{options.output}'. Leave one of them out."
        )
    options.output = options.resume
    read_configuration(options.output)  # refuses a folder without a run


def _take_surroundings(
    options: argparse.Namespace, given: Collection[str], workers: int
) -> None:
    """Take the run's cache and workers, unless command line or job name others."""
    around = read_surroundings(options.output)
    if around.cache is not None and "cache" not in given:
        options.cache = Path(around.cache)
    if around.workers is not None and "workers" not in given and workers == 1:
        options.workers = around.workers


def _fit_to_data(settings: dict[str, Any], scheme: LabelScheme, given: Any) -> None:
    """Set spacing, windows, and a preset's patch and batch, by all labelled scans."""
    network, _, preset = (settings["model"] or "").rpartition("-")
    is_preset = network == RESIDUAL and preset in PRESETS
    if is_preset and "size" in given:
        raise ValueError(
            f"`--size` must come without a preset, got {given['size']}. Leave it out."
        )
    asked, settings["spacing"] = settings["spacing"] or "median", None
    is_patched = bool(settings["patch"]) or is_preset
    if not is_patched and "spacing" in given and given["spacing"] != "keep":
        raise ValueError(
            f"`spacing` must come with --patch, got {given['spacing']} with volumes "
            "that are resized to --size. Leave one of them out."
        )
    if not is_patched and CT not in scheme.channels:
        return
    found = find_subjects(Path(settings["data"]), scheme.channels)
    subjects = [files for files in found.subjects if not files.is_test]
    if CT in scheme.channels:
        settings["windows"] = find_windows(subjects, scheme)
    if not is_patched:
        return
    shape, median = median_grid(subjects)
    if asked != "keep":
        settings["spacing"] = median if asked == "median" else asked
    if is_preset:
        outputs = len(scheme.regions) + settings["softmax"]
        sides = settings["spacing"] or median
        patch, batch = choose_patch(preset, sides, shape, outputs)
        settings["patch"] = settings["patch"] or patch
        if "batch_size" not in given:
            settings["batch_size"] = batch


def _missing(option: str) -> ValueError:
    return ValueError(
        f"`{option}` must be given where a training begins, got none. Add it, or go on "
        "with a run by --resume FOLDER."
    )


def _check_there(configuration: Configuration) -> None:
    if not Path(configuration.data).is_dir():
        raise FileNotFoundError(
            f"`data` must be the folder that the run is trained with, got "
            f"'{configuration.data}', which is not there. If it moved, add --data "
            "FOLDER."
        )
