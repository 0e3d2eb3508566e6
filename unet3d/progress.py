"""Shows how far a training is, while Keras trains."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from rich.progress import Progress

from unet3d.checkpoints import MONITOR
from unet3d.lines import log, tell

__all__ = ["TrainingBars", "TrainingLines"]


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


class TrainingLines(keras.callbacks.Callback):
    """Says once what is done about memory, and in a log what each epoch came to.

    Args:
        bars: Where to write.
        epochs: All of the run.
        history: A row for each epoch, the present one's included when it ends.
        plan: What is done about memory, in words; known after the first step.
        memory: What was measured of it, in words; "" where nothing is.
    """

    def __init__(
        self,
        bars: Progress,
        epochs: int,
        history: Sequence[dict[str, float]],
        *,
        plan: Callable[[], str],
        memory: Callable[[], str],
    ) -> None:
        super().__init__()
        self._bars = bars
        self._all = epochs
        self._history = history
        self._plan = plan
        self._memory = memory
        self._said = ""

    def on_train_batch_end(
        self,
        batch: int,
        logs: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> None:
        """Say what the first step was planned to, and each later change."""
        if batch == 0 and (plan := self._plan()) != self._said:
            tell(self._bars, plan)
            self._said = plan

    def on_epoch_end(
        self,
        epoch: int,
        logs: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> None:
        """Write the epoch's line."""
        row, memory = self._history[-1], self._memory()
        log(
            self._bars,
            f"Epoch {epoch + 1} of {self._all}: loss {row['loss']:.4f}, validation "
            f"Dice {row[MONITOR]:.3f}, {row['seconds']:.1f} s"
            + (f", {memory}" if memory else ""),
        )
