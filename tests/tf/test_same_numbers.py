"""Training planned into little memory ends with plain Keras's numbers, bit for bit.

Each case is trained twice in one process, from the same seed and with TensorFlow's
deterministic ops, and every loss, metric, weight and optimizer slot is compared.
"""

import pytest

from tests.models import CASES
from tests.tf.worker import Worker

pytestmark = [pytest.mark.tf, pytest.mark.slow]


# Cases of `make test`, and those of `make test-all` that each stands for.
SHORT = {
    "a 3D U-Net": ("the largest of equal voxels", "a residual network"),
    "a scale too large for the first gradients": (
        "mixed_float16",
        "words whose first gradients are not finite",
    ),
    "two replicas, validation, a smaller last batch": (),
    "halves on two cards": (
        "a train_step of its own",
        "accumulated gradients and a second fit",
        "two optimizers",
    ),
    "two inputs and two outputs": ("sample weights and a partial last batch",),
    "weights and steps of all kinds, and a second fit": (
        "a mirrored strategy of one replica",
        "class weights and validation inside fit",
    ),
    "bfloat16 words, of nobody knows how many sentences": (
        "a loss of as many words as have labels",
        "an embedding whose equal words' gradients are added up",
        "data whose length nobody knows",
        "mixed_bfloat16",
        "two steps per execution, averaged weights",
    ),
    "letters of speech": ("an LSTM in a loop",),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in SHORT else pytest.mark.long)
        for name in CASES
    ],
)
def test_swapped_training_equals_plain_training_bit_for_bit(
    name: str, worker: Worker
) -> None:
    card = {"cards": CASES[name].cards}
    trial = worker.ask(
        "tests.tf.trials:same_numbers", memory="2GiB", card=card, name=name
    )
    assert trial["repeatable"], "plain training must repeat itself to be compared"
    assert trial["different"] == []
    assert {report["kind"] for report in trial["reports"]} == set(CASES[name].kinds)
    swaps = [r["swaps"] for r in trial["reports"] if r["kind"] == "train"]
    least = min if CASES[name].cards == 1 else max  # unlike halves, one budget
    assert least(swaps) > 0, "no tensor was swapped: the comparison says nothing"
    devices = {r["device"] for r in trial["reports"]}
    assert len(devices) == CASES[name].cards, "each card has a plan of its own"
    if CASES[name].knobs.get("recompute"):
        assert min(r["again"] for r in trial["reports"] if r["kind"] == "train") > 0


@pytest.mark.long
def test_a_second_fit_with_other_batches_equals_keras_s_in_every_budget(
    worker: Worker,
) -> None:
    """Keras leaves the batch's size open from then on, and so other ops are fused."""
    budgets = ["1GiB", "60MiB", "40MiB"]
    trial = worker.ask(
        "tests.tf.trials:second_batch_size", memory="2GiB", budgets=budgets
    )
    assert trial["repeatable"]
    assert trial["different"] == {budget: [] for budget in budgets}
    swapped = {b: [n > 0 for n in swaps] for b, swaps in trial["swaps"].items()}
    assert swapped == {
        "1GiB": [False, False],
        "60MiB": [True, False],
        "40MiB": [True, True],
    }


def test_two_threads_train_side_by_side_while_a_third_calls_new_functions(
    worker: Worker,
) -> None:
    trial = worker.ask("tests.tf.trials:fit_in_threads", memory="2GiB", budget="1GiB")
    assert len(trial["swaps"]) == 2
    assert trial["equal"] == [True, True]
