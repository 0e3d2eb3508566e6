"""Predictions for cards that are not here, beside what was published of them.

TensorFlow's own GPU runtime runs on dry cards (`lms.emulation`): allocator,
scheduling and copies are real, a kernel takes what the card's data sheet says, and no
number is computed. Cards are a V100 of 16 GB and an A100 of 80 GB, each over PCIe and
NVLink. The case study's network trains at 144^3 and 192^3, ResNet50 with 64 images,
GPT-2 small with two sentences: plainly in all of the card, by the callback and by
IBM's rule in the 16 GB card's memory or half of plain Keras's peak.

IBM's published figures stand beside: seconds of an epoch of 228 steps, utilisation,
throughput. One number is calibrated: seconds are multiplied by what makes the plain
step of 144^3 the published one. Known weaknesses: data sheets are the best that a
card can do; copies do not slow down kernels that want the same memory; TensorFlow
today moves and computes other things than TensorFlow 1.8 did.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from experiments.charts import COLOURS, Bar, Panel
from experiments.cost import NAMES
from experiments.question import Answer
from experiments.runner import Book, Row, Rows, trained
from experiments.stats import estimate
from experiments.subjects import RULES, SUBJECTS, attempts, in_mib, step_of
from lms.units import format_bytes, parse_size

__all__ = ["TITLE", "add_settings", "answer", "costs", "units"]

TITLE = "Cards that are not here"
_PLACES = {
    ("v100-pcie", "pcie3"): "V100 16 GB, PCIe 3.0",
    ("v100-pcie", "nvlink2"): "V100 16 GB, NVLink 2.0",
    ("a100-80-pcie4", "pcie4"): "A100 80 GB, PCIe 4.0",
    ("a100-80-pcie4", "nvlink2"): "A100 80 GB, NVLink 2.0",
}
_X86, _AC922 = list(_PLACES)[:2]
_MODELS = ("unet", "resnet50", "gpt2")
_ROOM = "5.97GiB"  # of 192^3: what plain Keras takes of 144^3
_SLOWER = 2.5  # the slow motion of an A100, over a V100's
_STEPS = 228  # of an epoch

# Published, one GPU of each server: epochs in seconds, shares, GB/s. Tables 2 to 5.
_PUBLISHED = (
    ("epoch, 144^3, no LMS", "216 s", "197 s", "calibrated here"),
    (
        "epoch, 192^3, LMS",
        "1467 s",
        "590 s",
        "today's graph moves fewer bytes: ops run again, fewer tensors are kept",
    ),
    ("192^3 over 144^3, per voxel", "2.87", "1.26", "as above"),
    ("GPU utilisation, 192^3", "29.1 %", "73.5 %", "copies hide behind kernels here"),
    ("to the host / to the GPU, GB/s", "10.9 / 11.7", "64.4 / 60.4", "data sheets"),
    ("epoch, 4 GPUs, a bus each", "1506 s", "600 s", "not run: no host is shared"),
    ("epoch, GPUs that share a bus", "2076 s", "676 s", "not run: no bus is shared"),
)
_SERVERS = ((_X86, 216), (_AC922, 197))


def add_settings(parser: Any) -> None:
    """Which cards and models."""
    names = [f"{card}+{link}" for card, link in _PLACES]
    parser.add_argument("--places", nargs="+", choices=names, default=names)
    parser.add_argument("--models", nargs="+", choices=_MODELS, default=_MODELS)
    ways = ("callback", *RULES)
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways)
    parser.add_argument("--steps", type=int, default=6, help="of each training")
    parser.add_argument("--repeats", type=int, default=1, help="of each training")
    parser.add_argument("--small", action="store_true", help="sizes for a rehearsal")


def units(options: Any) -> Iterable[Callable[[Book], None]]:
    """A unit for each card and model."""
    for place in options.places:
        for model in options.models:
            yield lambda book, of=(place, model): _train(book, *of, options)


def _train(book: Book, place: str, model: str, options: Any) -> None:
    card, link = place.split("+")
    subject = SUBJECTS[model]
    slow = subject.slow_motion * (_SLOWER if card.startswith("a100") else 1)
    known = {"card": card, "link": link, "slow_motion": slow, "traced": True}
    known |= {"small": options.small, "steps": options.steps}
    size = subject.shape.get(subject.knob)
    for repeat in range(1, options.repeats + 1):

        def key(way: str, size: Any = size, repeat: int = repeat) -> dict[str, Any]:
            found = {"card": card, "link": link, "model": model, "size": size}
            return found | {"way": way, "repeat": repeat}

        plain = book.row(key("plain"), subject.trial("plain", **known))
        if model == "unet":
            less = subject.trial("plain", shape={"size": subject.start}, **known)
            if not options.small:
                book.row(key("plain", subject.start), less)
        if not trained(plain):
            continue
        room = parse_size(_ROOM, name="room")
        half = plain["peak_bytes"] // 2
        memory = in_mib(half if options.small or model != "unet" else room)
        for way in options.ways:
            if way == "callback":
                trial = subject.trial(way, budget=memory, **known)
            else:  # its own 0.9 of a card of as much
                trial = subject.trial(way, memory=memory, **known)
            attempts(book, key(way), trial)


class _Place:
    """Rows of a card and a model."""

    def __init__(self, rows: Rows, place: tuple[str, str], model: str) -> None:
        self._rows = [
            row
            for row in rows
            if (row["card"], row["link"], row["model"]) == (*place, model)
        ]

    def of(self, way: str, size: int | None = None) -> list[Row]:
        """Those of a way that trained."""
        largest = max((row["size"] for row in self._rows), default=0)
        wanted = size or largest
        return [
            row
            for row in self._rows
            if row["way"] == way and row["size"] == wanted and trained(row)
        ]

    def step(self, way: str, size: int | None = None) -> float | None:
        """Seconds of a step, or None."""
        own = self.of(way, size)
        return estimate([step_of(row) for row in own]).median if own else None


def answer(rows: Rows) -> Answer:
    """Steps over plain Keras's, and the published tables."""
    columns = ["card", "model", "way", "budget", "step", "over plain Keras", "promised"]
    names = [
        *columns,
        "peak",
        "promised peak",
        "busy",
        "out, GB/s",
        "in, GB/s",
        "how it ended",
    ]
    full = list(_full(rows))
    off: list[float] = []
    for row in rows:
        promised = _promised(row)
        cost = _cost(rows, row)
        if row["way"] == "callback" and promised and cost:
            off.append(promised / cost - 1)
    verdicts: list[tuple[bool | None, str]] = []
    if off:
        worst = max(off, key=abs)
        text = f"in {len(off)} trainings on dry cards a step's cost is promised within "
        text += f"{abs(worst):.0%}"
        verdicts.append((abs(worst) <= 0.1, text))
    way = next((w for w in RULES if any(r["way"] == w for r in rows)), "callback")
    names_of = ["", "x86", "simulated", "run dry", "AC922", "simulated", "run dry"]
    calibrated = "with today's graph, calibrated on the plain 144^3 alone"
    tables = [
        (
            f"Published by IBM, and {NAMES[one]} {calibrated}",
            [*names_of, "likely reason"],
            list(_beside(rows, one)),
        )
        for one in dict.fromkeys((way, *RULES, "callback"))
        if any(row["way"] == one for row in rows)
    ]
    finding = (
        "A step of the callback costs "
        + _range([c for r in rows if r["way"] == "callback" and (c := _cost(rows, r))])
        + " times plain Keras's. IBM's published figures stand beside what today's "
        "graph takes on the same cards; where they differ the table says the likely "
        "reason, which was not tested."
    )
    return Answer(
        finding=finding,
        table=tables[0],
        more=[*tables[1:], ("Each training", names, full)],
        verdicts=verdicts,
        panels=[[_panel(rows)]],
        headline="A step over plain Keras's on cards that are not here",
    )


