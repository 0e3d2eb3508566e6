"""What the workers run: trainings with state on the host that end before their end."""

import os
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import lms
from lms.tf import host_variables
from tests.models import SILENT
from tests.tf.state_trials import _BATCH, _data, _hash, _model, _values

__all__ = ["interrupted", "refused", "resumed"]

_EPOCHS = 3


def resumed(folder: str, kind: str, *, on_host: bool, killed: int | None = None) -> str:
    """Train from the last checkpoint on, and return a hash of weights and slots.

    Args:
        folder: Where checkpoints are.
        kind: `backup` for Keras's `BackupAndRestore`, `whole` for models.
        on_host: Whether weights and slots are on the host.
        killed: The process gets SIGKILL when it has written so often.
    """
    tf.config.experimental.enable_op_determinism()
    path = Path(folder) / "whole.keras"
    if path.exists():
        with lms.on_host() if on_host else nullcontext():
            model: Any = keras.models.load_model(path)
        if on_host:
            lms.keep_on_host(model)
    else:
        model = _model("adam", on_host=on_host)
    if kind == "backup":
        kept: Any = keras.callbacks.BackupAndRestore(f"{folder}/backup")
    else:
        kept = keras.callbacks.ModelCheckpoint(str(path))
    if killed is not None:
        _at_write(killed, signal.SIGKILL)
    _go_on(model, [kept, *_callbacks(on_host=on_host)])
    return _hash(_values(model))


def interrupted(writes: int, folder: str, *, on_host: bool) -> dict[str, Any]:
    """Train; Ctrl-C comes in the middle of a step; save, and go on.

    Args:
        writes: Ctrl-C comes at this write of a variable on the host, and again when
            half of them are put back.
        folder: Where the model is saved.
        on_host: Whether weights and slots are on the host; otherwise nothing comes.

    Returns:
        `steps`, a hash of the state after each step; and where Ctrl-C came `ended`,
        the number of steps by then, with hashes of the state `then` and as `saved`.
    """
    model: Any = _model("adam", on_host=on_host)
    noted = _Noted()
    callbacks = [noted, *_callbacks(on_host=on_host)]
    if not on_host:
        _go_on(model, callbacks)
        return {"steps": noted.steps}
    _at_write(writes, signal.SIGINT)
    try:
        _go_on(model, callbacks)
    except KeyboardInterrupt:
        ended, then = int(model.optimizer.iterations), _hash(_values(model))
    else:
        raise AssertionError("Ctrl-C came after the training")
    noted.steps[ended - 1 :] = [then]
    model.save(f"{folder}/{writes}.keras")
    with lms.on_host():
        saved: Any = keras.models.load_model(f"{folder}/{writes}.keras")
    x, y = _data()
    if ended % 2:
        options: Any = {"batch_size": _BATCH, "shuffle": False, "verbose": SILENT}
        model.fit(x[_BATCH:], y[_BATCH:], callbacks=callbacks, **options)
    _go_on(model, callbacks)
    return {
        "ended": ended,
        "then": then,
        "saved": _hash(_values(saved)),
        "steps": noted.steps,
    }


def refused() -> dict[str, Any]:
    """Train with an optimizer that needs all variables on the device at once."""
    model: Any = _model("accumulating", on_host=True)
    before, held = _hash(_values(model)), _held(model)
    try:
        _go_on(model, _callbacks(on_host=True))
    except lms.OutOfMemoryError as error:
        as_before = _hash(_values(model)) == before
        said = str(error)
        return {"error": said, "held": [held, _held(model)], "as_before": as_before}
    return {"error": "none"}


def _held(model: Any) -> int:
    variables = (*model.variables, *model.optimizer.variables)
    handles = [variable.value.handle for variable in variables]
    return sum(host_variables.host_variable(handle) is not None for handle in handles)


class _Noted(keras.callbacks.Callback):
    """Hashes of the state after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Take note of it."""
        model: Any = self.model
        self.steps.append(_hash(_values(model)))


def _at_write(writes: int, number: signal.Signals) -> None:
    """Let this process get a signal at some write to the host, and within an undo."""
    own_note, own_undo = host_variables.Journal.note, host_variables.Journal.undo
    left = [writes]

    def note(journal: Any, part: np.ndarray) -> None:
        own_note(journal, part)
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), number)

    def undo(journal: Any) -> None:
        first = journal._old[: len(journal._old) // 2]
        del journal._old[: len(first)]
        own_undo(journal)
        os.kill(os.getpid(), number)
        journal._old[:] = first
        own_undo(journal)

    setattr(host_variables.Journal, "note", note)  # noqa: B010 - as it takes
    setattr(host_variables.Journal, "undo", undo)  # noqa: B010 - as it takes


def _callbacks(*, on_host: bool) -> list[Any]:
    return [lms.LMSCallback(verbose=0)] if on_host else []


def _go_on(model: Any, callbacks: list[Any]) -> None:
    x, y = _data()
    model.fit(
        x,
        y,
        batch_size=_BATCH,
        epochs=_EPOCHS,
        initial_epoch=int(model.optimizer.iterations) // 2,
        shuffle=False,
        verbose=SILENT,
        callbacks=callbacks,
    )
