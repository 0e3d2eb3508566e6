"""The Keras callback: reads the user's knobs, replaces and restores Keras's functions.

Keras asks the model for a function of an iterator (`make_train_function`), then tells
its callbacks that training begins, then calls `model.train_function` for each batch.
The begin hook replaces that attribute by a function that plans; the end hook restores
Keras's. If training dies in between, an error of the step restores it at once. Any
other way out is caught at the next use: Keras always calls `make_train_function` first,
and the replaced one then restores everything. What Keras makes by `force` in `fit`, or
in `large_model`, where no hook is called, is replaced again.

Where a step fits and no batch can be larger, Keras's own function runs all steps. Else
each batch is checked: a larger one than before gets a plan; batches that fit run in
Keras's own function where kernels draw random numbers.

A step that XLA compiles (`jit_compile`) is tried in Keras's own function; if it does
not fit it is undone, and planned without XLA. Under a budget XLA is asked beforehand.

Known weaknesses: kernels that draw random numbers (`tf.random`, not Keras's seed
generators) restart in each plan, and where a step barely fits, in each shape. Under a
budget XLA compiles twice. Where XLA's first step barely fits, a later one may run out.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial, partialmethod
from pathlib import Path
from typing import Any, Unpack

import keras
import tensorflow as tf
from rich.console import Console

from lms.errors import LMSError, UnsupportedError
from lms.fit.fitted import FittedFunction, nothing_to_plan
from lms.ir.plan import SwapPlan
from lms.machine.ranks import joined
from lms.planning.settings import Knobs, read_settings, with_budget
from lms.report.page import as_page, in_cell
from lms.report.progress import displayed
from lms.report.step import StepReport, StepTimeline, headline, save_record, table
from lms.simulation.allocator import SmallPool
from lms.storage.files import write_text
from lms.tf.capture import keras_step
from lms.tf.capture.tracing import again, is_open, signature_key
from lms.tf.compat import errors_alone, one_replica_s
from lms.tf.failures import first_words
from lms.tf.measure.devices import find_device
from lms.tf.passes.host_variables import lies_on_host
from lms.tf.undo import KeptVariables
from lms.units import MIB, Bytes, format_bytes

__all__ = ["PEAK", "FunctionHook", "LMSCallback", "large_model"]

_LOG = logging.getLogger("lms")
PEAK = "lms_peak"
_MAKERS = {f"make_{kind}_function": kind for kind in ("train", "test", "predict")}
_NO_BATCH = (StopIteration, tf.errors.OutOfRangeError)
_OFF = "XLA is turned off for the %s step: %s. Results are those of jit_compile=False."

# A free chunk of 1 MiB for what XLA and TensorFlow keep of a step that they tried:
# behind the batch's copy it would leave a hole of the batch's bytes.
_FOR_XLA = SmallPool(sizes=(MIB,))


class FunctionHook:
    """Replaces and restores one of a model's three functions."""

    def __init__(
        self,
        model: keras.Model,
        kind: str,
        fitted: FittedFunction,
        say: Callable[[str], None],
        *,
        renew: Callable[[], None] | None = None,
    ) -> None:
        self.fitted = fitted
        self.said_of_xla = ""
        self._model = model
        self._kind = kind
        self._say = say
        self._renew = renew  # None: stays until Keras makes another function
        self._name, self._maker = f"{kind}_function", f"make_{kind}_function"
        self._own = getattr(model, self._name)
        self._traces = keras_step.own_functions(model, kind)
        self._others: Any = None
        self._said: dict[int, SwapPlan] = {}
        self._compiled: set[str] = set()  # signatures whose steps fit with XLA
        self._is_refused = False  # a step did not fit with XLA
        self._is_new = True  # no step has run since Keras's function was replaced

    def is_for(self, model: keras.Model) -> bool:
        """Tell whether this hook's plans still hold: the compiled model is the same."""
        return model is self._model and self._own is getattr(model, self._name)

    def install(self) -> None:
        """Install the planned function, and a `make_..._function` that removes it."""
        self._replace()
        own = self._model.__dict__
        if self.of(self._model, self._kind) is not self:  # else given twice
            self._others = own.get(self._maker)  # `DataParallel`'s or `large_model`'s
        own[self._maker] = self._make

    @staticmethod
    def of(model: keras.Model, kind: str) -> "FunctionHook | None":
        """Return the hook that is installed in a model."""
        maker = model.__dict__.get(f"make_{kind}_function")
        found = getattr(maker, "__self__", None)
        return found if isinstance(found, FunctionHook) else None

    def _replace(self) -> None:
        run = self._predict if self._kind == "predict" else self._run_steps
        self._is_new = True
        setattr(self._model, self._name, run)

    def change_budget(self, budget: int | str | None) -> None:
        """Plan steps anew from the next one on, also where Keras's function runs."""
        self.fitted.budget = budget
        self._said.clear()
        self._compiled.clear()
        self._is_refused = False
        if self.of(self._model, self._kind) is self:
            self._replace()

    def remove(self) -> None:
        """Restore Keras's function unless the model was recompiled; may be repeated."""
        if self.of(self._model, self._kind) is self:
            own = self._model.__dict__
            del own[self._maker]
            if self._others is not None:
                own[self._maker] = self._others
            if getattr(self._model, self._name) is not None:
                setattr(self._model, self._name, self._own)
            self.fitted.note_peak()
            if self._kind == "train":
                self.fitted.give_back()

    def _make(self, force: bool = False) -> Any:  # noqa: FBT001, FBT002 - Keras's form
        installed: Any = getattr(self._model, self._name)
        is_own = getattr(installed, "__self__", None) is self
        if not (self._renew or force) and is_own:
            return installed
        self.remove()
        made = getattr(self._model, self._maker)(force=force)
        if force and self._renew and not self._others:  # compiled by a callback
            self._renew()
        return made

    def _run_steps(self, iterator: Any) -> Any:
        """Run `steps_per_execution` steps, as Keras's own function does."""
        given, iterator = iterator, one_replica_s(iterator)
        if not hasattr(iterator, "element_spec"):  # `train_on_batch`'s generator
            return self._run_batch(next(iterator))
        if self._is_new:
            self._is_new = False
            if not self._may_compile:
                self._run(self.fitted.prepare, iterator)
                if self._steps_aside(iterator):
                    return self._own(given)
        try:
            outputs = self._run_next(iterator)
        except _NO_BATCH:
            self._run_without_batch(iterator)
            raise
        with suppress(*_NO_BATCH):
            for _ in range(self._model.steps_per_execution - 1):
                outputs = self._run_next(iterator)
        if self._may_compile:
            self._steps_aside(iterator)
        return outputs

    def _run_next(self, iterator: Any) -> Any:
        """Run a step on the next batch: Keras's own if it fits with XLA."""
        if not self._may_compile:
            may = self._may_step_aside and keras_step.is_alone(self._model)
            own = partial(self._run_own, iterator) if may else None
            return self._run(partial(self.fitted.draw_and_run, own=own), iterator)
        batch = next(iterator)
        if ran := self._run(partial(self._run_compiled, batch), iterator):
            return ran[0]
        return self._run(partial(self.fitted.draw_and_run, batch=batch), iterator)

    def _run_own(self, given: Any, batch: Any) -> Any:
        """Run Keras's own function on a batch, or on several where it takes a list."""
        outputs = self._own(batch if given is None else keras_step.one_of(given, batch))
        self.fitted.note_peak()
        return outputs

    def _run_compiled(self, batch: Any, given: Any) -> list[Any]:
        """Run Keras's own function on a batch; return [outputs], or [] if unfit."""
        key = signature_key([keras_step.as_tensors(batch)])
        if key in self._compiled:
            return [self._own(again(batch, given))]
        if self._is_refused:
            return []
        ran, words = self._tried(batch, given)
        if not ran:
            self._is_refused = True
            _LOG.warning(_OFF, self._kind, words)
            return []
        if not self._compiled:
            self.said_of_xla = f"LMS {self._kind} step: with XLA {words} and fits"
            self._say(self.said_of_xla)
        self._compiled.add(key)
        return ran

    def _tried(self, batch: Any, given: Any) -> tuple[list[Any], str]:
        """Run Keras's own function, or undo it; return ([outputs] or [], words)."""
        if not self._traces or self.fitted.moves_what_fits:
            return [], "thresholds, a plan or a function not Keras's are given"
        device, budget = find_device(), self.fitted.budget
        is_batch = isinstance(given, list) and self._kind != "predict"
        traced, argument = (-1, given[0]) if is_batch else (0, given)
        handles = self.fitted.captured_by(self._traces[traced], argument)
        if any(lies_on_host(handle) for handle, _ in handles):
            return [], "its variables do not fit"
        needed = 0 if budget is None else self.fitted.compiled_bytes(batch)
        if needed is None or needed > (budget or 0):
            size = "unknown bytes" if needed is None else format_bytes(needed)
            return [], f"it needs {size}, more than the budget"
        kept, values, _walls = KeptVariables(handles), None, device.keep_pool(_FOR_XLA)
        try:
            values = kept.values()
            device.watch(self)
            device.reset_peak()
            with errors_alone():
                ran = [self._own(again(batch, given))]
            words = f"it took {format_bytes(peak := device.peak_bytes or 0)}"
            if budget is None or peak <= budget:
                return ran, words
            words, ran = f"{words}, more than the budget", None
        except (tf.errors.OpError, MemoryError) as error:
            words = f"{type(error).__name__}, {first_words(error).rstrip(':')}"
        # Not within the handler: the error holds on to frames and their tensors.
        if values is not None:
            kept.put_back(values)
        return [], words

    def _run_without_batch(self, iterator: Any) -> None:
        """Count an iteration, as Keras's step does before it finds no batch.

        Keras starts such a step where the data's length is unknown. A step that is
        compiled, or runs several batches, asks for its batch first.
        """
        compiled = self._model.jit_compile or self._model.steps_per_execution > 1
        averages = hasattr(self._others, "__self__")  # set by `DataParallel`
        if self._kind == "train" and not compiled and not averages:
            self.fitted.run_without_batch(iterator)

    def _predict(self, batches: Sequence[Any]) -> Any:
        if len(batches) > 1 and self._may_step_aside:
            given = list(map(keras_step.as_tensors, batches))
            fit = [self._run(self.fitted.runs_plain, [data]) for data in given]
            if all(fit) and self.fitted.draws_noise:
                return self._run_own(None, given)
        parts = [self._run_batch(data) for data in batches]
        if len(parts) == 1:
            return parts[0]
        return keras.tree.map_structure(lambda *p: tf.concat(p, axis=0), *parts)

    def _run_batch(self, data: Any) -> Any:
        """Run a step on one batch; each size has its own plan, or needs none."""
        data = keras_step.as_tensors(data)
        given = [data] if self._kind == "predict" else data
        if self._may_compile:
            if ran := self._run(partial(self._run_compiled, data), [data]):
                return ran[0]
        elif self._may_step_aside and self._run(self.fitted.runs_plain, given):
            return self._run_own(None, [data])
        return self._run(self.fitted, given)

    def _run(self, step: Callable[[Any], Any], data: Any) -> Any:
        """Run one step and report new plans, or restore Keras's function.

        Raises:
            LMSError: The step's error, without the library's frames.
        """
        try:
            outputs = step(data)
        except _NO_BATCH:
            raise
        except BaseException as error:
            self.remove()
            is_filtering = keras.config.is_traceback_filtering_enabled()
            if not (isinstance(error, LMSError) and is_filtering):
                raise
            # As Keras leaves its own frames out: the message says what happened.
            cause = error.__cause__
            shown = cause if isinstance(cause, tf.errors.OpError) else None
            raise error.with_traceback(None) from shown
        for i, report in enumerate(self.fitted.report):
            if self._said.get(i) is not report.plan:
                self._said[i] = report.plan
                self._say(headline(report))
        return outputs

    def _steps_aside(self, iterator: Any) -> bool:
        """Restore Keras's own function if all shapes are known and all steps fit."""
        if self._may_compile:
            fits = signature_key([iterator.element_spec]) in self._compiled
        else:
            fits = self._may_step_aside and self.fitted.fits_unplanned()
        if is_open(iterator) or not fits:
            return False
        setattr(self._model, self._name, self._own)
        if self._is_new:  # another thread has set a budget meanwhile
            self._replace()
            return False
        return True

    @property
    def _may_step_aside(self) -> bool:
        """Tell whether Keras's own function computes as the planned one."""
        return self._own is not None and not self._model.jit_compile

    @property
    def _may_compile(self) -> bool:
        """Tell whether batches may run in Keras's own function, compiled by XLA."""
        is_tried = self._model.jit_compile and keras_step.is_alone(self._model)
        return bool(is_tried and (self._compiled or not self._is_refused))


