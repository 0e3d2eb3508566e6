"""What trials should show, part by part: pure functions of rows.

A claim holds, fails, or is open because its trials did not run. A part fails if one of
its claims does, or if a trial of it ended in a way that is no finding.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from experiments.gpu_validation.catalogue import PARTS
from lms.units import KIB, format_bytes

__all__ = ["Claim", "failed_parts", "judge_rows", "overheads", "predictions"]

Rows = Mapping[str, Mapping[str, Any]]

_PART = {name: place for place, name in enumerate(PARTS)}
_OVERHEAD, _PEAK, _TIME = 1.10, 0.05, 0.20
_HIDDEN = 0.9  # of a copy beside convolutions; the simulator takes all of it
_ALL = 1.05  # a share above it says that something else was measured

# Trainings in the headline's device, and what each is compared with.
_WHOLE = {
    "192 lms": "192 whole GPU",
    "192 nothing twice": "192 whole GPU",
    "192 threshold": "192 whole GPU",
    "256 lms": "256 whole GPU",
    "192 half lms": "192 half whole GPU",
}

# Small tensors of the program around a step, such as the logs of the one before.
_SLACK = 64 * KIB

_COPIED = "what is planned to leave is copied in each step"

# How trials may end.
_FINDINGS = ("done", "out of memory", "skipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim.

    Args:
        part: Number of its part.
        text: What should be.
        holds: Whether it is; None where it could not be seen.
        found: What was found, in words.
    """

    part: int
    text: str
    holds: bool | None
    found: str


