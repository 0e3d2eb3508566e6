"""How each training of the zoo ended: exactly one of four words, by its rows alone.

    trained         with the losses and the variables of plain Keras, bit for bit
    not compared    it trained, but plain Keras itself does not repeat its bits
    refused         before the first step, or when a step that cannot be planned ran out
                    of memory, naming a least budget; and 1.05 times that trained each
                    time that it was tried
    defect          everything else

A refusal is a defect, too, where the least budgets of one model differ by more than
5 %, or where a device trained the model that is smaller than what was named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from lms.units import format_bytes

__all__ = ["SPARE", "Outcome", "Verdict", "judge", "least_named"]

SPARE = 1.05  # of the least budget that a refusal names: what must train

Row = Mapping[str, Any]


class Outcome(Enum):
    """How a training ended."""

    TRAINED = "trained"
    NOT_COMPARED = "not compared"
    REFUSED = "refused"
    DEFECT = "defect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One training.

    Args:
        row: Its row.
        outcome: How it ended.
        reason: Why it did not train with equal bits; empty if it did.
    """

    row: Row
    outcome: Outcome
    reason: str = ""


def judge(rows: Sequence[Row]) -> tuple[Verdict, ...]:
    """Judge the rows of one model: a verdict for each training with a plan.

    Args:
        rows: All of one model, plain Keras's among them.

    Example:
        >>> plain = {"kind": "plain", "error": None, "losses": ["0x1p+0"]}
        >>> plain |= {"sha256": "ab", "refused": None}
        >>> row = plain | {"kind": "training", "memory_bytes": 2**20}
        >>> [verdict.outcome.value for verdict in judge([plain, plain, row])]
        ['trained']
    """
    plain = [row for row in rows if row["kind"] == "plain"]
    alone = [_alone(row, plain) for row in rows if row["kind"] != "plain"]
    refused = [v for v in alone if v.outcome is Outcome.REFUSED]
    reason = _why_not_the_least(refused, alone)
    tried = [v for v in alone if v.row["kind"] == "least"]
    if not reason and refused:
        reason = _why_it_does_not_work(tried)
    if not reason:
        return tuple(alone)
    return tuple(
        replace(v, outcome=Outcome.DEFECT, reason=reason) if v in refused else v
        for v in alone
    )


def least_named(rows: Sequence[Row]) -> int | None:
    """The smallest of the least budgets that refusals of one model name, in bytes.

    Example:
        >>> least_named([{"kind": "training", "error": "OOM"}]) is None
        True
    """
    named = [
        row["refused"]["least_bytes"]
        for row in rows
        if row["kind"] not in ("plain", "least") and row.get("refused")
    ]
    return min((least for least in named if least), default=None)


def _alone(row: Row, plain: Sequence[Row]) -> Verdict:
    """How one training ended, without a look at the model's others."""
    if row["error"]:
        return _defect(row, row["error"])
    if row["refused"]:
        return _refusal(row)
    if row["kind"] == "asked":
        return _defect(row, "took a budget in which nothing can train")
    if not _repeats(plain):
        reason = "plain Keras does not repeat its bits"
        return Verdict(row=row, outcome=Outcome.NOT_COMPARED, reason=reason)
    other = _differing(row, plain[0])
    if other:
        return _defect(row, other)
    return Verdict(row=row, outcome=Outcome.TRAINED)


def _defect(row: Row, reason: str) -> Verdict:
    return Verdict(row=row, outcome=Outcome.DEFECT, reason=reason)


def _refusal(row: Row) -> Verdict:
    refused, steps = row["refused"], len(row["losses"])
    if steps:
        return _defect(row, f"refused after {steps} steps: {refused['error']}")
    if row["report"] and not row["report"].get("not_planned"):
        return _defect(row, f"refused after a plan failed: {refused['error']}")
    if not refused["least_bytes"]:
        return _defect(row, f"names no least budget: {refused['error']}")
    least = format_bytes(refused["least_bytes"])
    if row["kind"] == "least":
        return _defect(row, f"refused in {SPARE} times the least budget: needs {least}")
    op = f" for {refused['op_name']}" if refused["op_name"] else ""
    return Verdict(row=row, outcome=Outcome.REFUSED, reason=f"at least {least}{op}")


def _repeats(plain: Sequence[Row]) -> bool:
    """Tell whether at least two plain trainings gave the same bits."""
    bits = {(tuple(row["losses"]), row["sha256"]) for row in plain}
    return len(plain) > 1 and len(bits) == 1


def _differing(row: Row, plain: Row) -> str:
    """Describe the differences from plain Keras's training; empty if there are none."""
    pairs = zip(row["losses"], plain["losses"], strict=False)
    steps = [i for i, (own, theirs) in enumerate(pairs, start=1) if own != theirs]
    if len(row["losses"]) != len(plain["losses"]):
        return f"{len(row['losses'])} steps instead of {len(plain['losses'])}"
    variables = row.get("differing") or {}
    what = (
        f"{variables['count']} of {variables['of']} variables differ, first "
        f"{', '.join(variables['first'])}"
        if variables
        else "variables differ"
    )
    if steps:
        return f"other losses than plain Keras's from step {steps[0]} on; {what}"
    return "" if row["sha256"] == plain["sha256"] else what


def _why_not_the_least(refused: Sequence[Verdict], all_of: Sequence[Verdict]) -> str:
    """Why the budget that refusals name cannot be the least; empty if it can."""
    named = [v.row["refused"]["least_bytes"] for v in refused]
    if not named:
        return ""
    low, high = min(named), max(named)
    if high > SPARE * low:
        return f"least budgets from {format_bytes(low)} to {format_bytes(high)} named"
    trained = [
        v.row["memory_bytes"]
        for v in all_of
        if v.outcome in (Outcome.TRAINED, Outcome.NOT_COMPARED)
    ]
    if trained and SPARE * min(trained) < high:
        small = format_bytes(min(trained))
        return f"names {format_bytes(high)}, but a device of {small} trains it"
    return ""


def _why_it_does_not_work(tried: Sequence[Verdict]) -> str:
    """Why 1.05 times the least budget does not do; empty if it does."""
    if not tried:
        return f"{SPARE} times its least budget was not tried"
    failed = [v for v in tried if v.outcome is Outcome.DEFECT]
    if not failed:
        return ""
    count = f"{len(failed)} of {len(tried)} times"
    return f"{SPARE} times its least budget fails, {count}: {failed[0].reason}"
