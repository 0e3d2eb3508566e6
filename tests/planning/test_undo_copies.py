"""Undo copies leave in gaps of the link, and before the variables are written."""

from typing import Any

from lms.planning.undo_copies import UndoGroup, undo_groups
from lms.simulation.timeline import Interval, Lane, Timeline
from lms.units import MIB
from tests.graphs import graph_of, make_op

RATE = MIB  # a MiB takes a second, 10/9 with the reserve


def step(*order: str) -> Any:
    variables = [make_op(name, 4, persistent=True) for name in "uvw"]
    writes = {f"set {n}": make_op(f"set {n}", 0, n, writes=(f"{n}:0",)) for n in "uvw"}
    ops = [writes[name] if name in writes else make_op(name, 4) for name in order]
    return graph_of(*variables, *ops)


def played(*order: str, copies: tuple[tuple[float, float], ...] = ()) -> Timeline:
    lanes = [
        Interval(lane=Lane.COMPUTE, name=name, start=20.0 * i, end=20.0 * (i + 1))
        for i, name in enumerate(order)
    ]
    for start, end in copies:
        lanes.append(Interval(lane=Lane.D2H, name="x:0", start=start, end=end, size=8))
    return Timeline(intervals=tuple(lanes))


def triggers(order: str, sizes: Any, **known: Any) -> list[tuple[str, str | None]]:
    names = order.split(", ")
    graph, timeline = step(*names), played(*names, **known)
    found = undo_groups(graph, {*names}, sizes, timeline, RATE)
    return [("".join(group.handles), group.trigger) for group in found]


def test_variables_leave_in_the_order_of_their_writes() -> None:
    sizes = {f"{name}:0": 18 * MIB for name in "uvw"}  # 20 s each
    order = "a, b, c, d, e, set w, set u, set v"
    assert triggers(order, sizes) == [("w:0", None), ("u:0", "a"), ("v:0", "b")]


def test_copies_leave_between_planned_ones() -> None:
    sizes = {"u:0": 18 * MIB, "v:0": 18 * MIB}
    order, copies = "a, b, c, d, e, f, set u, set v", ((10.0, 30.0), (50.0, 60.0))
    assert triggers(order, sizes, copies=copies) == [("u:0", "a"), ("v:0", "c")]


def test_a_copy_without_a_gap_leaves_before_the_write_that_waits_for_it() -> None:
    sizes = {"u:0": 18 * MIB, "v:0": 90 * MIB}
    assert triggers("a, set u, b, set v, c, d", sizes, copies=((0.0, 70.0),)) == [
        ("u:0", "a"),
        ("v:0", "b"),
    ]


def test_small_variables_leave_together_and_all_their_writers_wait() -> None:
    graph = step("a", "set v", "b", "set u", "set w")
    sizes = {"u:0": MIB, "v:0": MIB}
    found = undo_groups(graph, {"a", "b"}, sizes, played("a", "b"), RATE)
    writers = ("set v", "set u")
    assert found == [UndoGroup(handles=("v:0", "u:0"), writers=writers, trigger=None)]


def test_a_step_without_early_writes_copies_nothing() -> None:
    assert undo_groups(step("a", "set u"), {"a"}, {}, played("a"), RATE) == []
