"""What is measured of a card, on an emulated one that is told what it is."""

import pytest

from tests.tf.card import on_card

pytestmark = pytest.mark.tf


def test_the_measured_link_is_the_card_s() -> None:
    h2d, d2h, latency = on_card(
        "tests.tf.card_trials:link_rates",
        FAKE_GPU_H2D=1e9,
        FAKE_GPU_D2H=0.5e9,
        FAKE_GPU_LATENCY=2e-3,
    )
    assert 0.6e9 < h2d < 1.2e9
    assert 0.3e9 < d2h < 0.6e9
    assert 2e-3 < latency < 6e-3


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


def test_memory_that_grows_is_taken_in_one_piece() -> None:
    trial, grows = "tests.tf.card_trials:grown_memory", "true"
    found = on_card(trial, "400MiB", mib=400, TF_FORCE_GPU_ALLOW_GROWTH=grows)
    assert found == {"fit": True, "workspace": "25"}


@pytest.mark.parametrize("budget", [None, "64MiB"])
def test_an_allocator_without_a_limit_has_none(budget: str | None) -> None:
    found = on_card(
        "tests.tf.card_trials:known_limit", budget, TF_GPU_ALLOCATOR="cuda_malloc"
    )
    assert found["limit"] is None
    assert ("nothing is planned" in found["said"]) == (budget is None)


def test_where_nvml_tells_no_memory_cuda_does() -> None:
    assert on_card("tests.tf.card_trials:no_memory_of_gpu_by_nvml") > 0


def test_products_run_alone_in_each_process_before_they_are_planned() -> None:
    assert on_card("tests.tf.card_trials:runs_before_planning") == [1, 0, 1]
