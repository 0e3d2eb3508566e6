"""Figures from plain data: what is written, and what is refused."""

from pathlib import Path

import pytest

from lms.simulation.timeline import Cause, Interval, Lane, Request, Stall, Timeline
from profiling.lanes_figure import draw_lanes


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


def test_steps_are_drawn_below_each_other_and_the_same_data_draws_the_same_bytes(
    tmp_path: Path,
) -> None:
    steps = [("fast", step_of(1.0)), ("slow", step_of(2.0))]
    paths = [tmp_path / "new folder" / name for name in ("one.png", "two.png")]
    for path in paths:
        draw_lanes(steps, path, title="Two steps", note="by hand")
    assert sorted(paths[0].parent.iterdir()) == paths  # whole ones, and nothing else
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("count", [0, 5])
def test_lanes_are_drawn_of_one_to_four_steps(count: int, tmp_path: Path) -> None:
    steps = [("a step", step_of(1.0))] * count
    with pytest.raises(ValueError, match="`timelines` must be one to 4"):
        draw_lanes(steps, tmp_path / "lanes.png", title="Too many")


def test_a_step_without_anything_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'empty' must have an op or copy"):
        draw_lanes([("empty", Timeline())], tmp_path / "lanes.png", title="Nothing")
