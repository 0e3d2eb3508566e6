"""The Keras callback: hooks, and nothing that could be elsewhere.

Keras asks the model for a function of an iterator (`make_train_function`), then tells
its callbacks that training begins, then calls `model.train_function` for each batch.
At the begin hook that attribute is replaced by one that plans; at the end hook it is
put back. If training dies in between, the step's own errors put it back at once, and
any other way out is caught at the next use: Keras always asks `make_train_function`
first, and the one that is in place then puts everything back.

Known weaknesses: once a first batch fits, Keras's own function runs, also for a larger
batch that comes later. Ops that keep their random state in the kernel (`tf.random` with
an op seed, not Keras's seed generators) start anew in each function that holds them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import keras
import tensorflow as tf
from rich.console import Console

from lms.ir.plan import SwapPlan
from lms.pipeline import FittedFunction
from lms.planning.settings import read_settings
from lms.planning.tflms_rule import SyncMode
from lms.report import StepReport, StepTimeline, headline, table
from lms.tf.capture.keras_step import check_model, own_function, step_of
from lms.tf.compat import one_replica_s

__all__ = ["LMSCallback"]


class LMSCallback(keras.callbacks.Callback):
    """Large model support: fit, evaluate and predict within the memory there is.

    Each traced step is planned when its first batch comes. If it fits, Keras's own
    function runs. If not, tensors are swapped to host memory between their uses, with
    the same numbers bit for bit.

    Args:
        budget: Device memory that a step may use, weights and data included: bytes, or
            text such as "96MiB". None takes what the device has: plans are made for
            all but a margin of 1/32, which is for what the allocator loses.
        planner: "budget"; "threshold", which is IBM's rule; or "timed-threshold", the
            rule tuned by time too. None follows the other arguments.
        swapout_threshold: TFLMS: a reader more than so many levels of the graph after
            a tensor's producer reads a swapped-in copy.
        swapin_ahead: TFLMS: how many levels before its reader a swap-in starts.
        swapin_groupby: TFLMS: readers within so many levels share one copy.
        sync_mode: TFLMS: "off", "swap-out", "swap-in", "both", or 0-3.
        serialization: TFLMS: levels to serialise, such as `[1, "3:5", "10:"]`.
        serialization_by_size: TFLMS: serialise levels above this size.
        include_scopes: Only outputs of ops below these scopes (layer names) move.
        exclude_scopes: Outputs of ops below these scopes stay.
        include_types: Only outputs of these op types move.
        exclude_types: Outputs of these op types stay.
        recompute: Whether ops are run a second time where their output would have to
            be kept or moved, with the same bits: None where that is predicted to be
            faster, or about as fast and less is moved, and where the host cannot hold
            what would be moved; True wherever it can be; False never; "cheap" as None,
            but only ops that take about as long as copying (element-wise, moving data).
        swap_dtype: "bfloat16" (or "float16") lets float32 tensors that move wait in
            half as many bytes. **The numbers are then not those of plain training.**
        plan: A plan, or the file that `python -m lms plan --output` wrote, for the
            first training step; it must be a plan of that very step.
        verbose: 1 prints a line for each plan, 0 is silent.

    Raises:
        ValueError, TypeError: If an argument breaks its rule.
        BudgetError: When the first batch comes, if no plan fits; names the op and the
            least budget.
        UnsupportedError: At the begin hook, for `run_eagerly` and for more than one
            replica.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> model.compile("sgd", "mse")
        >>> callback = LMSCallback(budget="1GiB", verbose=0)
        >>> x, y = np.ones((8, 4)), np.ones((8, 2))
        >>> history = model.fit(x, y, verbose=0, callbacks=[callback])
        >>> callback.plan.swapped_out_bytes
        0
    """

    def __init__(
        self,
        budget: int | str | None = None,
        *,
        planner: str | None = None,
        swapout_threshold: int | None = None,
        swapin_ahead: int | None = None,
        swapin_groupby: int | None = None,
        sync_mode: SyncMode | str | int = SyncMode.OFF,
        serialization: Sequence[int | str] = (),
        serialization_by_size: int | str | None = None,
        include_scopes: Sequence[str] = (),
        exclude_scopes: Sequence[str] = (),
        include_types: Sequence[str] = (),
        exclude_types: Sequence[str] = (),
        recompute: Literal["cheap"] | bool | None = None,
        swap_dtype: str | None = None,
        plan: SwapPlan | str | Path | None = None,
        verbose: int = 1,
    ) -> None:
        super().__init__()
        self._settings = read_settings(
            budget=budget,
            planner=planner,
            swapout_threshold=swapout_threshold,
            swapin_ahead=swapin_ahead,
            swapin_groupby=swapin_groupby,
            sync_mode=sync_mode,
            serialization=serialization,
            serialization_by_size=serialization_by_size,
            include_scopes=include_scopes,
            exclude_scopes=exclude_scopes,
            include_types=include_types,
            exclude_types=exclude_types,
            recompute=recompute,
            swap_dtype=swap_dtype,
            plan=plan,
        )
        self._verbose = verbose
        self._hooks: dict[str, _Hook] = {}

    @property
    def report(self) -> tuple[StepReport, ...]:
        """One report for each traced function and signature."""
        return tuple(r for hook in self._hooks.values() for r in hook.fitted.report)

    @property
    def plan(self) -> SwapPlan | None:
        """The first training plan; None before the first batch."""
        return next((r.plan for r in self.report if r.kind == "train"), None)

    @property
    def timelines(self) -> tuple[StepTimeline, ...]:
        """Predicted memory over a step for each report, without a plan and with it."""
        return tuple(t for hook in self._hooks.values() for t in hook.fitted.timelines)

    def summary(self) -> str:
        """The reports as a readable table."""
        return table(self.report)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Replace the model's training function."""
        self._begin("train")

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Put the model's training function back."""
        self._end("train")

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Replace the model's evaluation function."""
        self._begin("test")

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Put the model's evaluation function back."""
        self._end("test")

    def on_predict_begin(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Replace the model's prediction function."""
        self._begin("predict")

    def on_predict_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Put the model's prediction function back."""
        self._end("predict")

    def _begin(self, kind: str) -> None:
        model: Any = self.model
        check_model(model)
        hook = self._hooks.get(kind)
        if hook is None or not hook.is_for(model):
            fitted = FittedFunction(
                step_of(model, kind),
                self._settings,
                kind=kind,
                planned_anew=self._say,
                own=own_function(model, kind),
            )
            hook = _Hook(model, kind, fitted, self._say)
            self._hooks[kind] = hook
        hook.install()

    def _end(self, kind: str) -> None:
        self._hooks[kind].remove()

    def _say(self, report: StepReport) -> None:
        if self._verbose:
            Console(soft_wrap=True).print(headline(report), highlight=False)


class _Hook:
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
        """Whether plans made for this hook still hold: the same compiled model."""
        return model is self._model and self._own is getattr(
            model, f"{self._kind}_function"
        )

    def install(self) -> None:
        """Put the planned function, and a `make_..._function` that removes it."""
        run = self._predict if self._kind == "predict" else self._run_steps
        setattr(self._model, f"{self._kind}_function", run)
        made = f"make_{self._kind}_function"
        self._others = self._model.__dict__.get(made)  # that of `DataParallel`
        self._model.__dict__[made] = self._make

    def remove(self) -> None:
        """Put back what was replaced; harmless when done twice."""
        made = f"make_{self._kind}_function"
        if self._model.__dict__.get(made) == self._make:
            del self._model.__dict__[made]
            if self._others is not None:
                self._model.__dict__[made] = self._others
            setattr(self._model, f"{self._kind}_function", self._own)
            self.fitted.note_peak()
        self.fitted.release()

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
        if self._own is not None and self.fitted.runs_plain([data]):
            return self._own([data])
        return self._guarded(self.fitted, [data])

    def _guarded(self, run: Callable[[Any], Any], argument: Any) -> Any:
        try:
            result = run(argument)
        except (StopIteration, tf.errors.OutOfRangeError):
            raise
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
        steps_aside = self._kind != "predict" and self._own is not None
        if steps_aside and self.fitted.fits_unplanned():
            setattr(self._model, f"{self._kind}_function", self._own)
