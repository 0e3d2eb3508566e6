"""What does swapping cost, against volume, on two links and with two planners?

The case study's method: steps with large model support in a small device over steps
without it in a large one. The small device has 1.05 times what plain Keras takes at the
first size; the large one has enough. Each trial is a training in a process of its own;
its step is the median of all but the first two and those that were disturbed
(`experiments.quiet`), of which there may be twice as many more.

The links are those of the case study's servers, scaled so that copying weighs as much
against computing as there: the time to copy a card's memory once, over the published
step of 144^3, which filled that card; here, the time to copy what plain Keras takes at
the first size, over its step. For x86 (PCIe 3.0 x16) that ratio is 16 GiB at 12 GB/s
over 216 s / 228 steps; for AC922 (NVLink 2.0) it is at 64 GB/s over 197 s / 228. The
rates are those of `lms.machine.hardware`.

The budget planner takes all of the small device less its margin. IBM's rule is tuned
for 0.9 of it, as TFLMS did; where that fails, for 0.7 and for 0.5.

No plan can make a step faster than computing alone, nor than a link's lane carries the
plan's bytes: max(compute, bytes / bandwidth) is drawn as the bound of each plan.

Known weaknesses: copies and ops share the CPU's cores. On a CPU TensorFlow runs two ops
at once where it can, which the rule's plans leave to it; the budget planner's run one
by one, as on a GPU (`experiments.half_the_memory` measures that part). Published steps
also hold reading and the host's gaps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.charts import Panel, Series, draw_panels
from experiments.ledger import Head, Row, Rows
from experiments.plots import COLOURS, MUTED, source
from experiments.question import (
    LINK,
    Answer,
    Finding,
    cubed,
    how_it_ended,
    settings_of,
    shortened,
)
from experiments.quiet import quiet_median
from experiments.runner import Book, threads_for, unet_flags
from experiments.servers import LATENCY, SERVERS, published_cost
from lms.machine.emulated_link import LinkRates
from lms.machine.host_cpu import usable_cores
from lms.units import MIB, format_bytes

__all__ = ["ANSWER", "main"]

_FOLDER = Path("build") / "experiments" / "step_time_overhead"
_ENOUGH = 8192 * MIB
_SPARE = 1.05  # of what plain Keras takes at the first size

# Parts of the small device that a plan is made for, the next where the first fails;
# None for what it takes of itself.
_SHARES: Mapping[str, tuple[float | None, ...]] = {
    "threshold": (0.9, 0.7, 0.5),
    "budget": (None,),
}
_SERVERS = {name: f"{server.link}, scaled" for name, server in SERVERS.items()}
_WAYS = {"threshold": "IBM's rule", "budget": "budget"}
_PUBLISHED_VOXELS = (192 / 144) ** 3  # of IBM's case study


def _add_settings(parser: Any) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", default=(48, 56, 64, 72, 80))
    parser.add_argument(
        "--links", nargs="+", choices=tuple(SERVERS), default=[*SERVERS]
    )
    parser.add_argument("--ways", nargs="+", choices=tuple(_WAYS), default=[*_WAYS])
    parser.add_argument("--filters", type=int, default=8)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--steps", type=int, default=9, help="of each training")
    parser.add_argument("--seed", type=int, default=0)


def _run(options: Any) -> None:
    """Finished trials of the same settings are kept when a run goes on."""
    if options.steps < 3:
        raise SystemExit(
            f"--steps must be at least 3, got {options.steps}: the first two do not "
            "count. Ask for more."
        )
    names = ("sizes", "filters", "depth", "steps", "seed")
    book = Book(options, settings_of(options, *names) | {"spare": _SPARE}, _FOLDER)
    plain = {size: _train_plainly(size, options, book) for size in options.sizes}
    base = plain[options.sizes[0]]
    memory = int(_SPARE * base["peak_bytes"]) // MIB * MIB
    book.say(f"the small device has {format_bytes(memory)}")
    for server in options.links:
        step = quiet_median(base, skipped=2)
        rate = SERVERS[server].scaled_rate(peak=base["peak_bytes"], step=step)
        book.say(f"{server}'s link, scaled: {rate / 1e9:.3f} GB/s each way")
        for way in options.ways:
            for size in options.sizes[1:]:
                _train_planned(server, rate, way, size, memory, options, book)


def _train_plainly(size: int, options: Any, book: Book) -> Row:
    key = {"kind": "plain", "way": "plain", "size": size}
    row = book.row(
        key,
        name=f"{size}^3 in a large device",
        memory=_ENOUGH,
        flags=_flags("plain", size, options),
    )
    if row["error"]:
        raise SystemExit(f"{size}^3 does not train plainly: {row['error']}")
    return row


def _train_planned(  # noqa: PLR0913 - what differs between trials
    server: str,
    rate: float,
    way: str,
    size: int,
    memory: int,
    options: Any,
    book: Book,
) -> None:
    for share in _SHARES[way]:
        planned = () if share is None else (f"--budget={int(share * memory)}",)
        words = "" if share is None else f", {share:.0%}"
        key = {"kind": "planned", "server": server, "way": way, "size": size}
        link = LinkRates(h2d=rate, d2h=rate, latency=LATENCY)
        row = book.row(
            key | {"memory_bytes": memory, "link_rate": rate, "share": share},
            name=f"{size}^3, {way}{words}, link like {server}'s",
            memory=memory,
            flags=_flags(way, size, options, *planned),
            link=link,
            threads=threads_for(way, link, cores=usable_cores()),
        )
        if row["error"] is None:
            return


def _flags(way: str, size: int, options: Any, *more: str) -> tuple[str, ...]:
    return unet_flags(way, size, options, f"--at-most={3 * options.steps}", *more)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """One training with support, over the same without.

    Args:
        server: Whose link.
        way: Which planner.
        size: Voxels along an axis.
        voxels: Over the first size.
        ratio: Step with support over step without.
        bound: No plan of these bytes can have a lower ratio.
        row: All of it.
    """

    server: str
    way: str
    size: int
    voxels: float
    ratio: float
    bound: float
    row: Row


def _finding(head: Head, rows: Rows) -> Finding:
    """The sentence and the table."""
    points = _points(head, rows)
    parts: list[str] = []
    for server in _servers(rows):
        said: list[str] = []
        for way, name in _WAYS.items():
            mine = [p for p in points if (p.server, p.way) == (server, way)]
            if mine:
                last = max(mine, key=lambda p: p.size)
                said.append(
                    f"{name} {last.ratio:.2f} at {last.size}^3 (bound {last.bound:.2f})"
                )
        parts.append(f"{_SERVERS[server]}: {', '.join(said) or 'nothing trained'}")
    memory = format_bytes(_planned(rows)[0]["memory_bytes"])
    text = (
        f"In {memory}, a step with support over one without, at the largest size that "
        f"trained. {'. '.join(parts)}."
    )
    columns = ["link", "planner", "size", "voxels", "without", "with", "ratio", "bound"]
    columns += ["peak", "swapped out", "swapped in", "how it ended"]
    by_row = {id(point.row): point for point in points}
    body = [_cells(head, rows, row, by_row.get(id(row))) for row in _planned(rows)]
    return text, (f"In {memory}, over a device with enough memory", columns, body)


def _cells(head: Head, rows: Rows, row: Row, point: _Point | None) -> list[str]:
    first = head["settings"]["sizes"][0]
    words = [f"{_SERVERS[row['server']]}, {row['link_rate'] / 1e9:.2f} GB/s"]
    share = f", {row['share']:.0%}" if row["way"] == "threshold" else ""
    words += [_WAYS[row["way"]] + share, f"{row['size']}^3"]
    words += [f"{cubed(row['size'], first):.2f}", f"{_plain(rows, row['size']):.2f} s"]
    if point is None:
        return [*words, *[""] * 6, shortened(row["error"])]
    report = row["report"]
    return [
        *words,
        f"{_step(row):.2f} s",
        f"{point.ratio:.2f}",
        f"{point.bound:.2f}",
        format_bytes(row["peak_bytes"]),
        format_bytes(report["swapped_out_bytes"]),
        format_bytes(report["swapped_in_bytes"]),
        how_it_ended(report["replans"]),
    ]


def _points(head: Head, rows: Rows) -> list[_Point]:
    first = head["settings"]["sizes"][0]
    return [
        _Point(
            server=row["server"],
            way=row["way"],
            size=row["size"],
            voxels=cubed(row["size"], first),
            ratio=_step(row) / _plain(rows, row["size"]),
            bound=_bound(row, _plain(rows, row["size"])),
            row=row,
        )
        for row in _planned(rows)
        if not row["error"]
    ]


def _bound(row: Row, plain: float) -> float:
    """max(compute, bytes / bandwidth) over compute, for the busier lane."""
    report, rate = row["report"], row["link_rate"]
    most = max(report["swapped_out_bytes"], report["swapped_in_bytes"])
    return max(1.0, most / rate / plain)


def _planned(rows: Rows) -> list[Row]:
    return [row for row in rows if row["kind"] == "planned"]


def _servers(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["server"] for row in _planned(rows)))


def _plain(rows: Rows, size: int) -> float:
    return _step(next(r for r in rows if r["kind"] == "plain" and r["size"] == size))


def _step(row: Row) -> float:
    """The median without the first two, which initialise."""
    return quiet_median(row, skipped=2)


def _plot(head: Head, rows: Rows, path: Path) -> None:
    points, servers = _points(head, rows), _servers(rows)
    tops = [1.0, *(published_cost(server) for server in servers)]
    tops += [max(point.ratio, point.bound) for point in points]
    voxels = [point.voxels for point in points]
    panels = [
        Panel(
            title=_SERVERS[server],
            x="voxels over the largest that fits plainly",
            y="" if place else "step with support over without",
            series=_series(server, [p for p in points if p.server == server]),
            level=1.0,
            xlim=(1, 1.05 * max(voxels, default=_PUBLISHED_VOXELS)),
            ylim=(0, 1.1 * max(tops)),
        )
        for place, server in enumerate(servers)
    ]
    memory = format_bytes(_planned(rows)[0]["memory_bytes"])
    draw_panels(
        [panels],
        path,
        title="What swapping costs, against volume",
        note=f"Steps in {memory} over steps in a large device; device and link are "
        f"emulated. Bound: max(compute, bytes / bandwidth). {source(head)}",
        size=(4.9 * len(panels) + 0.8, 5.0),
        share=True,
    )


def _series(server: str, points: list[_Point]) -> list[Series]:
    found: list[Series] = []
    for way, name in _WAYS.items():
        mine = sorted((p for p in points if p.way == way), key=lambda p: p.voxels)
        bounds = [(p.voxels, p.bound) for p in mine]
        steps, colour = [(p.voxels, p.ratio) for p in mine], COLOURS[way]
        label = f"{name}: bound"
        found += [
            Series(points=bounds, colour=colour, label=label, marker="", line=":"),
            Series(points=steps, colour=colour, label=name, line="-"),
        ]
    there = [(_PUBLISHED_VOXELS, published_cost(server))]
    label = "published, V100"
    return [*found, Series(points=there, colour=MUTED, label=label, marker="D")]


ANSWER = Answer(
    name="step_time_overhead",
    title="What swapping costs, against volume",
    emulated=LINK,
    about=__doc__,
    add_settings=_add_settings,
    run=_run,
    finding=_finding,
    plot=_plot,
)
main = ANSWER.main

if __name__ == "__main__":
    raise SystemExit(main())
