"""A Keras callback that measures utilisation during some steps of `fit`."""

import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import keras

from lms.units import Seconds
from profiling.record import slow_motion, write_result
from profiling.sampler import read_samples, sampling
from profiling.utilisation import summarise

__all__ = ["UtilisationCallback"]

_LOG = logging.getLogger("lms")


class UtilisationCallback(keras.callbacks.Callback):
    """Samples the device while some steps run, and writes one file.

    The defaults are the case study's: steps 20 to 50 of the second epoch. Where an
    execution has several steps, executions that reach into the range are watched, and
    their time is divided among their steps. A failure is logged; training goes on.

    Args:
        output: File to write.
        epoch: Number of the epoch, from 0.
        steps: First step, from 0, and the step after the last one.
        interval: Seconds between samples.

    Example:
        Not run here, as it needs a card:

            watch = UtilisationCallback("use.json", epoch=0)
            model.fit(x, y, callbacks=[watch])
    """

    def __init__(
        self,
        output: Path | str,
        *,
        epoch: int = 1,
        steps: tuple[int, int] = (20, 50),
        interval: Seconds = 0.1,
    ) -> None:
        super().__init__()
        self._output = Path(output)
        self._epoch = epoch
        self._steps = steps
        self._interval = interval
        self._now = -1
        self._first: int | None = None  # first watched step
        self._batch = 0
        self._begun: Seconds = 0.0
        self._seconds: list[Seconds] = []
        self._open = ExitStack()  # closes the sampler

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Forget an earlier training, which may have ended early."""
        self._end()
        self._first, self._seconds = None, []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Note the epoch."""
        self._now = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Start sampling before the first execution that reaches into the steps."""
        first, after = self._steps
        together = getattr(self.model, "steps_per_execution", 1)
        reached = first < batch + together and batch < after
        if reached and self._now == self._epoch and self._first is None:
            self._first = batch
            self._sample()
        self._batch, self._begun = batch, time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Note the time of each step; stop sampling after the last step."""
        if self._now != self._epoch or self._first is None:
            return
        count = batch + 1 - self._batch
        self._seconds += [(time.monotonic() - self._begun) / count] * count
        if batch + 1 >= self._steps[1]:
            self._end()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Stop sampling where the epoch has fewer steps."""
        self._end()

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Log a warning if no step was watched."""
        if self._first is None:
            text = "%s is not written: no step from %d to %d of epoch %d was trained."
            _LOG.warning(text, self._output, *self._steps, self._epoch)

    def _sample(self) -> None:
        with _going_on():
            folder = self._open.enter_context(tempfile.TemporaryDirectory())
            samples = Path(folder, "samples")
            self._open.callback(self._write, samples)
            self._open.enter_context(sampling(self._interval, samples))

    def _end(self) -> None:
        with _going_on():
            self._open.close()

    def _write(self, samples: Path) -> None:
        settings = {"epoch": self._epoch, "steps": list(self._steps)}
        settings |= {"interval": self._interval}
        first, slow = self._first or 0, slow_motion()
        seconds = [one / slow for one in self._seconds]
        results = {"watched": [first, first + len(seconds)], "step_seconds": seconds}
        results |= {"seconds": sum(seconds)}
        results |= summarise(*read_samples(samples))
        write_result(self._output, "utilisation", settings, results)


@contextmanager
def _going_on() -> Iterator[None]:
    """Log an error in the `with` block, so that training goes on."""
    try:
        yield
    except Exception as error:
        _LOG.warning("Could not watch steps: %s", error)
