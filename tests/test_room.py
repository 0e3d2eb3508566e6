"""What a step may use of a device."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lms.room import margin_of, measure_room, with_holes
from lms.settings import read_settings
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
    SimpleNamespace(input_bytes=4 * MIB, captured_bytes=10 * MIB, constant_bytes=MIB),
)


@pytest.mark.parametrize("reads_ahead", [True, False])
@pytest.mark.parametrize("pipeline", [True, False])
def test_a_batch_that_may_wait_is_neither_the_steps_nor_free(
    *, pipeline: bool, reads_ahead: bool
) -> None:
    room = measure_room(
        STEP,
        read_settings(),
        device(pipeline=pipeline),
        data_is_there=True,
        reads_ahead=reads_ahead,
    )
    waiting = 4 * MIB if pipeline and reads_ahead else 0
    assert room.margin == margin_of(LIMIT) + waiting
    assert room.free == LIMIT - room.persistent - waiting
    assert room.free - room.step == room.margin - room.reserved


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
    room = measure_room(STEP, settings, there, data_is_there=True, reads_ahead=True)
    assert with_holes(room, there).holes == (holes if matter else ())


def test_a_budget_beyond_the_device_is_all_that_the_device_has() -> None:
    rooms = [
        measure_room(
            STEP,
            read_settings(budget=budget),
            device(pipeline=False),
            data_is_there=True,
            reads_ahead=True,
        )
        for budget in (None, LIMIT, 2 * LIMIT)
    ]
    assert rooms[0] == rooms[1] == rooms[2]
    assert rooms[0].step < rooms[0].free < LIMIT
