"""The one road to a plan: what the host cannot hold is recomputed, or refused."""

from dataclasses import replace

import pytest

from lms.errors import HostMemoryError
from lms.machine.hardware import PRESETS, roofline
from lms.planning.problem import MemoryBudget, PlannedStep, Reason, Speeds
from lms.planning.select import plan_step, workload_of
from lms.planning.settings import read_settings
from lms.units import KIB, MIB
from tests.planning.stored import read_step


def planned(free: int | None) -> PlannedStep:
    """A step whose copies take no time, in two thirds of its peak."""
    step = read_step("drawn_300")
    hardware = replace(PRESETS["v100-nvlink"], h2d=1e13, d2h=1e13, latency=0.0)
    speeds = Speeds(costs=roofline(step.graph, hardware), hardware=hardware)
    workload = workload_of(step.graph, step.own, lambda: speeds)
    budget = MemoryBudget(total=1200 * MIB, margin=0, persistent=0)
    return plan_step(workload, read_settings(), budget, free)


def test_what_a_small_host_cannot_hold_is_recomputed() -> None:
    fastest = planned(None)
    assert fastest.reason is Reason.PLANNED
    assert fastest.plan.recomputed == ()
    found = planned(fastest.memory.host_peak - 1)
    assert found.reason is Reason.SMALL_HOST
    assert found.plan.recomputed
    assert 0 < found.memory.host_peak < fastest.memory.host_peak


def test_a_host_too_small_for_that_too_is_refused() -> None:
    with pytest.raises(HostMemoryError, match=r"Could not hold .* 1.00 KiB are free"):
        planned(KIB)
