"""A planned step runs in half of what the plain one takes, as predicted.

The limits are the allocator's own, on an emulated card of that memory.
"""

from functools import cache
from typing import Any

import pytest

from lms.units import MIB
from tests.tf.worker import Worker

pytestmark = [pytest.mark.tf, pytest.mark.slow]

BATCH_BYTES = 48**3 * (4 + 3) * 4
RUN = "tests.tf.memory_trials:run"
SIZES: dict[str, dict[str, Any]] = {
    "train": {"kind": "train", "size": 48, "depth": 2},
    "test": {"kind": "test", "size": 48, "depth": 20},
    "predict": {"kind": "predict", "size": 48, "depth": 20},
    "step": {"kind": "step", "size": 48, "depth": 2},
}

# The others run planned as training does.
KINDS = [
    pytest.param(kind, marks=() if kind == "train" else pytest.mark.long)
    for kind in SIZES
]


@cache
def half_of_the_plain_peak(worker: Worker, kind: str) -> int:
    """Bytes, in whole MiB."""
    plain = worker.ask(RUN, memory="2GiB", planned=False, **SIZES[kind])
    assert plain["outcome"] == "done"
    return plain["peak"] // 2 // MIB * MIB


@pytest.mark.parametrize("kind", KINDS)
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
    # A batch more or less may wait in the input pipeline, which is on the device too.
    # How much less scratch kernels take than alone differs between processors.
    least, most = (part * report["predicted_peak_bytes"] for part in (0.8, 1.1))
    batch = 0 if kind == "train" else BATCH_BYTES
    assert least - batch <= planned["peak"] <= most + batch
    # The bytes really left: they are neither in the device nor hidden in the process.
    room = planned["resident_before"] + limit + report["host_peak_bytes"]
    assert planned["resident_peak"] <= 1.1 * room


def test_the_need_of_recurrent_layers_is_foreseen(worker: Worker) -> None:
    """In too little to be sure, where loops run one round at a time."""
    trial = worker.ask("tests.tf.trials:fit_recurrent", memory="48MiB")
    assert trial["unknown"] == []
    assert trial["swaps"] == 0
    assert trial["measured"] == pytest.approx(trial["predicted"], rel=0.15)


def test_weights_that_decay_while_read_are_foreseen_twice(worker: Worker) -> None:
    trial = worker.ask("tests.tf.trials:fit_decayed", memory="256MiB")
    assert trial["swaps"] == 0
    assert 0.95 * trial["predicted"] <= trial["measured"] <= trial["predicted"]
