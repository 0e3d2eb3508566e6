"""Claims that trials should meet: pure functions of rows.

A claim holds, fails, or is open because its trials did not run or could not see it: a
share above 100 %, and a copy that takes no time, are not measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lms.units import KIB, format_bytes

__all__ = ["Claim", "judge_rows", "share"]

Rows = Mapping[str, Mapping[str, Any]]

_OVERHEAD, _PEAK, _TIME = 1.15, 0.05, 0.10
_HIDDEN, _FROM_PROMISE, _LATE = 0.9, 0.2, 0.5
_MOST = 1.001  # a share above it says that something else was measured

# Small tensors of the program around a step, such as the logs of the one before.
_SLACK = 64 * KIB

_ENDS = ("done", "skipped", "out of memory")
_TRAININGS = (
    "unet lms",
    "unet by send and receive",
    "least budget",
    "pinned pool",
    "pinned pool in one region",
    "unet plans anew",
    "unet, memory grows",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim.

    Args:
        text: What should be.
        holds: Whether it is; None where it could not be seen.
        found: What was found, in words.
    """

    text: str
    holds: bool | None
    found: str


def judge_rows(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """All claims, in the order of trials."""
    by_name = {row["name"]: row for row in rows}
    done = {n: row for n, row in by_name.items() if row["outcome"] == "done"}
    return [
        *_ended(rows),
        *_transports(done),
        *_models(done),
        *_trainings(done),
        *_warm(done),
        *_largest(by_name, done),
        *_refused(done),
    ]


def share(part: float, whole: float) -> float | None:
    """A part of a whole; None where it cannot be one.

    Example:
        >>> share(1, 2), share(3, 2), share(0, 0)
        (0.5, None, None)
    """
    found = part / whole if whole else None
    return found if found is not None and 0 <= found <= _MOST else None


def _ended(rows: Sequence[Mapping[str, Any]]) -> Iterator[Claim]:
    """Trials that ended in a way that is no finding."""
    for row in rows:
        good = row["outcome"] == "done" or row["may_fail"]
        if not good and row["outcome"] != "skipped":
            found = f"{row['outcome']}, {row['error']}"
            yield Claim(text=f"{row['name']}: ends well", holds=False, found=found)


def _transports(done: Rows) -> Iterator[Claim]:
    for name in ("transports", "transports, tracker"):
        ways = done.get(name, {}).get("transports", {})
        for way, found in ways.items():
            # Only the library's own two must be good; the others show what they mend.
            text = f"{name}: by {way}, a swap-in starts at its trigger, and hides"
            if "error" in found:
                yield Claim(text=text, holds=None, found=found["error"])
                continue
            hidden = share(found["hidden"], 1)
            late = found["late_seconds"] / found["kernel_seconds"]
            told = "not measured" if hidden is None else f"{hidden:.0%} hidden"
            good = hidden is not None and hidden >= _HIDDEN and late <= _LATE
            own = way in ("copy ops", "send and receive")
            yield Claim(
                text=text,
                holds=None if hidden is None or not own else good,
                found=f"{late:.2f} kernels late, {told}",
            )


def _models(done: Rows) -> Iterator[Claim]:
    for name, ended in done.get("keras", {}).get("models", {}).items():
        text = f"{name}: fit, evaluate and predict with defaults"
        yield Claim(text=text, holds=ended == "done", found=ended)


def _trainings(done: Rows) -> Iterator[Claim]:
    plain = done.get("unet plain")
    for name in _TRAININGS:
        row = done.get(name)
        if row is None or plain is None:
            continue
        yield _same_bits(name, row, plain)
        yield from _promised(name, row)
        yield from _carried(name, row, plain)


def _same_bits(name: str, row: Mapping[str, Any], plain: Mapping[str, Any]) -> Claim:
    """Losses of the steps that both made; weights where they made as many."""
    count = min(len(row["losses"]), len(plain["losses"]))
    same = row["losses"][:count] == plain["losses"][:count]
    whole = len(row["losses"]) == len(plain["losses"])
    if whole:
        same &= row["weights_sha256"] == plain["weights_sha256"]
    return Claim(
        text=f"{name}: numbers are plain's bit for bit",
        holds=same,
        found=f"{count} losses{' and all weights' if whole else ''} "
        + ("equal" if same else "different"),
    )


def _promised(name: str, row: Mapping[str, Any]) -> Iterator[Claim]:
    report, peak = row["report"], row["peak_bytes"]
    promise = report["predicted_peak_bytes"]
    replans = report["replans"]
    if peak is not None:
        yield Claim(
            text=f"{name}: the peak is at most the promise, in {row['steps']} steps",
            holds=peak <= promise + _SLACK,
            found=f"{format_bytes(peak)} of {format_bytes(promise)} "
            f"({len(row['peaks'])} different), {replans} replans",
        )
    if report["predicted_seconds"]:
        off = row["median_seconds"] / report["predicted_seconds"] - 1
        yield Claim(
            text=f"{name}: a step takes within {_TIME:.0%} what was predicted",
            holds=abs(off) <= _TIME,
            found=f"{off:+.1%}; the longest {row['longest_seconds']:.3g} s of a median "
            f"{row['median_seconds']:.3g} s",
        )
    if row["settings"].get("held"):
        text = f"{name}: it ran out of memory, was planned anew, and went on"
        yield Claim(text=text, holds=replans > 0, found=f"{replans} replans")


def _carried(
    name: str, row: Mapping[str, Any], plain: Mapping[str, Any]
) -> Iterator[Claim]:
    """Claims of a planned step's trace: bytes, and those beside a running kernel."""
    if not row["settings"].get("traced"):
        return
    if "lanes" not in row or "lanes" not in plain:
        found = row.get("trace_error") or plain.get("trace_error") or "no trace"
        yield Claim(text=f"{name}: copies are seen", holds=None, found=found)
        return
    report, lanes, before = row["report"], row["lanes"], plain["lanes"]
    for lane, planned in (("h2d", "swapped_in_bytes"), ("d2h", "swapped_out_bytes")):
        wanted = report[planned]
        own = lanes[f"{lane}_bytes"] - before[f"{lane}_bytes"]  # but for the batch's
        yield Claim(
            text=f"{name}: as many bytes are copied as planned, {lane}",
            holds=abs(own - wanted) <= max(_SLACK, wanted / 100),
            found=f"{format_bytes(max(0, round(own)))} beyond plain's, "
            f"planned {format_bytes(wanted)}",
        )
        text = f"{name}: copies overlap kernels as promised, {lane}"
        hidden = share(lanes[f"{lane}_hidden"] - before[f"{lane}_hidden"], own)
        predicted = report.get("predicted_lanes") or {}
        promise = share(predicted.get(f"{lane}_hidden", 0), wanted)
        if not lanes[f"{lane}_busy"] or hidden is None or promise is None:
            yield Claim(text=text, holds=None, found="not measured")
            continue
        yield Claim(
            text=text,
            holds=0 < hidden >= promise - _FROM_PROMISE,
            found=f"{hidden:.0%} beside kernels, {promise:.0%} promised",
        )


def _warm(done: Rows) -> Iterator[Claim]:
    """A process that finds measured what the one before it had to measure."""
    cold, warm = done.get("unet lms"), done.get("pinned pool in one region")
    if cold and warm:
        yield Claim(
            text="a new process with a warm cache makes its first step sooner",
            holds=warm["first_seconds"] < cold["first_seconds"],
            found=f"after {warm['first_seconds']:.1f} s, cold "
            f"{cold['first_seconds']:.1f} s",
        )


def _largest(rows: Rows, done: Rows) -> Iterator[Claim]:
    """The case study: what plain Keras cannot train, with XLA or without."""
    lms = done.get("largest lms")
    for name in ("largest plain", "largest XLA"):
        if name in rows and rows[name]["outcome"] != "skipped":
            ended = rows[name]["outcome"]
            text = f"{name}: runs out of memory where the callback trains"
            holds = ended == "out of memory" and lms is not None
            yield Claim(text=text, holds=holds, found=ended)
    plain, xla = done.get("larger plain"), done.get("larger XLA")
    if plain and xla:
        ratio = xla["median_seconds"] / plain["median_seconds"]
        found = (
            f"{ratio:.2f} times plain's step, first after {xla['first_seconds']:.0f} s"
        )
        yield Claim(text="XLA beside plain Keras", holds=None, found=found)


def _refused(done: Rows) -> Iterator[Claim]:
    for row in done.get("no room in a convolution", {}).get("tries", ()):
        if "class" in row:
            yield Claim(
                text="an allocation that fails inside a convolution is recognised",
                holds=row["recognised"],
                found=f"{row['class']}: {row['text'][:80]}",
            )
