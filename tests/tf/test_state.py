"""Variables that are not on the device: what they count, and that numbers are equal."""

from pathlib import Path

import pytest

from lms.units import MIB
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf

TRIALS = "tests.tf.state_trials"
ENOUGH, LIMIT = "256MiB", 6 * MIB


def test_what_the_host_makes_takes_its_bytes_where_it_arrives(worker: Worker) -> None:
    trial = worker.ask(f"{TRIALS}:read_from_another_device", memory=None)
    assert trial == {"read": [64 * 32 * 4], "moves": [False], "captured": 0}


def test_state_of_three_times_the_device_trains_with_equal_bits(worker: Worker) -> None:
    plain = worker.ask(f"{TRIALS}:train", memory=ENOUGH, on_host=False)
    found = worker.ask(f"{TRIALS}:train", memory=LIMIT, on_host=True)
    assert found["state"] >= 3 * LIMIT
    assert found["numbers"] == plain["numbers"]
    assert found["measured"] <= LIMIT
    assert abs(found["measured"] / found["predicted"] - 1) <= 0.15
    assert found["moved"] == found["expected"]
    assert found["moved"] <= 32 / 12 * found["state"]  # of 12 bytes a parameter


def test_slots_alone_on_the_host_move_half_as_much(worker: Worker) -> None:
    plain = worker.ask(f"{TRIALS}:train", memory=ENOUGH, on_host=False)
    found = worker.ask(f"{TRIALS}:train", memory=14 * MIB, on_host=True, state="slots")
    assert found["numbers"] == plain["numbers"]
    assert found["held"] == 12  # of two slots for each of six matrices
    assert found["measured"] <= 14 * MIB
    assert found["moved"] == found["expected"]


def test_updates_on_the_host_move_twelve_bytes_of_a_parameter(worker: Worker) -> None:
    plain = worker.ask(f"{TRIALS}:train", memory=ENOUGH, on_host=False)
    found = worker.ask(f"{TRIALS}:train", memory=LIMIT, on_host=True, update="host")
    assert found["numbers"] == plain["numbers"]
    assert found["measured"] <= LIMIT
    assert found["moved"] == found["expected"]
    assert found["moved"] <= 12 / 12 * found["state"]  # of 12 bytes a parameter


@pytest.mark.long
@pytest.mark.parametrize("writes", [1, 9, 17])
def test_an_update_on_the_host_is_undone(worker: Worker, writes: int) -> None:
    trial = f"{TRIALS}:fail_in_the_middle"
    failed = worker.ask(
        trial, memory=LIMIT, raised="OSError", writes=writes, update="host"
    )
    assert failed == {"raised": "UnknownError", "as_before": True}


@pytest.mark.long
@pytest.mark.parametrize(("memory", "held"), [(64, 0), (14, 12), (6, 18)])
def test_state_lives_where_the_step_is_the_fastest(
    worker: Worker, memory: int, held: int
) -> None:
    plain = worker.ask(f"{TRIALS}:train", memory=ENOUGH, on_host=False)
    found = worker.ask(f"{TRIALS}:train", memory=memory * MIB, on_host=True, state=None)
    assert (found["numbers"], found["held"]) == (plain["numbers"], held)


def test_a_step_that_failed_after_some_writes_is_undone(worker: Worker) -> None:
    def fail(raised: str) -> dict[str, object]:
        trial = f"{TRIALS}:fail_in_the_middle"
        return worker.ask(trial, memory=LIMIT, writes=40, raised=raised)

    plain = worker.ask(f"{TRIALS}:train", memory=ENOUGH, on_host=False)
    repeated, failed = fail("MemoryError"), fail("OSError")
    assert repeated == {"numbers": plain["numbers"], "replans": 1, "failed": True}
    assert failed == {"raised": "UnknownError", "as_before": True}


@pytest.mark.long
def test_between_steps_everybody_sees_true_values(
    worker: Worker, tmp_path: Path
) -> None:
    trial = f"{TRIALS}:use_between"
    plain = worker.ask(trial, memory=ENOUGH, folder=str(tmp_path), on_host=False)
    found = worker.ask(trial, memory=LIMIT, folder=str(tmp_path), on_host=True)
    assert found == plain


@pytest.mark.long
@pytest.mark.parametrize(
    ("optimizer", "held"),
    [
        ("adamw", 18),
        ("momentum", 12),
        ("rmsprop", 12),
        ("lion", 12),
        ("clipped by norm", 18),
        ("clipped by the norm of all", 18),
        ("averaged", 24),
        ("adafactor", 12),
        ("accumulating", 0),
    ],
)
@pytest.mark.parametrize("update", ["device", "host"])
def test_each_optimizer_has_equal_bits(
    worker: Worker, optimizer: str, held: int, update: str
) -> None:
    trial = f"{TRIALS}:train"
    plain = worker.ask(trial, memory=ENOUGH, on_host=False, optimizer=optimizer)
    budget = "60MiB" if held == 0 else "12MiB"
    found = worker.ask(
        trial,
        memory=ENOUGH,
        on_host=True,
        optimizer=optimizer,
        budget=budget,
        update=update,
    )
    assert (found["numbers"], found["held"]) == (plain["numbers"], held)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "mebibytes"), [("transformer", 10), ("recommender", 5)]
)
def test_other_models_train_with_equal_bits(
    worker: Worker, kind: str, mebibytes: int
) -> None:
    trial, limit = f"{TRIALS}:train", mebibytes * MIB
    plain = worker.ask(trial, memory=ENOUGH, on_host=False, kind=kind)
    found = worker.ask(trial, memory=limit, on_host=True, kind=kind, update=None)
    assert found["state"] >= 1.8 * limit
    assert found["numbers"] == plain["numbers"]
    assert found["measured"] <= limit


@pytest.mark.long
@pytest.mark.parametrize("writes", range(1, 72, 14))
def test_a_step_is_undone_wherever_it_fails(worker: Worker, writes: int) -> None:
    trial = f"{TRIALS}:fail_in_the_middle"
    found = worker.ask(trial, memory=LIMIT, writes=writes, raised="OSError")
    assert found == {"raised": "UnknownError", "as_before": True}
