"""Lines of a training, on a terminal and in a log."""

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from unet3d.memory import Shown, computes

ROW = {"epoch": 2.0, "loss": 0.51234, "val_dice_coefficient": 0.4567, "seconds": 12.34}

pytestmark = pytest.mark.tf


def said(*, quiet: bool = False, memory: str = "", computes: bool = True) -> list[str]:
    """Return the lines of two epochs of two steps; the second epoch has a new plan."""
    text, plans = io.StringIO(), iter(("first plan", "first plan", "other plan"))
    console = Console(file=text, width=400)
    lines = Shown(
        Progress(console=console, disable=quiet),
        300,
        2,
        [ROW],
        plan=lambda: next(plans),
        memory=lambda: memory,
        computes=computes,
    )
    for epoch in range(3):
        lines.on_epoch_begin(epoch)
        for batch in range(2):
            lines.on_train_batch_end(batch)
        lines.on_epoch_end(epoch)
    return text.getvalue().splitlines()


def test_a_log_has_a_line_for_each_epoch_and_each_new_plan() -> None:
    epoch = "loss 0.5123, validation Dice 0.457, 12.3 s, memory 3 MiB of 4"
    assert said(memory="memory 3 MiB of 4") == [
        "first plan",
        f"Epoch 1 of 300: {epoch}",
        f"Epoch 2 of 300: {epoch}",
        "other plan",
        f"Epoch 3 of 300: {epoch}",
    ]


def test_what_is_turned_off_says_nothing() -> None:
    assert said(quiet=True) == []


def test_a_card_that_computes_nothing_has_no_dice() -> None:
    assert "Epoch 2 of 300: nothing was computed, 12.3 s" in said(computes=False)
    assert computes()  # here
