"""Work of the test processes: a command, and the training that it foretold."""

import io
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms import LMSCallback
from lms.__main__ import main
from lms.commands.forecast import forecast, training_of
from lms.commands.model_file import read_subject
from lms.errors import PlanError
from lms.planning.problem import budget_in
from lms.planning.settings import read_plan, read_settings
from lms.tf.attempts import Attempt
from lms.tf.capture.keras_step import batch_specs, iterator_of, step_of
from lms.tf.capture.tracing import input_specs, trace
from lms.tf.prepare import capture
from tests.commands.subjects import small
from tests.models import SILENT, resnet

__all__ = ["both_plans", "by_stored_plan", "command", "commands", "train"]

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


def commands(many: Mapping[str, list[str]]) -> dict[str, dict[str, Any]]:
    """Run several in this process."""
    return {name: command(arguments) for name, arguments in many.items()}


def _data(specs: tuple[Any, ...]) -> tf.data.Dataset:
    """Batches that are made one by one, so that the data set itself needs no room."""

    def batches() -> Iterator[Any]:
        for _ in range(_STEPS):
            yield tuple(np.ones(s.shape, s.dtype.as_numpy_dtype) for s in specs)

    data = tf.data.Dataset.from_generator(batches, output_signature=specs)
    return data.apply(tf.data.experimental.assert_cardinality(_STEPS))


def train(batch: int) -> None:
    """Train the small model for two steps of a batch."""
    model, specs = small(batch)
    data = _data(tuple(specs)).take(2)
    model.fit(data, callbacks=[LMSCallback()], verbose=SILENT)


def both_plans(budget: str) -> list[dict[str, Any]]:
    """A step's plan by `python -m lms plan`, and by `fit` in the same memory.

    What `fit` finds in use depends on which tensors of data are being waited for.
    """
    model = resnet()
    model.optimizer.build(model.trainable_variables)
    specs = (tf.TensorSpec([32, 32, 32, 3]), tf.TensorSpec([32]))
    settings = read_settings(budget=budget)
    found = forecast(training_of(model, specs, settings))
    iterator = iterator_of(specs)
    traced = trace(step_of(model, "train"), (), iterator=iterator)
    captured = capture(traced, input_specs(traced), settings, kind="train")
    memory, in_use = found.speeds.hardware.memory, found.report.persistent_bytes
    room = budget_in(memory, asked=settings.budget, persistent=in_use)
    planned, _ = replace(captured, budget=room).plan(Attempt())
    return [asdict(found.report.plan), asdict(planned.plan)]


def by_stored_plan(subject: str, budget: str, file: str) -> dict[str, Any]:
    """Plan by the command, train by its file; the bits of plain training beside it."""
    keras.utils.set_random_seed(0)
    tf.config.experimental.enable_op_determinism()
    written = ["--output", file, "--json", f"{file}.told"]
    said = command(["plan", subject, "--budget", budget, *written])
    if said["code"]:
        return {"said": said}
    data = _data(batch_specs(read_subject(subject).batch))
    weights, plans = [], []
    for knobs in (None, file):
        keras.backend.clear_session()  # names of layers count on in a process
        keras.utils.set_random_seed(0)
        model = read_subject(subject).model
        callback = LMSCallback(budget, verbose=0, plan=knobs)
        callbacks = [] if knobs is None else [callback]
        model.fit(data, verbose=SILENT, callbacks=callbacks)
        weights.append([value.tobytes() for value in model.get_weights()])
        plans += [callback.plan] if knobs else []
    (report,) = callback.report
    refused = ""
    try:
        other = _data(_halved(batch_specs(read_subject(subject).batch)))
        read_subject(subject).model.fit(
            other, verbose=SILENT, callbacks=[LMSCallback(budget, plan=file)]
        )
    except PlanError as error:
        refused = str(error)
    return {
        "said": said,
        "equal": weights[0] == weights[1],
        "measured": report.measured_peak_bytes,
        "predicted": report.predicted_peak_bytes,
        "replans": report.replans,
        "obeyed": plans == [read_plan(file)],
        "planner": read_plan(file).planner,
        "swaps": len(read_plan(file).swaps),
        "refused": refused,
    }


def _halved(specs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(tf.TensorSpec([s.shape[0] // 2, *s.shape[1:]], s.dtype) for s in specs)
