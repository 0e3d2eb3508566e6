"""Draws what a plan does to memory, op by op: the demo's figure.

Known weakness: the axis counts ops, not seconds; most ops are small and end at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from lms.report.style import (
    BAND,
    COLOURS,
    FONT,
    INK,
    MUTED,
    Scale,
    beside,
    new_figure,
    plain,
    save,
    tint,
)
from lms.units import Bytes

__all__ = ["MemoryCurve", "draw_memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """Memory over one step.

    Args:
        label: What the curve shows.
        device: Bytes of the step on the device at each op.
        host: Bytes of swapped-out tensors on the host at each op; empty if none are.
    """

    label: str
    device: Sequence[Bytes]
    host: Sequence[Bytes] = ()


def draw_memory(  # noqa: PLR0913 - one keyword for each thing that is seen
    curves: Sequence[MemoryCurve],
    path: Path,
    *,
    title: str,
    note: str,
    persistent: Bytes,
    memory: Bytes,
    lower_bound: Bytes,
) -> None:
    """Draw memory over one step, and the host's beneath it.

    Args:
        curves: Two, the first drawn lowest; the second moves tensors to the host.
        path: PNG to write.
        title: What is seen, in one line.
        note: Where the numbers come from, in one line.
        persistent: Bytes below every curve: weights, optimizer slots, data.
        memory: Bytes that the device has, drawn as a line.
        lower_bound: Bytes of the largest single op, drawn as a line above `persistent`.
    """
    peaks = [persistent + max(curve.device) for curve in curves]
    scale = Scale.of(max(*peaks, memory))
    figure = new_figure(10.0, 5.6, title=title, note=note)
    axes = figure.subplots(2, 1, sharex=True, height_ratios=[3.4, 1.0])
    figure.subplots_adjust(
        left=0.075, right=0.815, top=0.845, bottom=0.135, hspace=0.16
    )
    plain(axes[0], _span(curves), max(*peaks, memory) / scale.size)
    axes[0].set_ylabel(f"on the device ({scale.unit})", fontsize=FONT, color=INK)
    _draw_device(axes[0], curves, scale, persistent)
    _label_curves(axes[0], curves, scale, persistent)
    at = memory / scale.size
    axes[0].axhline(at, color=INK, linewidth=1.6, linestyle=(0, (6, 3)), zorder=8)
    beside(axes[0], at, f"device memory\n{scale.text(memory)}", INK)
    least = persistent + lower_bound
    at = least / scale.size
    axes[0].axhline(at, color=MUTED, linewidth=1.0, linestyle=":", zorder=7)
    beside(axes[0], at, f"largest op + persistent\n{scale.text(least)}", MUTED)
    text = f"persistent {scale.text(persistent)}"
    beside(axes[0], persistent / scale.size / 2, text, MUTED)
    _draw_host(axes[1], curves[1], COLOURS[1], scale)
    figure.align_ylabels()
    axes[1].set_xlabel("op, in the order of execution", fontsize=FONT, color=INK)
    save(figure, path)


def _draw_device(
    axes: Axes, curves: Sequence[MemoryCurve], scale: Scale, persistent: Bytes
) -> None:
    base = persistent / scale.size
    axes.fill_between(_span(curves), base, color=BAND, linewidth=0, zorder=1)
    for rank, (curve, colour) in enumerate(zip(curves, COLOURS, strict=False)):
        values = scale.values(curve.device, persistent)
        at = range(len(values))
        axes.fill_between(at, base, values, color=tint(colour), linewidth=0, zorder=2)
        axes.plot(at, values, color=colour, linewidth=1.3, zorder=3 + rank)


def _label_curves(
    axes: Axes, curves: Sequence[MemoryCurve], scale: Scale, persistent: Bytes
) -> None:
    """Names and peaks in one row above the axes, in the curves' colours."""
    place: Any = (0.0, 1.035)
    reference: Any = "axes fraction"
    for curve, colour in zip(curves, COLOURS, strict=False):
        highest = max(curve.device)
        text = axes.annotate(
            f"{curve.label}: peak {scale.text(persistent + highest)}",
            xy=place,
            xycoords=reference,
            xytext=(0 if reference == "axes fraction" else 22, 0),
            textcoords="offset points",
            fontsize=FONT,
            color=colour,
            weight="bold",
            va="bottom",
        )
        place, reference = (1.0, 0.0), text
        at = list(curve.device).index(highest)
        value = (persistent + highest) / scale.size
        axes.plot(at, value, marker="o", markersize=5, color=colour, zorder=9)


def _draw_host(axes: Axes, curve: MemoryCurve, colour: str, scale: Scale) -> None:
    """Draw what was moved to the host, in the colour of the curve above."""
    values = scale.values(curve.host)
    plain(axes, axes.get_xlim(), max(values))
    axes.set_ylabel(f"host ({scale.unit})", fontsize=FONT, color=INK)
    at = range(len(values))
    axes.fill_between(at, values, color=colour, alpha=0.35, linewidth=0)
    text = f"swapped-out tensors\nat most {scale.text(max(curve.host))}"
    beside(axes, max(values) / 2, text, colour)


def _span(curves: Sequence[MemoryCurve]) -> tuple[int, int]:
    """Positions to show: a step starts with small ops that hold next to nothing."""
    small = max(max(curve.device) for curve in curves) // 20
    large = [i for c in curves for i, size in enumerate(c.device) if size >= small]
    return max(0, min(large) - 1), max(1, *(len(c.device) - 1 for c in curves))