class LMSCallback(keras.callbacks.Callback):
    """Large model support: fit, evaluate and predict within the device's memory.

    Each traced step is planned when its first batch comes. If the step fits, Keras's
    own function runs, with XLA too. If not, tensors are offloaded to host memory, or
    recomputed, with the numbers of `jit_compile=False` bit for bit.

    In `fit`, later callbacks and `History` find the training steps' measured peak, in
    bytes, as `logs["lms_peak"]`: NaN before two steps ran. A metric of this name stays.

    Args:
        budget: Device memory that a step may use, weights and data included: bytes, or
            text such as "96MiB". None takes the device's memory less a margin of 1/32,
            which the allocator may lose to fragmentation. Without a GPU nothing is
            planned then: Keras trains as ever.
        thresholds: IBM's rule instead of a plan by time and memory, by TFLMS's names:
            `swapout_threshold` (levels of the graph: a reader further behind a tensor's
            producer reads a swapped-in copy), `swapin_ahead` (levels before its reader
            at which a swap-in starts), `swapin_groupby` (levels: readers that close
            together share a copy), `sync_mode` ("off", "swap-out", "swap-in", "both"),
            `serialization` (levels to serialise, such as `[1, "3:5"]`),
            `serialization_by_size`. The first three are tuned where they are left out.
        filters: What may move, by TFLMS's names: outputs of ops below
            `include_scopes` (layer names) alone, not of those below `exclude_scopes`,
            and likewise for `include_types` and `exclude_types` of ops.
        recompute: The ops that are recomputed, with the same bits, instead of keeping
            or offloading their outputs. None: where recomputing is predicted to be
            faster, or about as fast with less moved, or the host has too little memory.
            True: all possible ops. False: none.
        host_memory: The most host memory for swapped tensors, written as `budget`; None
            takes what is free.
        plan: A plan of the first training step, or the file of one, which `python -m
            lms plan --output` wrote.
        state: Where variables (weights, slots of the optimizer) lie while a step runs.
            None: on the device; some in host memory, with the same bits, where no plan
            fits otherwise. "device": on the device.
        slices: How ops are split where no plan fits whole ops: into parts that run one
            after the other. None: over the examples of a batch and the heads of
            attention, and rows of products whose parts were tried and have the same
            bits; under `tf.config.experimental.enable_op_determinism` nothing else,
            as libraries may add up fewer numbers in another order. "any": all possible
            ops, such as the queries of attention. "none": not at all.
        replan: True: training begins by the first plan that is found, and another
            process, of the lowest priority, searches on for a faster one, which takes
            over between two steps with the same numbers. False: steps are planned once,
            with all effort; so are evaluations, predictions, steps of several workers,
            and steps whose kernels draw random numbers (`tf.random`).
        check: "moved" compares tensors that come back from the host with what left, by
            digests; with op determinism, an op's second run with its first, one a step.
            A step in which they differ is undone, unless its last writes had begun.
        verbose: 1 shows progress and prints a line for each plan, 0 is silent.

    Raises:
        ChangedTensorError: With `check`, at a difference; names the tensor, its op and
            the plan's entry.
        ValueError, TypeError: If an argument breaks its rule.
        BudgetError: When the first batch comes, if no plan fits the given budget; names
            the op and the least budget, or a lower bound far below.
        UnsupportedError: At the begin hook, for a budget, thresholds or a plan where
            there is no GPU, with `run_eagerly` and with strategies that are not
            planned. Without these Keras trains as ever there, and a line says so.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> model.compile("sgd", "mse")
        >>> callback = LMSCallback(verbose=0)
        >>> x, y = np.ones((8, 4)), np.ones((8, 2))
        >>> history = model.fit(x, y, verbose=0, callbacks=[callback])
        >>> len(history.epoch)
        1
    """

    def __init__(
        self,
        budget: int | str | None = None,
        *,
        verbose: int = 1,
        **knobs: Unpack[Knobs],
    ) -> None:
        super().__init__()
        self._settings = read_settings(budget=budget, **knobs)
        if verbose not in (0, 1):
            raise ValueError(
                "`verbose` must be 0 (silent) or 1 (a line for each plan), got "
                f"{verbose!r}. Leave it out for 1."
            )
        self._verbose = verbose
        self._hooks: dict[str, FunctionHook] = {}
        self._why_unplanned = ""

    @property
    def budget(self) -> Bytes | None:
        """The budget in bytes; another one holds from the next step on.

        A stored `plan` is given up for another budget. Where `fit` began without a
        limit of memory, and so without plans, another budget holds from the next `fit`.
        """
        return self._settings.budget

    @budget.setter
    def budget(self, budget: int | str | None) -> None:
        settings = with_budget(self._settings, budget)
        if settings != self._settings:
            for hook in self._hooks.values():
                hook.change_budget(budget)
            self._settings = replace(settings, plan=None)

    @property
    def report(self) -> tuple[StepReport, ...]:
        """Reports, one for each traced function and signature."""
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
        said = [hook.said_of_xla for hook in self._hooks.values() if hook.said_of_xla]
        shown = [table(self.report)] if self.report or not said else []
        return self._why_unplanned or "\n".join(said + shown)

    def page(self, path: str | Path) -> None:
        """Write a page to look at: an HTML file that loads nothing else.

        It shows memory by layer over a step, copies, and what becomes of each tensor. A
        step that was refused or ran out of memory comes first: write it after `fit`, or
        in its `finally`.
        """
        write_text(Path(path), self._page())

    def _page(self) -> str:
        names = keras_step.names_of_layers(self.model) if self.model else ()
        shown = (s for hook in self._hooks.values() for s in hook.fitted.shown)
        return as_page([*shown], names)

    def _repr_html_(self) -> str:
        """The table and the page, as a notebook shows them."""
        has_steps = any(hook.fitted.shown for hook in self._hooks.values())
        return in_cell(self.summary(), self._page() if has_steps else "")

    def save_record(self, path: str | Path) -> None:
        """Write versions, plans, proofs and comparisons as JSON, for a checkpoint."""
        save_record(Path(path), self.report)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Begin again where another callback, or a `fit` within this one, came by."""
        hook, model = self._hooks.get("train"), self.model
        if hook and model and FunctionHook.of(model, "train") is not hook:
            self._begin("train")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Log the peak of training steps in bytes, for later callbacks and History."""
        hook = self._hooks.get("train")
        if hook and logs is not None and joined().size == 1:
            hook.fitted.note_peak()
            peaks = [r.measured_peak_bytes for r in hook.fitted.report]
            logs.setdefault(PEAK, float(max(filter(None, peaks), default=math.nan)))

    def __getstate__(self) -> dict[str, Any]:
        """State of a copy: the knobs, without the model and its plans."""
        return {"_settings": self._settings, "_verbose": self._verbose}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start with a copy's knobs and without plans."""
        super().__init__()
        self.__dict__.update(state)
        self._hooks = {}
        self._why_unplanned = ""

    def _begin(self, kind: str, logs: object = None, *, stays: bool = False) -> None:
        del logs
        model: Any = self.model
        try:
            why = _unlimited() if nothing_to_plan(self._settings) else ""
            if not (why := why or self._who_plans(model, kind)):
                keras_step.check_model(model)
        except UnsupportedError as error:
            if self._settings.asks_for_a_plan:
                raise
            why = f"Nothing is planned, Keras trains as ever: {error}"
        if why and why != self._why_unplanned:
            self._print(f"LMS: {why}")
        self._why_unplanned = why
        if why:
            self._hooks.pop(kind, None)
            return
        hook = self._hooks.get(kind)
        if hook is None or not hook.is_for(model):
            make_slots = partial(keras_step.make_slots, model)
            has_two = kind != "predict"  # of an iterator and of a batch
            fitted = FittedFunction(
                keras_step.step_of(model, kind),
                self._settings,
                kind=kind,
                made_before=make_slots if kind == "train" else None,
                shown=self._shown,
                of_batch=keras_step.step_of_data(model, kind) if has_two else None,
                own=keras_step.own_functions(model, kind),
            )
            renew = None if stays else partial(self._begin, kind)
            hook = FunctionHook(model, kind, fitted, self._print, renew=renew)
            self._hooks[kind] = hook
        hook.install()

    def _who_plans(self, model: keras.Model, kind: str) -> str:
        """Say that another callback plans the step; remove it if only this one asks."""
        other = FunctionHook.of(model, kind)
        if other is None or other is self._hooks.get(kind):
            return ""
        ours, theirs = self._settings, other.fitted.settings
        if not ours.asks_for_a_plan or ours == theirs:
            return "Another LMSCallback plans this model: this one plans nothing."
        other.remove()
        if theirs.asks_for_a_plan:
            raise ValueError(
                "`callbacks` must hold one LMSCallback with a budget or a plan, got "
                "two that differ: both would plan the same step. Leave one."
            )
        return ""

    def _end(self, kind: str, logs: object = None) -> None:  # noqa: ARG002
        if kind in self._hooks:
            self._hooks[kind].remove()

    on_train_begin: Any = partialmethod(_begin, "train")
    on_train_end: Any = partialmethod(_end, "train")
    on_test_begin: Any = partialmethod(_begin, "test")
    on_test_end: Any = partialmethod(_end, "test")
    on_predict_begin: Any = partialmethod(_begin, "predict")
    on_predict_end: Any = partialmethod(_end, "predict")

    def _shown(self) -> AbstractContextManager[None]:
        return displayed(Console(soft_wrap=True)) if self._verbose else nullcontext()

    def _print(self, line: str) -> None:
        if self._verbose:
            Console(soft_wrap=True).print(line, highlight=False, markup=False)


