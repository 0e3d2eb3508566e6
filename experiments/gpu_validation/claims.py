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

_OVERHEAD, _PEAK, _TIME = 1.10, 0.05, 0.20

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
        *_swap(by_name, done),
        *_study(by_name, done),
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
    yield from _ended(rows, "swap: plain", 1)
    for way in ("lms", "callback", "threshold"):
        yield from _ended(rows, f"swap: {way}", 1)
        row = done.get(f"swap: {way}")
        if plain is None or row is None:
            continue
        same = all(row[key] == plain[key] for key in ("losses", "weights_sha256"))
        steps = len(row["losses"])
        yield Claim(
            part=1,
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
            yield Claim(part=1, text=f"{way}: {_COPIED}", holds=None, found=found)


def _peak(way: str, row: Mapping[str, Any], plain: Mapping[str, Any]) -> Claim:
    """IBM's rule promises no budget; it is to be lower than without it."""
    rule = way == "threshold"
    peak, before = row["peak_bytes"], plain["peak_bytes"]
    most = before if rule else row["settings"]["budget"]
    return Claim(
        part=1,
        text=f"{way}: the peak is within the {'plain one' if rule else 'budget'}",
        holds=None if None in (peak, most) else peak <= most + _SLACK,
        found=f"{_size(peak)} of {_size(most)}, plain {_size(before)}",
    )


def _written(way: str, row: Mapping[str, Any]) -> Claim:
    ends, swaps = row["nodes"]["ends"], row["report"]["swap_count"]
    names = (end for end in ends if end.startswith("out ") and end.endswith("CPU:0"))
    out = sum(ends[name] for name in names)
    return Claim(
        part=1,
        text=f"{way}: every swap is in the graph that runs, on the host",
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
        part=1,
        text=f"{way}: {_COPIED}",
        holds=out >= wanted,
        found=f"{_size(int(out))} of {_size(wanted)} ({kinds})",
    )


def _study(rows: Rows, done: Rows) -> Iterator[Claim]:
    if "192 lms" in rows:
        ended = rows["192 lms"]["outcome"]
        yield Claim(
            part=2, text="192 trains with support", holds=ended == "done", found=ended
        )
    if "192 plain" in rows:
        ended = rows["192 plain"]["outcome"]
        text = "192 without support runs out of memory"
        yield Claim(part=2, text=text, holds=ended == "out of memory", found=ended)
    yield from _largest(done)
    for voxels, ratio in overheads(done):
        yield Claim(
            part=2,
            text=f"{voxels}: a step takes at most {_OVERHEAD} times as long",
            holds=ratio <= _OVERHEAD,
            found=f"{ratio:.3f} times",
        )
    for row in done.values():
        error = row["part"] == 2 and predictions(row)
        if error:
            yield Claim(
                part=2,
                text=f"{row['name']}: the peak is within {_PEAK:.0%} of the predicted",
                holds=abs(error[0]) <= _PEAK,
                found=f"{error[0]:+.1%}",
            )


def _largest(done: Rows) -> Iterator[Claim]:
    """Sizes that trained in the case study's memory, with support and without."""
    named = [name.split() for name, row in done.items() if row["part"] == 2]
    sizes = {
        way: [int(words[0]) for words in named if words[1:] == [way]]
        for way in ("lms", "plain")
    }
    if all(sizes.values()):
        most = {way: max(found) for way, found in sizes.items()}
        yield Claim(
            part=2,
            text="a larger volume trains with support than without",
            holds=most["lms"] > most["plain"],
            found=f"{most['lms']} with support, {most['plain']} without",
        )


def _lanes(rows: Rows, done: Rows) -> Iterator[Claim]:
    for name in ("link", "timeline"):
        yield from _ended(rows, name, 3)
    row = done.get("link")
    if row is not None:
        best = max(fit["bandwidth"] for fit in row["fits"])
        found = f"{best / 1e9:.3g} GB/s at best"
        yield Claim(part=3, text="the link is measured", holds=best > 0, found=found)
    row = done.get("timeline")
    if row is not None:
        found = row["median"]
        carried = min(found["h2d_bytes"], found["d2h_bytes"])
        yield Claim(
            part=3,
            text="a step's lanes show ops and copies",
            holds=found["utilisation"] > 0 and carried > 0,
            found=f"busy {found['utilisation']:.0%}, each way {_size(int(carried))}",
        )


def _predicted(done: Rows) -> Iterator[Claim]:
    errors = [predictions(row) for row in done.values() if row["part"] == 4]
    known = [error for error in errors if error is not None]
    for i, what, claimed in ((0, "peak", _PEAK), (1, "time", _TIME)):
        off = [abs(error[i]) for error in known]
        if off:
            yield Claim(
                part=4,
                text=f"each {what} is within {claimed:.0%} of the predicted one",
                holds=max(off) <= claimed,
                found=f"median {median(off):.1%}, at most {max(off):.1%}",
            )


def overheads(done: Rows) -> list[tuple[int, float]]:
    """Sizes, and steps with support over steps in all of the device's memory."""
    return [
        (voxels, row["median_seconds"] / whole["median_seconds"])
        for voxels in (144, 160, 176, 192)
        if (row := done.get(f"{voxels} lms"))
        and (whole := done.get(f"{voxels} whole GPU"))
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
