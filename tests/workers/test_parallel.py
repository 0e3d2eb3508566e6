"""Several workers train one model: the same numbers on all, planned or not."""

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import pytest

from lms.emulation import emulate
from lms.emulation.card import memory_variable
from lms.workers.averaging import optimizers_of
from lms.workers.launching import launch
from tests.tf.worker import Worker

pytestmark = [pytest.mark.tf, pytest.mark.slow]

# Plain Keras's peak is 30 MiB.
HALF = "17MiB"


def _launched(
    name: str,
    folder: Path,
    *,
    workers: int = 2,
    memory: str | None = None,
    more: Mapping[str, str] | None = None,
    each: Sequence[Mapping[str, str]] = (),
) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, what each worker found, and all that they printed."""
    environ = emulate.environment(memory or "1GiB", cards=workers)
    environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", **(more or {})}
    lines = folder / "lines"
    with lines.open("w") as out:
        code = launch(
            [sys.executable, "-m", "tests.workers.parallel_trials", name, str(folder)],
            workers=workers,
            environ=environ,
            each=each,
            out=out,
        )
    found = [folder / f"{rank}.json" for rank in range(workers)]
    told = [json.loads(path.read_text()) for path in found if path.exists()]
    return code, told, lines.read_text()


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the results of two workers in one cluster, on cards of unlike memory."""
    each = [memory_variable(size) for size in ("1GiB", "768MiB")]
    folder = tmp_path_factory.mktemp("numbers")
    code, found, lines = _launched("numbers", folder, each=each)
    assert code == 0, lines
    return found


@pytest.mark.parametrize("way", ["plain", "planned", "one planned", "two at a time"])
def test_all_workers_have_the_same_bits_however_their_steps_run(
    numbers: list[dict[str, Any]], way: str
) -> None:
    digests = {found[way]["digest"] for found in numbers}
    assert digests == {numbers[0]["plain"]["digest"]}
    assert all(min(found["swaps"]) > 0 for found in numbers), "nothing was swapped"


def test_two_workers_train_as_one_with_the_joint_batch(
    numbers: list[dict[str, Any]],
) -> None:
    alone, plain = numbers[0]["alone"], numbers[0]["plain"]
    assert plain["total"] == pytest.approx(alone["total"], rel=1e-6)
    assert plain["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert numbers[1]["plain"]["losses"] == plain["losses"], "metrics are averaged"


def test_gradients_that_are_accumulated_are_those_of_the_joint_batches(
    numbers: list[dict[str, Any]],
) -> None:
    alone = numbers[0]["accumulated alone"]
    first, second = (found["accumulated"] for found in numbers)
    assert first["digest"] == second["digest"] != numbers[0]["plain"]["digest"]
    assert first["total"] == pytest.approx(alone["total"], rel=1e-6)


def test_an_infinity_on_one_worker_skips_the_step_on_all(
    numbers: list[dict[str, Any]],
) -> None:
    first, second = (found["infinity"] for found in numbers)
    assert first == second
    assert first["finite"]
    assert 4 < first["updates"] < 8
    assert first["scales"] == 1, "a second training begins with the scale of the first"


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("steps", "the same steps in an epoch, got 4 on worker 0 and 3 on worker 1"),
        ("model", "the same trainable variables, got"),
        ("order", "must be before `LMSCallback`"),
        ("epoch", "the same first epoch, got 0 on worker 0 and 1 on worker 1"),
        ("validation", "must have the same course in an epoch"),
        ("compiled anew", "must keep the train function that it began with"),
        ("chief stops", "an epoch, got the end of training on worker 0 and another "),
        ("other stops", "an epoch, got another epoch on worker 0 and the end of "),
    ],
)
def test_what_would_hang_is_refused_on_all_workers(
    numbers: list[dict[str, Any]], case: str, said: str
) -> None:
    assert all(said in found["refused"][case] for found in numbers)
    assert numbers[0]["after"]["digest"] == numbers[0]["plain"]["digest"]


def test_what_was_replaced_in_a_model_is_put_back(
    numbers: list[dict[str, Any]],
) -> None:
    assert all(found["put back"] for found in numbers)


