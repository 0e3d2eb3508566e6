"""What is measured of a card, on an emulated one that is told what it is."""

import pytest

from lms.machine.link import LinkRates
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf


def test_the_measured_link_is_the_card_s(worker: Worker) -> None:
    card = {"link": LinkRates(h2d=1e9, d2h=0.5e9)}
    trial = "tests.tf.card_trials:link_rates"
    h2d, d2h = worker.ask(trial, memory="256MiB", card=card)
    assert 0.6e9 < h2d < 1.2e9
    assert 0.35e9 < d2h < 0.6e9
