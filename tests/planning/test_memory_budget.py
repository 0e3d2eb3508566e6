"""What a step may use of a device."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lms.planning.memory_budget import MemoryBudget, budget_in
from lms.planning.settings import read_settings
from lms.tf.measure.device_budget import Batches, measure_budget, with_holes
from lms.units import MIB

LIMIT = 320 * MIB


def device(*, pipeline: bool, holes: tuple[int, ...] | None = ()) -> Any:
    """A device that may be asked for its holes if they are not None."""

    def free_holes(_most: int) -> tuple[int, ...]:
        assert holes is not None, "to look takes memory and time"
        return holes

    return SimpleNamespace(
        limit=LIMIT,
        holds_input_pipeline=pipeline,
        memory=SimpleNamespace(settled_bytes=lambda: 20 * MIB),
        free_holes=free_holes,
    )


STEP = cast(
    "Any",
    SimpleNamespace(
        input_bytes=4 * MIB,
        captured_bytes=10 * MIB,
        constant_bytes=MIB,
        variables={},
    ),
)


@pytest.mark.parametrize("reads_ahead", [True, False])
@pytest.mark.parametrize("pipeline", [True, False])
def test_a_batch_that_may_wait_is_neither_the_steps_nor_free(
    *, pipeline: bool, reads_ahead: bool
) -> None:
    budget = measure_budget(
        STEP,
        read_settings(),
        device(pipeline=pipeline),
        batches=Batches(is_there=True, read_ahead=reads_ahead),
    )
    waiting = 4 * MIB if pipeline and reads_ahead else 0
    assert budget.margin == LIMIT // 32 + waiting
    assert budget.free == LIMIT - budget.persistent - waiting
    assert budget.free - budget.step == budget.margin - budget.reserved


@pytest.mark.parametrize(
    ("budget", "holes", "matter"),
    [
        (None, (20 * MIB, MIB), True),
        (None, (200 * MIB, 50 * MIB), True),
        (None, (MIB,), False),  # within the margin
        ("100MiB", None, False),  # as much is free again: nobody looks
    ],
)
def test_holes_matter_where_a_step_needs_them_too(
    *, budget: str | None, holes: tuple[int, ...] | None, matter: bool
) -> None:
    settings = read_settings(budget=budget)
    there = device(pipeline=True, holes=holes)
    found = measure_budget(
        STEP, settings, there, batches=Batches(is_there=True, read_ahead=True)
    )
    assert with_holes(found, there).holes == (holes if matter else ())


def _room(budget: int | None) -> MemoryBudget:
    return measure_budget(
        STEP,
        read_settings(budget=budget),
        device(pipeline=True),
        batches=Batches(is_there=True, read_ahead=True),
    )


def test_a_budget_beyond_the_device_is_all_that_the_device_has() -> None:
    whole = _room(None)
    assert whole.is_whole_device
    assert whole.step < whole.free < LIMIT
    most = LIMIT - whole.margin
    for budget in (most, most + 1, LIMIT - 1, LIMIT, 2 * LIMIT):
        assert _room(budget) == whole


def test_more_budget_is_never_less_room() -> None:
    budgets = range(LIMIT // 2, 2 * LIMIT, MIB)
    steps = [
        budget_in(LIMIT, asked=budget, persistent=MIB, waiting=4 * MIB).step
        for budget in budgets
    ]
    assert steps == sorted(steps)


def test_a_budget_that_leaves_room_is_not_the_whole_device() -> None:
    budget = _room(LIMIT // 2)
    assert (budget.total, budget.margin, budget.reserved) == (LIMIT // 2, 0, 0)
    assert not budget.is_whole_device
    assert not budget.tighter(budget, 94).is_whole_device
    whole = _room(None)
    assert whole.tighter(whole, 94).is_whole_device
    assert budget_in(None, asked=None, persistent=0).is_whole_device
    assert not budget_in(None, asked=MIB, persistent=0).is_whole_device
