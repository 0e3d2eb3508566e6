"""Draws what a plan does to memory. The only file of lms that draws.

From plain data, in one style: no legend to look up, labels beside what they name, and
colours that stay apart for colour-blind eyes.

Source of the colours: Okabe and Ito, "Color Universal Design", 2008.

Known weakness: the axis counts ops, not seconds; most ops are small and end at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from lms.units import GIB, MIB

__all__ = ["MemoryCurve", "draw_memory"]

# Vermilion, blue, bluish green; greys for what is not a curve.
_COLOURS = ("#D55E00", "#0072B2", "#009E73")
_INK, _MUTED, _BAND = "#222222", "#6B6B6B", "#DADADA"
_DPI = 150
_SIZE = (10.0, 5.6)  # inches
_FONT = 11.0  # points


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


@dataclass(frozen=True, slots=True)
class _Scale:
    """Bytes as the axis counts them: one unit for a whole figure."""

    size: int
    unit: str

    @classmethod
    def of(cls, largest: int) -> "_Scale":
        return cls(GIB, "GiB") if largest >= 2 * GIB else cls(MIB, "MiB")

    def values(self, sizes: Sequence[int], base: int = 0) -> list[float]:
        return [(size + base) / self.size for size in sizes]

    def text(self, size: int) -> str:
        value = size / self.size
        return f"{value:.3g} {self.unit}" if value < 100 else f"{value:.0f} {self.unit}"


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
    scale = _Scale.of(max([*peaks, budget or 0]))
    with_host = [curve for curve in curves if any(curve.host)]
    figure = Figure(figsize=_SIZE, dpi=_DPI)
    FigureCanvasAgg(figure)
    heights = [3.4, 1.0] if with_host else [1.0]
    axes = figure.subplots(
        len(heights), 1, sharex=True, squeeze=False, height_ratios=heights
    )[:, 0]
    figure.subplots_adjust(
        left=0.075, right=0.815, top=0.845, bottom=0.135, hspace=0.16
    )
    figure.text(0.02, 0.945, title, fontsize=_FONT + 4, color=_INK, weight="bold")
    _draw_device(axes[0], curves, scale, persistent, budget)
    _draw_lines(axes[0], scale, persistent, budget, budget_label, lower_bound)
    if with_host:
        _draw_host(axes[1], curves, scale)
    figure.align_ylabels()
    axes[-1].set_xlabel("op, in the order of execution", fontsize=_FONT, color=_INK)
    figure.text(0.02, 0.02, note, fontsize=_FONT - 3, color=_MUTED)
    _save(figure, Path(path))


def _check(curves: Sequence[MemoryCurve]) -> None:
    if not 1 <= len(curves) <= len(_COLOURS):
        raise ValueError(
            f"`curves` must be one to {len(_COLOURS)}, got {len(curves)}. "
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
    scale: _Scale,
    persistent: int,
    budget: int | None,
) -> None:
    span = _span(curves)
    tops = [persistent + max(curve.device) for curve in curves]
    _plain(axes, span, max([*tops, budget or 0]) / scale.size)
    axes.set_ylabel(f"on the device ({scale.unit})", fontsize=_FONT, color=_INK)
    base = persistent / scale.size
    if persistent:
        axes.fill_between(span, base, color=_BAND, linewidth=0, zorder=1)
    for rank, (curve, colour) in enumerate(zip(curves, _COLOURS, strict=False)):
        values = scale.values(curve.device, persistent)
        positions = range(len(values))
        axes.fill_between(
            positions, base, values, color=_tint(colour), linewidth=0, zorder=2
        )
        axes.plot(positions, values, color=colour, linewidth=1.3, zorder=3 + rank)
    _label_curves(axes, curves, scale, persistent)


def _tint(colour: str) -> tuple[float, float, float]:
    """The colour mixed with white, opaque: one area may cover another."""
    red, green, blue = (1 - 0.14 * (1 - part) for part in to_rgb(colour))
    return red, green, blue


def _label_curves(
    axes: Axes, curves: Sequence[MemoryCurve], scale: _Scale, persistent: int
) -> None:
    """Names and peaks in one row above the axes, in the curves' colours."""
    place: Any = (0.0, 1.035)
    reference: Any = "axes fraction"
    for curve, colour in zip(curves, _COLOURS, strict=False):
        peak = scale.text(persistent + max(curve.device))
        text = axes.annotate(
            f"{curve.label}: peak {peak}",
            xy=place,
            xycoords=reference,
            xytext=(0 if reference == "axes fraction" else 22, 0),
            textcoords="offset points",
            fontsize=_FONT,
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
    scale: _Scale,
    persistent: int,
    budget: int | None,
    budget_label: str,
    lower_bound: int | None,
) -> None:
    """Lines across the axes, named to the right of them."""
    if budget is not None:
        at = budget / scale.size
        axes.axhline(at, color=_INK, linewidth=1.6, linestyle=(0, (6, 3)), zorder=8)
        _beside(axes, at, f"{budget_label}\n{scale.text(budget)}", _INK)
    if lower_bound is not None:
        at = (persistent + lower_bound) / scale.size
        axes.axhline(at, color=_MUTED, linewidth=1.0, linestyle=":", zorder=7)
        _beside(
            axes,
            at,
            f"largest op + persistent\n{scale.text(persistent + lower_bound)}",
            _MUTED,
        )
    if persistent:
        at = persistent / scale.size / 2
        _beside(axes, at, f"persistent {scale.text(persistent)}", _MUTED)


def _beside(axes: Axes, height: float, text: str, colour: str) -> None:
    axes.annotate(
        text,
        xy=(1.0, height),
        xycoords=("axes fraction", "data"),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize=_FONT - 1,
        color=colour,
        annotation_clip=False,
    )


def _draw_host(axes: Axes, curves: Sequence[MemoryCurve], scale: _Scale) -> None:
    """What was moved to the host, in the colours of the curves above."""
    most = max(max(curve.host, default=0) for curve in curves)
    _plain(axes, _span(curves), most / scale.size)
    axes.set_ylabel(f"host ({scale.unit})", fontsize=_FONT, color=_INK)
    for curve, colour in zip(curves, _COLOURS, strict=False):
        if any(curve.host):
            values = scale.values(curve.host)
            axes.fill_between(
                range(len(values)), values, color=colour, alpha=0.35, linewidth=0
            )
            _beside(
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


def _plain(axes: Axes, span: tuple[int, int], top: float) -> None:
    """No more ink than the axes need, and a little room above `top`."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_MUTED)
    axes.tick_params(colors=_MUTED, labelsize=_FONT - 2)
    axes.set_xlim(*span)
    axes.set_ylim(0, 1.06 * top if top else 1)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"partial-{path.name}")
    figure.savefig(temporary, format="png", dpi=_DPI)
    temporary.replace(path)