def _range(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}" if values else "so far unknown"


def _cost(rows: Rows, row: Row) -> float | None:
    """The row's step over plain Keras's on the same card."""
    place = _Place(rows, (row["card"], row["link"]), row["model"])
    base = place.step("plain", row["size"])
    return step_of(row) / base if base and trained(row) else None


def _promised(row: Row) -> float | None:
    report = row.get("report") or {}
    own, plain = report.get("predicted_seconds"), report.get("unplanned_seconds")
    return own / plain if own and plain else None


def _steps(rows: Rows) -> Iterator[list[str]]:
    """Ways that have a plan, where they trained."""
    for row in rows:
        cost, promised = _cost(rows, row), _promised(row)
        if row["way"] == "plain" or cost is None:
            continue
        budget = (row["report"] or {}).get("budget_bytes") or row["memory_bytes"]
        yield [
            _PLACES[row["card"], row["link"]],
            f"{SUBJECTS[row['model']].title}, {row['size']}",
            NAMES[row["way"]],
            format_bytes(budget),
            f"{step_of(row) * 1e3:.0f} ms",
            f"{cost:.2f}",
            f"{promised:.2f}" if promised else "",
        ]


def costs(rows: Rows) -> Iterator[list[str]]:
    """Lines for the README: PCIe, each model, the callback and the rule."""
    for line in _steps(rows):
        if "PCIe" in line[0] and line[2] != NAMES["serialised"]:
            yield line


