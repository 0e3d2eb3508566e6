"""Training steps on emulated cards, beside IBM's published figures of real cards.

TensorFlow's own GPU runtime runs on dry cards (`lms.emulation`): allocator, scheduling
and copies are real, a kernel takes its time by the card's data sheet, and no number is
computed. Cards are a V100 of 16 GB over PCIe and NVLink, and an A100 of 80 GB over
PCIe. The case study's network trains at 144^3 and 192^3, ResNet50 with 64 images, GPT-2
small with two sentences: by plain Keras in all of the card, by the callback and by
IBM's rule in half of plain Keras's peak; 192^3 in plain Keras's peak at 144^3. The
callback gets this memory as a budget, the rule as all of a card. Plain Keras fits each
of the cards, too. A step, measured or predicted, is divided by plain Keras's measured
step of the same commit: without one the table has no ratio.

IBM's published figures of one GPU stand beside: seconds of an epoch of 228 steps, and
utilisation. Nothing is calibrated. Known weaknesses: data sheets are the best that a
card can do; copies do not slow down kernels; TensorFlow 1.8 had other graphs; the link
has published rates, so its throughput shows nothing.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from experiments import stats
from experiments.question import COLOURS, Answer, Bar, Panel, Verdict
from experiments.runner import Book
from experiments.stats import Row, Rows, commits, ending, estimate, step_of, trained
from experiments.subjects import NAMES, RULES, SUBJECTS, attempts, in_mib
from lms.units import format_bytes

__all__ = ["SETTINGS", "TITLE", "answer", "measure", "parts", "real_over_emulated"]

TITLE = "Cards that are not here"
_PLACES = {
    "v100-pcie+pcie3": "V100 16 GB, PCIe 3.0",
    "v100-nvlink+nvlink2": "V100 16 GB, NVLink 2.0",
    "a100-80-pcie4+pcie4": "A100 80 GB, PCIe 4.0",
    "a100-80-pcie4+nvlink2": "imagined A100 80 GB, NVLink 2.0",  # of older rows
    "h100-sxm+pcie5": "H100 SXM 80 GB, PCIe 5.0",
    "h200+pcie5": "H200 SXM 141 GB, PCIe 5.0",
}
KNOWN = {"places": tuple(_PLACES)}
SETTINGS = {"places": tuple(_PLACES)[:3], "models": ("unet", "resnet50", "gpt2")}
SETTINGS |= {"ways": ("callback", *RULES), "steps": 6, "repeats": 1, "small": False}
_STEPS = 228  # of an epoch

# Published, one GPU of each server, Tables 2 to 5: seconds of epochs, utilisation.
_PUBLISHED = (
    ("epoch, 144^3, plain", "216 s", "197 s"),
    ("epoch, 192^3, IBM's TFLMS", "1467 s", "590 s"),
    ("192^3 over 144^3, a voxel", "2.87", "1.26"),
    ("GPU utilisation, 192^3", "29.1 %", "73.5 %"),
)
_SERVERS = tuple(zip(_PLACES, (216, 197), strict=False))  # x86, AC922: a plain epoch


def parts(options: Any) -> Iterator[tuple[str, str]]:
    """Return each pair of card and model."""
    return product(options.places, options.models)


def measure(book: Book, of: tuple[str, str], options: Any) -> None:
    """Train one model on one card in each way."""
    place, model = of
    card, link = place.split("+")
    subject = SUBJECTS[model]
    slow = subject.slow_motion_of(card)
    known: dict[str, Any] = {"card": card, "link": link, "slow_motion": slow}
    known |= {"traced": True, "small": options.small, "steps": options.steps}
    size = subject.shape.get(subject.knob)
    is_true = model == "unet" and not options.small
    for repeat in range(1, options.repeats + 1):

        def row(way: str, size: Any = size, **more: Any) -> Row:
            key = {"card": card, "link": link, "model": model, "size": size}
            key |= {"way": way, "repeat": repeat}  # noqa: B023
            return attempts(book, key, subject.trial(way, **known, **more))

        plain = row("plain")
        room = plain.get("peak_bytes", 0) // 2
        if is_true:
            start = subject.sizes[0]
            shape = {subject.knob: start}
            room = row("plain", start, shape=shape).get("peak_bytes", 0)
        if not trained(plain) or not room:
            continue
        memory = in_mib(room)
        for way in options.ways:  # the rule takes 0.9 of a card
            row(way, **{"budget" if way == "callback" else "memory": memory})


class _Table:
    """Rows by card, model, size and way; steps over plain Keras's of one commit."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._good: dict[tuple[Any, ...], list[Row]] = {}
        for row in filter(trained, rows):
            key = _place(row), row["model"], row["size"], row["way"]
            self._good.setdefault(key, []).append(row)

    def of(self, place: str, model: str, size: int, way: str) -> list[Row]:
        """Return the rows that trained."""
        return self._good.get((place, model, size, way), [])

    def step(self, *key: Any) -> float | None:
        """Return the median seconds of a step, or None."""
        own = self.of(*key)
        return estimate([step_of(row) for row in own]).median if own else None

    def cost(self, row: Row) -> float | None:
        """Return the row's step over plain Keras's of the same card and commit."""
        base = self.base(row)
        return step_of(row) / base if base and trained(row) else None

    def plain(self, row: Row) -> list[Row]:
        """Return plain Keras's rows of the row's card and commit."""
        own = self.of(_place(row), row["model"], row["size"], "plain")
        return [one for one in own if one.get("commit") == row.get("commit")]

    def base(self, row: Row) -> float | None:
        """Return the median seconds of plain Keras's step, or None."""
        own = [step_of(one) for one in self.plain(row)]
        return estimate(own).median if own else None


