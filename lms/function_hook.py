"""One of a Keras model's functions, replaced by one that plans, and put back.

Keras asks the model for a function of an iterator (`make_train_function`), then tells
its callbacks that training begins, then calls `model.train_function` for each batch.
At the begin hook that attribute is replaced by one that plans; at the end hook it is
put back. If training dies in between, the step's own errors put it back at once, and
any other way out is caught at the next use: Keras always asks `make_train_function`
first, and the one that is in place then puts everything back.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from lms.errors import LMSError
from lms.pipeline import FittedFunction
from lms.report import StepReport
from lms.tf.compat import one_replica_s

__all__ = ["FunctionHook"]


class FunctionHook:
    """One of a model's three functions, replaced and put back."""

    def __init__(
        self,
        model: keras.Model,
        kind: str,
        fitted: FittedFunction,
        say: Callable[[StepReport], None],
    ) -> None:
        self.fitted = fitted
        self._model = model
        self._kind = kind
        self._say = say
        self._own = getattr(model, f"{kind}_function")
        self._others: Any = None
        self._said = 0

    def is_for(self, model: keras.Model) -> bool:
        """Tell whether this hook's plans still hold: the compiled model is the same."""
        return model is self._model and self._own is getattr(
            model, f"{self._kind}_function"
        )

    def install(self) -> None:
        """Put the planned function, and a `make_..._function` that removes it.

        Raises:
            ValueError: If another callback's is there, in the same `fit`.
        """
        self._refuse_another()
        run = self._predict if self._kind == "predict" else self._run_steps
        setattr(self._model, f"{self._kind}_function", run)
        made = f"make_{self._kind}_function"
        self._others = self._model.__dict__.get(made)  # that of `DataParallel`
        self._model.__dict__[made] = self._make

    def _refuse_another(self) -> None:
        made = self._model.__dict__.get(f"make_{self._kind}_function")
        other = getattr(made, "__self__", None)
        if isinstance(other, FunctionHook) and other is not self:
            other.remove()
            raise ValueError(
                "`callbacks` must hold one LMSCallback, got two: both would plan the "
                "same step. Leave one."
            )

    def remove(self) -> None:
        """Put back what was replaced; harmless when done twice."""
        made = f"make_{self._kind}_function"
        if self._model.__dict__.get(made) == self._make:
            del self._model.__dict__[made]
            if self._others is not None:
                self._model.__dict__[made] = self._others
            setattr(self._model, f"{self._kind}_function", self._own)
            self.fitted.note_peak()

    def _make(self, force: bool = False) -> Any:  # noqa: FBT001, FBT002 - Keras's form
        self.remove()
        return getattr(self._model, f"make_{self._kind}_function")(force=force)

    def _run_steps(self, iterator: Any) -> Any:
        """`steps_per_execution` steps, as Keras's own function makes."""
        iterator = one_replica_s(iterator)
        outputs = self._guarded(self.fitted.draw_and_run, iterator)
        for _ in range(self._model.steps_per_execution - 1):
            try:
                outputs = self._guarded(self.fitted.draw_and_run, iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                break
        return outputs

    def _predict(self, batches: Sequence[Any]) -> Any:
        parts = [self._predict_one(data) for data in batches]
        if len(parts) == 1:
            return parts[0]
        return keras.tree.map_structure(lambda *p: tf.concat(p, axis=0), *parts)

    def _predict_one(self, data: Any) -> Any:
        """Volumes of several sizes come in turn: each size has a plan, or none."""
        if self._may_step_aside and self.fitted.runs_plain([data]):
            return self._own([data])
        return self._guarded(self.fitted, [data])

    def _guarded(self, run: Callable[[Any], Any], argument: Any) -> Any:
        try:
            result = run(argument)
        except (StopIteration, tf.errors.OutOfRangeError):
            raise
        except LMSError as error:
            self.remove()
            if not keras.config.is_traceback_filtering_enabled():
                raise
            # As Keras leaves its own frames out: the message says what happened.
            cause = error.__cause__
            shown = cause if isinstance(cause, tf.errors.OpError) else None
            raise error.with_traceback(None) from shown
        except BaseException:
            self.remove()
            raise
        self._after_step()
        return result

    def _after_step(self) -> None:
        """Say what is new, and step aside when everything fits."""
        reports = self.fitted.report
        for report in reports[self._said :]:
            self._say(report)
        self._said = len(reports)
        steps_aside = self._kind != "predict" and self._may_step_aside
        if steps_aside and self.fitted.fits_unplanned():
            setattr(self._model, f"{self._kind}_function", self._own)

    @property
    def _may_step_aside(self) -> bool:
        """Tell whether Keras's own function does the same as the planned one.

        With XLA it would need memory that nobody has predicted, and make other bits.
        """
        return self._own is not None and not self._model.jit_compile
