"""What TensorFlow cannot run in half of its memory runs there when it is planned.

The limits are the allocator's own: the CPU is a device of that memory.
"""

from functools import cache
from typing import Any

import pytest

from lms.units import MIB
from tests.tf.worker import Worker

pytestmark = [pytest.mark.tf, pytest.mark.slow]

RUN = "tests.tf.memory_trials:run"
SIZES: dict[str, dict[str, Any]] = {
    "train": {"kind": "train", "size": 48, "depth": 4},
    "test": {"kind": "test", "size": 48, "depth": 3},
    "predict": {"kind": "predict", "size": 48, "depth": 3},
    "step": {"kind": "step", "size": 32, "depth": 3},
}


@cache
def half_of_the_plain_peak(worker: Worker, kind: str) -> int:
    """Bytes, in whole MiB."""
    plain = worker.ask(RUN, memory="2GiB", planned=False, **SIZES[kind])
    assert plain["outcome"] == "done"
    return plain["peak"] // 2 // MIB * MIB


@pytest.mark.parametrize("kind", SIZES)
def test_in_half_of_its_peak_a_plain_step_runs_out_of_memory(
    kind: str, worker: Worker
) -> None:
    limit = half_of_the_plain_peak(worker, kind)
    plain = worker.ask(RUN, memory=limit, planned=False, **SIZES[kind])
    assert plain["outcome"] == "ResourceExhaustedError"


@pytest.mark.parametrize("kind", SIZES)
def test_in_half_of_the_plain_peak_a_planned_step_runs_as_predicted(
    kind: str, worker: Worker
) -> None:
    limit = half_of_the_plain_peak(worker, kind)
    planned = worker.ask(RUN, memory=limit, planned=True, **SIZES[kind])
    assert planned["outcome"] == "done"
    (report,) = planned["reports"]
    assert report["kind"] == kind
    assert report["swap_count"] > 0
    assert report["budget_bytes"] + report["margin_bytes"] == limit
    assert planned["peak"] <= limit
    assert report["measured_peak_bytes"] == planned["peak"]
    assert planned["peak"] == pytest.approx(report["predicted_peak_bytes"], rel=0.10)
    # The bytes really left: they are neither in the device nor hidden in the process.
    room = planned["resident_before"] + limit + report["host_peak_bytes"]
    assert planned["resident_peak"] <= 1.1 * room
