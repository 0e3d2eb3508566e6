"""Where a model's weights and slots live while it trains.

    place       weights      slots       bytes that a step moves for Adam's parameter
    device      device       device       0
    slots       device       host        16
    host        host         host        32

The user names a place, or the one is taken whose plan is predicted to be the fastest:
among what fits, and only for a model that he keeps on the host already.

Sources: the bytes are counted in `docs/state_on_host.md`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras

from lms.errors import BudgetError, OutOfMemoryError, PlanError
from lms.planning.settings import STATE_PLACES, Settings
from lms.progress import tell
from lms.tf.capture.keras_step import make_slots
from lms.tf.host_variables import host_variable, move, to_device
from lms.tf.keeping import check_device, on_host
from lms.tf.measure.compact_variables import forget_settled
from lms.tf.measure.devices import find_device
from lms.tf.recovery import PreparedStep
from lms.units import Bytes, Seconds

__all__ = ["ModelState", "make_slots_placed", "place", "prepare_placed"]
__all__ += ["state_of"]

_DEVICE, _SLOTS, _HOST = STATE_PLACES

_MEANINGS = {
    _DEVICE: "weights and slots on the device",
    _SLOTS: "slots on the host",
    _HOST: "weights and slots on the host",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """The variables that a training step updates.

    Args:
        weights: Those of the model, as `tf.Variable`.
        slots: Those of its optimizer.
    """

    weights: tuple[Any, ...]
    slots: tuple[Any, ...]

    @property
    def is_on_host(self) -> bool:
        """Whether any of it lives on the host."""
        return any(_is_held(variable) for variable in (*self.weights, *self.slots))

    def held(self, where: str) -> tuple[Any, ...]:
        """What lives on the host in a place, if it is large enough."""
        if where == _DEVICE:
            return ()
        return self.slots if where == _SLOTS else (*self.weights, *self.slots)

    def arriving_bytes(self, where: str) -> Bytes:
        """Bytes that come from the host to the device for a place."""
        stays = {id(variable) for variable in self.held(where)}
        return sum(
            variable.shape.num_elements() * variable.dtype.size
            for variable in (*self.weights, *self.slots)
            if id(variable) not in stays and _is_held(variable)
        )


def state_of(model: keras.Model) -> ModelState:
    """A model's state; the slots of an optimizer that has none yet are not in it."""
    optimizer: Any = getattr(model, "optimizer", None)
    slots = () if optimizer is None else optimizer.variables
    return ModelState(
        weights=tuple(weight.value for weight in model.variables),
        slots=tuple(slot.value for slot in slots),
    )


def place(state: ModelState, where: str) -> None:
    """Let a model's state live in a place.

    Args:
        state: The state.
        where: One of `lms.planning.settings.STATE_PLACES`.

    Raises:
        OutOfMemoryError: If the device has no room for what comes; all is then where
            it was.
        UnsupportedError: On a GPU, for all but the device.
    """
    held = state.held(where)
    if held:
        check_device()
    stays = {id(variable) for variable in held}
    came: list[Any] = []
    for variable in held:
        move(variable)
    try:
        for variable in (*state.weights, *state.slots):
            if id(variable) not in stays and _is_held(variable):
                to_device(variable.handle, f"state={where!r} keeps it there")
                came.append(variable)
    except BaseException:
        for variable in came:
            move(variable)
        raise
    forget_settled(variable.handle for variable in came)


def make_slots_placed(model: keras.Model, settings: Settings) -> None:
    """Make the slots of a model's optimizer where they are to live."""
    if settings.state in (None, _DEVICE):
        make_slots(model)
        return
    place(state_of(model), settings.state)  # weights give their room back before
    with on_host():
        make_slots(model)


