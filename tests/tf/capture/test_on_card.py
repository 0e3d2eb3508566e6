"""Ops that TensorFlow makes from Keras's layers where there is a GPU."""

import pytest

from tests.tf.worker import Worker

pytestmark = pytest.mark.tf


def test_what_cudnn_s_recurrent_layers_keep_has_a_bound(worker: Worker) -> None:
    found = worker.ask("tests.tf.card_trials:recurrent_layers", memory="256MiB")
    assert set(found) == {"LSTM", "GRU", "Bidirectional"}
    for shapes in found.values():
        assert shapes[3:] == [[16 * 12 * 4 * 16], [64]]


def test_scratch_of_what_xla_compiles_is_asked_or_measured(worker: Worker) -> None:
    trial = "tests.tf.card_trials:scratch_in_little_room"
    found = worker.ask(trial, memory="64MiB", channels=64)
    assert len(found["scratch"]) == 2


def test_sizes_in_turned_layouts_are_known_though_the_batch_is_open(
    worker: Worker,
) -> None:
    found = worker.ask("tests.tf.card_trials:open_batch", memory="256MiB")
    assert found["permuted"]
    assert found["guessed"] == []
    assert found["varying"] == []
