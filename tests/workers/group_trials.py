"""The program of a group: `python -m tests.workers.group_trials DIR`.

The group that has the buffer's first slot kills itself once, in the middle.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

import lms
from tests.models import SILENT

__all__ = ["main"]

_STEPS, _FATAL = 60, 30


class _Dies(keras.callbacks.Callback):
    """Kills this process at a step, if it is the first time."""

    def __init__(self, folder: Path, meetings: Any) -> None:
        super().__init__()
        self._killed = folder / "killed"
        self._meetings = meetings

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        slot = self._meetings._groups.buffer.slot
        if slot == 0 and batch == _FATAL and not self._killed.exists():
            self._killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path) -> int:
    """Train until all groups have made as many steps; write how it went."""
    workers = lms.join()
    keras.utils.set_random_seed(os.getpid())
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    model.compile(keras.optimizers.Adam(0.03), "mse")
    values = np.random.default_rng(os.getpid())
    x = values.normal(size=(8 * _STEPS, 8)).astype("float32")
    y = x[:, :4] - x[:, 4:]
    own = lms.DataParallel(workers, outer="elastic", every=5)
    callbacks = [own, _Dies(folder, own._meetings)]
    fitted = model.fit(x, y, batch_size=8, verbose=SILENT, callbacks=callbacks)
    found = {
        "made": fitted.params["steps"],
        "done": own._meetings and own._meetings._done,
        "loss": float(model.evaluate(x, y, verbose=SILENT)),
    }
    (folder / f"{os.getpid()}.json").write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
