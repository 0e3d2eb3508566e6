"""Figures from plain data: what is written, and what is refused."""

from pathlib import Path

import pytest

from lms.report.lanes_figure import draw_lanes
from lms.report.memory_figure import MemoryCurve, draw_memory
from lms.simulation.timeline import Cause, Interval, Lane, Request, Stall, Timeline
from lms.units import GIB, MIB

RISE = MemoryCurve(label="without a plan", device=(0, 40 * MIB, 90 * MIB, MIB))
FLAT = MemoryCurve(
    label="with the plan", device=(0, 40 * MIB, 38 * MIB, MIB), host=(0, 0, 52 * MIB, 0)
)


def size_of(path: Path) -> tuple[int, int]:
    """Width and height in pixels, from the header of a PNG."""
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def test_a_figure_is_a_whole_png_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "memory.png"
    draw_memory(
        [RISE, FLAT],
        path,
        title="A step in half of its memory",
        note="Predicted.",
        persistent=8 * MIB,
        budget=50 * MIB,
        lower_bound=30 * MIB,
    )
    assert size_of(path) == (1500, 840)
    assert [file.name for file in path.parent.iterdir()] == ["memory.png"]


def test_the_same_data_draws_the_same_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one.png", "two.png")]
    for path in paths:
        draw_memory([RISE], path, title="A step")
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize(
    "device",
    [(0,), (5,), (0, 0, 0), (1, 2), (6 * GIB, 9 * GIB)],
    ids=["one empty op", "one op", "nothing", "a few bytes", "gibibytes"],
)
def test_any_step_can_be_drawn(tmp_path: Path, device: tuple[int, ...]) -> None:
    path = tmp_path / "memory.png"
    draw_memory([MemoryCurve(label="a step", device=device)], path, title="A step")
    assert size_of(path) == (1500, 840)


@pytest.mark.parametrize("count", [0, 4])
def test_too_few_or_too_many_curves_are_refused(tmp_path: Path, count: int) -> None:
    with pytest.raises(ValueError, match=f"`curves` must be one to 3, got {count}"):
        draw_memory([RISE] * count, tmp_path / "memory.png", title="Nothing")
    assert list(tmp_path.iterdir()) == []


def test_a_curve_without_ops_is_refused_by_name(tmp_path: Path) -> None:
    empty = MemoryCurve(label="nobody", device=())
    with pytest.raises(ValueError, match="curve 'nobody' must have at least one op"):
        draw_memory([empty], tmp_path / "memory.png", title="Nothing")


def step_of(seconds: float) -> Timeline:
    """An op, a swap-out that the next op waits for, and memory."""
    ops = (
        Interval(lane=Lane.COMPUTE, name="a", start=0.0, end=0.2 * seconds),
        Interval(lane=Lane.COMPUTE, name="b", start=0.8 * seconds, end=seconds),
    )
    out = Interval(
        lane=Lane.D2H, name="a:0", start=0.2 * seconds, end=0.8 * seconds, size=8
    )
    stall = Stall(op="b", start=out.start, end=out.end, cause=Cause.SWAP_OUT)
    requests = (Request(at=0.0, key=0, size=8), Request(at=out.end, key=0, size=-8))
    return Timeline(intervals=(*ops, out), stalls=(stall,), requests=requests)


def test_steps_are_drawn_below_each_other(tmp_path: Path) -> None:
    steps = [("fast", step_of(1.0)), ("slow", step_of(2.0))]
    draw_lanes(steps, tmp_path / "lanes.png", title="Two steps", note="by hand")
    assert (tmp_path / "lanes.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["lanes.png"]


@pytest.mark.parametrize("count", [0, 5])
def test_lanes_are_drawn_of_one_to_four_steps(count: int, tmp_path: Path) -> None:
    steps = [("a step", step_of(1.0))] * count
    with pytest.raises(ValueError, match="`timelines` must be one to 4"):
        draw_lanes(steps, tmp_path / "lanes.png", title="Too many")


def test_a_step_without_anything_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'empty' must have an op or copy"):
        draw_lanes([("empty", Timeline())], tmp_path / "lanes.png", title="Nothing")
