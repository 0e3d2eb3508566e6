"""The user's knobs: read, checked, and turned into the library's own types.

TFLMS's names are kept; its -1 for "choose for me" is None here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from lms.ir.plan import SwapPlan
from lms.planning.candidates import Filters, Recompute
from lms.planning.stored_plan import read_plan
from lms.planning.tflms_rule import SyncMode
from lms.units import parse_size

__all__ = ["PLANNERS", "RECOMPUTE_WORDS", "Settings", "read_settings"]

PLANNERS = ("budget", "threshold")

RECOMPUTE_WORDS: Mapping[str, Recompute] = {
    "auto": None,
    "cheap": "cheap",
    "always": True,
    "never": False,
}
"""What `recompute` is called on command lines."""

_RULES = PLANNERS[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The user's knobs; None means: choose for me.

    Args:
        budget: Bytes of device memory that a step may use, persistent bytes included.
        planner: One of `PLANNERS`: `budget`, or `threshold`, which is IBM's rule, tuned
            as IBM did.
        swapout_threshold: TFLMS: levels between a tensor's producer and a reader,
            above which the reader reads a swapped-in copy.
        swapin_ahead: TFLMS: levels before its reader at which a swap-in starts.
        swapin_groupby: TFLMS: readers within so many levels share a copy.
        sync_mode: TFLMS: which copies the computation waits for.
        serialization: TFLMS: levels whose ops are made to run one by one.
        serialization_by_size: TFLMS: bytes of a level above which it is serialised.
        filters: Which ops' outputs may move.
        recompute: Whether tensors may be recomputed instead of being moved: None where
            that is predicted to be faster, or about as fast and less is moved, and
            where the host cannot hold what would be moved; True wherever it can be;
            "cheap" as None, but by ops alone that take about as long as copying.
        plan: The plan of the first training step; None makes one.
        host_memory: Bytes of the host's memory that swapped tensors may take; None for
            what is free.
    """

    budget: int | None = None
    planner: str = "budget"
    swapout_threshold: int | None = None
    swapin_ahead: int | None = None
    swapin_groupby: int | None = None
    sync_mode: SyncMode = SyncMode.OFF
    serialization: tuple[int | str, ...] = ()
    serialization_by_size: int = 0
    filters: Filters = field(default_factory=Filters)
    recompute: Recompute = None
    plan: SwapPlan | None = None
    host_memory: int | None = None

    @property
    def asks_for_a_plan(self) -> bool:
        """Tell whether the user insists on a plan."""
        given = (self.budget, self.plan, self.host_memory)
        return self.planner != "budget" or any(value is not None for value in given)

    @property
    def thresholds(self) -> dict[str, int | None]:
        """TFLMS's thresholds by their names."""
        return {
            "swapout_threshold": self.swapout_threshold,
            "swapin_ahead": self.swapin_ahead,
            "swapin_groupby": self.swapin_groupby,
        }


def read_settings(  # noqa: PLR0913 - the public knobs
    *,
    budget: int | str | None = None,
    planner: str | None = None,
    swapout_threshold: int | None = None,
    swapin_ahead: int | None = None,
    swapin_groupby: int | None = None,
    sync_mode: SyncMode | str | int = SyncMode.OFF,
    serialization: Sequence[int | str] = (),
    serialization_by_size: int | str | None = None,
    recompute: Recompute = None,
    plan: SwapPlan | str | Path | None = None,
    host_memory: int | str | None = None,
    **filters: Sequence[str],
) -> Settings:
    """Read the user's knobs.

    Raises:
        TypeError: If a knob is of the wrong type or unknown.
        ValueError: If a value breaks its rule, or a budget is given together with
            thresholds.
        FileNotFoundError, PlanError: If `plan` is not a stored plan.
    """
    thresholds = {
        "swapout_threshold": swapout_threshold,
        "swapin_ahead": swapin_ahead,
        "swapin_groupby": swapin_groupby,
    }
    given = [name for name, value in thresholds.items() if value is not None]
    _check_planner(planner)
    _check_one_aim(given, budgeted=budget is not None or planner == "budget")
    for name in given:
        _check_count(name, thresholds[name], least=0 if "group" in name else 1)
    _check_list(serialization)
    by_rule = bool(given) or planner in _RULES
    _check_recompute(recompute, by_rule=by_rule)
    mode = SyncMode.parse(sync_mode)
    if budget is not None and planner not in _RULES:
        _check_unordered(mode, serialization, serialization_by_size)
    return Settings(
        budget=_size(budget, "budget"),
        planner=planner or ("threshold" if given else "budget"),
        sync_mode=mode,
        serialization=tuple(serialization),
        serialization_by_size=(
            parse_size(serialization_by_size, name="serialization_by_size")
            if serialization_by_size
            else 0
        ),
        filters=_filters(**filters),
        recompute=recompute,
        plan=None if plan is None else read_plan(plan),
        host_memory=_size(host_memory, "host_memory"),
        **thresholds,
    )


def _size(value: int | str | None, name: str) -> int | None:
    return None if value is None else parse_size(value, name=name)


def _check_planner(value: object) -> None:
    if value not in (None, *PLANNERS):
        raise ValueError(
            f"`planner` must be one of {', '.join(PLANNERS)}, got {value!r}. "
            "Leave it out to let the budget decide."
        )


def _check_one_aim(thresholds: Sequence[str], *, budgeted: bool) -> None:
    if thresholds and budgeted:
        raise ValueError(
            f"`{thresholds[0]}` must not be given together with a budget: thresholds "
            "say what is swapped whatever memory there is, a budget says how much "
            "there is and chooses what is swapped. Give one of them."
        )


def _check_count(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"`{name}` must be a whole number or None, got {value!r}. "
            "None chooses for you."
        )
    if value < least:
        raise ValueError(
            f"`{name}` must be at least {least}, got {value}. None chooses for you."
        )


def _check_list(value: object) -> None:
    if isinstance(value, str):
        raise TypeError(
            "`serialization` must be a list of levels, got the text "
            f"{value!r}. Write serialization=[{value!r}]."
        )


def _check_recompute(value: object, *, by_rule: bool) -> None:
    if value is not None and value != "cheap" and not isinstance(value, bool):
        raise TypeError(
            f'`recompute` must be True, False, "cheap" or None, got {value!r}. None '
            "chooses for you."
        )
    if value and by_rule:
        raise _not_by_rule("recompute", "only moves tensors")


def _not_by_rule(name: str, what: str) -> ValueError:
    return ValueError(
        f"`{name}` must not be given together with thresholds: IBM's rule {what}. "
        f"Give a budget, or leave `{name}` out."
    )


def _check_unordered(
    mode: SyncMode, serialization: Sequence[object], by_size: object
) -> None:
    if mode is not SyncMode.OFF or serialization or by_size:
        raise ValueError(
            "`sync_mode` and `serialization` must not be given together with a budget: "
            "the budget planner orders ops and copies itself. Give thresholds, or "
            "planner='threshold'."
        )


def _filters(**filters: Sequence[str]) -> Filters:
    known = {field.name for field in fields(Filters)}
    for name, value in filters.items():
        if name not in known:
            raise TypeError(
                f"`{name}` is no knob of large model support. Knobs are those of "
                f"LMSCallback: thresholds, modes, {', '.join(sorted(known))}."
            )
        if not _is_names(value):
            raise TypeError(
                f"`{name}` must be a list of names, got {value!r}. Write {name}=[...] ."
            )
    return Filters(**{name: tuple(value) for name, value in filters.items()})


def _is_names(value: Iterable[object]) -> bool:
    return not isinstance(value, str) and all(isinstance(part, str) for part in value)
