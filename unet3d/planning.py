"""`python -m unet3d plan`: memory and time of a training before there is one.

    data, network, card --forecast--> memory, seconds    sizes --bisect--> the largest

Nothing is trained and no card is needed: seconds are a roofline's.

Known weakness: as of `python -m lms plan`, whose forecasts these are.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf
from rich.console import Console
from rich.table import Table

from lms import BudgetError, StepReport
from lms.commands.forecast import forecast, training_of
from lms.machine.hardware import PRESETS, Hardware, find_hardware
from lms.planning.settings import Settings
from lms.units import format_bytes, format_seconds, parse_size
from unet3d.common import median_grid
from unet3d.lines import several
from unet3d.runs import Configuration
from unet3d.shapes import as_shape, find_levels, in_words
from unet3d.subjects import find_subjects
from unet3d.training import build_for, precision_of

__all__ = ["NO_PLAN", "card_named", "plan"]

NO_PLAN = 3  # the exit status where the size that was asked for has no plan
_SHARE = 0.8  # of the subjects train


def card_named(text: str) -> Hardware:
    """Return a card by its name, its numbers, or its memory.

    Of memory alone the rates are those of the known card of the nearest memory, and
    T4's of 16 GiB.
    """
    try:
        memory = parse_size(text, name="card")
    except ValueError:
        try:
            return find_hardware(text)
        except ValueError as error:
            raise ValueError(f"{error} Or by its memory, such as 12GiB.") from error
    sold = {card: re.search(r"(\d+) GB", card.name) for card in PRESETS.values()}
    sizes = {card: int(found[1]) << 30 for card, found in sold.items() if found}
    near = min(sizes, key=lambda c: (abs(sizes[c] - memory), "T4 " not in c.name))
    name = f"{text} of memory, at the rates of {near.name}"
    return replace(near, name=name, memory=memory)


def plan(configuration: Configuration, card: Hardware, console: Console) -> int:
    """Print the forecast of the asked size, and the largest size; return the status."""
    found = find_subjects(Path(configuration.data), configuration.task.channels)
    subjects = [files for files in found.subjects if not files.is_test]
    training = max(1, round(_SHARE * len(subjects)))
    steps = configuration.steps_per_epoch or -(-training // configuration.batch_size)
    table = Table(title=f"One step, and an epoch of {several(steps, 'step')}")
    kind = "patch" if configuration.patch else "whole volume"
    for column in (kind, "memory as it is", "planned", "host", "step", "epoch"):
        table.add_column(column, justify="right")
    asked, tried = configuration.shape, dict[Any, StepReport | None]()

    def fits(shape: Any) -> bool:
        if shape not in tried:
            console.print(f"Planning {in_words(shape)}")
            tried[shape] = _forecast(configuration, shape, card)
        return tried[shape] is not None

    is_planned = fits(asked)
    shapes = list(_shapes(configuration, subjects))
    low, high = 0, len(shapes)  # shapes below `low` fit
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if fits(shapes[middle]) else (low, middle)
    for shape in dict.fromkeys([asked, *shapes[max(0, low - 1) : low]]):
        table.add_row(*_row(in_words(shape), tried[shape], steps))
    console.print(f"For {card.name}: a roofline of stated rates, not measured.")
    console.print(table)
    largest = in_words(shapes[low - 1]) if low else "none"
    console.print(f"Largest {kind} of this network that fits: {largest}.")
    if low == len(shapes):
        console.print("The scans' median size is the limit here, not the card.")
    return 0 if is_planned else NO_PLAN


def _row(name: str, report: StepReport | None, steps: int) -> list[str]:
    if report is None:
        return [name, "no plan fits", *[""] * 4]
    seconds = report.predicted_seconds or 0.0
    return [
        name,
        format_bytes(report.unplanned_peak_bytes),
        format_bytes(report.predicted_peak_bytes),
        format_bytes(report.host_peak_bytes),
        format_seconds(seconds),
        format_seconds(seconds * steps),
    ]


def _shapes(configuration: Configuration, subjects: Any) -> Iterator[Any]:
    """Yield shapes that grow to the median volume's."""
    median, _ = median_grid(subjects)
    if not configuration.patch:
        median = as_shape(max(median))
    if configuration.model is None:
        levels = find_levels(configuration.voxel, most=configuration.depth)
    else:
        levels = find_levels(configuration.voxel, configuration.shape)
    steps = levels.divisor
    most = [-(-n // step) * step for n, step in zip(median, steps, strict=True)]
    largest, before = max(steps), None
    for side in range(largest, max(most) + largest, largest):
        shape = as_shape([min(side, n) for n in most])
        if shape != before and all(
            n > step for n, step in zip(shape, steps, strict=True)
        ):
            yield shape
        before = shape


def _forecast(
    configuration: Configuration, shape: Any, card: Hardware
) -> StepReport | None:
    """Return the planned step; None where no plan fits."""
    sized = replace(configuration, patch=shape)
    if not configuration.patch:
        sized = replace(configuration, size=shape[0])
    with precision_of(sized):
        model = build_for(sized)
        batch = (sized.batch_size, *shape)
        images = tf.TensorSpec((*batch, len(sized.task.channels)), tf.float32)
        regions = tf.TensorSpec((*batch, len(sized.task.regions)), tf.uint8)
        settings = Settings(budget=configuration.budget)
        try:
            step = training_of(model, (images, regions), settings, hardware=card)
            return forecast(step).report
        except BudgetError:
            return None
