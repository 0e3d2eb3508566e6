"""The number of cores that the host lets a process use."""

import psutil
import pytest

from lms.machine.host import PINNED_VARIABLE, pinned_limit, swappable, usable_cores
from lms.units import GIB


def test_cores_are_those_that_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: [3])
    assert usable_cores() == 1


def test_tensorflow_pins_128_gib_unless_the_user_sets_another_limit() -> None:
    assert pinned_limit({}) == 128 * GIB
    assert pinned_limit({PINNED_VARIABLE: "2048"}) == 2 * GIB


def test_swapped_tensors_leave_a_part_of_the_host_free() -> None:
    assert swappable(64 * GIB, 128 * GIB) == 60 * GIB
    assert swappable(64 * GIB, 8 * GIB) == 8 * GIB