def judge_rows(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """All claims, in the order of parts."""
    by_name = {row["name"]: row for row in rows}
    done = {n: row for n, row in by_name.items() if row["outcome"] == "done"}
    return [
        *_machine(done),
        *_link(by_name, done),
        *_swap(by_name, done),
        *_headline(by_name, done),
        *_lanes(by_name, done),
        *_predicted(done),
    ]


def failed_parts(
    rows: Sequence[Mapping[str, Any]], claims: Sequence[Claim]
) -> dict[str, list[str]]:
    """Reasons by part; parts without one are left out.

    Example:
        >>> row = {"part": 1, "name": "a", "outcome": "crashed", "error": "e"}
        >>> failed_parts([row | {"may_fail": False}], [])
        {'swap': ['a: crashed, e']}
    """
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["outcome"] not in _FINDINGS and not row["may_fail"]:
            reason = f"{row['name']}: {row['outcome']}, {row['error']}"
            found.setdefault(PARTS[row["part"]], []).append(reason)
    for claim in claims:
        if claim.holds is False:
            reason = f"{claim.text}: {claim.found}"
            found.setdefault(PARTS[claim.part], []).append(reason)
    return found


def _machine(done: Rows) -> Iterator[Claim]:
    row = done.get("machine")
    if row is None:
        yield Claim(part=0, text="the device computes", holds=None, found="not run")
        return
    yield Claim(
        part=0,
        text="the device computes",
        holds=row["computed_on"].endswith(row["device"]),
        found=f"a convolution ran on {row['computed_on']}",
    )


def _ended(rows: Rows, name: str, part: int) -> Iterator[Claim]:
    """That a trial ended well, if it had the chance to."""
    row = rows.get(name)
    if row is None or row["outcome"] == "skipped":
        return
    found = row["outcome"] if row["error"] is None else row["error"]
    good = row["outcome"] == "done"
    yield Claim(part=part, text=f"{name}: ends well", holds=good, found=found)


def _swap(rows: Rows, done: Rows) -> Iterator[Claim]:
    plain = done.get("swap: plain")
    yield from _ended(rows, "swap: plain", _PART["swap"])
    for way in ("lms", "callback", "threshold", "variables on the host"):
        yield from _ended(rows, f"swap: {way}", _PART["swap"])
        row = done.get(f"swap: {way}")
        if plain is None or row is None:
            continue
        same = all(row[key] == plain[key] for key in ("losses", "weights_sha256"))
        steps = len(row["losses"])
        yield Claim(
            part=_PART["swap"],
            text=f"{way}: losses and weights are equal bit for bit",
            holds=same,
            found=f"after {steps} steps " + ("equal" if same else "different"),
        )
        yield _peak(way, row, plain)
        if "nodes" in row:
            yield _written(way, row)
        if "copied_bytes" in row:
            yield _traffic(way, row)
        elif "trace_error" in row:
            found = row["trace_error"]
            yield Claim(
                part=_PART["swap"], text=f"{way}: {_COPIED}", holds=None, found=found
            )


def _peak(way: str, row: Mapping[str, Any], plain: Mapping[str, Any]) -> Claim:
    """IBM's rule promises no budget; it is to be lower than without it."""
    rule = way == "threshold"
    peak, before = row["peak_bytes"], plain["peak_bytes"]
    most = before if rule else row["settings"]["budget"]
    return Claim(
        part=_PART["swap"],
        text=f"{way}: the peak is within the {'plain one' if rule else 'budget'}",
        holds=None if None in (peak, most) else peak <= most + _SLACK,
        found=f"{_size(peak)} of {_size(most)}, plain {_size(before)}",
    )


def _written(way: str, row: Mapping[str, Any]) -> Claim:
    ends, swaps = row["nodes"]["ends"], row["report"]["swap_count"]
    out = ends.get("out _CopyFromGpuToHost GPU:0", 0)
    return Claim(
        part=_PART["swap"],
        text=f"{way}: every swap is in the graph that runs",
        holds=out == swaps > 0,
        found=f"{out} of {swaps} swaps",
    )


def _traffic(way: str, row: Mapping[str, Any]) -> Claim:
    copied, wanted = row["copied_bytes"], row["report"]["swapped_out_bytes"]
    out = sum(size for name, size in copied.items() if name.startswith("d2h"))
    kinds = ", ".join(name for name in copied if name.startswith("d2h")) or "none"
    pinned = row["allocator_peaks"].get("gpu_host_bfc")
    kinds += "" if pinned is None else f"; {_size(pinned)} pinned"
    return Claim(
        part=_PART["swap"],
        text=f"{way}: {_COPIED}",
        holds=out >= wanted,
        found=f"{_size(int(out))} of {_size(wanted)} ({kinds})",
    )


def _headline(rows: Rows, done: Rows) -> Iterator[Claim]:
    part = _PART["headline"]
    for name, text, wanted in (
        ("192 plain", "192 without support runs out of memory", "out of memory"),
        ("192 lms", "192 trains with support in the same memory", "done"),
    ):
        if name in rows:
            ended = rows[name]["outcome"]
            yield Claim(part=part, text=text, holds=ended == wanted, found=ended)
    for name, ratio in overheads(done):
        if name.endswith(" lms"):
            yield Claim(
                part=part,
                text=f"{name}: a step takes at most {_OVERHEAD} times as long",
                holds=ratio <= _OVERHEAD,
                found=f"{ratio:.3f} times",
            )
    for row in done.values():
        error = row["part"] == part and predictions(row)
        if error:
            yield Claim(
                part=part,
                text=f"{row['name']}: the peak is within {_PEAK:.0%} of the predicted",
                holds=abs(error[0]) <= _PEAK,
                found=f"{error[0]:+.1%}",
            )


def _link(rows: Rows, done: Rows) -> Iterator[Claim]:
    part, beside = _PART["link"], "copies beside convolutions"
    for name in ("link", beside):
        yield from _ended(rows, name, part)
    if row := done.get("link"):
        best = max(fit["bandwidth"] for fit in row["fits"])
        found = f"{best / 1e9:.3g} GB/s at best"
        yield Claim(part=part, text="the link is measured", holds=best > 0, found=found)
    if row := done.get(beside):
        hidden = {way: row[f"{way}_hidden"] for way in ("h2d", "d2h")}
        yield Claim(
            part=part,
            text=f"at least {_HIDDEN:.0%} of a copy hides beside convolutions",
            holds=all(_HIDDEN <= share <= _ALL for share in hidden.values()),
            found=", ".join(f"{way} {share:.0%}" for way, share in hidden.items()),
        )


def _lanes(rows: Rows, done: Rows) -> Iterator[Claim]:
    part = _PART["predicted"]
    yield from _ended(rows, "timeline", part)
    row = done.get("timeline")
    if row is not None:
        found = row["median"]
        carried = min(found["h2d_bytes"], found["d2h_bytes"])
        yield Claim(
            part=part,
            text="a step's lanes show ops and copies",
            holds=found["utilisation"] > 0 and carried > 0,
            found=f"busy {found['utilisation']:.0%}, each way {_size(int(carried))}",
        )


def _predicted(done: Rows) -> Iterator[Claim]:
    part = _PART["predicted"]
    errors = [predictions(row) for row in done.values() if row["part"] == part]
    known = [error for error in errors if error is not None]
    for i, what, claimed in ((0, "peak", _PEAK), (1, "time", _TIME)):
        off = [abs(error[i]) for error in known]
        if off:
            yield Claim(
                part=part,
                text=f"each {what} is within {claimed:.0%} of the predicted one",
                holds=max(off) <= claimed,
                found=f"median {median(off):.1%}, at most {max(off):.1%}",
            )


def overheads(done: Rows) -> list[tuple[str, float]]:
    """Trainings, and steps over those in all of the device's memory."""
    return [
        (name, row["median_seconds"] / whole["median_seconds"])
        for name, base in _WHOLE.items()
        if (row := done.get(name)) and (whole := done.get(base))
    ]


def predictions(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """Errors of the predicted peak and step time; None where nothing was planned."""
    report = row.get("report")
    if not row.get("peak_bytes") or not report or report["fits_unplanned"]:
        return None
    return (
        report["predicted_peak_bytes"] / row["peak_bytes"] - 1,
        report["predicted_seconds"] / row["median_seconds"] - 1,
    )


def _size(count: int | None) -> str:
    return "unknown" if count is None else format_bytes(count)
