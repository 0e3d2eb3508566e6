"""The user's knobs: read, checked, and turned into the library's own types.

TFLMS's names are kept for its thresholds; its -1 for "choose for me" is None here.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, cast

from lms.errors import PlanError
from lms.ir.plan import SwapPlan
from lms.planning.problem import Filters
from lms.planning.tflms_rule import LEAST, SyncMode, read_levels
from lms.units import parse_size

__all__ = ["RECOMPUTE_WORDS", "Knobs", "Settings", "Thresholds", "read_plan"]
__all__ += ["read_settings", "with_budget"]

RECOMPUTE_WORDS = {"auto": None, "always": True, "never": False}
"""Names of `recompute`'s values on command lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Thresholds of IBM's rule, by TFLMS's names; None is tuned as TFLMS does.

    The first four are those of `ThresholdRule`.

    Args:
        serialization: Levels whose ops are made to run one by one.
        serialization_by_size: Bytes of a level above which it is serialised.
    """

    swapout_threshold: int | None = None
    swapin_ahead: int | None = None
    swapin_groupby: int | None = None
    sync_mode: SyncMode = SyncMode.OFF
    serialization: tuple[int | str, ...] = ()
    serialization_by_size: int = 0

    @property
    def numbers(self) -> dict[str, int]:
        """The tunable thresholds that are given, by their names."""
        every = asdict(self)
        return {name: every[name] for name in LEAST if every[name] is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The user's knobs as `lms.LMSCallback` explains them; sizes are bytes."""

    budget: int | None = None
    thresholds: Thresholds | None = None
    filters: Filters = field(default_factory=Filters)
    recompute: bool | None = None
    plan: SwapPlan | None = None
    host_memory: int | None = None
    state: str | None = None
    slices: str | None = None
    replan: bool = True
    check: str | None = None

    @property
    def asks_for_a_plan(self) -> bool:
        """Tell whether the user gave a knob that only a plan can obey."""
        given = (self.budget, self.thresholds, self.plan, self.host_memory)
        return any(value is not None for value in given)

    @property
    def cuts_ops(self) -> bool:
        """Tell whether ops may be split, which IBM's rule and stored plans exclude."""
        return self.slices != "none" and self.thresholds is None and self.plan is None

    @property
    def plans_what_fits(self) -> bool:
        """Tell whether tensors move even if the step fits without."""
        rule = self.thresholds
        return rule is not None and rule.swapout_threshold is not None


class Knobs(TypedDict, total=False):
    """All knobs but the budget; `lms.LMSCallback` says what they mean."""

    thresholds: Mapping[str, Any] | None
    filters: Mapping[str, Sequence[str]] | None
    recompute: bool | None
    host_memory: int | str | None
    plan: SwapPlan | str | Path | None
    state: Literal["device"] | None
    slices: Literal["any", "none"] | None
    replan: bool
    check: Literal["moved"] | None


def read_settings(
    *, budget: int | str | None = None, **knobs: Unpack[Knobs]
) -> Settings:
    """Read the user's knobs.

    Raises:
        TypeError: If a knob is of the wrong type or unknown.
        ValueError: If a value breaks its rule, or a budget is given together with
            thresholds.
        FileNotFoundError, PlanError: If `plan` is not a stored plan.

    Example:
        >>> read_settings(budget="96MiB").budget
        100663296
        >>> read_settings(thresholds={"swapin_ahead": 3}).thresholds.swapin_ahead
        3
    """
    _check_names(knobs)
    thresholds, recompute = knobs.get("thresholds"), knobs.get("recompute")
    rule = None if thresholds is None else _thresholds(thresholds)
    _check_recompute(recompute, by_rule=rule is not None)
    plan, replan = knobs.get("plan"), knobs.get("replan", True)
    _check_replan(replan)
    settings = Settings(
        thresholds=rule,
        filters=_filters(knobs.get("filters")),
        recompute=recompute,
        plan=None if plan is None else read_plan(plan),
        host_memory=_size(knobs.get("host_memory"), "host_memory"),
        state=_one_of("state", knobs.get("state"), "device"),
        slices=_one_of("slices", knobs.get("slices"), "any", "none"),
        replan=replan,
        check=_one_of("check", knobs.get("check"), "moved"),
    )
    return with_budget(settings, budget)


