"""Utilisation of some steps of `fit`, as a Keras callback."""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras

from lms.units import Seconds
from profiling.record import write_result
from profiling.sampler import read_samples, sampling
from profiling.utilisation import summarise

__all__ = ["UtilisationCallback"]


class UtilisationCallback(keras.callbacks.Callback):
    """Samples the device while some steps run, and writes one file.

    The case study looked at steps 20 to 50 of the second epoch, as this does.

    Args:
        output: The file.
        epoch: In which epoch, from 0.
        steps: First step, from 0, and the step after the last one.
        interval: Seconds between samples.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from profiling.record import read_result
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> model.compile("sgd", "mse")
        >>> x, y, path = np.ones((8, 4)), np.ones((8, 2)), tempfile.mkdtemp() + "/use"
        >>> watch = UtilisationCallback(path, epoch=0, steps=(0, 2))
        >>> _ = model.fit(x, y, batch_size=2, verbose=0, callbacks=[watch])
        >>> len(read_result(Path(path))["step_seconds"])
        2
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
        self._begun: Seconds = 0.0
        self._seconds: list[Seconds] = []
        self._open: ExitStack | None = None  # the sampler's
        self._folder: Any = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Note which epoch it is."""
        self._now = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Begin with the first of the steps."""
        if self._now == self._epoch and batch == self._steps[0]:
            self._folder = tempfile.TemporaryDirectory()
            self._open = ExitStack()
            self._open.enter_context(sampling(self._interval, self._samples()))
        self._begun = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """End with the last of the steps."""
        if self._open is None:
            return
        self._seconds.append(time.monotonic() - self._begun)
        if batch + 1 >= self._steps[1]:
            self._end()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """End where the epoch has fewer steps."""
        self._end()

    def _end(self) -> None:
        if self._open is None:
            return
        self._open.close()
        self._open = None
        with self._folder:
            head, samples = read_samples(self._samples())
        settings = {
            "epoch": self._epoch,
            "steps": list(self._steps),
            "interval": self._interval,
        }
        results = {"step_seconds": self._seconds, "seconds": sum(self._seconds)}
        results |= summarise(head, samples)
        write_result(self._output, "utilisation", settings, results)

    def _samples(self) -> Path:
        return Path(self._folder.name, "samples")