@contextmanager
def large_model(
    model: keras.Model,
    budget: int | str | None = None,
    *,
    verbose: int = 1,
    **knobs: Unpack[Knobs],
) -> Iterator[LMSCallback]:
    """Within the context, plan all steps of a model, also those of single batches.

    For loops over `train_on_batch`, `test_on_batch` or `predict_on_batch`, where Keras
    calls no callbacks. Each model of a loop has a context of its own.

    Args:
        model: The model; it may be compiled within, and anew.
        budget: As for `LMSCallback`.
        verbose: As for `LMSCallback`.
        **knobs: The other knobs of `LMSCallback`, which says what is refused.

    Yields:
        A callback, with `report`, `plan`, `summary()` and `budget`.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> model.compile("sgd", "mse")
        >>> with large_model(model, verbose=0) as large:
        ...     loss = model.train_on_batch(np.ones((8, 4)), np.ones((8, 2)))
        >>> large.budget
    """
    nothing_to_plan(read_settings(budget=budget, **knobs))  # refuses without a GPU
    callback = LMSCallback(budget, verbose=verbose, **knobs)
    callback.set_model(model)
    others = _without_hooks(model)
    try:
        for name, kind in _MAKERS.items():
            begin = partial(callback._begin, kind, stays=True)  # noqa: SLF001 - ours
            model.__dict__[name] = _made_then(getattr(model, name), begin)
        yield callback
    finally:
        for name in _without_hooks(model):
            del model.__dict__[name]
        model.__dict__.update(others)


def _without_hooks(model: keras.Model) -> dict[str, Any]:
    """Remove hooks from a model; return its other replaced `make_..._function`s."""
    for kind in _MAKERS.values():
        if hook := FunctionHook.of(model, kind):
            hook.remove()
    return {name: model.__dict__[name] for name in _MAKERS if name in model.__dict__}


def _made_then(make: Callable[..., Any], begin: Callable[[], None]) -> Any:
    def make_and_begin(force: bool = False) -> None:  # noqa: FBT001, FBT002 - Keras's
        make(force=force)
        begin()

    return make_and_begin


def _unlimited() -> str:
    device = find_device()
    if not device.is_gpu:
        return "TensorFlow sees no GPU: nothing is planned, Keras trains as ever."
    return f"{device.name} has no known limit and no `budget`: nothing is planned."
