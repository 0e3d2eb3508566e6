"""What the workers run: a command, and the training that it foretold."""

import io
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import numpy as np
import tensorflow as tf

from lms import LMSCallback
from lms.__main__ import main
from lms.commands.model_file import read_subject
from lms.tf.capture.keras_step import batch_specs
from tests.models import SILENT

__all__ = ["command", "train"]

_STEPS = 4


def command(arguments: list[str]) -> dict[str, Any]:
    """Run `python -m lms` in this process: exit code, output, errors."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
    return {"code": code, "out": out.getvalue(), "errors": errors.getvalue()}


def train(subject: str, budget: int | None = None) -> dict[str, Any]:
    """Train a few steps with the callback; what it measured."""
    read = read_subject(subject)
    callback = LMSCallback(budget, verbose=0)
    data = _data(batch_specs(read.batch))
    read.model.fit(data, verbose=SILENT, callbacks=[callback])
    (report,) = callback.report
    return {
        "measured": report.measured_peak_bytes,
        "predicted": report.predicted_peak_bytes,
        "persistent": report.persistent_bytes,
        "swaps": report.swap_count,
        "replans": report.replans,
        "limit": (report.budget_bytes or 0) + report.margin_bytes,
    }


def _data(specs: tuple[Any, ...]) -> tf.data.Dataset:
    """Batches that are made one by one, so that the data set itself needs no room."""

    def batches() -> Iterator[Any]:
        for _ in range(_STEPS):
            yield tuple(np.ones(s.shape, s.dtype.as_numpy_dtype) for s in specs)

    data = tf.data.Dataset.from_generator(batches, output_signature=specs)
    return data.apply(tf.data.experimental.assert_cardinality(_STEPS))
