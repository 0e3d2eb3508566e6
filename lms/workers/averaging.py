"""Averages gradients over workers where optimizers take them, and moving statistics."""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import keras
import tensorflow as tf

from lms.tf.failures import lost_in_words
from lms.workers.collectives import Workers

__all__ = ["Averaging", "average_statistics", "optimizers_of"]


class Averaging:
    """A model whose optimizers get mean gradients until Keras remakes its function."""

    def __init__(self, workers: Workers, model: Any) -> None:
        self._workers = workers
        self._model = model
        self._optimizers = optimizers_of(model)
        self._compiled = model.jit_compile

    def install(self) -> None:
        """Replace `apply` of each optimizer, and make the train function anew."""
        for name, optimizer in self._optimizers.items():
            optimizer.apply = self._averaged(name, optimizer.apply)
        # XLA's reductions differ from TensorFlow's: all workers must run one kind.
        self._model.jit_compile = False
        self._model.make_train_function(force=True)
        self._model.train_function = _steps_of(self._model)
        self._model.__dict__["make_train_function"] = self._make

    def _make(self, force: bool = False) -> Any:  # noqa: FBT001, FBT002 - Keras's form
        """Restore the model: Keras calls this before training, however it ended."""
        del self._model.__dict__["make_train_function"]
        for optimizer in self._optimizers.values():
            del optimizer.apply
        self._model.jit_compile = self._compiled
        del force  # the traced function averages: always remake it
        return self._model.make_train_function(force=True)

    def _averaged(self, name: str, apply: Callable[..., Any]) -> Callable[..., Any]:
        def averaged(grads: Any, trainable_variables: Any = None) -> Any:
            mean = self._workers.mean(grads, f"gradients of {name}")
            return apply(mean, trainable_variables)

        return averaged


def _steps_of(model: Any) -> Callable[[Any], Any]:
    """Wrap Keras's train function: single steps, and errors that name a lost worker.

    Reductions in Keras's loop over several steps have other keys than outside a loop,
    and a worker with planned steps has no such loop.
    """
    own = model.train_function

    def step(iterator: Any) -> Any:
        try:
            with _one_step(model), lost_in_words():
                return own(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            raise  # the end of the data
        except BaseException:
            if "make_train_function" in model.__dict__:
                model.make_train_function(force=True)  # `Averaging` puts all back
            raise

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
    return wraps(own)(steps)  # so that Keras's traced function is found


@contextmanager
def _one_step(model: Any) -> Iterator[None]:
    before = model.steps_per_execution
    model.steps_per_execution = 1
    try:
        yield
    finally:
        model.steps_per_execution = before


def optimizers_of(model: Any) -> dict[str, Any]:
    """Find the optimizers of a model, by name, also in its attributes."""
    found = dict(_optimizers_in(model, "it", set()))
    inner = {id(getattr(one, "inner_optimizer", None)) for one in found.values()}
    return {name: one for name, one in found.items() if id(one) not in inner}


def _optimizers_in(value: Any, name: str, known: set[int]) -> Iterator[tuple[str, Any]]:
    """Search attributes of models, lists and dictionaries, at any depth."""
    if id(value) in known:
        return
    known.add(id(value))
    if isinstance(value, keras.optimizers.Optimizer):
        yield name, value
    elif isinstance(value, keras.Model):
        yield from _optimizers_in(getattr(value, "optimizer", None), name, known)
        for key, inner in vars(value).items():
            if isinstance(inner, _MAY_HOLD):
                yield from _optimizers_in(inner, f"{name}.{key}", known)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _optimizers_in(inner, f"{name}.{key}", known)
    elif isinstance(value, (list, tuple)):
        for place, inner in enumerate(value):
            yield from _optimizers_in(inner, f"{name}.{place}", known)


_MAY_HOLD = (keras.optimizers.Optimizer, keras.Model, Mapping, list, tuple)


def average_statistics(workers: Workers, model: Any) -> None:
    """Average moving means and variances, which each worker made from its own data.

    Variables that are equal on all workers, such as frozen weights, keep their bits.
    """
    found = [v.value for v in model.non_trainable_variables]
    found = [variable for variable in found if variable.dtype.is_floating]
    own = [zlib.crc32(variable.numpy().tobytes()) for variable in found]
    told = workers.gather(json.dumps(own), "statistics")
    sums = [json.loads(text) for text in told]
    unlike = [
        variable
        for variable, *each in zip(found, *sums, strict=True)
        if len(set(each)) > 1
    ]
    means = workers.mean(unlike, "statistics")
    for variable, mean in zip(unlike, means, strict=True):
        variable.assign(mean)
