"""Memory that a step may use of the device that is here, and of its host."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lms.ir.graph import GraphView, Op, Tensor
from lms.machine.host import PINNED_VARIABLE
from lms.machine.ranks import Placement
from lms.planning.settings import read_settings
from lms.tf import compat
from lms.tf.measure import free_memory
from lms.tf.measure.free_memory import host_budget, measure_budget, with_holes
from lms.units import GIB, KIB, MIB
from tests.graphs import make_op

pytestmark = pytest.mark.tf

LIMIT = 320 * MIB


def device(*, holes: tuple[int, ...] | None = ()) -> Any:
    """A device that may be asked for its holes if they are not None."""

    def free_holes(_most: int, _least: int) -> tuple[int, ...]:
        assert holes is not None, "to look takes memory and time"
        return holes

    return SimpleNamespace(
        limit=LIMIT,
        settled_bytes=lambda: 20 * MIB,
        free_holes=free_holes,
    )


CONSTANT = replace(make_op("constant", MIB, persistent=True), constant=True)
GRAPH = GraphView(ops=(make_op("made", 512 * MIB),))  # its large tensors: 64 KiB
STEP = cast(
    "Any",
    SimpleNamespace(
        input_bytes=4 * MIB,
        captured_bytes=10 * MIB,
        graph=GraphView(ops=(CONSTANT,)),
        variables={},
        arguments=(),
        nodes=(),
        device="/device:GPU:0",
    ),
)


def test_a_step_s_batch_comes_beside_what_is_in_use() -> None:
    budget = measure_budget(STEP, read_settings(), device())
    assert budget.persistent == (20 + 4 + 1) * MIB
    assert budget.margin == LIMIT // 32


@pytest.mark.parametrize(
    ("asks", "on_host", "reason"),
    [
        ((MIB, 0), False, ""),
        ((), False, "the scratch of op 'a' is estimated"),
        ((MIB, 0), True, "some of its variables lie on the host"),
    ],
)
def test_memory_that_is_taken_at_unknown_times_is_not_sealed(
    asks: tuple[int, ...], *, on_host: bool, reason: str
) -> None:
    op = replace(make_op("a", MIB), scratch=MIB, asks=asks)
    arguments = [SimpleNamespace(lies_on_host=on_host)]
    known = vars(STEP) | {"graph": GraphView(ops=(op,)), "arguments": arguments}
    step = cast("Any", SimpleNamespace(**known))
    assert measure_budget(step, read_settings(), device()).unsealed == reason


def test_what_another_card_reads_is_not_sealed() -> None:
    graph = GraphView(ops=(make_op("a", MIB),))
    known = vars(STEP) | {"graph": graph}
    for card, reason in ((0, ""), (1, "another card reads op 'a'")):
        reader = compat.made_node("b", "Neg", ["a"], f"/device:GPU:{card}")
        step = cast("Any", SimpleNamespace(**known | {"nodes": (reader,)}))
        assert measure_budget(step, read_settings(), device()).unsealed == reason


@pytest.mark.parametrize(
    ("axis", "reason"), [(0, "op 'b' may share its input's memory"), (1, "")]
)
def test_a_slice_along_the_first_axis_is_not_sealed(axis: int, reason: str) -> None:
    given, made = (4, 8), (2, 8) if axis == 0 else (4, 4)
    whole = Tensor(name="a:0", size=4 * MIB, shape=given)
    part = Tensor(name="b:0", size=2 * MIB, shape=made)
    graph = GraphView(
        ops=(
            Op(name="a", type="Neg", outputs=(whole,)),
            Op(name="b", type="Slice", inputs=("a:0",), outputs=(part,)),
        )
    )
    step = cast("Any", SimpleNamespace(**vars(STEP) | {"graph": graph}))
    assert measure_budget(step, read_settings(), device()).unsealed == reason


def test_swapped_tensors_get_what_may_be_pinned_beside_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PINNED_VARIABLE, "64")
    assert host_budget(read_settings(), staged=4 * MIB) == 60 * MIB
    most = read_settings(host_memory="1MiB")
    assert host_budget(most, staged=4 * MIB) == MIB


@pytest.mark.parametrize(
    ("budget", "holes", "matter", "fences"),
    [
        (None, (20 * MIB, MIB), True, 21 * MIB),
        (None, (200 * MIB, 50 * MIB), True, 250 * MIB),
        (None, (MIB,), False, MIB),  # within the margin
        ("100MiB", (MIB, 64 * KIB), False, MIB + 64 * KIB),
    ],
)
def test_holes_matter_where_a_step_needs_them_too(
    *, budget: str | None, holes: tuple[int, ...], matter: bool, fences: int
) -> None:
    settings = read_settings(budget=budget)
    there = device(holes=holes)
    found = with_holes(measure_budget(STEP, settings, there), there, GRAPH)
    assert (found.holes, found.fences) == (holes if matter else (), fences)
    in_pieces = 16 * fences > 512 * MIB
    assert found.unsealed == "the device's free memory is in pieces" * in_pieces


def test_nobody_looks_for_fragments_that_matter_in_no_way() -> None:
    there = device(holes=None)
    found = measure_budget(STEP, read_settings(budget="100MiB"), there)
    found = replace(found, unsealed="its loops have no order")
    assert with_holes(found, there, GRAPH) == found


def test_workers_of_a_host_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "available_host_bytes", lambda: 64 * GIB)
    monkeypatch.delenv(PINNED_VARIABLE, raising=False)
    assert free_memory.free_host_bytes() == 60 * GIB
    two = Placement(addresses=("a:1", "a:2"))
    monkeypatch.setattr(free_memory, "joined", lambda: two)
    assert free_memory.free_host_bytes() == 30 * GIB
    monkeypatch.setattr(free_memory, "available_host_bytes", lambda: None)
    assert free_memory.free_host_bytes() is None
