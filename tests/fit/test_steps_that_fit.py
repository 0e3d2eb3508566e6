"""Steps that fit run in Keras's own function, from the first one on."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms import LMSCallback
from tests.models import SILENT

pytestmark = pytest.mark.tf


class Noisy(keras.Model):
    """A model whose step draws a number by a kernel that keeps a state."""

    def train_step(self, data: Any) -> dict[str, Any]:
        return {"noise": tf.random.normal([]) + 0.0 * tf.reduce_sum(data)}


def test_a_step_that_fits_draws_the_noise_that_keras_s_own_step_draws() -> None:
    drawn: list[list[float]] = []
    for callbacks in ([], [LMSCallback(verbose=0)]):
        keras.utils.set_random_seed(0)
        made = Noisy()
        made.compile()
        known = {"batch_size": 4, "epochs": 3, "verbose": SILENT}
        history = made.fit(np.ones((8, 4)), **known, callbacks=callbacks)
        drawn.append(history.history["noise"])
    assert drawn[0] == drawn[1]
    assert len({*drawn[0]}) == len(drawn[0])
