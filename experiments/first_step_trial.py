"""One trial of `first_step`: how long `fit` takes until its first step is done.

From the moment Keras tells its callbacks that training begins until the first batch's
logs are numbers: tracing, and with the callback all that is measured and planned.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from experiments.zoo_models import MODELS, SMALL
from lms.storage.cache import OFF, VARIABLE

__all__ = ["main"]

_DEVICE = "GPU:0"
_SEED = 7


class _Clock(keras.callbacks.Callback):
    """Seconds until the first step is done; it comes first in the list."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: float | None = None
        self._begun = 0.0

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self._begun = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        if self.seconds is None:
            float(logs["loss"])
            self.seconds = time.perf_counter() - self._begun


def main(arguments: Sequence[str] | None = None) -> int:
    """Train once and write a result file.

    Args:
        arguments: The words after `python -m experiments.first_step_trial`.

    Returns:
        0; a training that fails raises.
    """
    options = _parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    os.environ[VARIABLE] = options.cache
    keras.utils.set_random_seed(_SEED)
    model, x, y, batch = {**MODELS, **SMALL}[options.model]()
    tf.config.experimental.reset_memory_stats(_DEVICE)
    clock = _Clock()
    callbacks = [clock, *([_planning(options.budget)] if options.budget else [])]
    model.fit(x, y, batch_size=batch, shuffle=False, verbose="0", callbacks=callbacks)
    found = {
        "first_seconds": clock.seconds,
        "peak_bytes": tf.config.experimental.get_memory_info(_DEVICE)["peak"],
    }
    if options.budget:
        (report,) = callbacks[1].report
        found |= {
            "preparation_seconds": report.preparation_seconds,
            "swap_count": report.swap_count,
            "recomputed_ops": len(report.plan.recomputed),
        }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(found) + "\n")
    return 0


def _planning(budget: str) -> Any:
    from lms import LMSCallback

    return LMSCallback(budget, verbose=0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.first_step_trial",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=[*MODELS, *SMALL], required=True)
    parser.add_argument("--budget", help="such as 96MiB; plain Keras if absent")
    parser.add_argument("--cache", default=OFF, help="folder of what is kept")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
