"""Large model support for a training; texts of its progress and its memory."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from rich.progress import Progress

from lms import LMSCallback, LMSError, StepReport
from lms.commands.forecast import captured_for, forecast
from lms.machine.hardware import Hardware
from lms.planning.settings import Settings
from lms.report.step import headline
from lms.storage.files import write_text
from lms.tf.capture.keras_step import step_of_data
from lms.tf.capture.tracing import read_signature, trace
from lms.units import format_bytes
from lms.workers.collectives import Workers
from unet3d.checkpoints import MONITOR
from unet3d.files import write_json
from unet3d.lines import log, tell
from unet3d.runs import Configuration

__all__ = ["Shown", "computes", "memory_in_words", "memory_support"]
__all__ += ["plan_in_words", "prediction_bytes", "scalar_writers", "write_memory"]

_ADDED = 32_768  # float32 values: a dry card may compute up to 16 KiB


class Shown(keras.callbacks.Callback):
    """Shows epochs and steps as bars, or a line for each epoch; and each plan once.

    `history` has a row for each epoch that has ended. `plan` describes the plan once
    the first step has run, `memory` the measured memory. A device that computes nothing
    has neither loss nor Dice.
    """

    def __init__(  # noqa: PLR0913 - what is shown
        self,
        bars: Progress,
        epochs: int,
        steps: int,
        history: Sequence[dict[str, float]],
        *,
        plan: Callable[[], str],
        memory: Callable[[], str],
        computes: bool = True,
    ) -> None:
        super().__init__()
        self._bars, self._all, self._history = bars, epochs, history
        self._plan, self._memory, self._said = plan, memory, ""
        self._computes = computes
        self._epochs = bars.add_task("Training", total=epochs, completed=len(history))
        self._steps = bars.add_task("Epoch", total=steps)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Reset the bar of steps."""
        self._bars.reset(self._steps, description=f"Epoch {epoch + 1}")

    def on_train_batch_end(
        self,
        batch: int,
        logs: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> None:
        """Count a step; after an epoch's first step print a plan that is new."""
        self._bars.update(self._steps, completed=batch + 1)
        if batch == 0 and (plan := self._plan()) != self._said:
            tell(self._bars, plan)
            self._said = plan

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Count an epoch, and print its results."""
        row, memory = self._history[-1], self._memory()
        text, found = "Training, nothing computed", "nothing was computed"
        if self._computes:
            text = f"Training, Dice {row[MONITOR]:.3f}"
            found = f"loss {row['loss']:.4f}, validation Dice {row[MONITOR]:.3f}"
        self._bars.update(self._epochs, advance=1, description=text)
        log(
            self._bars,
            f"Epoch {epoch + 1} of {self._all}: {found}, {row['seconds']:.1f} s"
            + (f", {memory}" if memory else ""),
        )


def memory_support(configuration: Configuration) -> LMSCallback | None:
    """Make the run's callback, None with --no-lms; a step that fits stays as it is."""
    if configuration.lms is False:
        return None
    return LMSCallback(budget=configuration.budget, verbose=0)


def computes() -> bool:
    """Find out whether the device computes: a dry card launches no kernel."""
    ones = tf.constant(np.ones(_ADDED, np.float32))
    return bool(np.all((ones + ones).numpy() == 2))


def prediction_bytes(model: Any) -> int | None:
    """Predict the device's bytes of a prediction; None where the step is not known."""
    batch = tf.TensorSpec((1, *model.input_shape[1:]))
    rates: Any = dict.fromkeys(("flops", "memory_bandwidth", "h2d", "d2h"), 1e12)
    endless = Hardware(name="a device without a limit", memory=1 << 50, **rates)
    try:
        step = trace(step_of_data(model, "predict"), read_signature([(batch,)]))
        found = forecast(captured_for(step, Settings(), hardware=endless))
    except LMSError:
        return None
    return found.report.unplanned_peak_bytes


def plan_in_words(swapping: LMSCallback | None) -> str:
    """Describe the plan of the training step, once the first step has run."""
    if swapping is None:
        return "LMS is off: a step takes what plain Keras takes."
    report = _training(swapping)
    if report is None:
        return "LMS: memory has no limit here, nothing is planned."
    return headline(report)


def memory_in_words(swapping: LMSCallback | None) -> str:
    """Describe measured peak, budget and swapped bytes; "" without a measurement."""
    report = None if swapping is None else _training(swapping)
    measured = None if report is None else report.measured_peak_bytes
    measured = measured or _peak()
    words = [f"memory {format_bytes(measured)}"] if measured else []
    if words and report is not None and report.budget_bytes is not None:
        words[0] += f" of {format_bytes(report.budget_bytes)}"
    if report is not None and report.swap_count:
        words.append(f"{format_bytes(report.swapped_out_bytes)} swapped in each step")
    return ", ".join(words)


def scalar_writers(run: Path, swapping: LMSCallback | None) -> list[Any]:
    """Make the callbacks that write logs and swapped bytes for TensorBoard."""

    def add(_: int, logs: dict[str, Any]) -> None:
        report = None if swapping is None else _training(swapping)
        logs["lms_swapped"] = report.swapped_out_bytes if report else 0

    writer = keras.callbacks.TensorBoard(str(run / "tensorboard"), write_graph=False)
    return [keras.callbacks.LambdaCallback(on_epoch_end=add), writer]


def write_memory(run: Path, swapping: LMSCallback | None, workers: Workers) -> None:
    """Write each step's memory: planned, and measured where the device counts bytes."""
    own = "" if workers.is_chief else f".{workers.rank}"
    reports = [] if swapping is None else swapping.report
    steps = [report.numbers() for report in reports]  # the plan has a file of its own
    # Large model support resets the device's count for each kind of step.
    peaks = [_peak(), *(report.measured_peak_bytes for report in reports)]
    peak = max((peak for peak in peaks if peak is not None), default=None)
    told = {"worker": workers.rank, "workers": workers.size}
    told |= {"device peak bytes": peak, "steps": steps}
    write_json(run / f"memory{own}.json", told)
    if swapping is not None and swapping.plan is not None:
        write_text(run / f"plan{own}.json", swapping.plan.to_json())


def _training(swapping: LMSCallback) -> StepReport | None:
    return next((r for r in swapping.report if r.kind == "train"), None)


def _peak() -> int | None:
    """Return the peak of bytes in use; None where the device does not count bytes."""
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices()
    try:
        name = ":".join(devices[0].name.split(":")[-2:])
        return int(tf.config.experimental.get_memory_info(name)["peak"])
    except ValueError:
        return None
