"""Shows how far a training is, as bars of rich."""

from typing import Any

import keras
from rich.progress import Progress

from unet3d.checkpoints import MONITOR

__all__ = ["TrainingBars"]


class TrainingBars(keras.callbacks.Callback):
    """Shows epochs, the steps of one, and what the last one came to.

    Args:
        bars: Where to show them.
        epochs: All of the run.
        steps: Of one epoch.
        first: The epoch that training begins with.
    """

    def __init__(self, bars: Progress, epochs: int, steps: int, first: int) -> None:
        super().__init__()
        self._bars = bars
        self._epochs = bars.add_task("Training", total=epochs, completed=first)
        self._steps = bars.add_task("Epoch", total=steps)

    def on_epoch_begin(
        self,
        epoch: int,
        logs: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> None:
        """Empty the bar of steps."""
        self._bars.reset(self._steps, description=f"Epoch {epoch + 1}")

    def on_train_batch_end(
        self,
        batch: int,
        logs: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> None:
        """Count a step."""
        self._bars.update(self._steps, completed=batch + 1)

    def on_epoch_end(
        self,
        epoch: int,  # noqa: ARG002
        logs: dict[str, Any] | None = None,
    ) -> None:
        """Count an epoch and show its validation Dice."""
        value = (logs or {})[MONITOR]
        text = f"Training, Dice {value:.3f}"
        self._bars.update(self._epochs, advance=1, description=text)
