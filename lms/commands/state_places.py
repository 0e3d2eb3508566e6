"""A step planned with the model's state in one place, or in each of them.

Known weakness: the state is moved to be planned for. So the present device must have
room for what stays on it, also where another one is planned for; plain CPUs have.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from lms.commands.forecast import Forecast
from lms.errors import BudgetError, HostMemoryError, OutOfMemoryError
from lms.planning.settings import STATE_PLACES, Settings
from lms.tf.state_placing import make_slots_placed, place, state_of
from lms.units import format_bytes

__all__ = ["FASTEST", "Placed", "as_data", "fastest", "in_each_place", "put", "table"]

FASTEST = "fastest"
"""Instead of a place: try each."""

_REFUSED = (BudgetError, HostMemoryError, OutOfMemoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A step with its state in one place.

    Args:
        place: One of `STATE_PLACES`.
        found: What is predicted; None where nothing fits.
        refusal: Why nothing fits.
    """

    place: str
    found: Forecast | None = None
    refusal: Exception | None = None

    @property
    def least_bytes(self) -> float:
        """The least budget that works, as far as it is known."""
        least = getattr(self.refusal, "least_bytes", None)
        return float("inf") if least is None else least


def put(model: Any, where: str) -> None:
    """Move a model's weights, and the slots that it gets, to a place.

    Raises:
        OutOfMemoryError: If the present device has no room for what comes.
        UnsupportedError: On a GPU, for all but the device.
    """
    make_slots_placed(model, Settings(state=where))
    place(state_of(model), where)


def in_each_place(model: Any, planned: Callable[[], Forecast]) -> tuple[Placed, ...]:
    """Plan a model's step with its state in each place.

    Args:
        model: The model; its state is moved.
        planned: Plans the step with its state where it is.
    """
    return tuple(_placed(model, where, planned) for where in reversed(STATE_PLACES))


def _placed(model: Any, where: str, planned: Callable[[], Forecast]) -> Placed:
    try:
        put(model, where)
        return Placed(place=where, found=planned())
    except _REFUSED as error:
        return Placed(place=where, refusal=error)


def fastest(every: tuple[Placed, ...]) -> Forecast:
    """What is predicted to be the fastest; of equal ones what moves least.

    Raises:
        BudgetError, HostMemoryError, OutOfMemoryError: If nothing fits: the one with
            the least budget.
    """
    found = [one.found for one in reversed(every) if one.found is not None]
    if found:
        return min(found, key=lambda one: one.timeline.seconds)
    refused = min(every, key=lambda one: one.least_bytes)
    assert refused.refusal is not None
    raise refused.refusal


def table(every: tuple[Placed, ...]) -> Table:
    """The places beside each other."""
    shown = Table(title="Where weights and slots live")
    shown.add_column("state=")
    for name in ("on the host", "to the device", "back", "host memory", "peak", "step"):
        shown.add_column(name, justify="right", no_wrap=True)
    for one in reversed(every):
        shown.add_row(one.place, *_cells(one))
    return shown


def _cells(one: Placed) -> list[str]:
    if one.found is None:
        least = one.least_bytes
        known = least != float("inf")
        needs = format_bytes(int(least), at_least=True) if known else "more"
        return ["", "", "", "", "", f"needs {needs}"]
    found = one.found
    sizes = (
        found.workload.state_bytes,
        found.planned.state_in_bytes,
        found.planned.state_out_bytes,
        found.host_bytes,
        found.peak_bytes,
    )
    return [*map(format_bytes, sizes), f"{found.timeline.seconds * 1e3:.3g} ms"]


def as_data(every: tuple[Placed, ...]) -> list[dict[str, Any]]:
    """The same as JSON can hold it."""
    return [_entry(one) for one in reversed(every)]


def _entry(one: Placed) -> dict[str, Any]:
    if one.found is None:
        return {"state": one.place, "fits": False, "message": str(one.refusal)}
    found = one.found
    return {
        "state": one.place,
        "fits": True,
        "state_bytes": found.workload.state_bytes,
        "state_in_bytes": found.planned.state_in_bytes,
        "state_out_bytes": found.planned.state_out_bytes,
        "host_bytes": found.host_bytes,
        "predicted_peak_bytes": found.peak_bytes,
        "predicted_seconds": found.timeline.seconds,
    }
