"""One trial of the zoo: a training as its user starts it, in a process of its own.

The model is built before anything of `lms` is imported, as a user may. Two epochs of
three batches, op determinism on, seeds fixed, nothing shuffled. What is compared is
each step's loss, bit for bit, and a digest of every variable: weights, statistics,
random states, and what the optimizers keep.

A refusal (`BudgetError`) is a result; anything else that ends the training ends the
process. Sizes are bytes.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from experiments.zoo_data import BATCHES
from experiments.zoo_models import MODELS, SMALL

__all__ = ["main"]

_DEVICE = "GPU:0"
_EPOCHS = 2
_SEED = 7
_REPORTED = (
    "budget_bytes",
    "margin_bytes",
    "predicted_peak_bytes",
    "measured_peak_bytes",
    "unplanned_peak_bytes",
    "persistent_bytes",
    "lower_bound_bytes",
    "swapped_out_bytes",
    "swapped_in_bytes",
    "swap_count",
    "replans",
    "not_planned",
    "planning_seconds",
    "preparation_seconds",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train once and write a result file.

    Args:
        arguments: The words after `python -m experiments.zoo_trial`.

    Returns:
        0; a training that fails raises.
    """
    options = _parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(_SEED)
    model, x, y, batch = {**MODELS, **SMALL}[options.model]()
    result = _train(options, model, (x, y), batch)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.zoo_trial",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=[*MODELS, *SMALL], required=True)
    parser.add_argument("--way", choices=["plain", "lms"], required=True)
    parser.add_argument("--budget", help="such as 96MiB; the callback's own if absent")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    return parser


def _train(
    options: argparse.Namespace, model: keras.Model, data: tuple[Any, Any], batch: int
) -> dict[str, Any]:
    """The callback is the only difference between the ways."""
    losses: list[str] = []
    watching = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda _, logs: losses.append(float(logs["loss"]).hex())
    )
    swapping = _callback(options.budget) if options.way == "lms" else None
    tf.config.experimental.reset_memory_stats(_DEVICE)
    refused = None
    try:
        model.fit(
            *data,
            batch_size=batch,
            epochs=_EPOCHS,
            shuffle=False,
            verbose="0",
            callbacks=[one for one in (swapping, watching) if one],
        )
    except ValueError as error:
        refused = _refusal(error)
        if refused is None:
            raise
    peak = tf.config.experimental.get_memory_info(_DEVICE)["peak"]
    report = None if swapping is None else _report(swapping)
    ended = {"losses": losses, "peak_bytes": peak, "refused": refused, "report": report}
    ended["batch_bytes"] = sum(one.nbytes for one in _arrays(data)) // BATCHES
    return ended | ({} if refused else _digests(model))


def _arrays(data: tuple[Any, Any]) -> list[np.ndarray]:
    return [one for one in tf.nest.flatten(data) if one is not None]


def _callback(budget: str | None) -> Any:
    from lms import LMSCallback

    return LMSCallback(budget)


def _refusal(error: ValueError) -> dict[str, Any] | None:
    """Read a `BudgetError` as a row; None for another error."""
    from lms.errors import BudgetError

    if not isinstance(error, BudgetError):
        return None
    return {
        "error": str(error),
        "op_name": error.op_name,
        "least_bytes": error.least_bytes,
    }


def _report(swapping: Any) -> dict[str, Any] | None:
    """The numbers of the training step; None before its first plan."""
    for report in swapping.report:
        if report.kind == "train":
            numbers = {name: getattr(report, name) for name in _REPORTED}
            return numbers | {"recomputed_ops": len(report.plan.recomputed)}
    return None


def _digests(model: keras.Model) -> dict[str, Any]:
    """Hash all variables together, and each one, cut short."""
    whole, each = hashlib.sha256(), []
    for variable in _variables(model):
        own = np.asarray(variable.value).tobytes()
        whole.update(own)
        each.append([variable.path, hashlib.sha256(own).hexdigest()[:12]])
    return {"sha256": whole.hexdigest(), "variables": each}


def _variables(model: keras.Model) -> Iterator[Any]:
    """The model's, and those of each optimizer that it has."""
    yield from model.variables
    seen: list[Any] = []
    for one in vars(model).values():
        if isinstance(one, keras.optimizers.Optimizer) and one not in seen:
            seen.append(one)
            yield from one.variables


if __name__ == "__main__":
    raise SystemExit(main())
