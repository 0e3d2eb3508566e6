"""Keras's `fit` on several workers: each trains on its own data, all as one.

    begin   same model, same steps?  ──> the chief's weights and slots for all
    step    gradients of this worker ──> their mean over all ──> the optimizer
    epoch   metrics and moving statistics ──> their means

The mean is taken where the model's optimizer is called: outside of loss scaling, whose
branch workers may take differently, and before clipping and accumulation. Nothing is
kept in the model: its files know nothing of workers.

Known weaknesses: the mean of the workers' losses is that of the joint batch only where
all batches are equally large. A callback that ends training in the middle of an epoch
on one worker alone leaves the others waiting until that one ends.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import keras
import tensorflow as tf

from lms.errors import WorkersError
from lms.tf.workers.collectives import Workers
from lms.tf.workers.joining import lost_workers_in_words

__all__ = ["DataParallel"]

# Random states of workers differ by so much for each rank: an odd number, far from
# small counts.
_SEED_STEP = 0x9E37_79B1


class DataParallel(keras.callbacks.Callback):
    """Train one model on all workers of a job: the mean of their gradients updates it.

    Each worker has its own part of the data (`data.shard(workers.size, workers.rank)`)
    and its own batches; the learning rate is the user's to scale. The first in the list
    of callbacks: those after it see metrics of all workers, so that they decide alike
    (`ReduceLROnPlateau`, `EarlyStopping`). Files are written by the chief:
    `callbacks=[..., *([ModelCheckpoint(...)] if workers.is_chief else [])]`.

    Args:
        workers: What `lms.join` returned.

    Raises:
        WorkersError: At the begin hook, if workers have unlike models or steps, or this
            is behind `LMSCallback` in the list.

    Example:
        >>> import numpy as np
        >>> from lms.tf.workers.joining import join
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> model.compile("sgd", "mse")
        >>> x, y = np.ones((8, 4)), np.ones((8, 2))
        >>> callback = DataParallel(join())
        >>> history = model.fit(x, y, verbose=0, callbacks=[callback])
    """

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._workers = workers

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Compare the workers, give all the chief's variables, average gradients."""
        model: Any = self.model
        if self._workers.size == 1:
            return
        if "make_train_function" in model.__dict__:
            raise WorkersError(
                "`DataParallel` must be before `LMSCallback` in the list of callbacks, "
                "got it behind. Put it first."
            )
        _refuse_unlike(self._workers, model, self.params or {})
        _take_chiefs(self._workers, model)
        _Averaging(self._workers, model).install()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Put back what was replaced; the chief, whose server all need, waits."""
        if self._workers.size == 1:
            return
        model: Any = self.model
        model.make_train_function(force=True)  # `_Averaging` puts all back
        self._workers.barrier("the end of training")

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Average moving statistics, so that all validate one model."""
        if self._is_training:
            _average_statistics(self._workers, self.model)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Average moving statistics and metrics, those of validation too."""
        if not self._is_training:
            return
        _average_statistics(self._workers, self.model)
        _average_numbers(self._workers, {} if logs is None else logs)

    @property
    def _is_training(self) -> bool:
        model: Any = self.model
        return self._workers.size > 1 and "make_train_function" in model.__dict__


class _Averaging:
    """A model whose optimizers get mean gradients, until its function is made anew."""

    def __init__(self, workers: Workers, model: Any) -> None:
        self._workers = workers
        self._model = model
        self._optimizers = _optimizers(model)

    def install(self) -> None:
        """Replace `apply` of each optimizer, and the functions traced without."""
        for name, optimizer in self._optimizers.items():
            optimizer.apply = self._averaged(name, optimizer.apply)
        self._model.make_train_function(force=True)
        self._model.train_function = _steps_of(self._model)
        self._model.__dict__["make_train_function"] = self._make

    def _make(self, force: bool = False) -> Any:  # noqa: FBT001, FBT002 - Keras's form
        """Put all back: Keras asks for this before it trains, whatever ended before."""
        del self._model.__dict__["make_train_function"]
        for optimizer in self._optimizers.values():
            del optimizer.apply
        del force  # what was traced has averages in it
        return self._model.make_train_function(force=True)

    def _averaged(self, name: str, apply: Callable[..., Any]) -> Callable[..., Any]:
        def averaged(grads: Any, trainable_variables: Any = None) -> Any:
            mean = self._workers.mean(grads, f"gradients of {name}")
            return apply(mean, trainable_variables)

        return averaged


def _steps_of(model: Any) -> Callable[[Any], Any]:
    """Keras's own function, whose errors are said in words, one step at a time.

    In Keras's loop of several steps reductions have other keys than outside of one, and
    a worker whose steps are planned has no such loop.
    """
    own = model.train_function

    def step(iterator: Any) -> Any:
        with _one_step(model), lost_workers_in_words():
            return own(iterator)

    def steps(iterator: Any) -> Any:
        outputs = step(iterator)
        for _ in range(model.steps_per_execution - 1):
            try:
                outputs = step(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                break
        return outputs

    if model.steps_per_execution > 1:
        return steps
    return wraps(own)(steps)  # so that what Keras traces is found


@contextmanager
def _one_step(model: Any) -> Iterator[None]:
    before = model.steps_per_execution
    model.steps_per_execution = 1
    try:
        yield
    finally:
        model.steps_per_execution = before


def _optimizers(model: Any) -> dict[str, Any]:
    """The optimizers of a model by name, also those of a `train_step` of its own."""
    found: dict[int, tuple[str, Any]] = {id(model.optimizer): ("it", model.optimizer)}
    for name, value in vars(model).items():
        if isinstance(value, keras.optimizers.Optimizer):
            found.setdefault(id(value), (name.lstrip("_"), value))
    return dict(found.values())


def _refuse_unlike(workers: Workers, model: Any, params: dict[str, Any]) -> None:
    """Compare what must be the same; all workers raise, or none does."""
    variables = [(v.path, tuple(v.shape), v.dtype) for v in model.trainable_variables]
    own = {
        "steps in an epoch": params.get("steps"),
        "epochs": params.get("epochs"),
        "steps per execution": model.steps_per_execution,
        "optimizers": [type(one).__name__ for one in _optimizers(model).values()],
        "trainable variables": [str(one) for one in variables],
    }
    said = [json.loads(text) for text in workers.gather(json.dumps(own), "the begin")]
    for name, value in said[0].items():
        for rank, theirs in enumerate(said):
            if theirs[name] != value:
                raise WorkersError(
                    f"all workers must have the same {name}, got "
                    f"{_shown(value, theirs[name])} on worker 0 and "
                    f"{_shown(theirs[name], value)} on worker {rank}. Build the same "
                    "model on all, and give each as many batches: "
                    "`data.shard(workers.size, workers.rank)`, `steps_per_epoch`."
                )
    if said[0]["steps in an epoch"] is None:
        raise WorkersError(
            "all workers must know how many steps an epoch has, got data of unknown "
            "length. Give `fit` the argument `steps_per_epoch`."
        )


def _shown(value: Any, other: Any) -> str:
    """A value; of a list what the other one does not have."""
    if not isinstance(value, list):
        return str(value)
    own = [one for one in value if one not in other]
    return own[0] if own else f"{len(value)} of them"


def _take_chiefs(workers: Workers, model: Any) -> None:
    """Weights, statistics and slots of the chief; random states that differ by rank."""
    model.optimizer.build(model.trainable_variables)
    of_optimizers = [v for one in _optimizers(model).values() for v in one.variables]
    variables = {id(v): v.value for v in [*model.variables, *of_optimizers]}
    workers.take_chiefs(v for v in variables.values() if v.dtype != tf.string)
    for one in model.non_trainable_variables:
        if one.name == "seed_generator_state":
            state = one.value
            own = workers.rank * _SEED_STEP % (1 << 32)
            state.assign(state + tf.constant([own, 0], state.dtype))


def _average_statistics(workers: Workers, model: Any) -> None:
    """Moving means and variances: each worker has seen its own data only."""
    found = [v.value for v in model.non_trainable_variables]
    found = [variable for variable in found if variable.dtype.is_floating]
    for variable, mean in zip(found, workers.mean(found, "statistics"), strict=True):
        variable.assign(mean)


def _average_numbers(workers: Workers, logs: dict[str, Any]) -> None:
    """In place: what the callbacks after this one see."""
    names = sorted(name for name, value in logs.items() if _is_number(value))
    values = [tf.constant(float(logs[name]), tf.float64) for name in names]
    for name, mean in zip(names, workers.mean(values, "metrics"), strict=True):
        logs[name] = float(mean)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
