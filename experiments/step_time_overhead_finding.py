"""The finding of `step_time_overhead`: sentences, a table, a figure."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.charts import Panel, Series, draw_panels
from experiments.intervals import ratio_interval
from experiments.ledger import Head, Row, Rows
from experiments.plots import COLOURS, source
from experiments.question import Finding, cubed, how_it_ended, part_of, shortened
from experiments.quiet import quiet
from experiments.servers import SERVERS
from lms.units import format_bytes

__all__ = ["finding", "plot"]

_SERVERS = {name: f"{server.link}, scaled" for name, server in SERVERS.items()}
_WAYS = {"threshold": "IBM's rule", "budget": "the callback"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """One training in the small device, over plain Keras's in a large one.

    Args:
        server: Whose link.
        way: Which planner.
        size: Voxels along an axis.
        voxels: Over the first size.
        ratio: Its step over plain Keras's.
        quartiles: Of its steps, over plain Keras's median.
        interval: That holds the ratio in 95 % of cases.
        bound: No plan that swaps these bytes can have a lower ratio.
        row: All of it.
    """

    server: str
    way: str
    size: int
    voxels: float
    ratio: float
    quartiles: tuple[float, float]
    interval: tuple[float, float]
    bound: float
    row: Row


def finding(head: Head, rows: Rows) -> Finding:
    """The sentences and the table."""
    points = _points(head, rows)
    first = head["settings"]["sizes"][0]
    memory = format_bytes(_planned(rows)[0]["memory_bytes"])
    tried = max(row["size"] for row in _planned(rows))
    said = [
        f"Over {SERVERS[server].link}, scaled, {_said(points, server, tried)}."
        for server in _servers(rows)
    ]
    text = (
        f"The device has {memory}, in which plain Keras trains {first}^3. "
        f"{' '.join(said)} Plain Keras's step is always of the same size, in a device "
        "with enough memory."
    )
    columns = ["link", "way", "size", "voxels", "plain step", "step"]
    columns += ["over plain Keras", "quartiles", "link's least", "peak"]
    columns += ["swapped out", "swapped in", "run twice", "how it ended"]
    by_row = {id(point.row): point for point in points}
    body = [_cells(head, rows, row, by_row.get(id(row))) for row in _planned(rows)]
    return text, (f"In {memory}", columns, body)


def _said(points: Sequence[_Point], server: str, tried: int) -> str:
    said: list[str] = []
    subjects = {"budget": "the callback's step", "threshold": "by IBM's rule it"}
    for way, subject in subjects.items():
        mine = [p for p in points if (p.server, p.way) == (server, way)]
        mine.sort(key=lambda p: p.size)
        if mine:
            most = mine[-1].size
            end = "the largest tried" if most == tried else "the largest that trained"
            last = f" and {_told(mine[-1])} at {most}^3" if mine[1:] else ""
            first = f"{_told(mine[0])} plain Keras's at {mine[0].size}^3"
            said.append(f"{subject} takes {first}{last}, {end}")
    return "; ".join(said) or "nothing trained"


def _told(point: _Point) -> str:
    low, high = point.interval
    return f"{point.ratio:.2f} times ({low:.2f} to {high:.2f})"


def _cells(head: Head, rows: Rows, row: Row, point: _Point | None) -> list[str]:
    first = head["settings"]["sizes"][0]
    words = [f"{_SERVERS[row['server']]}, {row['link_rate'] / 1e9:.2f} GB/s"]
    words += [_WAYS[row["way"]] + part_of(row["share"]), f"{row['size']}^3"]
    words += [f"{cubed(row['size'], first):.2f}", f"{_plain(rows, row['size']):.2f} s"]
    if point is None:
        return [*words, *[""] * 8, shortened(row["error"])]
    report = row["report"]
    return [
        *words,
        f"{_step(row):.2f} s",
        f"{point.ratio:.2f}",
        f"{point.quartiles[0]:.2f} to {point.quartiles[1]:.2f}",
        f"{point.bound:.2f}",
        format_bytes(row["peak_bytes"]),
        format_bytes(report["swapped_out_bytes"]),
        format_bytes(report["swapped_in_bytes"]),
        str(report["recomputed_ops"]),
        how_it_ended(report["replans"], report.get("chosen", "")),
    ]


def _points(head: Head, rows: Rows) -> list[_Point]:
    first = head["settings"]["sizes"][0]
    return [_point(row, rows, first) for row in _planned(rows) if not row["error"]]


def _point(row: Row, rows: Rows, first: int) -> _Point:
    plain, steps = _plain(rows, row["size"]), _steps(row)
    low, _, high = statistics.quantiles(steps, n=4, method="inclusive")
    return _Point(
        server=row["server"],
        way=row["way"],
        size=row["size"],
        voxels=cubed(row["size"], first),
        ratio=_step(row) / plain,
        quartiles=(low / plain, high / plain),
        interval=ratio_interval(steps, _steps(_plain_row(rows, row["size"]))),
        bound=_bound(row, plain),
        row=row,
    )


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
    return _step(_plain_row(rows, size))


def _plain_row(rows: Rows, size: int) -> Row:
    return next(r for r in rows if r["kind"] == "plain" and r["size"] == size)


def _step(row: Row) -> float:
    return statistics.median(_steps(row))


def _steps(row: Row) -> list[float]:
    """Undisturbed ones without the first two, which initialise."""
    return quiet(row["step_seconds"][2:], row["stolen_seconds"][2:])


def plot(head: Head, rows: Rows, path: Path) -> None:
    """Ratios against voxels, a panel for each link."""
    points, servers = _points(head, rows), _servers(rows)
    tops = [1.0, *(max(point.quartiles[1], point.bound) for point in points)]
    voxels = [
        cubed(row["size"], head["settings"]["sizes"][0]) for row in _planned(rows)
    ]
    first = head["settings"]["sizes"][0]
    panels = [
        Panel(
            title=_SERVERS[server],
            x=f"voxels, over those of {first}³",
            y="" if place else "step over plain Keras's of the same size",
            series=[
                *_series([p for p in points if p.server == server]),
                *_failed(rows, server, first, 1.16 * max(tops)),
            ],
            level=1.0,
            xlim=(1, 1.15 * max(voxels, default=2.0)),
            ylim=(0, 1.3 * max(tops)),
        )
        for place, server in enumerate(servers)
    ]
    memory = format_bytes(_planned(rows)[0]["memory_bytes"])
    draw_panels(
        [panels],
        path,
        title="What swapping costs, against size",
        note=f"In {memory}; device and link are emulated. Upright lines: quartiles. x: "
        f"failed in each try. The least counts no second runs. {source(head)}",
        size=(4.9 * len(panels) + 0.8, 5.0),
        share=True,
    )


def _series(points: Sequence[_Point]) -> list[Series]:
    found: list[Series] = []
    for way, name in _WAYS.items():
        mine = sorted((p for p in points if p.way == way), key=lambda p: p.voxels)
        bounds = [(p.voxels, p.bound) for p in mine if p.bound > 1]
        steps, colour = [(p.voxels, p.ratio) for p in mine], COLOURS[way]
        label = f"{name}: the link's least, if above 1"
        found.append(
            Series(
                points=steps,
                colour=colour,
                label=name,
                line="-",
                spans=[p.quartiles for p in mine],
                texts=[_again(p.row["report"]["replans"]) for p in mine],
            )
        )
        if bounds:
            line = Series(
                points=bounds, colour=colour, label=label, marker="", line=":"
            )
            found.append(line)
    return found


def _again(replans: int) -> str:
    return f"planned anew {replans}x" if replans else ""


def _failed(rows: Rows, server: str, first: int, height: float) -> Iterator[Series]:
    """A mark above the sizes that a way did not train, whatever it was tuned for."""
    mine = [row for row in _planned(rows) if row["server"] == server]
    for place, way in enumerate(_WAYS):
        trained = {r["size"] for r in mine if r["way"] == way and not r["error"]}
        tried = {r["size"] for r in mine if r["way"] == way}
        lost = sorted(tried - trained)
        yield Series(
            points=[(cubed(size, first), height * (1 - 0.06 * place)) for size in lost],
            colour=COLOURS[way],
            marker="x",
            texts=["did not train"] * len(lost),
        )