def with_budget(settings: Settings, budget: int | str | None) -> Settings:
    """Return the settings with another budget, read and checked as any knob."""
    rule = settings.thresholds
    given = {} if rule is None or budget is None else rule.numbers
    for name in given:
        raise ValueError(
            f"`{name}` must not be given together with a budget: thresholds fix "
            "the swaps, a budget lets lms choose them. Give one of them."
        )
    return replace(settings, budget=_size(budget, "budget"))


def read_plan(plan: SwapPlan | str | Path) -> SwapPlan:
    """Read a plan from a file of `python -m lms plan --output`; return a given plan.

    Raises:
        FileNotFoundError: If there is no such file.
        PlanError: If the file holds no plan.
    """
    if isinstance(plan, SwapPlan):
        return plan
    path = Path(plan)
    rule = "`plan` must be a file that `python -m lms plan --output` wrote"
    if not path.is_file():
        raise FileNotFoundError(f"{rule}, got '{path}'. Write it first.")
    try:
        return SwapPlan.from_json(path.read_text(encoding="utf-8"))
    except (PlanError, UnicodeDecodeError) as error:
        raise PlanError(f"{rule}, got '{path}': {error}") from error


def _thresholds(given: object) -> Thresholds:
    known = [field.name for field in fields(Thresholds)]
    if not isinstance(given, Mapping):
        raise TypeError(
            f"`thresholds` must be a mapping such as {{'swapout_threshold': 20}}, got "
            f"{given!r}. {{}} tunes all of them."
        )
    every = cast("Mapping[str, Any]", given)
    values = {name: value for name, value in every.items() if value is not None}
    for name in values:
        if name not in known:
            raise TypeError(
                f"`thresholds` must be of {', '.join(known)}, got {name!r}. Leave it "
                "out."
            )
    for name in LEAST.keys() & values.keys():
        _check_count(name, values[name], least=LEAST[name])
    levels = values.get("serialization", ())
    _check_levels(levels)
    size = _size(values.get("serialization_by_size") or None, "serialization_by_size")
    return Thresholds(
        **{name: values.get(name) for name in LEAST},
        sync_mode=SyncMode.parse(values.get("sync_mode", SyncMode.OFF)),
        serialization=tuple(levels),
        serialization_by_size=size or 0,
    )


def _size(value: int | str | None, name: str) -> int | None:
    return None if value is None else parse_size(value, name=name)


def _one_of(name: str, value: object, *known: str) -> str | None:
    if value is None or value in known:
        return None if value is None else str(value)
    told = ", ".join(f'"{each}"' for each in known)
    raise ValueError(
        f"`{name}` must be {told} or None, got {value!r}. Leave it out for None."
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


def _check_levels(value: object) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(
            f"`serialization` must be a list of levels, got {value!r}. Write "
            "thresholds={'serialization': ['3:5']}."
        )
    for level in cast("Sequence[Any]", value):
        read_levels(level, 0)


def _check_recompute(value: object, *, by_rule: bool) -> None:
    if value is not None and not isinstance(value, bool):
        raise TypeError(
            f"`recompute` must be True, False or None, got {value!r}. None chooses for "
            "you."
        )
    if value and by_rule:
        raise ValueError(
            "`recompute` must not be given together with thresholds: IBM's rule only "
            "moves tensors. Give a budget, or leave `recompute` out."
        )


def _check_replan(value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(
            f"`replan` must be True or False, got {value!r}. False plans once, "
            "before the first step."
        )


def _check_names(knobs: Collection[str]) -> None:
    known = list(Knobs.__annotations__)
    for name in knobs:
        if name in known:
            continue
        instead = f"Knobs are budget, {', '.join(known)}."
        for group, kind in (("thresholds", Thresholds), ("filters", Filters)):
            if name in {field.name for field in fields(kind)}:
                instead = f"Write {group}={{'{name}': ...}}."
        raise TypeError(f"`{name}` is no knob of large model support. {instead}")


def _filters(given: object) -> Filters:
    known = [each.name for each in fields(Filters)]
    if given is None:
        return Filters()
    if not isinstance(given, Mapping) or not {*given} <= {*known}:
        raise TypeError(
            f"`filters` must be a mapping of {', '.join(known)}, got {given!r}. Write "
            "filters={'exclude_types': ['Relu']}."
        )
    names = cast("Mapping[str, Any]", given)
    for name, value in names.items():
        parts = [None] if isinstance(value, str) or value is None else value
        if not all(isinstance(part, str) for part in parts):
            raise TypeError(
                f"`{name}` must be a list of names, got {value!r}. Write "
                f"filters={{'{name}': [...]}}."
            )
    return Filters(**{name: tuple(value) for name, value in names.items()})
