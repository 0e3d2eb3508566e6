"""Trainings on cards that look for races."""

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms import LMSCallback
from lms.emulation.counters import counter
from tests.models import CASES, SILENT
from tests.tf.training import different, digest, hashes, planned_tightly, train

__all__ = ["moved", "plain_and_planned", "planned"]


def plain_and_planned(
    name: str, share: float, epochs: int | None = None
) -> dict[str, Any]:
    """Train a case of the zoo plainly, then planned in a share of its memory.

    Returns:
        Races of each training, swaps and budget of the planned one, and names of
        numbers that differ.
    """
    tf.config.experimental.enable_op_determinism()
    case = replace(CASES[name], share=share, epochs=epochs or CASES[name].epochs)
    plain = train(case)
    before = counter("races")
    callback, numbers = planned_tightly(case, plain)
    return {
        "plain": before,
        "planned": counter("races") - before,
        "swaps": [r.swap_count for r in callback.report if r.kind == "train"],
        "budget": callback.budget,
        "different": different(plain.numbers, numbers),
    }


def planned(name: str, budget: int) -> dict[str, Any]:
    """Train a case of the zoo within a budget; return its swaps and races."""
    tf.config.experimental.enable_op_determinism()
    case = CASES[name]
    callback = LMSCallback(budget=budget, verbose=0, **case.knobs)
    numbers = train(case, [callback]).numbers
    plans = [report.plan for report in callback.report if report.kind == "train"]
    return {
        "races": counter("races"),
        "digest": hashes(numbers),
        "swaps": [swap.tensor for plan in plans for swap in plan.swaps],
    }


def moved() -> dict[str, Any]:
    """Train a small model in which tensors are moved, for two steps.

    Returns:
        Digest of weights, and the names of a copy `out` and a copy back `into`.
    """
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(7)
    known: Any = {"padding": "same", "activation": "tanh"}
    parts = [keras.layers.Conv2D(8, 3, **known) for _ in range(6)]
    model: Any = keras.Sequential([keras.Input((32, 32, 8)), *parts])
    model.compile("sgd", "mse", jit_compile=False)
    x = np.random.default_rng(0).standard_normal((16, 32, 32, 8)).astype("float32")
    callback = LMSCallback(budget="2.5MiB", recompute=False, verbose=0)
    model.fit(x, x, 8, verbose=SILENT, callbacks=[callback])
    (report,) = callback.report
    made = report.plan.swaps[0].tensor.rpartition(":")[0]
    return {
        "digest": digest(model.variables),
        "out": f"lms/0/{made}/out",
        "into": f"lms/0/{made}/in0",
    }
