"""Does it hold on a real card? Probes and trainings in the order of their worth.

    python -m experiments run gpu --card real --minutes 9     call it again: it goes on
    python -m experiments show gpu --results build/real/gpu.jsonl

The network is the case study's, batch 1, as large as the card trains in a third of a
second and an eighth of its memory. A claim holds, fails, or is open because its
trials did not run or could not see it: a share above 100 %, and a copy that takes no
time, are not measured. The same is rehearsed in slow motion below `python -m lms
emulate`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from experiments.question import Answer, Verdict
from experiments.runner import OUT_OF_MEMORY, Book, Row, Rows, Trial, trained
from lms.units import GIB, KIB, MIB, Bytes, Seconds, format_bytes

__all__ = ["SIZES", "TITLE", "Net", "add_settings", "answer", "catalogue"]
__all__ += ["net_for", "share", "status", "units"]

TITLE = "On a real card"


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """A network and its volume.

    Args:
        size: Voxels along each axis.
        filters: Of the top level.
        depth: Levels.
    """

    size: int
    filters: int
    depth: int

    @property
    def flops(self) -> float:
        """Floating-point operations of a step, about: 13.3e9 were counted at 48^3."""
        return 13.3e9 * (self.size / 48) ** 3 * (self.filters / 8) ** 2

    @property
    def peak(self) -> Bytes:
        """Bytes of a step, about: 5.7 GiB were measured at 144^3 with 16 filters."""
        return 128 * self.size**3 * self.filters


SIZES = (
    Net(size=96, filters=16, depth=5),
    Net(size=64, filters=16, depth=4),
    Net(size=48, filters=8, depth=4),
    Net(size=32, filters=8, depth=3),
    Net(size=16, filters=8, depth=2),
)
_STEP: Seconds = 0.3  # of a step at the rate of large products, and of its launches
_OPS = 600  # of a step for each level
_PART = 8  # the step's part of the card's memory


def net_for(hardware: Mapping[str, Any]) -> Net:
    """The largest network that a card trains in little of its time and memory.

    Args:
        hardware: Fields of `lms.machine.hardware.Hardware`, as measured.

    Example:
        >>> v100 = {"flops": 14e12, "launch": 5e-6, "memory": 16 * GIB}
        >>> net_for(v100).size, net_for(v100 | {"launch": 1e-3}).size
        (96, 16)
    """
    rate, launch = hardware["flops"], hardware["launch"]
    fits = (
        net
        for net in SIZES
        if net.flops / rate + _OPS * net.depth * launch <= _STEP
        and net.peak <= hardware["memory"] / _PART
    )
    return next(fits, SIZES[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A trial of the catalogue.

    Args:
        name: Unlike any other.
        trial: What runs.
        budget_of: A check, and the share of its peak that is this one's budget.
        memory_of: The same, as the card's memory.
        may_fail: Whether failing is a finding like any other.
        short: Whether the short form has it.
    """

    name: str
    trial: Trial
    budget_of: tuple[str, float] | None = None
    memory_of: tuple[str, float] | None = None
    may_fail: bool = False
    short: bool = True


# Keras as people use it, with the callback and nothing else.
_DEFAULTS = ("gru", "seq2seq", "float16_cnn")
_PLAIN, _LARGE, _BUDGET, _ROOM = "unet plain", "larger plain", 0.6, 1.05


def catalogue(net: Net, flops: float, *, short: bool) -> list[Check]:
    """All checks but the machine's, which says what they are like.

    Args:
        net: As `net_for` chooses it.
        flops: As given to it.
        short: A few steps each, and what is worth most: at most eight minutes.
    """
    return [one for one in _all(net, flops, short=short) if one.short or not short]


