"""Variables on the host: what exceeds the card trains, with the same bits."""

from functools import cache
from typing import Any

import pytest

from tests.tf.worker import Worker

pytestmark = pytest.mark.tf

LONG = ("momentum", "rmsprop", "lion", "accumulation", "averages", "clipped")

_TRIALS = "tests.tf.state_trials"
_MIB = 1 << 20


@cache
def plain(worker: Worker, function: str, **arguments: Any) -> Any:
    asked = f"{_TRIALS}:{function}"
    return worker.ask(asked, memory="1GiB", planned=False, **arguments)


def test_a_variable_moves_and_is_written_and_put_back_where_it_lies(
    worker: Worker,
) -> None:
    found = worker.ask(f"{_TRIALS}:moved", memory="64MiB")
    assert found.pop("left") < 256 * 256 * 4
    assert not found.pop("after_assign")
    assert all(found.values()), found


@pytest.mark.slow
def test_weights_and_slots_of_three_cards_train_and_a_step_is_undone_and_repeated(
    worker: Worker,
) -> None:
    arguments = {"memory": "9MiB", "depth": 8, "planned": True, "failures": 1}
    trial = worker.ask(f"{_TRIALS}:deep", **arguments)
    assert trial["bytes"] > 3 * 8 * _MIB
    assert trial["replans"] == [1]
    assert trial["numbers"] == plain(worker, "deep", depth=8)["numbers"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "policy", "kind"),
    [
        ("adamw", "float32", "normalised"),
        ("adagrad", "float32", "not built"),
        ("scaled", "mixed_float16", "dense"),
        pytest.param("clipped", "mixed_float16", "dense", marks=pytest.mark.long),
        *(
            pytest.param(optimizer, "float32", "dense", marks=pytest.mark.long)
            for optimizer in LONG
        ),
    ],
)
def test_every_optimizer_trains_in_0_45_of_its_memory(
    worker: Worker, optimizer: str, policy: str, kind: str
) -> None:
    trial = worker.ask(
        f"{_TRIALS}:in_part",
        memory="1GiB",
        optimizer=optimizer,
        policy=policy,
        kind=kind,
    )
    assert trial["differ"] == []
    assert trial["on_host"]
    assert trial["within"]
    assert trial["left"] == 0


@pytest.mark.slow
def test_what_loops_keep_for_their_gradients_may_lie_on_the_host(
    worker: Worker,
) -> None:
    asked: dict[str, Any] = {"optimizer": "momentum", "kind": "recurrent"}
    asked["policy"] = "float32"
    trial = worker.ask(f"{_TRIALS}:in_part", memory="1GiB", **asked)
    assert trial["differ"] == []
    assert trial["within"]


@pytest.mark.slow
def test_checkpoints_are_written_and_loaded_in_the_middle(worker: Worker) -> None:
    trial = worker.ask(f"{_TRIALS}:loaded", memory="20MiB", planned=True)
    assert trial == plain(worker, "loaded")


def test_variables_come_back_after_an_error_and_a_refusal(worker: Worker) -> None:
    found = worker.ask(f"{_TRIALS}:given_back", memory="160MiB")
    assert found == {"error": True, "plain": 0, "refused": 0}


def test_nothing_moves_where_state_is_to_stay(worker: Worker) -> None:
    assert worker.ask(f"{_TRIALS}:on_device", memory="64MiB")


@pytest.mark.slow  # TensorFlow waits ten seconds for memory
def test_a_host_that_cannot_pin_so_much_is_named(worker: Worker) -> None:
    limit = {"TF_GPU_HOST_MEM_LIMIT_IN_MB": "8"}
    found = worker.ask(f"{_TRIALS}:full_host", memory="64MiB", environ=limit)
    assert found == {"names_size": True, "equal": True, "on_host": False}
