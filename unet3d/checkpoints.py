"""Saves the whole training state after each epoch, in one file.

A killed run restarts at the end of its last complete epoch. Order and augmentation of
the examples follow from (seed, epoch), all other state comes from the file. With
deterministic kernels, which `python -m unet3d train` turns on, the run ends in the
weights of an uninterrupted run, bit for bit.

`state.npz` is renamed into place as the last file of an epoch: a run that was killed
earlier writes the epoch's other files again.
"""

import io
import json
import time
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import keras
import numpy as np

from lms.storage.files import write_file, write_text
from unet3d.files import write_arrays
from unet3d.lines import as_csv

__all__ = ["MONITOR", "ResumePoint", "load_weights", "restore_state", "save_weights"]

# Thresholded Dice: the loss of normalised heads moves by less than 1e-4 per epoch (see
# `unet3d.model`), which a watcher would take for no progress.
MONITOR = "val_dice_coefficient"

# Errors of reading a file that is cut, damaged, or of another format.
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, EOFError)
_DAMAGE += (zipfile.BadZipFile, zlib.error)
_KNOWN = {"epoch", "finished", "history", "watchers"}
# A peak of this machine: a run that is resumed on another may have none.
_OF_CARD = "lms_peak"
_WATCHED = ("best", "wait", "cooldown_counter", "stopped_epoch", "best_epoch")


class ResumePoint(keras.callbacks.Callback):
    """Writes state, best and last weights, and the log, after each epoch.

    `watchers` are callbacks whose decisions depend on earlier epochs. They run before
    this callback, which saves their state, and restores it from `known`, the result of
    `restore_state`, when training begins. Of several workers one writes. `written`
    tells whether the validation Dice is that of the labels as they would be written.
    """

    def __init__(
        self,
        run: Path,
        watchers: list[keras.callbacks.Callback],
        known: dict[str, Any] | None,
        *,
        workers: int = 1,
        writes: bool = True,
        written: bool = False,
    ) -> None:
        super().__init__()
        self._workers = workers
        self._written = written
        self._writes = writes
        self._run = run
        self._watchers = watchers
        self._known = known
        self.history: list[dict[str, float]] = known["history"] if known else []
        self._began = 0.0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Restore the state of the watchers."""
        if self._known is not None:
            for watcher, values in zip(
                self._watchers, self._known["watchers"], strict=True
            ):
                vars(watcher).update(values)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Start the clock of the epoch."""
        self._began = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Write the files of the epoch."""
        known = (logs or {}).items()
        values = {name: float(value) for name, value in known if name != _OF_CARD}
        seconds = round(time.monotonic() - self._began, 3)
        best = max((row[MONITOR] for row in self.history), default=float("-inf"))
        self.history.append({"epoch": epoch, **values, "seconds": seconds})
        if not self._writes:
            return
        if values[MONITOR] > best:
            save_weights(self.model, self._run / "best.weights.h5")
        save_weights(self.model, self._run / "last.weights.h5")
        write_text(self._run / "log.csv", as_csv(self.history))
        self._save_state(epoch + 1)

    def _save_state(self, epoch: int) -> None:
        model: Any = self.model
        rest = {
            "epoch": epoch,
            "finished": bool(model.stop_training),
            "history": self.history,
            "workers": self._workers,
            "written": self._written,
            "watchers": [_memory(watcher) for watcher in self._watchers],
        }
        arrays = {name: np.asarray(v) for name, v in _variables(model).items()}
        arrays["rest"] = np.array(json.dumps(rest))
        write_arrays(self._run / "state.npz", arrays)


def restore_state(model: keras.Model, run: Path) -> dict[str, Any] | None:
    """Put a run's last state into a model of the same settings.

    Returns:
        The rest of the state: `epoch` to go on with, `finished`, `history`, the number
        of `workers`, and the state of `watchers`. None if no epoch was finished.
    """
    path = run / "state.npz"
    if not path.is_file():
        return None
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("no complete npz file")
        with path.open("rb") as file, np.load(file) as stored:
            arrays = {name: stored[name] for name in stored.files}
        rest = json.loads(str(arrays.pop("rest")))
        if not set(rest) >= _KNOWN:
            raise ValueError(f"it lacks {', '.join(sorted(_KNOWN - set(rest)))}")
    except _DAMAGE as error:
        raise ValueError(
            f"`{path}` must be a state that training wrote, got a file that cannot be "
            f"read ({error}). Restore it from a copy, or remove it to start anew."
        ) from error
    variables = _variables(model)
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    if shapes != {name: array.shape for name, array in arrays.items()}:
        raise ValueError(
            f"`{path}` must hold the variables of this network, got {len(arrays)} of "
            "other shapes. Resume with the settings that the run was started with."
        )
    for name, variable in variables.items():
        variable.assign(arrays[name])
    return rest


def save_weights(model: Any, path: Path) -> None:
    """Write weights in Keras's format, complete or not at all."""
    # HDF5 ends the process where the disk is full.
    weights = _InMemory()
    model.save_weights(weights)
    write_file(path, lambda file: file.write(weights.getbuffer()))


def load_weights(model: Any, path: Path) -> None:
    """Load weights that `save_weights` wrote."""
    content = _InMemory(path.read_bytes())
    try:
        with warnings.catch_warnings():
            # Keras only warns of layers for which the file has no weights.
            warnings.simplefilter("error", UserWarning)
            model.load_weights(content)
    except (OSError, RuntimeError) as error:
        raise _bad_weights(path, f"a damaged or other file ({error})") from error
    except (*_DAMAGE, UserWarning) as error:
        raise _bad_weights(path, "weights of another network") from error
    if not all(np.isfinite(values).all() for values in model.get_weights()):
        raise _bad_weights(path, "values that are no numbers")


class _InMemory(io.BytesIO):
    """A file in memory. Keras requires that `str(file)` ends in .weights.h5."""

    def __str__(self) -> str:
        return "memory.weights.h5"


def _bad_weights(path: Path, got: str) -> ValueError:
    return ValueError(
        f"`{path}` must hold the weights of its run's network, got {got}. Restore it "
        "from a copy, or train again."
    )


def _variables(model: Any) -> dict[str, Any]:
    """Name all variables that a step changes, seed generators included, in order."""
    kinds = {"model": model.variables, "optimizer": model.optimizer.variables}
    return {
        f"{kind}{index:04d}": variable
        for kind, variables in kinds.items()
        for index, variable in enumerate(variables)
    }


def _memory(watcher: keras.callbacks.Callback) -> dict[str, float]:
    """Return a watcher's state from earlier epochs."""
    known = vars(watcher)
    return {name: float(known[name]) for name in _WATCHED if name in known}
