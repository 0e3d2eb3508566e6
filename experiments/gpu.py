"""Checks of a real card: mechanisms that no other question checks.

    python -m experiments run gpu --card real --minutes 5     call it again: it goes on
    python -m experiments show gpu --results build/real/gpu.jsonl

Probes, and trainings of the case study's network, batch 1, the most valuable first. A
claim holds, fails, or is open because its trials did not run or measured nonsense: a
share above 100 %, or a copy that takes no time. Which models train, in how little
memory, and with which bits, the other questions ask: with `--card real` their trials
run here too. Below `python -m lms emulate` a smaller network rehearses in slow motion.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from experiments.question import Answer, Verdict
from experiments.runner import Book, Trial
from experiments.stats import Row, Rows, ending, trained
from lms.units import GIB, KIB, MIB, format_bytes

__all__ = ["PLAIN", "ROOM", "SETTINGS", "TITLE", "TRAININGS", "answer", "catalogue"]
__all__ += ["measure"]

TITLE = "On a real card"
SETTINGS = {"size": 96, "filters": 16, "depth": 5, "steps": 12, "trials": ()}
KNOWN = {"trials": None}
PLAIN = "unet plain"
TRAININGS = {  # budgets as shares of plain Keras's peak
    "unet lms": 0.6,
    "unet at 0.45": 0.45,
    "unet plans anew": 0.9,  # leaves smaller budgets to replan for
}
ROOM = 6 * GIB  # limit on larger cards, so that other trials fit beside
_OVER, _TIME, _HIDDEN, _LATE = 1.001, 0.10, 0.9, 0.5
_SLACK = 64 * KIB  # small tensors of the program around a step


def measure(book: Book, _: str, options: Any) -> None:
    """Probe and train; skip trials that need a failed training."""
    cache = str((book.folder / "cache").resolve())
    known: dict[str, Any] = {"cache": cache, "longest": 400.0}
    machine = Trial(probe="machine", **known)
    found = book.row({"name": "machine"}, machine)
    if found["error"]:
        book.path.unlink()  # ask again in the next run
        raise SystemExit(f"gpu: the machine cannot be asked: {found['error']}")
    flops, room = found["hardware"]["flops"], min(ROOM, found["limit_bytes"] or ROOM)
    for name, trial in catalogue(options, flops).items():
        if options.trials and name not in options.trials:
            continue
        base = book.find({"name": PLAIN}) or {"error": "not tried"}
        if name in TRAININGS and not trained(base):
            reason = f"skipped: needs {PLAIN!r}"
            book.once({"name": name}, partial(dict, error=reason, seconds=0.0))
            continue
        part = TRAININGS.get(name)
        budget = int(part * base["peak_bytes"]) if part else None
        known |= {"memory": trial.memory or room}
        book.row({"name": name}, replace(trial, budget=budget, **known))


def catalogue(options: Any, flops: float) -> Mapping[str, Trial]:
    """Return all trials but `machine`, by name; trainings have no budgets yet."""
    size = options.size
    shape = {"size": size, "filters": options.filters, "depth": options.depth}
    plain = Trial(model="unet", shape=shape, steps=options.steps, traced=True)
    lms = replace(plain, way="callback")
    batch = {"bytes": max(4 * MIB, 16 * size**3)}
    return {
        "transports": Trial(probe="transports", knobs={"flops": flops, "runs": 3}),
        PLAIN: plain,
        "unet lms": lms,
        "unet at 0.45": lms,
        "batches": Trial(probe="batches", knobs=batch),
        "launches": Trial(probe="launches", knobs={"ops": 1000}),
        "no room in a convolution": Trial(probe="refused", memory=GIB // 4),
        "unet plans anew": replace(lms, traced=False, held=True),
        "two cards": Trial(probe="cards"),
    }


def _share(part: float, whole: float) -> float | None:
    """Divide a part by its whole; None where the result is no share."""
    found = part / whole if whole else None
    return found if found is not None and 0 <= found <= _OVER else None


def answer(rows: Rows) -> Answer:
    """Report all claims, in the order of trials."""
    done = {row["name"]: row for row in rows if trained(row)}
    ends = [(row["name"], ending(row)) for row in rows]
    claims = [
        *((False, f"{n} ends well: {e}") for n, e in ends if e and "skipped" not in e),
        *_transports(done.get("transports", {}).get("transports", {})),
        *_trainings(done),
        *_refused(done),
    ]
    fails = sum(holds is False for holds, _ in claims)
    finding = f"{len(claims)} claims, of which {fails} fail."
    body = [[name, why or "ended well"] for name, why in ends]
    return Answer(
        finding=finding, table=("Trials", ["trial", ""], body), verdicts=claims
    )


def _transports(ways: Mapping[str, Row]) -> Iterator[Verdict]:
    for way, found in ways.items():
        text = f"by {way}, a swap-in starts at its trigger, and hides"
        if "error" in found:
            yield None, f"{text}: {found['error']}"
            continue
        hidden = _share(found["hidden"], 1)
        late = found["late_seconds"] / found["kernel_seconds"]
        told = "not measured" if hidden is None else f"{hidden:.0%} hidden"
        good = hidden is not None and hidden >= _HIDDEN and late <= _LATE
        yield (
            None if hidden is None else good,
            f"{text}: {late:.2f} kernels late, {told}",
        )


def _trainings(done: Mapping[str, Row]) -> Iterator[Verdict]:
    plain = done.get(PLAIN)
    for name in TRAININGS:
        row = done.get(name)
        if row is None or plain is None or not row.get("report"):
            continue
        same = all(row[key] == plain[key] for key in ("losses", "sha256"))
        what = f"{len(row['losses'])} losses and all weights"
        yield same, f"{name}: {what} are plain Keras's bit for bit"
        yield from _promised(name, row)
        if "lanes" in row and "lanes" in plain:
            yield from _carried(name, row, plain)


def _promised(name: str, row: Row) -> Iterator[Verdict]:
    report, peak = row["report"], row["peak_bytes"]
    promise, replans = report["predicted_peak_bytes"], report["replans"]
    text = f"{name}: the peak is at most the promise: {format_bytes(peak)} of "
    text += f"{format_bytes(promise)} in {len(row['losses'])} steps, {replans} replans"
    yield peak <= promise + _SLACK, text
    if report["predicted_seconds"]:
        off = median(row["step_seconds"][2:]) / report["predicted_seconds"] - 1
        text = f"{name}: a step takes within {_TIME:.0%} what was predicted: {off:+.1%}"
        yield abs(off) <= _TIME, text
    if name == "unet plans anew":
        text = f"{name}: it ran out of memory and went on: {replans} replans"
        yield replans > 0, text


def _carried(name: str, row: Row, plain: Row) -> Iterator[Verdict]:
    """Yield claims on a traced step's copies: bytes, and bytes behind kernels."""
    lanes, before = row["lanes"], plain["lanes"]
    for lane, planned in (("h2d", "swapped_in_bytes"), ("d2h", "swapped_out_bytes")):
        wanted = row["report"][planned]
        own = lanes[f"{lane}_bytes"] - before[f"{lane}_bytes"]  # less the batch's
        text = f"{name}: as many bytes are copied as planned, {lane}: "
        text += f"{format_bytes(max(0, round(own)))} of {format_bytes(wanted)}"
        yield abs(own - wanted) <= max(_SLACK, wanted / 100), text
        hidden = _share(lanes[f"{lane}_hidden"] - before[f"{lane}_hidden"], own)
        text = f"{name}: copies overlap kernels, {lane}"
        if not lanes[f"{lane}_busy"] or hidden is None:
            yield None, f"{text}: not measured"
        else:
            yield hidden > 0, f"{text}: {hidden:.0%}"


def _refused(done: Mapping[str, Row]) -> Iterator[Verdict]:
    for row in done.get("no room in a convolution", {}).get("tries", ()):
        if "class" in row:
            text = "an allocation that fails inside a convolution is recognised: "
            yield row["recognised"], f"{text}{row['class']}: {row['text'][:80]}"
