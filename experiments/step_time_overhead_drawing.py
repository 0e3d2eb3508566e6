"""What `step_time_overhead` found: a table, a sentence, a figure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.finding_console import show_finding
from experiments.lines import read_lines
from experiments.plots import (
    COLOURS,
    INK,
    MUTED,
    calm,
    legend_above,
    new_figure,
    save,
    source,
)
from experiments.quiet import quiet_median
from experiments.report_findings import Finding, Head, Rows
from experiments.servers import SERVERS, published_cost
from experiments.shortening import shortened
from lms.units import format_bytes

__all__ = ["draw", "finding"]

_SERVERS = {name: f"{server.link}, scaled" for name, server in SERVERS.items()}
_WAYS = {"threshold": "TFLMS's rule", "budget": "budget"}

_PUBLISHED_VOXELS = (192 / 144) ** 3  # of IBM's case study


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
    row: Mapping[str, Any]


def draw(results: Path, path: Path) -> int:
    """Print and draw; always 0: nothing is claimed."""
    head, rows = read_lines(results)
    console = show_finding(finding(head, rows))
    _plot(head, rows, path)
    console.print(f"Drawn: {path}", soft_wrap=True)
    return 0


def finding(head: Head, rows: Rows) -> Finding:
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


def _cells(
    head: Head, rows: Rows, row: Mapping[str, Any], point: _Point | None
) -> list[str]:
    first = head["settings"]["sizes"][0]
    words = [f"{_SERVERS[row['server']]}, {row['link_rate'] / 1e9:.2f} GB/s"]
    share = f", {row['share']:.0%}" if row["way"] == "threshold" else ""
    words += [_WAYS[row["way"]] + share, f"{row['size']}^3"]
    words += [f"{(row['size'] / first) ** 3:.2f}", f"{_plain(rows, row['size']):.2f} s"]
    if point is None:
        return [*words, *[""] * 6, shortened(row["error"])]
    report = row["report"]
    again = report["replans"]
    return [
        *words,
        f"{_step(row):.2f} s",
        f"{point.ratio:.2f}",
        f"{point.bound:.2f}",
        format_bytes(row["peak_bytes"]),
        format_bytes(report["swapped_out_bytes"]),
        format_bytes(report["swapped_in_bytes"]),
        f"trained, planned anew {again} times" if again else "trained",
    ]


def _points(head: Head, rows: Rows) -> list[_Point]:
    first = head["settings"]["sizes"][0]
    return [
        _Point(
            server=row["server"],
            way=row["way"],
            size=row["size"],
            voxels=(row["size"] / first) ** 3,
            ratio=_step(row) / _plain(rows, row["size"]),
            bound=_bound(row, _plain(rows, row["size"])),
            row=row,
        )
        for row in _planned(rows)
        if not row["error"]
    ]


def _bound(row: Mapping[str, Any], plain: float) -> float:
    """max(compute, bytes / bandwidth) over compute, for the busier lane."""
    report, rate = row["report"], row["link_rate"]
    most = max(report["swapped_out_bytes"], report["swapped_in_bytes"])
    return max(1.0, most / rate / plain)


def _planned(rows: Rows) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["kind"] == "planned"]


def _servers(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["server"] for row in _planned(rows)))


def _plain(rows: Rows, size: int) -> float:
    return _step(next(r for r in rows if r["kind"] == "plain" and r["size"] == size))


def _step(row: Mapping[str, Any]) -> float:
    """The median without the first two, which initialise."""
    return quiet_median(row, skipped=2)


def _plot(head: Head, rows: Rows, path: Path) -> None:
    servers, points = _servers(rows), _points(head, rows)
    width = 4.9 * len(servers) + 0.8
    memory = format_bytes(_planned(rows)[0]["memory_bytes"])
    figure = new_figure(
        width,
        5.0,
        title="What swapping costs, against volume",
        note=(
            f"Steps in {memory} over steps in a large device; device and link are "
            f"emulated. Bound: max(compute, bytes / bandwidth). {source(head)}"
        ),
    )
    panels: Any = figure.subplots(1, len(servers), squeeze=False, sharey=True)[0]
    figure.subplots_adjust(
        left=0.65 / width, right=1 - 0.2 / width, top=0.78, bottom=0.2, wspace=0.08
    )
    tops = [p.ratio for p in points] + [p.bound for p in points] + [1.0]
    tops += [published_cost(server) for server in servers]
    for axes, server in zip(panels, servers, strict=True):
        _panel(axes, server, [p for p in points if p.server == server], 1.1 * max(tops))
    panels[0].set_ylabel("step with support over without", fontsize=11, color=INK)
    legend_above(figure, panels[0])
    save(figure, path)


def _panel(axes: Any, server: str, points: list[_Point], top: float) -> None:
    calm(axes)
    for way, name in _WAYS.items():
        mine = sorted((p for p in points if p.way == way), key=lambda p: p.voxels)
        voxels = [p.voxels for p in mine]
        colour = COLOURS[way]
        label = f"{name}: bound"
        bounds = [p.bound for p in mine]
        axes.plot(voxels, bounds, ":", color=colour, linewidth=1.6, label=label)
        ratios = [p.ratio for p in mine]
        axes.plot(voxels, ratios, "o-", color=colour, linewidth=1.8, label=name)
    axes.plot(
        [_PUBLISHED_VOXELS],
        [published_cost(server)],
        "D",
        color=MUTED,
        markersize=8,
        label="published, V100",
    )
    axes.axhline(1.0, color=INK, linewidth=1, linestyle=(0, (6, 3)))
    axes.set_ylim(0, top)
    axes.set_xlim(1, 1.05 * max([p.voxels for p in points], default=_PUBLISHED_VOXELS))
    axes.set_xlabel("voxels over the largest that fits plainly", fontsize=11, color=INK)
    axes.set_title(_SERVERS[server], loc="left", fontsize=11, color=INK)
