"""What TensorFlow makes of Keras's layers where there is a GPU."""

import pytest

from tests.tf.worker import Worker

pytestmark = pytest.mark.tf


def test_what_cudnn_s_recurrent_layers_keep_has_a_bound(worker: Worker) -> None:
    found = worker.ask("tests.tf.card_trials:recurrent_layers", memory="256MiB")
    assert set(found) == {"LSTM", "GRU", "Bidirectional"}
    for shapes in found.values():
        assert shapes[3:] == [[16 * 12 * 4 * 16], [64]]