def _place(row: Row) -> str:
    return f"{row['card']}+{row['link']}"


def answer(rows: Rows) -> Answer:
    """Report steps over plain Keras's, and the published figures."""
    table = _Table(rows)
    shown = [row for row in table.rows if row["way"] != "plain" and table.cost(row)]
    known = sorted(table.cost(r) or 0.0 for r in shown if r["way"] == "callback")
    span = f"{known[0]:.2f} to {known[-1]:.2f}" if known else "so far unknown"
    planned = [r for r in table.rows if r["way"] != "plain"]
    ours, theirs = (
        len({(_place(r), r["model"]) for r in planned if r["way"] == way})
        for way in ("callback", "rule")
    )
    ratios = real_over_emulated(rows)
    text = "our model does not reproduce IBM's Tables 2 to 5 yet"
    if ratios:
        text += ": IBM's plain step of 144^3 took " + " and ".join(ratios)
        text += " times as long as ours on an emulated card"
    verdicts: list[Verdict] = [(False, text)]
    finding = (
        f"By the callback a step takes {span} times plain Keras's of the same commit, "
        f"one process each, rows by commit: {commits(shown)}. {len(planned)} trainings "
        f"have a plan, {len(planned) - len(shown)} of them no plain step of their "
        f"commit, and so no ratio. IBM's rule was run for {theirs} of {ours} pairs of "
        "card and model. IBM's epochs stand beside ours as they are. IBM's "
        "kernels were slower than ours, IBM's link was not (on x86 10.9 and 11.7 GB/s, "
        "here 12). So near ratios show nothing; the table's last line has our ratio "
        f"with kernels as slow as IBM's. {text[:1].upper()}{text[1:]}."
    )
    names = ["", "x86", "IBM's rule, run dry", "AC922", "IBM's rule, run dry"]
    columns = ["card", "model", "way", "budget", "step", "over plain Keras"]
    columns += ["predicted", "peak", "predicted peak", "moved out", "ops run twice"]
    columns += ["busy", "commit", "how it ended"]
    each = ("Each training, in one process", columns, [*_full(table)])
    return Answer(
        finding=finding,
        table=("IBM's published figures", names, [*_beside(table)]),
        more=[each],
        verdicts=verdicts,
        panels=[[_panel(table)]],
        headline="How much longer a step takes in less memory, on emulated cards",
        drawn=f"One process each. Rows by commit: {commits(shown)}; plain ones, too.",
    )


def real_over_emulated(rows: Rows) -> list[str]:
    """Divide published seconds of plain 144^3 by the emulated cards', by server."""
    table, small = _Table(rows), SUBJECTS["unet"].sizes[0]
    found = ((epoch, table.step(p, "unet", small, "plain")) for p, epoch in _SERVERS)
    return [f"{epoch / _STEPS / own:.2f}" for epoch, own in found if own]


