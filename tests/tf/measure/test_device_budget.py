"""What a step may use of the device that is here."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lms.planning.settings import read_settings
from lms.tf.measure.device_budget import Batches, measure_budget, with_holes
from lms.units import MIB

pytestmark = pytest.mark.tf

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
