"""Judges how trainings of the zoo ended, by rows alone, in four words.

    trained         with the losses and the variables of plain Keras, bit for bit
    not compared    it trained, but plain Keras itself does not repeat its bits
    refused         before the first step, or when a step that cannot be planned ran out
                    of memory, naming a least budget; and 1.05 times this budget trained
                    in each try
    defect          all other ends

A refusal is a defect, too, where the least budgets of one model differ by more than
5 %, or where the model trained on a device below the least budget by more than 5 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from experiments.stats import Row, Rows
from lms.units import format_bytes

__all__ = ["SPARE", "Outcome", "Verdict", "judge", "least_named"]

SPARE = 1.05  # a model must train in 1.05 times the least budget of its refusal


class Outcome(Enum):
    """The judged end of a training."""

    TRAINED = "trained"
    NOT_COMPARED = "not compared"
    REFUSED = "refused"
    DEFECT = "defect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A training's row, its end, and the reason why its bits are not equal."""

    row: Row
    outcome: Outcome
    reason: str = ""


def judge(rows: Rows) -> tuple[Verdict, ...]:
    """Judge all rows of one model: a verdict for each training with a plan.

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
    reason = _why_not_the_least(refused, alone) if refused else ""
    return tuple(
        _defect(v.row, reason) if reason and v in refused else v for v in alone
    )


def least_named(rows: Rows) -> int | None:
    """Return the smallest least budget that one model's refusals name, in bytes.

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


def _defect(row: Row, reason: str) -> Verdict:
    return Verdict(row=row, outcome=Outcome.DEFECT, reason=reason)


def _alone(row: Row, plain: Rows) -> Verdict:
    """Judge one training without the model's other trainings."""
    if row["error"]:
        return _defect(row, row["error"])
    if row["refused"]:
        return _refusal(row)
    if row["kind"] == "asked":
        return _defect(row, "took a budget in which nothing can train")
    bits = {(tuple(one["losses"]), one["sha256"]) for one in plain}
    if len(plain) < 2 or len(bits) > 1:
        reason = "plain Keras does not repeat its bits"
        return Verdict(row=row, outcome=Outcome.NOT_COMPARED, reason=reason)
    other = _differing(row, plain[0])
    return _defect(row, other) if other else Verdict(row=row, outcome=Outcome.TRAINED)


def _refusal(row: Row) -> Verdict:
    refused, steps = row["refused"], len(row["losses"])
    if steps:
        return _defect(row, f"refused after {steps} steps: {refused['error']}")
    if row["report"] and not row["report"].get("not_planned"):
        return _defect(row, f"refused after a plan failed: {refused['error']}")
    if not refused["least_bytes"] and "lower bound" in refused["error"]:
        return Verdict(row=row, outcome=Outcome.REFUSED, reason="below a lower bound")
    if not refused["least_bytes"]:
        return _defect(row, f"names no least budget: {refused['error']}")
    least = format_bytes(refused["least_bytes"])
    if row["kind"] == "least":
        return _defect(row, f"refused in {SPARE} times the least budget: needs {least}")
    op = f" for {refused['op_name']}" if refused["op_name"] else ""
    return Verdict(row=row, outcome=Outcome.REFUSED, reason=f"at least {least}{op}")


def _differing(row: Row, plain: Row) -> str:
    """Describe the differences from plain Keras's training; empty if there are none."""
    pairs = zip(row["losses"], plain["losses"], strict=False)
    steps = [i for i, (own, theirs) in enumerate(pairs, start=1) if own != theirs]
    if len(row["losses"]) != len(plain["losses"]):
        return f"{len(row['losses'])} steps instead of {len(plain['losses'])}"
    what = "variables differ"
    if known := row.get("differing"):
        what = f"{known['count']} of {known['of']} {what}, first "
        what += ", ".join(known["first"])
    if steps:
        return f"other losses than plain Keras's from step {steps[0]} on; {what}"
    return "" if row["sha256"] == plain["sha256"] else what


def _why_not_the_least(refused: Sequence[Verdict], all_of: Sequence[Verdict]) -> str:
    """Explain why a named budget is not the least, or why 1.05 times it fails."""
    named = [v.row["refused"]["least_bytes"] for v in refused]
    low, high = min(named), max(named)
    if high > SPARE * low:
        return f"least budgets from {format_bytes(low)} to {format_bytes(high)} named"
    good = (Outcome.TRAINED, Outcome.NOT_COMPARED)
    small = min((v.row["memory_bytes"] for v in all_of if v.outcome in good), default=0)
    if small and SPARE * small < high:
        device = format_bytes(small)
        return f"names {format_bytes(high)}, but a device of {device} trains it"
    tried = [v for v in all_of if v.row["kind"] == "least"]
    failed = [v for v in tried if v.outcome is Outcome.DEFECT]
    if not tried:
        return f"{SPARE} times its least budget was not tried"
    count = f"{len(failed)} of {len(tried)} times"
    return (
        f"{SPARE} times its least budget fails, {count}: {failed[0].reason}"
        if failed
        else ""
    )
