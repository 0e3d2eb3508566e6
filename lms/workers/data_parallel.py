"""Data-parallel `fit`: each worker trains one model on its own part of the data.

    begin   same model, same steps?  ──> the chief's weights and slots for all
    step    gradients of this worker ──> their mean over all ──> the optimizer
    epoch   metrics and moving statistics ──> their means

Gradients are averaged where the model's optimizer is called: outside of loss scaling,
whose branch may differ between workers, and before clipping and accumulation. The
model keeps nothing of this: its files do not depend on workers.

Known weaknesses: the mean of the workers' losses is the joint batch's loss only where
all batches are equally large. A worker that stops alone ends the training of all: at
once after an epoch, after a minute within one, by a callback or for want of data.
"""

import os
from typing import Any

import keras
import tensorflow as tf

from lms.errors import WorkersError
from lms.units import Seconds
from lms.workers.agreement import agree
from lms.workers.averaging import Averaging, average_statistics, optimizers_of
from lms.workers.buffer import BUFFER_VARIABLE
from lms.workers.collectives import LONGEST, Workers
from lms.workers.groups import outer_of
from lms.workers.meetings import Meetings

__all__ = ["DataParallel"]

# Difference between the random states of neighbouring ranks: odd, far from counters.
_SEED_STEP = 0x9E37_79B1

# Seconds to wait for other workers where this worker's epoch has ended early.
_SHORT: Seconds = 60.0


