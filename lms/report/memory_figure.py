"""Draws what a plan does to memory, op by op.

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

__all__ = ["MemoryCurve", "draw_memory"]

_SIZE = (10.0, 5.6)  # inches


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """Memory over one step.

    Args:
        label: What the curve shows, such as "with the plan".
        device: Bytes of the step on the device at each op; at least one op.
        host: Bytes of swapped-out tensors on the host at each op; empty if none are.
    """

    label: str
    device: tuple[int, ...]
    host: tuple[int, ...] = ()


def draw_memory(  # noqa: PLR0913 - one keyword for each thing that may be seen
    curves: Sequence[MemoryCurve],
    path: Path | str,
    *,
    title: str,
    note: str = "",
    persistent: int = 0,
    budget: int | None = None,
    budget_label: str = "budget",
    lower_bound: int | None = None,
) -> None:
    """Draw memory over one step, and the host's beneath it where tensors go there.

    Args:
        curves: One to three, the first drawn lowest.
        path: PNG to write; written under another name first, so it is never half done.
        title: What is seen, in one line.
        note: Where the numbers come from, in one line.
        persistent: Bytes below every curve: weights, optimizer slots, data.
        budget: Bytes that the device has, drawn as a line.
        budget_label: What that line is called.
        lower_bound: Bytes of the largest single op, drawn as a line above `persistent`.

    Raises:
        ValueError: If there are no curves, too many, or one without ops.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "memory.png"
        >>> draw_memory([MemoryCurve(label="a step", device=(4, 9))], path, title="Up")
        >>> path.exists()
        True
    """
    _check(curves)
    peaks = [persistent + max(curve.device) for curve in curves]
    scale = Scale.of(max([*peaks, budget or 0]))
    with_host = [curve for curve in curves if any(curve.host)]
    figure = new_figure(*_SIZE, title=title, note=note)
    heights = [3.4, 1.0] if with_host else [1.0]
    axes = figure.subplots(
        len(heights), 1, sharex=True, squeeze=False, height_ratios=heights
    )[:, 0]
    figure.subplots_adjust(
        left=0.075, right=0.815, top=0.845, bottom=0.135, hspace=0.16
    )
    _draw_device(axes[0], curves, scale, persistent, budget)
    _draw_lines(axes[0], scale, persistent, budget, budget_label, lower_bound)
    if with_host:
        _draw_host(axes[1], curves, scale)
    figure.align_ylabels()
    axes[-1].set_xlabel("op, in the order of execution", fontsize=FONT, color=INK)
    save(figure, Path(path))


def _check(curves: Sequence[MemoryCurve]) -> None:
    if not 1 <= len(curves) <= len(COLOURS):
        raise ValueError(
            f"`curves` must be one to {len(COLOURS)}, got {len(curves)}. "
            "Draw more figures instead."
        )
    for curve in curves:
        if not curve.device:
            raise ValueError(
                f"curve {curve.label!r} must have at least one op, got none. "
                "Leave it out."
            )


def _draw_device(
    axes: Axes,
    curves: Sequence[MemoryCurve],
    scale: Scale,
    persistent: int,
    budget: int | None,
) -> None:
    span = _span(curves)
    tops = [persistent + max(curve.device) for curve in curves]
    plain(axes, span, max([*tops, budget or 0]) / scale.size)
    axes.set_ylabel(f"on the device ({scale.unit})", fontsize=FONT, color=INK)
    base = persistent / scale.size
    if persistent:
        axes.fill_between(span, base, color=BAND, linewidth=0, zorder=1)
    for rank, (curve, colour) in enumerate(zip(curves, COLOURS, strict=False)):
        values = scale.values(curve.device, persistent)
        positions = range(len(values))
        axes.fill_between(
            positions, base, values, color=tint(colour), linewidth=0, zorder=2
        )
        axes.plot(positions, values, color=colour, linewidth=1.3, zorder=3 + rank)
    _label_curves(axes, curves, scale, persistent)


def _label_curves(
    axes: Axes, curves: Sequence[MemoryCurve], scale: Scale, persistent: int
) -> None:
    """Names and peaks in one row above the axes, in the curves' colours."""
    place: Any = (0.0, 1.035)
    reference: Any = "axes fraction"
    for curve, colour in zip(curves, COLOURS, strict=False):
        peak = scale.text(persistent + max(curve.device))
        text = axes.annotate(
            f"{curve.label}: peak {peak}",
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
        at = max(range(len(curve.device)), key=curve.device.__getitem__)
        axes.plot(
            at,
            (persistent + curve.device[at]) / scale.size,
            marker="o",
            markersize=5,
            color=colour,
            zorder=9,
        )


def _draw_lines(
    axes: Axes,
    scale: Scale,
    persistent: int,
    budget: int | None,
    budget_label: str,
    lower_bound: int | None,
) -> None:
    """Lines across the axes, named to the right of them."""
    if budget is not None:
        at = budget / scale.size
        axes.axhline(at, color=INK, linewidth=1.6, linestyle=(0, (6, 3)), zorder=8)
        beside(axes, at, f"{budget_label}\n{scale.text(budget)}", INK)
    if lower_bound is not None:
        at = (persistent + lower_bound) / scale.size
        axes.axhline(at, color=MUTED, linewidth=1.0, linestyle=":", zorder=7)
        beside(
            axes,
            at,
            f"largest op + persistent\n{scale.text(persistent + lower_bound)}",
            MUTED,
        )
    if persistent:
        at = persistent / scale.size / 2
        beside(axes, at, f"persistent {scale.text(persistent)}", MUTED)


def _draw_host(axes: Axes, curves: Sequence[MemoryCurve], scale: Scale) -> None:
    """Draw what was moved to the host, in the colours of the curves above."""
    most = max(max(curve.host, default=0) for curve in curves)
    plain(axes, _span(curves), most / scale.size)
    axes.set_ylabel(f"host ({scale.unit})", fontsize=FONT, color=INK)
    for curve, colour in zip(curves, COLOURS, strict=False):
        if any(curve.host):
            values = scale.values(curve.host)
            axes.fill_between(
                range(len(values)), values, color=colour, alpha=0.35, linewidth=0
            )
            beside(
                axes,
                max(values) / 2,
                f"swapped-out tensors\nat most {scale.text(max(curve.host))}",
                colour,
            )


def _span(curves: Sequence[MemoryCurve]) -> tuple[int, int]:
    """Positions to show: a step starts with small ops that hold next to nothing."""
    small = max(max(curve.device) for curve in curves) // 20
    large = [i for c in curves for i, size in enumerate(c.device) if size >= small]
    return max(0, min(large) - 1), max(1, *(len(c.device) - 1 for c in curves))
