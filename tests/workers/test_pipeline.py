"""A model over several cards: the same bits, however it is cut and scheduled."""

from typing import Any

import keras
import pytest
import tensorflow as tf

import lms
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf

_TRIAL = "tests.workers.pipeline_trials:trained"

# About half of what each stage of `dense` needs where nothing is planned.
_HALF = 15 << 20


def _trained(
    worker: Worker, name: str, memory: str | int = "300MiB", **how: Any
) -> Any:
    card = {"cards": how.get("cards", 1)}
    return worker.ask(_TRIAL, memory=memory, card=card, name=name, **how)


@pytest.mark.slow
def test_two_planned_cards_of_half_the_memory_make_the_bits_of_one(
    worker: Worker,
) -> None:
    one = _trained(worker, "dense", cards=1, steps=1)
    half = _trained(worker, "dense", _HALF, cards=2, steps=1)
    assert half["devices"] == ["GPU:0", "GPU:1"]
    assert half["digest"] == one["digest"]
    needs = [predicted for kind, _, predicted, *_ in one["reports"] if "back" in kind]
    assert min(needs) > 1.7 * _HALF
    changed = [moved for kind, moved, *_ in half["reports"] if "back" in kind]
    assert min(changed) > 0, "both stages swap or recompute"
    assert max(half["peaks"]) <= _HALF


@pytest.fixture(scope="module", params=["unet", "transformer"])
def two(request: pytest.FixtureRequest, worker: Worker) -> tuple[str, Any]:
    """A network's name, and its training over two cards without a plan."""
    return request.param, _trained(worker, request.param, cards=2)


@pytest.mark.long
@pytest.mark.parametrize("way", [{"cards": 1}, {"cards": 2, "schedule": "gpipe"}])
def test_schedules_and_numbers_of_cards_change_no_bit(
    worker: Worker, two: tuple[str, Any], way: dict[str, Any]
) -> None:
    name, found = two
    assert _trained(worker, name, **way)["digest"] == found["digest"]


@pytest.mark.long
def test_each_card_s_half_is_enough_for_the_same_bits(
    worker: Worker, two: tuple[str, Any]
) -> None:
    name, found = two
    halves = [peak // 2 for peak in found["peaks"]]
    planned = _trained(worker, name, cards=2, budget=halves)
    assert planned["digest"] == found["digest"]
    pairs = zip(planned["peaks"], halves, strict=True)
    assert all(peak <= half for peak, half in pairs)


@pytest.mark.long
def test_four_cards_make_the_bits_of_a_tape_over_the_whole_model(
    worker: Worker,
) -> None:
    plain = _trained(worker, "transformer", plain=True)
    four = _trained(worker, "transformer", cards=4, stages=4)
    assert four["digest"] == plain["digest"]


def _dense() -> Any:
    layers = [keras.layers.Dense(2, name=name) for name in "abc"]
    return keras.Sequential([keras.Input((4,)), *layers])


@pytest.mark.parametrize(
    ("after", "devices", "said"),
    [
        (["x"], ["CPU:0"] * 2, "must name layers of the model, got 'x'"),
        (["b", "a"], ["CPU:0"] * 3, "in the model's order"),
        (["c"], ["CPU:0"] * 2, "none of them its last"),
        (["a"], ["CPU:0"], "one for each of 2 stages, got 1"),
    ],
)
def test_a_cut_that_does_not_fit_the_model_is_refused(
    after: list[str], devices: list[str], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        lms.cut(_dense(), after=after, devices=devices)


def _step(stages: Any, **how: Any) -> Any:
    sgd = keras.optimizers.SGD()
    return lms.pipeline_step(stages, "mse", sgd, **{"micro_batches": 2, **how})


def test_stages_that_cannot_train_are_refused() -> None:
    model = _dense()
    with pytest.raises(TypeError, match="a model and its device"):
        _step([model])
    with pytest.raises(ValueError, match="on a device that is here, got 'GPU:7'"):
        _step([(model, "GPU:7")])
    with pytest.raises(ValueError, match="of one stage, got"):
        _step([(model, "CPU:0"), (model, "CPU:0")])
    with pytest.raises(ValueError, match="must be built"):
        _step([(keras.layers.Dense(2), "CPU:0")])
    with pytest.raises(ValueError, match="`schedule` must be one of gpipe, 1f1b"):
        _step([(model, "CPU:0")], schedule="zero")


def test_stages_that_do_not_fit_one_another_are_refused_before_a_step() -> None:
    other = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])
    before = other.get_weights()
    step = _step([(_dense(), "CPU:0"), (other, "CPU:0")])
    with pytest.raises(ValueError, match="stage 1 must take what stage 0 makes"):
        step(tf.ones([4, 4]), tf.ones([4, 2]))
    assert all((a == b).all() for a, b in zip(before, other.get_weights(), strict=True))


def test_a_batch_that_is_no_multiple_is_refused() -> None:
    step = _step([(_dense(), "CPU:0")])
    with pytest.raises(ValueError, match="must be a multiple of 2 micro-batches"):
        step(tf.ones([5, 4]), tf.ones([5, 2]))


@pytest.mark.parametrize(("schedule", "stage"), [("1f1b", 1), ("gpipe", 0)])
def test_an_error_in_one_stage_ends_the_others_and_leaves_no_sums(
    schedule: str, stage: int
) -> None:
    stages = lms.cut(_dense(), after=["a"], devices=["CPU:0"] * 2)
    step = _step(stages, micro_batches=8, schedule=schedule)
    step(tf.ones([8, 4]), tf.ones([8, 2]))
    backward = next(iter(step._planned.values()))[stage].backward
    own, backward._unplanned = backward._unplanned, _fail
    with pytest.raises(RuntimeError, match="in one stage"):
        step(tf.ones([8, 4]), tf.ones([8, 2]))
    backward._unplanned = own
    assert all(not one.numpy().any() for each in step.stages for one in each.sums)
    step(tf.ones([8, 4]), tf.ones([8, 2]))


def _fail(*_: Any) -> Any:
    raise RuntimeError("in one stage")