def prepare_placed(
    state: ModelState, settings: Settings, prepare: Callable[[Settings], PreparedStep]
) -> PreparedStep:
    """Prepare a training step with its state where it is best.

    Args:
        state: What the step updates.
        settings: The user's knobs; `state` names the place or leaves the choice.
        prepare: Prepares the step with its state where it is.

    Raises:
        BudgetError: If no plan fits, whatever the place.
        OutOfMemoryError: If the device has no room for what is to live there.
    """
    if settings.state is not None:
        place(state, settings.state)
        return prepare(settings)
    if settings.plan is not None:
        return _as_stored(settings, prepare)
    if state.is_on_host:
        return _fastest(state, settings, prepare)
    try:
        return prepare(settings)
    except BudgetError as error:
        error.add_note(
            "Weights and slots may live on the host: LMSCallback(state='host')."
        )
        raise


def _as_stored(
    settings: Settings, prepare: Callable[[Settings], PreparedStep]
) -> PreparedStep:
    """Obey a stored plan, which does not say who updates state on the host."""
    try:
        return prepare(settings)
    except PlanError:
        if settings.update is not None:
            raise
        try:
            return prepare(replace(settings, update="host"))
        except PlanError:
            pass
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """A step that was prepared with its state in one place."""

    where: str
    step: PreparedStep

    @property
    def seconds(self) -> Seconds:
        return self.step.predicted.predicted_seconds or 0.0


def _fastest(
    state: ModelState, settings: Settings, prepare: Callable[[Settings], PreparedStep]
) -> PreparedStep:
    tried: list[_Tried] = []
    refusals: list[BudgetError | OutOfMemoryError] = []
    for where in STATE_PLACES:
        try:
            step = _placed(state, where, settings, prepare)
        except (BudgetError, OutOfMemoryError) as error:
            refusals.append(error)
            continue
        if step is None:
            continue
        if step.is_sure:
            return step
        if tried:
            tried[-1].step.let_go()
        tried.append(_Tried(where=where, step=step))
        _tell(_MEANINGS[where], tried[-1].seconds)
    if not tried:
        raise min(refusals, key=_least)
    return _best(state, tried, settings, prepare)


def _placed(
    state: ModelState,
    where: str,
    settings: Settings,
    prepare: Callable[[Settings], PreparedStep],
) -> PreparedStep | None:
    if not _has_room(state, where):
        return None
    place(state, where)
    return prepare(settings)


def _best(
    state: ModelState,
    tried: Sequence[_Tried],
    settings: Settings,
    prepare: Callable[[Settings], PreparedStep],
) -> PreparedStep:
    """The fastest of those that were tried, or the same with updates on the host.

    Only the last of them is still there.
    """
    best = min(tried, key=lambda one: one.seconds)
    may_update_there = settings.update is None and best.where == _HOST
    if best is tried[-1] and not may_update_there:
        return best.step
    tried[-1].step.let_go()
    place(state, best.where)
    if may_update_there:
        found = _with_updates_there(settings, prepare, best.seconds)
        if found is not None:
            return found
    return prepare(replace(settings, plan=best.step.predicted.plan))


def _with_updates_there(
    settings: Settings, prepare: Callable[[Settings], PreparedStep], seconds: Seconds
) -> PreparedStep | None:
    """The step whose updates the host does; None if it takes no less than `seconds`."""
    step = prepare(replace(settings, update="host"))
    found = step.predicted.predicted_seconds or 0.0
    _tell("the same, updated by the host", found)
    if found < seconds:
        return step
    step.let_go()
    return None


def _tell(what: str, seconds: Seconds) -> None:
    tell(f"LMS: {what}: {seconds:.3g} s a step, predicted.")


def _least(error: Exception) -> float:
    """The least budget that works; infinite if it is not known."""
    least = getattr(error, "least_bytes", None)
    return float("inf") if least is None else least


def _has_room(state: ModelState, where: str) -> bool:
    """Whether what would live on the device fits there, with nothing else."""
    device = find_device()
    if device.limit is None:
        return True
    used = device.memory.current_bytes or 0
    return used + state.arriving_bytes(where) <= device.limit


def _is_held(variable: Any) -> bool:
    return host_variable(variable.handle) is not None