def _full(rows: Rows) -> Iterator[list[str]]:
    for row in rows:
        report, lanes = row.get("report") or {}, row.get("lanes") or {}
        cost, promised = _cost(rows, row), _promised(row)
        ended = row["error"] or (row.get("refused") or {}).get("error") or "trained"
        promise = report.get("predicted_peak_bytes")
        yield [
            _PLACES[row["card"], row["link"]],
            f"{SUBJECTS[row['model']].title}, {row['size']}",
            NAMES[row["way"]],
            format_bytes(report["budget_bytes"]) if report.get("budget_bytes") else "",
            f"{step_of(row) * 1e3:.0f} ms" if trained(row) else "",
            f"{cost:.2f}" if cost else "",
            f"{promised:.2f}" if promised else "",
            format_bytes(row["peak_bytes"]) if trained(row) else "",
            format_bytes(promise) if promise else "",
            f"{lanes['utilisation']:.0%}" if lanes else "",
            *(
                f"{lanes[f'{way}_throughput'] / 1e9:.1f}" if lanes else ""
                for way in ("d2h", "h2d")
            ),
            ended[:80],
        ]


def _beside(rows: Rows, way: str) -> Iterator[list[str]]:
    """The published tables; each figure beside what is simulated, and run dry."""
    servers = [_figures(rows, *server, way) for server in _SERVERS]
    for i, (name, x86, ac922, reason) in enumerate(_PUBLISHED):
        own = [figures[i] if i < len(figures) else ("", "") for figures in servers]
        yield [name, x86, *own[0], ac922, *own[1], reason]


def _figures(
    rows: Rows, place: tuple[str, str], epoch: int, way: str
) -> list[tuple[str, str]]:
    """Simulated and run dry: what a way comes to on one of the two servers."""
    own = _Place(rows, place, "unet")
    plain, step = own.step("plain", SUBJECTS["unet"].start), own.step(way)
    if not plain or not step:
        return [("not run", "not run")] * 5
    scale = epoch / _STEPS / plain
    row = own.of(way)[0]
    report, lanes = row["report"], row.get("lanes") or {}
    promised = report["predicted_seconds"] or 0.0
    steps = (promised, step)
    epochs = [f"{seconds * scale * _STEPS:.0f} s" for seconds in steps]
    voxels = (192 / 144) ** 3
    ratios = [f"{seconds / plain / voxels:.2f}" for seconds in steps]
    shares = [
        f"{share:.0%}" if share else ""
        for share in (report.get("utilisation"), lanes.get("utilisation"))
    ]
    rates = [
        _rates(report, ("d2h_bytes_per_second", "h2d_bytes_per_second")),
        _rates(lanes, ("d2h_throughput", "h2d_throughput")),
    ]
    found = [[f"{epoch} s"] * 2, epochs, ratios, shares, rates]
    return [(simulated, dry) for simulated, dry in found]


def _rates(values: Row, names: tuple[str, str]) -> str:
    known = [values[name] / 1e9 for name in names if values.get(name)]
    return " / ".join(f"{rate:.1f}" for rate in known)


def _panel(rows: Rows) -> Panel:
    bars: list[Bar] = []
    keys = ("card", "link", "model", "size", "way")
    last = {tuple(row[name] for name in keys): row for row in rows}
    for row in last.values():  # of the tries of a way, the last
        cost = _cost(rows, row)
        if row["way"] == "plain":
            continue
        place, title = _PLACES[row["card"], row["link"]], SUBJECTS[row["model"]].title
        bars.append(
            Bar(
                label=f"{place}: {title}",
                length=cost or 0.0,
                colour=COLOURS[row["way"]],
                text=f"{NAMES[row['way']]}, {cost:.2f}" if cost else "did not train",
                promised=_promised(row) or 0.0,
            )
        )
    return Panel(x="over plain Keras's step; hollow: promised", bars=bars, level=1.0)