def _full(table: _Table) -> Iterator[list[str]]:
    for row in table.rows:
        cost, one = table.cost(row), stats.promised(row, table.base(row))
        report, lanes = row.get("report") or {}, row.get("lanes") or {}
        memory = report.get("budget_bytes")
        peaks = (trained(row) and row["peak_bytes"], report.get("predicted_peak_bytes"))
        yield [
            _PLACES[_place(row)],
            f"{SUBJECTS[row['model']].title}, {row['size']}",
            NAMES[row["way"]],
            format_bytes(memory) if memory else "",
            f"{step_of(row) * 1e3:.0f} ms" if trained(row) else "",
            f"{cost:.2f}" if cost else "no base of its commit",
            f"{one:.2f}" if one else "",
            *(format_bytes(size) if size else "" for size in peaks),
            format_bytes(report["swapped_out_bytes"]) if report else "",
            str(report["recomputed_ops"]) if report else "",
            f"{lanes['utilisation']:.0%}" if lanes else "",
            (row.get("commit") or "")[:7],
            (ending(row) or "trained")[:80],
        ]


def _beside(table: _Table) -> Iterator[list[str]]:
    """Yield the published figures, each beside ours."""
    servers = [_figures(table, place, epoch) for place, epoch in _SERVERS]
    for i, (name, *published) in enumerate(_PUBLISHED):
        cells = zip(published, (figures[i] for figures in servers), strict=True)
        yield [name, *(cell for pair in cells for cell in pair)]
    slow = [figures[-1] for figures in servers]
    yield ["a voxel, with kernels alone as slow as IBM's", "", slow[0], "", slow[1]]


def _figures(table: _Table, place: str, epoch: int) -> Sequence[str]:
    """Compute our figures for `_PUBLISHED` by IBM's rule, and one with slower kernels.

    The last is an interval: copies hide behind the slower kernels, or as before.
    """
    large, small = SUBJECTS["unet"].shape["size"], SUBJECTS["unet"].sizes[0]
    plain = table.step(place, "unet", small, "plain")
    step = table.step(place, "unet", large, "rule")
    if not plain or not step:
        return ["not run"] * 5
    (row, *_), voxels = table.of(place, "unet", large, "rule"), (large / small) ** 3
    busy = (row.get("lanes") or {}).get("utilisation")
    kernels, real = step * (busy or 0.0), epoch / _STEPS
    least = max(kernels * real / plain, step - kernels)
    most = kernels * real / plain + step - kernels
    ratios = (f"{seconds / real / voxels:.2f}" for seconds in (least, most))
    return [
        f"{plain * _STEPS:.0f} s",
        f"{step * _STEPS:.0f} s",
        f"{step / plain / voxels:.2f}",
        f"{busy:.0%}" if busy else "",
        " to ".join(ratios) if busy else "",
    ]


def _panel(table: _Table) -> Panel:
    keys = ("card", "link", "model", "size", "way")
    last = {tuple(row[name] for name in keys): row for row in table.rows}
    bars = [
        Bar(
            label=_label(row, table.plain(row)),
            length=cost or 0.0,
            colour=COLOURS[row["way"]],
            text=NAMES[row["way"]] + (f", {cost:.2f}" if cost else ", did not train"),
            promised=stats.promised(row, table.base(row)) or 0.0,
        )
        for row in last.values()  # the last try of each way
        if row["way"] != "plain" and table.base(row)
        for cost in (table.cost(row),)
    ]
    x = "step over plain Keras's in all of the card; hollow: predicted"
    return Panel(x=x, bars=bars, level=1.0)


def _label(row: Row, plain: Rows) -> str:
    size = f"{row['size']}^3" if row["model"] == "unet" else f"{row['size']}"
    budget = row["memory_bytes"] or (row.get("report") or {}).get("budget_bytes")
    peak = max(one["peak_bytes"] for one in plain)
    memory = f"{format_bytes(budget)} instead of {format_bytes(peak)}" if budget else ""
    return f"{SUBJECTS[row['model']].title} {size} in {memory}\n{_PLACES[_place(row)]}"
