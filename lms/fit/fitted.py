"""The entry point for custom training loops, and the function behind both entry points.

`fit_in_memory` is for custom training loops, `LMSCallback` for Keras. Both make a
`FittedFunction`, which prepares a step for each signature of its calls
(`lms.tf.prepare` has the stages).
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from inspect import Parameter
from inspect import signature as signature_of
from pathlib import Path
from threading import RLock
from traceback import clear_frames
from typing import Any, TypeAlias, Unpack
from weakref import ReferenceType, ref

from lms.errors import LMSError, UnsupportedError, WorkersError
from lms.machine.ranks import joined
from lms.planning.problem import Filters
from lms.planning.settings import Knobs, Settings, read_settings, with_budget
from lms.report.page import Shown, as_page
from lms.report.step import StepReport, StepTimeline, save_record
from lms.storage.files import write_text
from lms.tf import compat
from lms.tf.capture.tracing import (
    PREPARING,
    TracedFunction,
    as_function,
    called_signature,
    draws_for_several,
    flat_specs,
    read_signature,
    signature_key,
    trace,
)
from lms.tf.failures import lost_in_words, refused_in_words
from lms.tf.measure.devices import find_device
from lms.tf.measure.free_memory import limit_pinned_memory
from lms.tf.passes.host_variables import HostVariables, lies_on_host, made_beside
from lms.tf.prepare import prepare
from lms.tf.recovery import PreparedStep, run_recovering
from lms.tf.rewriting import run_without_inputs
from lms.units import Bytes

__all__ = ["FittedFunction", "fit_in_memory", "nothing_to_plan", "on_host"]

# Variables made while a step is traced lie on the device up to 1/2 of its bytes in use,
# on the host beyond, until a plan is known.
_SLOTS_PART = 2

# In `on_host` the limit is 1/4: initialisers need several times a variable's bytes.
_WEIGHTS_PART = 4

# Variables return to the device after training if 2 bytes are free for each of theirs.
_AMPLE = 2

_LOG = logging.getLogger("lms")

_Key: TypeAlias = tuple[int, str]  # of the trace, and of the inputs' signature

# TensorFlow's allocator splits a chunk that exceeds the request by more than this part
# of the device's memory (`internal_fragmentation_fraction` in config.proto).
_SPLIT_FROM = 1e-6

# Said where another function than before draws random numbers.
_NOISE = (
    "The %s step (%s) runs in a function of its own: `tf.random` draws from its seed "
    "again, unlike plain Keras perhaps. Use `keras.random` with a `SeedGenerator`."
)

# TensorFlow reads both settings when it makes its devices, so importing sets them.
limit_pinned_memory()
if not compat.devices_are_made():
    compat.set_gpu_options(internal_fragmentation_fraction=_SPLIT_FROM)
elif find_device().is_gpu:
    _LOG.warning(
        "TensorFlow took the GPU's memory before lms was loaded, and lets it fall into "
        "pieces: steps may run out of memory. Write `from lms import LMSCallback` "
        "above the first tensor or model; in a notebook, restart the kernel first."
    )


def fit_in_memory(
    function: Callable[..., Any],
    signature: Sequence[Any],
    *,
    budget: int | str | None = None,
    **knobs: Unpack[Knobs],
) -> "FittedFunction":
    """Make a training step run within a memory budget.

    Args:
        function: A `tf.function`, or a Python function that can become one, such as a
            step with a `GradientTape` that updates variables.
        signature: Its arguments as specs (`tf.TensorSpec`) or example tensors. Only the
            first dimension of an argument may be unknown; then each batch size is
            planned when it first comes.
        budget: Device memory in bytes, or text such as "96MiB"; None takes the device's
            memory less a margin.
        **knobs: The other knobs of `LMSCallback`.

    Returns:
        A callable with the same arguments and results, and `report`.

    Raises:
        ValueError, TypeError: If a knob breaks its rule.
        BudgetError: If no plan keeps the step within the budget.
        UnsupportedError: If a shape is unknown beyond the batch, or `budget` is given
            without a GPU.

    Example:
        >>> import lms
        >>> import tensorflow as tf
        >>> weights = tf.Variable(tf.ones([4, 2]))
        >>> def step(x):
        ...     with tf.GradientTape() as tape:
        ...         loss = tf.reduce_sum(tf.square(x @ weights))
        ...     weights.assign_sub(0.1 * tape.gradient(loss, weights))
        ...     return loss
        >>> fitted = lms.fit_in_memory(step, [tf.TensorSpec([3, 4])])
        >>> float(fitted(tf.ones([3, 4])))
        96.0
    """
    settings = read_settings(budget=budget, **knobs)
    fitted = FittedFunction(function, settings, kind="step", signature=signature)
    fitted.prepare()
    return fitted


def on_host() -> AbstractContextManager[None]:
    """Within the context, make variables on the host once the device is 1/4 full.

    For models whose weights alone do not fit; else `LMSCallback` offloads variables
    where needed. Variables on the host train, are read and are saved like all others.

    Example:
        >>> import keras
        >>> import lms
        >>> with lms.on_host():
        ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> len(model.variables)
        2
    """
    return _made_beside(Settings(), _WEIGHTS_PART)


def _made_beside(settings: Settings, part: int) -> AbstractContextManager[None]:
    # The variables of several workers stay on their cards.
    if joined().size > 1 or settings.state == "device":
        return nullcontext()
    device = find_device()
    limits = [n for n in (device.limit, settings.budget) if n is not None]
    room = min(limits) // part if limits else None
    return made_beside(device.full_name, room, device.current_bytes or 0)


def nothing_to_plan(settings: Settings) -> bool:
    """Tell whether no plan is needed: no limit, no budget, no plan asked for.

    Raises:
        UnsupportedError: If a budget, thresholds or a plan are given without a GPU.
    """
    device = find_device()
    asked = {
        "budget": settings.budget,
        "thresholds": settings.thresholds if settings.plans_what_fits else None,
        "plan": settings.plan,
    }
    given = next((name for name, value in asked.items() if value is not None), None)
    if given is not None and not device.is_gpu:
        raise UnsupportedError(
            f"`{given}` must be left out where there is no GPU, got "
            f"{asked[given]!r}. Run the program on an emulated card: python -m lms "
            "emulate --memory SIZE -- COMMAND."
        )
    return device.limit is None and given is None


class FittedFunction:
    """A training step, planned for each signature of its calls.

    Args:
        function: The function to trace; with `of_batch` it takes an iterator.
        settings: The user's knobs.
        kind: The step's name in reports.
        signature: Specs to trace with; None traces with the arguments of a call.
        made_before: Called before a trace: makes variables that the trace would make.
        shown: Context that shows the progress of a preparation.
        of_batch: The step of a given batch, if `function` draws one from an iterator.
        own: The functions that run without LMS, of `function`'s arguments and of a
            batch: they tell which shapes a trace leaves open. None: `function`.
    """

    def __init__(  # noqa: PLR0913 - callbacks of both entry points
        self,
        function: Callable[..., Any],
        settings: Settings,
        *,
        kind: str,
        signature: Sequence[Any] | None = None,
        made_before: Callable[[], None] | None = None,
        shown: Callable[[], AbstractContextManager[None]] = nullcontext,
        of_batch: Callable[[Any], Any] | None = None,
        own: Sequence[Any] = (),
    ) -> None:
        self._plainly = as_function(function)
        self._step_of_batch = None if of_batch is None else as_function(of_batch)
        # Functions to trace, each with the function whose traced shapes it takes.
        self._drawing = function, own[0] if own else function
        self._calling = (of_batch or function), own[-1] if own else function
        self.settings = settings
        self._kind = kind
        self._signature = None if signature is None else read_signature(signature)
        self._made_before = made_before
        self._shown = shown
        self._traced: dict[tuple[bool, str], TracedFunction] = {}
        self._steps: dict[_Key, PreparedStep] = {}
        self._sure: dict[_Key, list[Any]] = {}
        self._lock = RLock()
        self._given_up: set[object] = set()
        self._failed: dict[object, tuple[Sequence[Shown], ReferenceType[LMSError]]] = {}
        self._is_settled = False
        self.draws_noise = False  # by kernels that keep a state, in unplanned steps
        self._unplanned = self._plainly if nothing_to_plan(settings) else None
        if self._unplanned is None:
            find_device().make_ready(settings.budget)

    @property
    def report(self) -> tuple[StepReport, ...]:
        """Reports, one for each signature, in order of first use."""
        return tuple(each for step in self._known() for each in step.reports())

    def save_record(self, path: str | Path) -> None:
        """Write versions, plans, proofs and comparisons as JSON, for a checkpoint."""
        save_record(Path(path), self.report)

    @property
    def shown(self) -> tuple[Shown, ...]:
        """Steps for a page: refused and failed ones first."""
        others = [s for key, s in [*self._steps.items()] if key not in self._failed]
        return tuple(
            replace(each, why=str(error() or "The step was refused, or failed."))
            for steps, error in [*self._failed.values()]
            for each in steps
        ) + tuple(each for step in others for each in step.shown())

    def page(self, path: str | Path) -> None:
        """Write a page to look at, as `LMSCallback.page`."""
        write_text(Path(path), as_page(self.shown))

    @property
    def timelines(self) -> tuple[StepTimeline, ...]:
        """Predicted memory over a step for each signature."""
        return tuple(part.timeline for s in self._known() for part in s.parts)

    @property
    def budget(self) -> Bytes | None:
        """Device memory that a step may use; another one holds from the next step on.

        A stored `plan` is given up for another budget.

        Raises:
            ValueError, TypeError: If another one is no size.
            UnsupportedError: If another one is given without a GPU.
        """
        return self.settings.budget

    @budget.setter
    def budget(self, budget: int | str | None) -> None:
        settings = replace(with_budget(self.settings, budget), plan=None)
        if settings.budget == self.settings.budget:
            return
        unplanned = self._plainly if nothing_to_plan(settings) else None
        with self._lock, PREPARING:  # between two steps
            self.settings, self._unplanned = settings, unplanned
            for known in (self._steps, self._sure, self._given_up, self._failed):
                known.clear()

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run one step; plan first if this signature is new."""
        if named:
            bound = signature_of(self._plainly.python_function).bind(*args, **named)
            known = bound.signature.parameters
            for name in bound.kwargs:
                if name not in known or known[name].kind is Parameter.KEYWORD_ONLY:
                    raise TypeError(
                        f"argument {name!r} must not be for a keyword alone in a step "
                        "that is planned. Remove the `*` before it, or leave it out."
                    )
            bound.apply_defaults()
            args = bound.args
        ready = self._ready(args)
        own = partial(self._step_of_batch or self._unplanned or self._plainly, *args)
        return self._run(*ready, own) if ready else own()

    def _ready(self, args: Sequence[Any]) -> tuple[TracedFunction, list[Any]] | None:
        """Prepare the step of a call; None if the step runs unplanned."""
        called = self._called(args)
        key = signature_key(called)
        if self._unplanned is None and key not in self._given_up:
            with self._giving_up(key):
                traced = self._trace(called, None)
                inputs = traced.flat_inputs(args)
                self._prepared(traced, inputs)
                return traced, inputs
        return None

    def draw_and_run(
        self, iterator: Any, batch: Any = None, own: Callable[[Any], Any] | None = None
    ) -> Any:
        """Run one step on a drawn batch, or the next element of a `tf.data` iterator.

        `own` runs batches without a plan; two functions would draw noise twice.
        """
        key, traced, step = signature_key([iterator.element_spec]), None, None
        if self._unplanned is None and key not in self._given_up:
            with self._giving_up(key):
                traced = self._trace((), iterator)
        if traced is None and batch is None:
            return self._plainly(iterator)
        batch = next(iterator) if batch is None else batch
        if traced is not None:
            inputs = traced.flat_inputs([batch])
            if (key := self._key(traced, inputs)) not in self._given_up:
                with self._giving_up(key):
                    step = self._prepared(traced, inputs)
            if step:
                return self._run(traced, inputs, own and partial(own, batch))
        assert self._step_of_batch is not None
        run = own or self._step_of_batch.get_concrete_function(iterator.element_spec)
        return run(batch)

    @contextmanager
    def _giving_up(self, key: object) -> Iterator[None]:
        """Let a signature run unplanned from now on if it cannot be planned."""
        try:
            yield
        except LMSError as error:
            shown, error.shown = error.shown, None  # errors travel to other processes
            if shown is not None:
                self._failed[key] = [shown], ref(error)
            # Other workers may go on with a plan.
            is_end = isinstance(error, WorkersError) or vars(error).get("is_certain")
            if self.settings.asks_for_a_plan or is_end:
                raise
            if not self._given_up:
                said = "The %s step cannot be planned and runs as without LMS: %s"
                _LOG.warning(said, self._kind, error)
            self._given_up.add(key)

    @contextmanager
    def _unknown_in_words(self) -> Iterator[None]:
        """Turn errors that nobody foresaw into refusals, unless a knob is wrong."""
        try:
            yield
        except KeyboardInterrupt as error:  # a notebook keeps its frames, and tensors
            clear_frames(error.__traceback__)
            raise
        except Exception as error:
            known = isinstance(error, LMSError) or self.settings.filters != Filters()
            if known or self.settings.asks_for_a_plan:
                raise
            said = f"Could not plan the step: {error!r}. Please report it."
            raise UnsupportedError(said) from error

    def run_without_batch(self, iterator: Any) -> None:
        """Run the ops that need no batch, of the step that draws from an iterator."""
        traced = self._traced.get((True, signature_key([iterator.element_spec])))
        if self._unplanned is not None or traced is None:
            return
        steps = (s for key, s in self._steps.items() if key[0] == id(traced))
        if (step := next(steps, None)) is not None:
            run_without_inputs(step.source.step.own or step.source.step)

    def runs_plain(self, *args: Any) -> bool:
        """Plan first if this signature is new; tell whether it needs no plan."""
        step = self._prepared(*ready) if (ready := self._ready(args)) else None
        if step and _is_plain(step):
            step.watch()
        return step is None or _is_plain(step)

    def prepare(self, iterator: Any = None) -> None:
        """Plan now if all shapes are known: the signature's, or of a data iterator."""
        signature: Sequence[Any] = self._signature or ()
        if iterator is not None:
            signature = [iterator.element_spec]
        specs, key = flat_specs(signature), signature_key(signature)
        is_known = all(spec.shape.is_fully_defined() for spec in specs)
        if is_known and self._unplanned is None and key not in self._given_up:
            with self._giving_up(key):
                before_batch = draws_for_several(iterator)
                traced = self._trace(signature, iterator)
                self._prepared(traced, specs, before_batch=before_batch)

    def captured_by(self, own: Any, argument: Any) -> tuple[Any, ...]:
        """Trace a function; return handles and types of its variables."""
        refused = refused_in_words("trace a step")
        with PREPARING, refused, _made_beside(self.settings, _SLOTS_PART):
            if self._made_before is not None:
                self._made_before()
            captured = own.get_concrete_function(argument).captured_inputs
        specs = ((handle, compat.handle_spec(handle)) for handle in captured)
        return tuple((handle, spec.dtype) for handle, spec in specs if spec is not None)

    def compiled_bytes(self, batch: Any) -> Bytes | None:
        """Return bytes in use while XLA's step runs; None where XLA does not tell."""
        function, given = self._step_of_batch, batch
        if function is None:  # a prediction takes a list of one batch
            function, given = self._plainly, [batch]
        step, device = function.get_concrete_function(given), find_device()
        inputs, captured = compat.flat_inputs(step, [given]), step.captured_inputs
        made = compat.compiled_buffers(step.name, inputs, captured, device.full_name)
        read = sum(tensor.dtype.size * tensor.shape.num_elements() for tensor in inputs)
        used = (device.current_bytes or 0) + read + sum(buffer.size for buffer in made)
        return used if made else None

    @property
    def moves_what_fits(self) -> bool:
        """Tell whether the user asks for a plan, however little a step needs."""
        return not (self.settings.thresholds is None and self.settings.plan is None)

    def fits_unplanned(self) -> bool:
        """Tell whether all signatures so far need no plan; measure peaks if so."""
        known = self._known()
        is_plain = not self._given_up and bool(known) and all(map(_is_plain, known))
        for step in known if is_plain else ():
            step.watch()
        return is_plain

    def give_back(self) -> None:
        """Move all variables back to the device if it has ample free memory."""
        found = {id(h): h for step in self._traced.values() for h in step.captures}
        moved = HostVariables(tuple(filter(lies_on_host, found.values())))
        if moved.size * _AMPLE <= find_device().free_bytes:
            moved.come_back()

    def note_peak(self) -> None:
        """Record the memory peak of steps that Keras's own function ran."""
        for step in self._known():
            step.note_peak()

    def _known(self) -> list[PreparedStep]:
        return [*self._steps.values()]  # another thread may add or clear steps

    def _called(self, args: Sequence[Any]) -> Sequence[Any]:
        return called_signature(self._signature, args) if self._signature else args

    def _trace(self, args: Sequence[Any], iterator: Any) -> TracedFunction:
        is_drawn = iterator is not None
        given = [iterator.element_spec] if is_drawn else args
        function, own = self._drawing if is_drawn else self._calling
        key = is_drawn, signature_key(given)
        if key not in self._traced:
            refused, settings = refused_in_words("trace a step"), self.settings
            with PREPARING, refused, _made_beside(settings, _SLOTS_PART), self._shown():
                if key not in self._traced:  # another thread may have come first
                    if self._made_before is not None:
                        self._made_before()
                    self._traced[key] = trace(
                        function, args, iterator=iterator, own=own
                    )
        return self._traced[key]

    def _run(self, traced: TracedFunction, inputs: Sequence[Any], own: Any) -> Any:
        """Run a step, of noise and no plan by `own`; replan it if it runs out."""
        with self._lock:  # no other thread may see a step that is being replanned
            key = self._key(traced, inputs)
            step = self._prepared(traced, inputs)
            assert step is not None
            try:
                step.own = own if self.draws_noise else None
                with lost_in_words():
                    return run_recovering(step, inputs, partial(self._keep, key))
            except LMSError as error:
                error.shown = None
                self._failed[key] = self._steps[key].shown(), ref(error)
                raise
            finally:
                step.own = None  # holds a batch
                if self._steps[key].rebuilt is None:  # could not be replanned
                    del self._steps[key]

    def _prepared(
        self, traced: TracedFunction, inputs: Sequence[Any], **how: Any
    ) -> PreparedStep | None:
        """The step of these inputs, prepared at its first call."""
        key = self._key(traced, inputs)
        step = self._steps.get(key)
        if step is None:
            refused, quiet = refused_in_words("plan a step"), compat.errors_alone()
            with PREPARING, self._unknown_in_words(), refused, quiet, self._shown():
                if key not in self._steps:  # another thread may have come first
                    settings = self.settings
                    if self._steps or self._kind not in ("train", "step"):
                        # A stored plan is for the first training step.
                        settings = replace(settings, plan=None)
                    step = prepare(
                        traced,
                        inputs,
                        settings,
                        kind=self._kind,
                        settle=not self._is_settled,
                        is_said=any(s.held_back for s in self._steps.values()),
                        **how,
                    )
                    if step is None:
                        return None
                    self._keep(key, step)
                    self._is_settled = True
                    if step.is_sure:
                        self._sure[key] = [tensor.shape for tensor in inputs]
                step = self._steps[key]  # another budget clears them
        return step

    def _keep(self, key: _Key, step: PreparedStep) -> None:
        """Keep a step; warn where noise that was drawn begins again, not in Keras."""
        if step.source.step.draws_noise:
            # Plain Keras draws from its seed again in another trace, too.
            known = (s for k, s in [*self._steps.items()] if k[0] == key[0])
            drew = [s.is_plain for s in known if s.calls or s.is_sure]
            if not all(step.is_plain and is_plain for is_plain in drew):
                _LOG.warning(_NOISE, self._kind, step.source.step.signature)
            self.draws_noise |= step.is_plain
        self._steps[key] = step

    def _key(self, traced: TracedFunction, inputs: Sequence[Any]) -> _Key:
        """Key of the inputs' own step, or of larger inputs' step that fits easily."""
        key = id(traced), signature_key(inputs)
        if key in self._steps:
            return key
        larger = (
            k
            for k, shapes in list(self._sure.items())  # other threads add
            if k[0] == id(traced) and all(map(_holds, shapes, inputs))
        )
        return next(larger, key)


def _is_plain(step: PreparedStep) -> bool:
    """Tell whether a step runs as without LMS."""
    return step.is_sure and not step.is_on_host


def _holds(shape: Any, tensor: Any) -> bool:
    """Tell whether a tensor is nowhere larger than a shape."""
    both = zip(shape, tensor.shape, strict=True)
    return len(shape) == len(tensor.shape) and all(most >= n for most, n in both)
