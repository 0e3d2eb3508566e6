"""What is measured of a card, on an emulated one that is told what it is."""

import pytest

from tests.tf.card import on_card

pytestmark = pytest.mark.tf


def test_the_measured_link_is_the_card_s() -> None:
    h2d, d2h = on_card(
        "tests.tf.card_trials:link_rates", FAKE_GPU_H2D=1e9, FAKE_GPU_D2H=0.5e9
    )
    assert 0.6e9 < h2d < 1.2e9
    assert 0.35e9 < d2h < 0.6e9


@pytest.mark.slow
def test_full_pinned_memory_is_the_host_s_and_undoes_the_step() -> None:
    found = on_card(
        "tests.tf.card_trials:full_pinned_memory",
        mib=100,
        TF_GPU_HOST_MEM_LIMIT_IN_MB=16,
    )
    assert found["swaps"]
    assert found["limit"] <= 16 << 20
    assert found["said"].startswith("swapped tensors must find pinned memory")
    assert found["same"]
