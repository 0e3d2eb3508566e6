"""Work of the test processes: trainings that note where their variables lie."""

from itertools import pairwise
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms.tf import compat
from tests.models import CASES, Case, conv_net
from tests.tf import training

__all__ = ["train"]

_LARGE = 4 * 1024

_OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "AdamW": lambda: keras.optimizers.AdamW(1e-3, weight_decay=0.01),
    "RMSprop": lambda: keras.optimizers.RMSprop(1e-3, momentum=0.5, centered=True),
    "Lion": lambda: keras.optimizers.Lion(1e-3),
}


def train(optimizer: str) -> dict[str, Any]:
    """Train plainly, and planned into little; an array holds a variable for a step.

    Returns:
        Paths whose numbers are `different`; `swaps` of the planned steps; the number
        of `large` variables; paths of variables that `moved` in steps without a hold;
        whether the array was the variable's own memory (`is_held`),
        whether the step then `trained` the variable, and the array is `unchanged`.
    """
    tf.config.experimental.enable_op_determinism()
    case = Case(
        build=lambda: conv_net(optimizer=_OPTIMIZERS[optimizer]()),
        fit=CASES["a residual network"].fit,
    )
    plain, watch = training.train(case), _Watch()
    callback, planned = training.planned_tightly(case, plain, [watch])
    return {
        "different": training.different(plain.numbers, planned),
        "swaps": callback.report[0].swap_count,
        **watch.found(),
    }


class _Watch(keras.callbacks.Callback):
    """Notes addresses after each step; from the third to the fourth holds a value."""

    def __init__(self) -> None:
        super().__init__()
        self._places: list[dict[str, int]] = []
        self._held: Any = None
        self._copy = np.empty(0)
        self._is_held = self._is_unchanged = self._trained = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        steps = len(self._places)
        model: Any = self.model
        own: Any = model.trainable_variables[2].value
        if steps == 2:
            self._held = own.value()
            self._copy = self._held.numpy().copy()
            there = [compat.address_of(value) for value in (self._held, own.value())]
            self._is_held = there[0] == there[1]
        if steps == 3:
            self._is_unchanged = self._held.numpy().tobytes() == self._copy.tobytes()
            self._trained = own.numpy().tobytes() != self._copy.tobytes()
            self._held = None
        self._places.append({v.path: _address(v) for v in self._large()})

    def found(self) -> dict[str, Any]:
        """Return the notes; moves during the hold stand apart from all others."""
        before, while_held, after = (
            self._places[:3],
            self._places[2:4],
            self._places[3:],
        )
        return {
            "large": len(self._places[0]),
            "steps": len(self._places),
            "moved": sorted(_moved(before) | _moved(after)),
            "moved_while_held": sorted(_moved(while_held)),
            "is_held": self._is_held,
            "unchanged": self._is_unchanged,
            "trained": self._trained,
        }

    def _large(self) -> list[Any]:
        model: Any = self.model
        every = [*model.trainable_variables, *model.optimizer.variables]
        return [v for v in every if np.prod(v.shape) * 4 >= _LARGE]


def _address(variable: Any) -> int:
    return compat.address_of(variable.value.value())


def _moved(places: list[dict[str, int]]) -> set[str]:
    return {
        path
        for one, other in pairwise(places)
        for path in one
        if one[path] != other[path]
    }