def test_three_workers_add_up_and_hear_the_chief(tmp_path: Path) -> None:
    code, found, lines = _launched("collectives", tmp_path, workers=3)
    assert code == 0, lines
    assert all(one["sums"] for one in found)
    assert {one["outside"] for one in found} == {40}
    assert all(one["sparse"] == [[0, 0], [4, 4], [0, 0]] for one in found)
    assert all(len(one["chief's"]) == 10 for one in found)
    assert len({one["special"] for one in found}) == 1
    assert all(one["statistics"]["same"] for one in found)
    assert found[0]["statistics"]["mean"] == [1, 1, 1]
    assert found[0]["said"] == [f"hello of {rank}" for rank in range(3)]


def _limited(
    folder: Path, more: Mapping[str, str], workers: int = 2, **card: Any
) -> list[dict[str, Any]]:
    """Return what each worker of the U-Net found; all must end."""
    folder.mkdir()
    _, found, lines = _launched("limited", folder, workers=workers, more=more, **card)
    assert len(found) == workers, lines
    return found


@pytest.mark.long
def test_half_of_the_memory_is_enough_for_the_same_bits(tmp_path: Path) -> None:
    first = _limited(tmp_path / "plain", {"PLANNED": "0"})
    code, _, _ = _launched("limited", tmp_path, memory=HALF, more={"PLANNED": "0"})
    assert code != 0, "plain Keras must not fit"
    second = _limited(tmp_path / "tight", {"PLANNED": "1"}, memory=HALF)
    more = {"PLANNED": "1", "TAKEN": "4600", "TF_NUM_INTEROP_THREADS": "1"}
    third = _limited(tmp_path / "taken", more, memory=HALF)
    everywhere = [*first, *second, *third]
    assert len({found["weights"] for found in everywhere}) == 1
    for swaps, _, predicted, measured in (one["reports"][0] for one in second):
        assert swaps > 0
        assert measured == pytest.approx(predicted, rel=0.1)
    assert third[1]["reports"][0][1] > 0, "worker 1 was planned anew"


@pytest.mark.long
def test_unlike_cards_train_one_model_with_the_same_bits(tmp_path: Path) -> None:
    first = _limited(tmp_path / "plain", {"PLANNED": "0"}, 3)
    peak = max(found["peak"] for found in first)
    sizes = [peak * tenths // 10 for tenths in (4, 6, 10)]
    each = [memory_variable(size) for size in sizes]
    second = _limited(tmp_path / "unlike", {"PLANNED": "1"}, 3, each=each)
    assert len({found["weights"] for found in [*first, *second]}) == 1
    assert all(f["peak"] <= size for f, size in zip(second, sizes, strict=True))
    assert all(found["reports"][0][0] > 0 for found in second[:2])


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_gone_ends_the_others_with_a_reason(
    tmp_path: Path, number: int
) -> None:
    more = {"PLANNED": "0", "SIGNAL": str(int(number))}
    code, _, lines = _launched("limited", tmp_path, more=more)
    assert code != 0
    if number == signal.SIGSTOP:
        said = "worker 0 of 2 cannot go on: another worker has ended or does not answer"
        assert said in lines


@pytest.mark.long
def test_an_epoch_that_ends_early_on_one_worker_ends_all(tmp_path: Path) -> None:
    more = {"PLANNED": "0", "STOP": "1"}
    code, _, lines = _launched("limited", tmp_path, more=more)
    assert code == 1
    assert "must end an epoch together, got 2 of 4 steps on worker 1" in lines


def test_it_is_too_late_to_join_when_something_ran(worker: Worker) -> None:
    task = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker"}}
    environ = {"TF_CONFIG": json.dumps(task)}
    trial = "tests.workers.parallel_trials:late"
    said = worker.ask(trial, memory="64MiB", environ=environ)
    assert "must be called before TensorFlow runs anything" in said


def test_optimizers_are_found_wherever_a_model_keeps_them() -> None:
    class Two(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.ours = {"d": keras.optimizers.SGD(), "g": [keras.optimizers.Adam()]}

    inner = keras.optimizers.Adam()
    model = Two()
    model.inner = inner  # beside the one that scales its losses
    model.compile(keras.optimizers.LossScaleOptimizer(inner))
    found = optimizers_of(model)
    assert len(found) == 3
    assert inner not in found.values()
    assert model.optimizer in found.values()