def _all(net: Net, flops: float, *, short: bool) -> Iterator[Check]:
    probe = {"flops": flops, "runs": 3 if short else 20}
    yield _asks("transports", probe)
    tracker = {"kernel_tracker_max_pending": 8}
    yield _asks(
        "transports",
        probe,
        "transports, tracker",
        may_fail=True,
        short=False,
        gpu_options=tracker,
    )
    for model in _DEFAULTS:
        kept = Trial(model=model, way="callback", feed="arrays", longest=200)
        yield Check(name=f"keras: {model}", trial=kept)
    plain = _training(net, steps=6 if short else 22, seconds=8 if short else 60)
    yield Check(name=_PLAIN, trial=replace(plain, traced=True))
    lms = replace(plain, way="callback", traced=True)
    of: Any = {"budget_of": (_PLAIN, _BUDGET)}
    yield Check(name="unet lms", trial=lms, **of)
    count, most = (20, 15.0) if short else (300, 150.0)
    least = replace(plain, way="callback", budget="least", steps=count, seconds=most)
    yield Check(name="least budget", trial=replace(least, longest=400))
    pool = {
        "gpu_host_mem_limit_in_mb": 2 * net.peak // MIB + 64,
        "gpu_host_mem_disallow_growth": 1,
    }
    untraced = replace(lms, traced=False)
    yield Check(name="pinned pool", trial=untraced, short=False, **of)
    one = replace(untraced, gpu_options=pool)
    yield Check(name="pinned pool in one region", trial=one, **of)
    yield _asks("batches", {"bytes": max(4 * MIB, 16 * net.size**3)})

    large = replace(plain, shape={**plain.shape, "size": net.size * 3 // 2})
    largest = replace(plain, shape={**plain.shape, "size": net.size * 2})
    yield Check(name=_LARGE, trial=large)
    yield Check(name="larger XLA", trial=_compiled(large), may_fail=True)
    room: Any = {"memory_of": (_LARGE, _ROOM), "short": False}
    yield Check(name="largest plain", trial=largest, may_fail=True, **room)
    yield Check(name="largest XLA", trial=_compiled(largest), may_fail=True, **room)
    for way in ("callback", "rule", "serialised"):
        name, is_ours = f"largest {way}", way == "callback"
        yield Check(
            name=name, trial=replace(largest, way=way), may_fail=not is_ours, **room
        )
    yield _asks("launches", {"ops": 1000 if short else 5000})
    yield _asks("refused", {}, "no room in a convolution", memory=GIB // 4)
    yield _asks("link", {"largest": 16 * MIB if short else GIB})
    held = replace(plain, way="callback", held=True, longest=400)
    loose = (_PLAIN, 0.9)  # so that there are plans in less
    yield Check(name="unet plans anew", trial=held, budget_of=loose)
    grown = replace(lms, variables={"TF_FORCE_GPU_ALLOW_GROWTH": "true"})
    yield Check(name="unet, memory grows", trial=grown, short=False, **of)
    yield _asks("cards", {}, "two cards", may_fail=True)


def _asks(
    probe: str,
    knobs: dict[str, Any],
    name: str = "",
    *,
    may_fail: bool = False,
    short: bool = True,
    **more: Any,
) -> Check:
    trial = Trial(probe=probe, knobs=knobs, longest=200, **more)
    return Check(name=name or probe, trial=trial, may_fail=may_fail, short=short)


def _training(net: Net, **more: Any) -> Trial:
    shape = {"size": net.size, "filters": net.filters, "depth": net.depth}
    return Trial(model="unet", shape=shape, longest=200, **more)


def _compiled(trial: Trial) -> Trial:
    return replace(trial, way="xla", deterministic=False)


def add_settings(parser: Any) -> None:
    """How much of it."""
    parser.add_argument("--short", action="store_true", help="at most eight minutes")
    parser.add_argument("--trials", nargs="+", metavar="NAME", help="only these")
    text = "repeat what did not end well"
    parser.add_argument("--again", action="store_true", help=text)


def units(options: Any) -> Iterable[Callable[[Book], None]]:
    """One unit: trials are in the order of their worth."""
    yield lambda book: _measure(book, options)


def _measure(book: Book, options: Any) -> None:
    if options.again:
        book.rows = [row for row in book.rows if trained(row)]
    form = {"short": options.short}
    machine = Check(name="machine", trial=Trial(probe="machine", longest=120))
    found = _row(book, machine, form)
    card = found["hardware"]
    checks = catalogue(net_for(card), card["flops"], short=options.short)
    for check in checks:
        if not options.trials or check.name in options.trials:
            _row(book, check, form)


def _row(book: Book, check: Check, form: Mapping[str, Any]) -> Row:
    """The row of a check; one whose size depends on a failed one is skipped."""
    key = {"name": check.name, "may_fail": check.may_fail, **form}
    sizes: dict[str, Any] = {}
    for name, of in (("budget", check.budget_of), ("memory", check.memory_of)):
        if of is None:
            continue
        base = book.find({"name": of[0], **form})
        if base is None or not trained(base):
            reason = f"skipped: needs {of[0]!r}"
            return book.once(key, partial(dict, error=reason, seconds=0.0))
        sizes[name] = int(of[1] * base["peak_bytes"])
    cache = str((book.folder / "cache").resolve())
    return book.row(key, replace(check.trial, cache=cache, **sizes))


_OVER, _TIME, _HIDDEN, _FROM_PROMISE, _LATE = 1.001, 0.10, 0.9, 0.2, 0.5
_WORDS = {True: "holds", False: "FAILS", None: "open"}
_SLACK = 64 * KIB  # small tensors of the program around a step
_TRAININGS = (
    "unet lms",
    "least budget",
    "pinned pool",
    "pinned pool in one region",
    "unet plans anew",
    "unet, memory grows",
)


def share(part: float, whole: float) -> float | None:
    """A part of a whole; None where it cannot be one.

    Example:
        >>> share(1, 2), share(3, 2), share(0, 0)
        (0.5, None, None)
    """
    found = part / whole if whole else None
    return found if found is not None and 0 <= found <= _OVER else None


def answer(rows: Rows) -> Answer:
    """All claims, in the order of trials."""
    done = {row["name"]: row for row in rows if trained(row)}
    claims = [
        *_ended(rows),
        *_transports(done),
        *_trainings(done),
        *_warm(done),
        *_largest(rows, done),
        *_refused(done),
    ]
    body = [[_WORDS[holds], text] for holds, text in claims]
    fails = sum(holds is False for holds, _ in claims)
    return Answer(
        finding=f"{len(claims)} claims, of which {fails} fail.",
        table=("Claims", ["", "claim"], body[:8]),
        more=[("All claims", ["", "claim"], body)],
        verdicts=claims,
    )


def status(rows: Rows) -> int:
    """The exit status of a run: 1 if a claim fails."""
    claims = answer(rows).verdicts
    for holds, text in claims:
        print(f"{_WORDS[holds]:6}{text}")
    return int(any(holds is False for holds, _ in claims))


def _ended(rows: Rows) -> Iterator[Verdict]:
    """Trials that ended in a way that is no finding."""
    for row in rows:
        error = row["error"] or (row.get("refused") or {}).get("error")
        if error and not row["may_fail"] and not error.startswith("skipped"):
            yield False, f"{row['name']} ends well: {error}"


def _transports(done: Mapping[str, Row]) -> Iterator[Verdict]:
    for name in ("transports", "transports, tracker"):
        for way, found in done.get(name, {}).get("transports", {}).items():
            # Only the library's own must be good; the others show what it mends.
            text = f"{name}: by {way}, a swap-in starts at its trigger, and hides"
            if "error" in found:
                yield None, f"{text}: {found['error']}"
                continue
            hidden = share(found["hidden"], 1)
            late = found["late_seconds"] / found["kernel_seconds"]
            told = "not measured" if hidden is None else f"{hidden:.0%} hidden"
            good = hidden is not None and hidden >= _HIDDEN and late <= _LATE
            open_ = hidden is None or way != "copy ops"
            yield None if open_ else good, f"{text}: {late:.2f} kernels late, {told}"


def _trainings(done: Mapping[str, Row]) -> Iterator[Verdict]:
    plain = done.get(_PLAIN)
    for name in _TRAININGS:
        row = done.get(name)
        if row is None or plain is None or not row.get("report"):
            continue
        yield _same_bits(name, row, plain)
        yield from _promised(name, row)
        if "lanes" in row and "lanes" in plain:
            yield from _carried(name, row, plain)


def _same_bits(name: str, row: Row, plain: Row) -> Verdict:
    """Losses of the steps that both made; weights where they made as many."""
    count = min(len(row["losses"]), len(plain["losses"]))
    same = row["losses"][:count] == plain["losses"][:count]
    whole = len(row["losses"]) == len(plain["losses"])
    same &= not whole or row["sha256"] == plain["sha256"]
    what = f"{count} losses{' and all weights' if whole else ''}"
    return same, f"{name}: {what} are plain Keras's bit for bit"


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
    """Copies of a traced step: bytes, and those made beside a running kernel."""
    lanes, before = row["lanes"], plain["lanes"]
    for lane, planned in (("h2d", "swapped_in_bytes"), ("d2h", "swapped_out_bytes")):
        wanted = row["report"][planned]
        own = lanes[f"{lane}_bytes"] - before[f"{lane}_bytes"]  # but for the batch's
        text = f"{name}: as many bytes are copied as planned, {lane}: "
        text += f"{format_bytes(max(0, round(own)))} of {format_bytes(wanted)}"
        yield abs(own - wanted) <= max(_SLACK, wanted / 100), text
        hidden = share(lanes[f"{lane}_hidden"] - before[f"{lane}_hidden"], own)
        text = f"{name}: copies overlap kernels, {lane}"
        if not lanes[f"{lane}_busy"] or hidden is None:
            yield None, f"{text}: not measured"
        else:
            yield hidden > 0, f"{text}: {hidden:.0%}"


def _warm(done: Mapping[str, Row]) -> Iterator[Verdict]:
    """A process that finds measured what the one before it had to measure."""
    pair = done.get("unet lms"), done.get("pinned pool in one region")
    if all(pair):
        cold, warm = (row["first_seconds"] for row in pair if row)
        text = (
            f"a warm cache makes the first step sooner: {warm:.1f} s for {cold:.1f} s"
        )
        yield warm < cold, text


def _largest(rows: Rows, done: Mapping[str, Row]) -> Iterator[Verdict]:
    """The case study: what plain Keras cannot train, with XLA or without."""
    by_name = {row["name"]: row for row in rows}
    for name in ("largest plain", "largest XLA"):
        error = (by_name.get(name) or {}).get("error") or ""
        if name in by_name and not error.startswith("skipped"):
            ran_out = OUT_OF_MEMORY in error or "RESOURCE_EXHAUSTED" in error
            text = f"{name}: runs out of memory where the callback trains"
            yield ran_out and "largest callback" in done, text
    plain, xla = done.get(_LARGE), done.get("larger XLA")
    if plain and xla:
        ratio = median(xla["step_seconds"][2:]) / median(plain["step_seconds"][2:])
        yield None, f"XLA's step over plain Keras's: {ratio:.2f}"


def _refused(done: Mapping[str, Row]) -> Iterator[Verdict]:
    for row in done.get("no room in a convolution", {}).get("tries", ()):
        if "class" in row:
            text = "an allocation that fails inside a convolution is recognised: "
            yield row["recognised"], f"{text}{row['class']}: {row['text'][:80]}"
