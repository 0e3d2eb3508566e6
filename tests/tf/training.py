"""The one way to train plainly and by a plan, and to compare the numbers."""

import gc
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms import LMSCallback
from lms.errors import BudgetError
from lms.fit.callback import PEAK
from tests.models import SILENT, Case

__all__ = ["Trained", "different", "digest", "hashes", "memory", "numbers_of"]
__all__ += ["planned_tightly", "train"]

_DEVICE = "GPU:0"

# Persistent bytes differ a little from one training to the next.
_SLACK = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The outcome of a training.

    Args:
        numbers: All losses, metrics, weights and slots that it ends with, by name.
        peak: Of the allocator, in bytes beside what was in use before.
        held: What the model holds without a step.
    """

    numbers: Mapping[str, np.ndarray]
    peak: int
    held: int


def train(case: Case, callbacks: Sequence[Any] = ()) -> Trained:
    """Train from the same seed."""
    keras.backend.clear_session()  # forgets the policy too
    keras.config.set_dtype_policy(case.policy)
    start = memory("current")
    keras.utils.set_random_seed(7)
    tf.config.experimental.reset_memory_stats(_DEVICE)
    model = case.build()
    numbers: dict[str, np.ndarray] = {}
    for fit in range(case.fits):
        history = model.fit(
            **case.data(), epochs=case.epochs, verbose=SILENT, callbacks=list(callbacks)
        )
        for name, values in history.history.items():
            if name == PEAK:  # which plain Keras has not
                continue
            numbers[f"{name} of fit {fit}"] = np.array(values)
    reached, held = memory("peak") - start, memory("current") - start
    return Trained(numbers=numbers | numbers_of(model), peak=reached, held=held)


def planned_tightly(
    case: Case, plain: Trained, others: Sequence[Any] = ()
) -> tuple[LMSCallback, Mapping[str, np.ndarray]]:
    """Train in a share of the step's memory, in which something must be swapped."""
    step = int(case.share * (plain.peak - plain.held))
    least = None
    for _ in range(5):
        budget = least or memory("current") + plain.held + step
        callback = LMSCallback(budget=budget, verbose=0, **case.knobs)
        try:
            numbers = train(case, [callback, *others]).numbers
        except BudgetError as error:  # a share of a small model can be too little
            least = int(1.02 * (error.least_bytes or budget)) + _SLACK
            continue
        plans = [r.plan for r in callback.report if r.kind == "train"]
        again = not case.knobs.get("recompute") or all(p.recomputed for p in plans)
        enough = all if case.cards == 1 else any  # unlike halves, one budget
        if again and enough(plan.swaps for plan in plans):
            return callback, numbers
        least, step = None, step * 3 // 4
    raise AssertionError("no budget was found in which the case trains and swaps")


def memory(which: str) -> int:
    """The allocator's "current" or "peak" bytes."""
    gc.collect()
    return tf.config.experimental.get_memory_info(_DEVICE)[which]


def numbers_of(model: Any) -> dict[str, np.ndarray]:
    """Weights and slots by their path."""
    variables = (*model.variables, *model.optimizer.variables)
    return {variable.path: np.array(variable) for variable in variables}


def different(
    one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]
) -> list[str]:
    """Names of the numbers that differ in any bit."""
    assert one.keys() == other.keys()
    return [name for name in one if one[name].tobytes() != other[name].tobytes()]


def digest(variables: Iterable[Any]) -> str:
    """Return one hash of the values of all variables."""
    values = b"".join(variable.numpy().tobytes() for variable in variables)
    return hashlib.sha256(values).hexdigest()[:16]


def hashes(numbers: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Numbers as JSON can hold them, to be compared with another process's."""
    return {
        name: hashlib.sha256(value.tobytes()).hexdigest()
        for name, value in numbers.items()
    }