class DataParallel(keras.callbacks.Callback):
    """Train one model on all workers of a job, with the mean of their gradients.

    Each worker has its own part of the data (`data.shard(workers.size, workers.rank)`)
    and its own batches; the user scales the learning rate. Put this callback first in
    the list: later callbacks see metrics of all workers and decide alike
    (`ReduceLROnPlateau`, `EarlyStopping`). The chief writes files:
    `callbacks=[..., *([ModelCheckpoint(...)] if workers.is_chief else [])]`.

    Args:
        workers: The workers that `lms.join` returned.
        groups: Name of a buffer in this host's shared memory, through which this group
            of workers averages with other groups, without waiting. None takes the name
            from `python -m lms launch --groups`; without a name there are no groups.
        outer: The step between groups: "nesterov" (DiLoCo), or "elastic".
        every: Steps from one meeting of groups to the next, at least 1.

    Raises:
        ValueError: If there is no such outer step, or `every` is below 1.
        WorkersError: When training begins, if workers have unlike models or steps, the
            buffer is of another model, or `LMSCallback` comes earlier in the list.

    Example:
        >>> import numpy as np
        >>> from lms.workers.joining import join
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> model.compile("sgd", "mse")
        >>> x, y = np.ones((8, 4)), np.ones((8, 2))
        >>> callback = DataParallel(join())
        >>> history = model.fit(x, y, verbose=0, callbacks=[callback])
    """

    def __init__(
        self,
        workers: Workers,
        *,
        groups: str | None = None,
        outer: str = "nesterov",
        every: int = 50,
    ) -> None:
        super().__init__()
        if every < 1:
            raise ValueError(
                f"`every` must be at least 1 step, got {every}. Leave it out for 50."
            )
        name, step = groups or os.environ.get(BUFFER_VARIABLE), outer_of(outer)
        self._meetings = Meetings(workers, name, step, every) if name else None
        self._workers = workers
        self._begun: int | None = None  # the epoch
        self._steps = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Compare the workers, broadcast the chief's variables, average gradients."""
        model: Any = self.model
        if self._workers.size == 1:
            self._begin_meetings(model)
            return
        if "make_train_function" in model.__dict__:
            raise WorkersError(
                "`DataParallel` must be before `LMSCallback` in the list of callbacks, "
                "got the reverse. Put `DataParallel` first."
            )
        _refuse_unlike(self._workers, model, self.params or {})
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._begin_meetings(model)
        _take_chiefs(self._workers, model)
        self._begun = None
        Averaging(self._workers, model).install()

    def _begin_meetings(self, model: Any) -> None:
        if self._meetings:
            self._meetings.begin(model, self.params or {})

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Restore the model; the chief waits, since all workers need its server."""
        model: Any = self.model
        if self._workers.size > 1:
            model.make_train_function(force=True)  # `Averaging` puts all back
            self._go_on("the end of training")
        if self._meetings:
            self._meetings.end()
        self._workers.gather("", "the end of training")

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Broadcast the chief's values before the first epoch: callbacks may load."""
        if not self._is_training:
            return
        if self._begun is None:
            advice = (
                "Give all the same `initial_epoch`; a callback that restores training, "
                "such as `BackupAndRestore`, must find the same on all."
            )
            own = {"first epoch": epoch}
            agree(self._workers, own, at="the first epoch", advice=advice)
            _take_chiefs(self._workers, self.model)
        else:
            self._go_on("another epoch")
        self._begun, self._steps = epoch, 0

    def on_train_batch_end(
        self,
        batch: int,
        logs: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> None:
        """Count the steps, and average with other groups when it is time."""
        self._steps = batch + 1
        if self._meetings:
            model: Any = self.model
            self._meetings.count(model, model.steps_per_execution)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Average moving statistics, so that all workers validate one model."""
        if self._is_training:
            self._meet("validation", [])
            average_statistics(self._workers, self.model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Average moving statistics and metrics, validation's included."""
        if not self._is_training:
            if self._workers.size > 1:
                raise WorkersError(
                    "`fit` on several workers must keep the train function that it "
                    "began with, got another: no gradients were averaged since then. "
                    "Compile the model between two calls of `fit`."
                )
            return
        numbers = {} if logs is None else logs
        self._meet("the end of an epoch", _names_of_numbers(numbers))
        average_statistics(self._workers, self.model)
        _average_numbers(self._workers, numbers)

    def _go_on(self, course: str) -> None:
        """Check that all workers begin another epoch, or that all end."""
        advice = (
            "Let no callback stop one worker alone: give `EarlyStopping` to all, "
            "behind `DataParallel`, which averages the metrics."
        )
        own = {"course after an epoch": course}
        agree(self._workers, own, at="the next epoch", advice=advice)

    def _meet(self, place: str, names: list[str]) -> None:
        """Check that all workers reach this place; wait a minute in an early end."""
        steps, of = self._steps, (self.params or {}).get("steps") or 0
        own = {
            "course in an epoch": place,
            "steps in an epoch": steps,
            "metrics": names,
        }
        advice = (
            "Validate on all workers or on none, with equal metrics and batch counts."
        )
        timeout = LONGEST if steps >= of else _SHORT
        try:
            agree(self._workers, own, at="place", advice=advice, timeout=timeout)
        except WorkersError as error:
            if steps >= of or error.__cause__ is None:  # they differ
                raise
            raise WorkersError(
                f"all workers must end an epoch together, got {steps} of {of} steps "
                f"on worker {self._workers.rank}. Let no callback stop one worker "
                "alone, and give all workers equally many batches."
            ) from error

    @property
    def _is_training(self) -> bool:
        model: Any = self.model
        return self._workers.size > 1 and "make_train_function" in model.__dict__


def _refuse_unlike(workers: Workers, model: Any, params: dict[str, Any]) -> None:
    optimizers = optimizers_of(model)
    if not optimizers:
        raise WorkersError(
            "a model on several workers must have an optimizer, got one without. Give "
            "`compile` one, or average gradients yourself: `workers.mean(gradients)`."
        )
    variables = [(v.path, tuple(v.shape), v.dtype) for v in model.trainable_variables]
    own = {
        "steps in an epoch": params.get("steps"),
        "epochs": params.get("epochs"),
        "steps per execution": model.steps_per_execution,
        "optimizers": [type(one).__name__ for one in optimizers.values()],
        "trainable variables": [str(one) for one in variables],
    }
    advice = (
        "Build the same model on all, and give all equally many batches: "
        "`data.shard(workers.size, workers.rank)`, `steps_per_epoch`."
    )
    agree(workers, own, at="the begin", advice=advice)
    if own["steps in an epoch"] is None:
        raise WorkersError(
            "all workers must know how many steps an epoch has, got data of unknown "
            "length. Give `fit` the argument `steps_per_epoch`."
        )


def _take_chiefs(workers: Workers, model: Any) -> None:
    """Copy the chief's weights, statistics and slots; vary random states by rank."""
    of_optimizers = [v for one in optimizers_of(model).values() for v in one.variables]
    variables = {id(v): v.value for v in [*model.variables, *of_optimizers]}
    workers.take_chiefs(v for v in variables.values() if v.dtype != tf.string)
    for one in model.non_trainable_variables:
        if one.name == "seed_generator_state":
            state = one.value
            own = workers.rank * _SEED_STEP % (1 << 32)
            state.assign(state + tf.constant([own, 0], state.dtype))


def _average_numbers(workers: Workers, logs: dict[str, Any]) -> None:
    """Average metrics in place, for the callbacks after this one."""
    names = _names_of_numbers(logs)
    values = [tf.constant(float(logs[name]), tf.float64) for name in names]
    for name, mean in zip(names, workers.mean(values, "metrics"), strict=True):
        logs[name] = float(mean)


def _names_of_numbers(logs: dict[str, Any]) -> list[str]:
    numbers = (name for name, one in logs.items() if isinstance(one, (int, float)))
    return sorted(name for name in numbers if not isinstance(logs[name], bool))
