"""Draws ops, copies and memory of a step over time, as a profiler does.

    device to host   ████  ██
    host to device            ████  ███
    compute          ███████░░░████░░██████
    memory           the bytes of the step on the device

Hatches are waits: for a swap-in, for bytes that a swap-out frees, or for a launch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lms.errors import extra
from lms.report.style import (
    BLUE,
    COLOURS,
    FONT,
    GREEN,
    INK,
    MUTED,
    VERMILION,
    Axes,
    Patch,
    Scale,
    beside,
    new_figure,
    plain,
    save,
    tint,
)
from lms.simulation.timeline import Cause, Interval, Lane, Timeline, curve
from lms.units import Seconds

with extra("figures"):
    from matplotlib.ticker import FuncFormatter

__all__ = ["draw_lanes"]

_LANES = (Lane.COMPUTE, Lane.H2D, Lane.D2H)  # from below
_COLOUR = dict(zip(_LANES, (GREEN, BLUE, VERMILION), strict=True))
_WAIT = {
    Cause.SWAP_IN: _COLOUR[Lane.H2D],
    Cause.SWAP_OUT: _COLOUR[Lane.D2H],
    Cause.LAUNCH: MUTED,
}


def draw_lanes(
    timelines: Sequence[tuple[str, Timeline]],
    path: Path | str,
    *,
    title: str,
    note: str = "",
) -> None:
    """Draw steps below each other on one axis of time.

    Args:
        timelines: Label and timeline of each step; one to four.
        path: PNG to write, first under another name: the file is never half written.
        title: Headline, one line.
        note: Source of the numbers, one line.

    Raises:
        ValueError: If there are no timelines, too many, or one without intervals.
    """
    if not 1 <= len(timelines) <= 4:
        raise ValueError(
            f"`timelines` must be one to 4, got {len(timelines)}. Draw more figures."
        )
    for label, timeline in timelines:
        if not timeline.intervals:
            raise ValueError(
                f"timeline {label!r} must have an op or copy, got none. Leave it out."
            )
    height = 1.15 + 2.5 * len(timelines)
    figure = new_figure(10.0, height, title=title, note=note)
    rows = figure.subplots(
        2 * len(timelines), 1, sharex=True, height_ratios=[1.25, 1.0] * len(timelines)
    )
    figure.subplots_adjust(
        left=0.13, right=0.83, top=1 - 0.85 / height, bottom=0.72 / height, hspace=0.35
    )
    longest = max(timeline.seconds for _, timeline in timelines)
    most = max(timeline.device_peak for _, timeline in timelines)
    for i, (label, timeline) in enumerate(timelines):
        _draw_busy(rows[2 * i], label, timeline, longest)
        _draw_memory(rows[2 * i + 1], timeline, most)
    rows[-1].set_xlim(0, longest)
    rows[-1].xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at * 1e3:g}"))
    said = (
        "ms from the start of the step; memory when the host takes it, ahead of the ops"
    )
    rows[-1].set_xlabel(said, fontsize=FONT, color=INK)
    _explain(rows[0])
    save(figure, Path(path))


def _draw_busy(axes: Axes, label: str, timeline: Timeline, longest: Seconds) -> None:
    least = longest / 2000
    for height, lane in enumerate(_LANES):
        spans = _merged(timeline.lane(lane), least)
        axes.broken_barh(spans, (height + 0.1, 0.8), color=_COLOUR[lane], linewidth=0)
        busy = f"busy {timeline.utilisation:.0%}"
        rate = f"{timeline.throughput(lane) / 1e9:.3g} GB/s"
        said = busy if lane is Lane.COMPUTE else rate
        beside(axes, height + 0.5, said, _COLOUR[lane])
    for stall in timeline.stalls:
        span = [(stall.start, stall.seconds)]
        axes.broken_barh(span, (0.1, 0.8), **_hatched(stall.cause))
    axes.set_ylim(0, len(_LANES))
    axes.set_yticks([i + 0.5 for i in range(len(_LANES))], _LANES)
    axes.tick_params(length=0, labelsize=FONT - 1, labelcolor=INK)
    axes.tick_params(axis="x", labelbottom=False)
    axes.spines[:].set_visible(False)
    axes.set_title(
        f"{label}: {timeline.seconds * 1e3:.3g} ms",
        loc="left",
        fontsize=FONT,
        color=INK,
    )


def _hatched(cause: Cause) -> dict[str, Any]:
    """Return the style of a wait, in the colour of the awaited lane."""
    colours = {"facecolor": tint(_WAIT[cause]), "edgecolor": _WAIT[cause]}
    return {**colours, "hatch": "////", "linewidth": 0}


def _merged(
    intervals: Sequence[Interval], least: Seconds
) -> list[tuple[Seconds, Seconds]]:
    """Return starts and lengths of spans; gaps below `least` are closed."""
    spans: list[list[Seconds]] = []
    for interval in sorted(intervals, key=lambda i: i.start):
        if spans and interval.start - spans[-1][1] < least:
            spans[-1][1] = max(spans[-1][1], interval.end)
        else:
            spans.append([interval.start, interval.end])
    return [(start, max(end - start, least)) for start, end in spans]


def _draw_memory(axes: Axes, timeline: Timeline, most: int) -> None:
    scale = Scale.of(most)
    used = curve(timeline.requests) or ((0.0, 0),)
    moments = [0.0, *(at for at, _ in used), timeline.seconds]
    values = scale.values([0, *(size for _, size in used), used[-1][1]])
    axes.fill_between(moments, values, step="post", color=tint(COLOURS[0]), linewidth=0)
    axes.step(moments, values, where="post", color=COLOURS[0], linewidth=1.0)
    plain(axes, (0.0, timeline.seconds), max(1, most) / scale.size)
    axes.set_ylabel(scale.unit, fontsize=FONT - 1, color=INK)
    beside(axes, max(values), f"peak {scale.text(timeline.device_peak)}", COLOURS[0])


def _explain(axes: Axes) -> None:
    axes.legend(
        handles=[
            Patch(label="waits for a swap-in", **_hatched(Cause.SWAP_IN)),
            Patch(label="waits for a swap-out", **_hatched(Cause.SWAP_OUT)),
        ],
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=2,
        frameon=False,
        fontsize=FONT - 2,
        labelcolor=INK,
    )
