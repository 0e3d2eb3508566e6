"""Measurements on an emulated card: ops, rates, holes; and variables that move."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import tensorflow as tf

from lms.tf.measure import scratch, speeds
from lms.tf.measure.bench import Bench, measurements_of
from lms.tf.measure.devices import find_device
from lms.tf.measure.scratch import workspace_limit
from lms.units import GIB, KIB, MIB
from tests.graphs import graph_of, make_op
from tests.tf.steps import specialised
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf


@pytest.fixture(scope="module")
def step() -> Any:
    weights = tf.Variable(tf.ones([256, 256]))

    def train(x: tf.Tensor) -> tf.Tensor:
        z = tf.nn.relu(tf.linalg.matmul(x, weights))
        weights.assign_add(tf.linalg.matmul(x, z, transpose_a=True))
        return tf.reduce_sum(tf.reshape(z, [-1]))

    return specialised(train, tf.TensorSpec([256, 256]))


def test_ops_that_take_time_have_seconds(step: Any) -> None:
    costs = speeds.measure_costs(step, find_device())
    free = [op for op in step.graph.ops if op.persistent or op.alias is not None]
    assert not any(op.name in costs.seconds for op in free)
    timed = {op.type: costs.of(op.name) for op in step.graph.ops if op not in free}
    assert min(timed.values()) > 0 < timed["MatMul"]
    assert costs.source == "measured"
    copies = [replace(op, type="_CopyFromHostToGpu") for op in step.graph.ops]
    assert not any(speeds.is_worth_a_run(step.graph, op) for op in copies)


def test_what_has_no_room_is_not_run_and_counts_by_the_roofline(worker: Worker) -> None:
    """TensorFlow would wait ten seconds for each."""
    found = worker.ask("tests.tf.memory_trials:measure_in_little_room", memory="64MiB")
    assert "large" not in (*found["timed"], *found["scratch_run"])
    # The large op counts as little scratch as its first rows, which have room.
    assert found["scratch"] == {"small": 0, "large": 0}
    assert found["seconds"]["large"] == found["roofline"]["large"] > 0


def test_what_was_measured_once_counts_where_there_is_no_room_any_more(
    step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = find_device()
    before = speeds.measure_costs(step, device)
    monkeypatch.setattr(Bench, "free", 0)
    assert speeds.measure_costs(step, device) == before


def test_what_fails_is_not_tried_again(
    step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    measurements_of(find_device()).seconds.clear()
    monkeypatch.setattr(Bench, "time", lambda _, op: called.append(op.key))
    speeds.measure_costs(step, find_device())
    assert len(called) == len(set(called)) >= 2  # at least the products of matrices


def test_variables_lie_side_by_side_and_keep_their_values(worker: Worker) -> None:
    found = worker.ask("tests.tf.memory_trials:settle_scattered", memory="64MiB")
    assert found["kept"]
    assert found["span_before"] > 2 * found["bytes"]
    assert found["span_after"] < 1.1 * found["bytes"]


def test_rates_are_measured_where_room_is_or_known_from_before(worker: Worker) -> None:
    found = worker.ask(
        "tests.tf.memory_trials:measure_in_a_full_device", memory="16MiB"
    )
    assert "Could not measure" in found["refused"]
    little, roomy, kept = found["rates"]
    assert found["hogs"] > 0
    assert little > 0
    assert roomy == kept > 0


@pytest.mark.slow  # TensorFlow waits for memory
def test_a_full_device_is_said_in_words_of_our_own(worker: Worker) -> None:
    found = worker.ask("tests.tf.memory_trials:fit_in_a_full_device", memory="16MiB")
    assert "out of memory on the device" in found


def test_variables_move_where_there_is_no_room_for_a_copy(worker: Worker) -> None:
    found = worker.ask("tests.tf.memory_trials:settle_in_a_full_device", memory="32MiB")
    assert found["kept"]
    assert found["hogs"] > 0
    assert abs(found["grown"]) < 64 * KIB


def test_slots_that_shared_zeros_get_memory_of_their_own_and_little_more(
    worker: Worker,
) -> None:
    found = worker.ask("tests.tf.memory_trials:settle_shared", memory="64MiB")
    assert (found["kept"], found["bytes"]) == (True, 18 * MIB)
    assert found["missing"] == 6 * MIB  # two of three slots
    assert found["missing_after"] == 0
    assert found["grown"] <= found["missing"] + 0.03 * found["bytes"]


def test_chunks_for_small_tensors_lie_apart_whatever_small_holes_there_are(
    worker: Worker,
) -> None:
    sizes = [128 * 1024] * 12 + [96 * 1024] * 12
    found = worker.ask(
        "tests.tf.memory_trials:small_chunks", memory="48MiB", sizes=sizes
    )
    assert found["taken"] == sum(sizes)  # each has a chunk of just its size
    places = sorted(found["places"])
    assert places[-1] - places[0] < sum(sizes) + 256 * len(sizes)  # in one piece
    gaps = {b - a for a, b in pairwise(places)}
    assert gaps <= {128 * 1024 + 256, 96 * 1024 + 256}


def test_holes_are_found_without_taking_more_than_may_be(worker: Worker) -> None:
    sizes = [6 * MIB, 5 * MIB]
    found = worker.ask("tests.tf.memory_trials:free_holes", memory="48MiB", sizes=sizes)
    others = list(found["none"])  # small ones, of what the process did before
    assert max(others, default=0) < 5 * MIB
    assert list(found["found"]) == [*sizes, *others]
    assert max(found["pieces"]) == 5 * MIB  # the end is full: 6 MiB stand for it
    assert list(found["few"]) == []
    assert found["taken"] <= sum(found["found"]) + 8 * MIB
    assert found["left"] == 0


def test_a_hole_of_gigabytes_is_found(worker: Worker) -> None:
    sizes = [3 * GIB]  # whose bytes 32 bits cannot count; no page of it is touched
    found = worker.ask("tests.tf.memory_trials:free_holes", memory="12GiB", sizes=sizes)
    assert found["found"][0] == 3 * GIB


def test_no_value_is_lost_whatever_its_type_and_where_there_is_no_room(
    worker: Worker,
) -> None:
    # Four share one buffer of zeros; there is no room for four.
    found = worker.ask("tests.tf.memory_trials:settle_all_kinds", memory="24MiB")
    assert found == {"changed": [], "kept": True}


def test_convolutions_may_take_what_a_step_leaves_them() -> None:
    large = make_op("y", 40 * MIB, "x", "w", type="Conv3D", flops=8)
    graph = graph_of(make_op("x", 40 * MIB), make_op("w", 10 * MIB), large)
    # 90 MiB of tensors, 100 of copies
    limits = [workspace_limit(graph, room * MIB) for room in (1000, 200, 120)]
    assert limits == [250, 101, 30]


def test_what_an_op_asks_for_ends_before_its_output() -> None:
    chunks = [(1, 512), (2, 256), (1, -512), (1, 768), (2, -256)]
    assert scratch._asks(chunks) == ((512, 256, -1, 0), 256)
