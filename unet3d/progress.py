"""Shows how far a training is, while Keras trains."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from rich.progress import Progress

from unet3d.checkpoints import MONITOR
from unet3d.lines import log, tell

__all__ = ["Shown"]


class Shown(keras.callbacks.Callback):
    """Shows epochs and steps as bars, or a line for each epoch; and each plan once.

    Args:
        bars: Where to show them.
        epochs: All of the run.
        steps: Of one epoch.
        history: A row for each epoch, the present one's included when it ends.
        plan: What is done about memory, in words; known after the first step.
        memory: What was measured of it, in words; "" where nothing is.
    """

    def __init__(
        self,
        bars: Progress,
        epochs: int,
        steps: int,
        history: Sequence[dict[str, float]],
        *,
        plan: Callable[[], str],
        memory: Callable[[], str],
    ) -> None:
        super().__init__()
        self._bars, self._all, self._history = bars, epochs, history
        self._plan, self._memory, self._said = plan, memory, ""
        self._epochs = bars.add_task("Training", total=epochs, completed=len(history))
        self._steps = bars.add_task("Epoch", total=steps)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Empty the bar of steps."""
        self._bars.reset(self._steps, description=f"Epoch {epoch + 1}")

    def on_train_batch_end(
        self,
        batch: int,
        logs: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> None:
        """Count a step; say what the first was planned to, and each later change."""
        self._bars.update(self._steps, completed=batch + 1)
        if batch == 0 and (plan := self._plan()) != self._said:
            tell(self._bars, plan)
            self._said = plan

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Count an epoch, and say what it came to."""
        row, memory = self._history[-1], self._memory()
        text = f"Training, Dice {row[MONITOR]:.3f}"
        self._bars.update(self._epochs, advance=1, description=text)
        log(
            self._bars,
            f"Epoch {epoch + 1} of {self._all}: loss {row['loss']:.4f}, validation "
            f"Dice {row[MONITOR]:.3f}, {row['seconds']:.1f} s"
            + (f", {memory}" if memory else ""),
        )
