"""Figures from profilers' files, in the style of the library's own."""

import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from lms.errors import extra
from lms.report.style import (
    COLOURS,
    FONT,
    INK,
    MUTED,
    calm,
    new_figure,
    plain,
    save,
    tint,
)
from lms.simulation.timeline import Timeline
from lms.units import KIB, format_bytes
from profiling.lanes_figure import draw_lanes
from profiling.timelines import timeline_from_json

with extra("figures"):
    from matplotlib.axes import Axes
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

__all__ = ["FIGURES", "slug"]

Results = Mapping[str, Mapping[str, Any]]

_WAYS = {"h2d": "host to device", "d2h": "device to host", "both": "both at once"}
_COLOUR = {"h2d": COLOURS[1], "d2h": COLOURS[0], "both": COLOURS[2]}
_MOST = 4  # most rows of a figure
_BESIDE = 3  # most panels side by side


def slug(*names: str) -> str:
    """Turn names of runs into a part of a file's name.

    Example:
        >>> slug("PCIe 3.0", "step")
        'pcie-3.0_step'
    """
    return "_".join(re.sub(r"[^\w.]+", "-", name.lower()).strip("-") for name in names)


def _draw_steps(results: Results, folder: Path) -> list[Path]:
    """Draw each run measured above predicted, two runs to a figure."""
    written: list[Path] = []
    for names in _parts(list(results), _MOST // 2):
        steps: list[tuple[str, Timeline]] = []
        for name in names:
            for label in ("measured", "predicted"):
                timeline = timeline_from_json(results[name][f"{label}_timeline"])
                steps.append((f"{name}, {label}", timeline))
        path = folder / f"step_{slug(*names)}.png"
        title = "One training step: measured, and predicted by the simulator"
        draw_lanes(steps, path, title=title, note=_note(results, names))
        written.append(path)
    return written


def _draw_links(results: Results, folder: Path) -> list[Path]:
    """Draw throughput over the size of a copy, a panel for each run."""
    written: list[Path] = []
    for names in _parts(list(results), _BESIDE):
        width, title = max(7.0, 5.0 * len(names)), "Copies between host and device"
        figure = new_figure(width, 4.6, title=title, note=_note(results, names))
        panels = figure.subplots(1, len(names), sharex=True, sharey=True, squeeze=False)
        figure.subplots_adjust(left=0.1, right=0.96, top=0.8, bottom=0.2, wspace=0.08)
        for axes, name in zip(panels[0], names, strict=True):
            _draw_link(axes, name, results[name])
        panels[0][0].set_ylabel("GB/s", fontsize=FONT, color=INK)
        path = folder / f"link_{slug(*names)}.png"
        save(figure, path)
        written.append(path)
    return written + _draw_sharing(results, folder)


def _draw_link(axes: Axes, name: str, result: Mapping[str, Any]) -> None:
    memory = result["rows"][0]["memory"]
    rows = [row for row in result["rows"] if row["memory"] == memory]
    for way, label in _WAYS.items():
        of_way = [row for row in rows if row["directions"] == way]
        sizes = [row["size"] for row in of_way]
        rates = [row["bandwidth"] / 1e9 for row in of_way]
        factor = 2 if way == "both" else 1
        low = [factor * r["size"] / r["upper_quartile"] / 1e9 for r in of_way]
        high = [factor * r["size"] / r["lower_quartile"] / 1e9 for r in of_way]
        axes.fill_between(sizes, low, high, color=tint(_COLOUR[way]), linewidth=0)
        look = {"color": _COLOUR[way], "linewidth": 1.5, "marker": "o", "ms": 3}
        axes.plot(sizes, rates, label=f"{label}: {rates[-1]:.3g}", **look)
    if rate := (result["stated"] or {}).get("bandwidth"):
        label = f"{result['stated']['link']}, one way: {rate / 1e9:.3g}"
        look = {"color": INK, "linewidth": 1.0, "linestyle": (0, (6, 3))}
        axes.axhline(rate / 1e9, label=label, **look)
    axes.legend(
        loc="lower right", frameon=False, fontsize=FONT - 2, labelcolor="linecolor"
    )
    axes.set_title(f"{name}, {memory} memory", loc="left", fontsize=FONT, color=INK)
    calm(axes)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator([4 * KIB << i for i in range(0, 19, 3)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda size, _: format_bytes(round(size)).replace(".00", ""))
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
    axes.set_xlabel("size of one copy", fontsize=FONT, color=INK)


def _draw_sharing(results: Results, folder: Path) -> list[Path]:
    """Draw the throughput of each device when several copy at once."""
    shared = {name: r for name, r in results.items() if r["together"]}
    if not shared:
        return []
    note = _note(shared, list(shared))
    figure = new_figure(7.2, 4.0, title="Several devices copy at once", note=note)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.1, right=0.74, top=0.8, bottom=0.2)
    most, counts = 0.0, [1]
    for (name, result), colour in zip(shared.items(), cycle(COLOURS), strict=False):
        rows = [row for row in result["together"] if row["directions"] == "h2d"]
        devices = [row["devices"] for row in rows]
        each = [sum(r["bandwidths"]) / len(r["bandwidths"]) / 1e9 for r in rows]
        axes.plot(devices, each, color=colour, marker="o", lw=1.5)
        look = {"va": "center", "fontsize": FONT - 1, "color": colour}
        axes.text(devices[-1], each[-1], f"   {name}", **look)
        counts, most = sorted({*counts, *devices}), max(most, *each)
    plain(axes, (0.8, counts[-1] + 0.1), most)
    axes.set_xticks(counts)
    axes.set_xlabel("devices", fontsize=FONT, color=INK)
    axes.set_ylabel("GB/s to each device", fontsize=FONT, color=INK)
    path = folder / "link_sharing.png"
    save(figure, path)
    return [path]


def _draw_utilisations(results: Results, folder: Path) -> list[Path]:
    """Draw the busy share of the last second over time, a row for each GPU."""
    written: list[Path] = []
    told = {
        f"{name}, GPU {i}" if len(gpus) > 1 else name: {**result, "told": values}
        for name, result in results.items()
        for gpus in [result["curve"]["gpu_utilisation"]]
        for i, values in enumerate(gpus)
        if any(value is not None for value in values)
    }
    for names in _parts(list(told), _MOST):
        height = 1.6 + 1.7 * len(names)
        title, note = "Utilisation while a program runs", _note(told, names)
        figure = new_figure(10, height, title=title, note=note)
        rows = figure.subplots(len(names), 1, squeeze=False, sharex=True)[:, 0]
        top, bottom = 1 - 0.95 / height, 0.75 / height
        figure.subplots_adjust(
            left=0.08, right=0.97, top=top, bottom=bottom, hspace=0.45
        )
        for axes, name in zip(rows, names, strict=True):
            _draw_utilisation(axes, name, told[name])
        longest = max(told[name]["seconds"] for name in names)
        rows[-1].set_xlim(0, longest)
        rows[-1].set_xlabel("seconds", fontsize=FONT, color=INK)
        path = folder / f"utilisation_{slug(*names)}.png"
        save(figure, path)
        written.append(path)
    return written


def _draw_utilisation(axes: Axes, name: str, result: Mapping[str, Any]) -> None:
    curve = zip(result["curve"]["at"], result["told"], strict=True)
    times, values = zip(*((at, v) for at, v in curve if v is not None), strict=True)
    width = max(1, round(len(values) / max(1.0, times[-1] - times[0])))
    means = [
        sum(part) / len(part)
        for i in range(len(values))
        if (part := values[max(0, i - width + 1) : i + 1])
    ]
    colour = COLOURS[2]
    axes.fill_between(times, means, color=tint(colour), linewidth=0)
    axes.plot(times, means, color=colour, linewidth=1.2)
    plain(axes, (0.0, max(result["seconds"], times[-1])), 1.0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    axes.set_yticks([0, 0.5, 1])
    title = f"{name}: mean {sum(values) / len(values):.0%}"
    axes.set_title(title, loc="left", fontsize=FONT, color=INK)


def _draw_costs(results: Results, folder: Path) -> list[Path]:
    """Draw the slowest op types and layers as bars."""
    written: list[Path] = []
    for name, result in results.items():
        title = f"Measured seconds of the ops of one step: {result['seconds']:.3g} s"
        figure = new_figure(11, 4.8, title=title, note=_note(results, [name]))
        panels = figure.subplots(1, 2)
        figure.subplots_adjust(left=0.2, right=0.95, top=0.83, bottom=0.1, wspace=0.62)
        for axes, key, label in zip(
            panels, ("by_type", "by_layer"), ("by op type", "by layer"), strict=True
        ):
            rows = result[key][:10][::-1]
            names = [row["name"] or "(none)" for row in rows]
            taken = [row["seconds"] * 1e3 for row in rows]
            bars = axes.barh(names, taken, color=COLOURS[1])
            shares = [f" {row['share']:.0%}" for row in rows]
            axes.bar_label(bars, shares, color=MUTED, fontsize=FONT - 2)
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.tick_params(colors=INK, labelsize=FONT - 2, length=0)
            axes.set_title(f"{label}, ms", loc="left", fontsize=FONT, color=INK)
        path = folder / f"op_costs_{slug(name)}.png"
        save(figure, path)
        written.append(path)
    return written


# Functions by kind of result; each draws into a folder and returns its files.
FIGURES = {
    "step_timeline": _draw_steps,
    "link_bandwidth": _draw_links,
    "utilisation": _draw_utilisations,
    "op_costs": _draw_costs,
}


def _parts(names: Sequence[str], most: int) -> list[Sequence[str]]:
    return [names[i : i + most] for i in range(0, len(names), most)]


def _note(results: Results, names: Sequence[str]) -> str:
    """List sources of the numbers, each once; several devices on a line above."""
    told: dict[str, None] = {}
    for result in (results[name] for name in names):
        slow, machine = result.get("slow_motion", 1), result["machine"]
        told |= {f"slow motion {slow:g}, divided out": None} if slow > 1 else {}
        told[f"{machine['processor']}, {machine['cores']} cores"] = None
        told[f"commit {result['commit']}"] = None
    devices = dict.fromkeys(results[name]["device"] for name in names)
    return "; ".join(devices) + ("; " if len(devices) == 1 else "\n") + "; ".join(told)
