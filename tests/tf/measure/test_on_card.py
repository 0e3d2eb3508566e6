"""Measurements of a card, on an emulated one with known rates."""

import ast
import os
from types import SimpleNamespace as Part
from typing import Any

import pytest

from lms.emulation import emulate
from lms.emulation.card import LinkRates
from lms.machine.hardware import PRESETS
from lms.tf.measure import scratch
from lms.units import MIB
from tests.programs import python
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf

_TRIALS = "tests.tf.card_trials"


def test_the_measured_link_is_the_card_s(worker: Worker) -> None:
    h2d, d2h, latency = worker.ask(
        f"{_TRIALS}:link_rates",
        memory="256MiB",
        card={"link": LinkRates(h2d=1e9, d2h=0.5e9, latency=2e-3)},
    )
    assert 0.6e9 < h2d < 1.2e9
    assert 0.3e9 < d2h < 0.6e9
    assert 2e-3 < latency < 6e-3


def test_a_card_faster_than_a_call_is_measured_no_faster_than_it_is(
    worker: Worker,
) -> None:
    """A copy of 128 MiB takes 80 us there, a call on a busy host milliseconds."""
    fast = PRESETS["h100-sxm"]
    flops, bandwidth = worker.ask(
        f"{_TRIALS}:rates", memory="8GiB", card={"card": "h100-sxm", "dry": True}
    )
    # Half of a call's time counts at least, so that a rate may be twice the true one.
    assert 0 < flops < 2.1 * fast.flops
    assert 0 < bandwidth < 2.1 * fast.memory_bandwidth


@pytest.mark.slow
def test_full_pinned_memory_is_the_host_s_and_undoes_the_step(worker: Worker) -> None:
    found = worker.ask(
        f"{_TRIALS}:full_pinned_memory",
        memory="100MiB",
        environ={"TF_GPU_HOST_MEM_LIMIT_IN_MB": "16"},
    )
    assert found["swaps"]
    assert found["limit"] <= 16 << 20
    assert found["said"].startswith("Could not pin host memory")
    assert found["same"]


def test_memory_that_grows_is_taken_in_one_piece(worker: Worker) -> None:
    found = worker.ask(
        f"{_TRIALS}:grown_memory",
        memory="400MiB",
        environ={"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
        budget="400MiB",
    )
    assert found == {"fit": True}


def test_an_allocator_without_a_limit_has_none(worker: Worker) -> None:
    trial = f"{_TRIALS}:known_limits"
    environ, budgets = {"TF_GPU_ALLOCATOR": "cuda_malloc"}, (None, "64MiB")
    found = worker.ask(trial, memory="256MiB", environ=environ, budgets=budgets)
    assert [one["limit"] for one in found] == [None, None]
    told = ["nothing is planned" in one["said"] for one in found]
    assert told == [True, False]


def test_where_nvml_tells_no_memory_cuda_does(worker: Worker) -> None:
    assert worker.ask(f"{_TRIALS}:no_memory_of_gpu_by_nvml", memory="64MiB") > 0


def test_products_run_alone_in_each_process_before_they_are_planned(
    worker: Worker,
) -> None:
    found = worker.ask(f"{_TRIALS}:runs_before_planning", memory="256MiB")
    assert found == [1, 0, 1]


@pytest.mark.slow
def test_the_order_of_requests_is_recorded_unless_the_user_records() -> None:
    environ = emulate.environment(
        "256MiB", inherited={**os.environ}, card="v100-pcie", dry=True
    )
    program = f"from {_TRIALS} import requests; print(requests())"
    done = python("-c", program, env=environ)
    assert done.returncode == 0, done.stderr[-2000:]
    within, after = ast.literal_eval(done.stdout)
    assert within == {"Conv2DBackpropInput": []}
    # TensorFlow transposes the gradient and the filters first.
    transposed = [4 * 8 * 64 * 64 * 16, 4 * 3 * 3 * 16 * 32]
    assert after == {"Conv2DBackpropInput": [*transposed, 0]}


@pytest.mark.slow
def test_a_kernel_that_asks_for_its_output_never_writes_in_place() -> None:
    """As oneDNN's Softmax, which an emulated card computes with; a GPU's does write."""
    onednn = {"TF_ENABLE_ONEDNN_OPTS": "1"}
    environ = emulate.environment("256MiB", inherited={**os.environ, **onednn})
    program = f"from {_TRIALS} import in_place; print(in_place())"
    done = python("-c", program, env=environ)
    assert done.returncode == 0, done.stderr[-2000:]
    found = ast.literal_eval(done.stdout)
    assert found == {"Exp": True, "Softmax": False, "Tanh": True}


def test_gradients_of_recurrent_layers_need_what_the_layers_need(
    worker: Worker,
) -> None:
    trial = f"{_TRIALS}:scratch_of_recurrent_layers"
    found = worker.ask(trial, memory="64MiB", needed=5 << 20)
    assert found == {"CudnnRNNV3": 5 << 20, "CudnnRNNBackpropV3": 5 << 20}


@pytest.mark.parametrize("batch", [8, 512])
def test_what_masked_recurrent_layers_reserve_is_measured_in_any_batch(
    worker: Worker, batch: int
) -> None:
    trial = f"{_TRIALS}:reserve_of_recurrent_layers"
    assert worker.ask(trial, memory="512MiB", batch=batch) == {"CudnnRNNV3": True}


def test_chunks_are_split_and_what_constants_make_is_kept(worker: Worker) -> None:
    found = worker.ask(f"{_TRIALS}:memory_of_chunks", memory="64MiB")
    assert found["split"] == 2 << 20
    assert found["told"] == pytest.approx(1 << 20, abs=1024)
    assert found["kept"] == pytest.approx(1 << 20, abs=4096)


@pytest.mark.parametrize(("layout", "batch"), [("NHWC", 1), ("NCHW", 1), ("NHWC", 2)])
def test_images_that_do_not_fit_are_measured_by_their_first_rows(
    layout: str, batch: int, worker: Worker
) -> None:
    """Input and output take 4 MiB each."""
    trial = f"{_TRIALS}:requests_for_images"
    asked: Any = {"layout": layout, "batch": batch}
    little = worker.ask(trial, memory="10MiB", **asked)
    assert little == worker.ask(trial, memory="256MiB", **asked)
    assert len(little) == 3


@pytest.mark.parametrize("kind", [{}, {"card": "t4", "dry": True}])
def test_the_gradient_of_a_pooling_takes_no_scratch(kind: Any, worker: Worker) -> None:
    """As cuDNN's: a computing card keeps its own kernel's in the host's memory."""
    trial = f"{_TRIALS}:scratch_of_poolings"
    found = worker.ask(trial, memory="256MiB", card=kind)
    assert found == {"float16 MaxPoolGrad": 0, "float32 MaxPoolGrad": 0}


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "tried"), [("12MiB", 4 * MIB), ("64MiB", 0)])
def test_a_bias_s_gradient_tries_a_kernel_where_it_did_not_run_alone(
    memory: str, tried: int
) -> None:
    """Check that the tried kernel's copy of the input counts as scratch."""
    known = {**os.environ}
    environ = emulate.environment(memory, inherited=known, card="t4", dry=True)
    program = f"from {_TRIALS} import scratch_of_a_bias as f; print(f())"
    done = python("-c", program, env=environ)
    assert done.returncode == 0, done.stderr[-2000:]
    found = ast.literal_eval(done.stdout)
    assert found["size"] == tried
    assert found["asks"] == ((0, tried) if tried else ())
    assert tried <= found["taken"] < tried + MIB


def test_requests_of_an_op_are_extrapolated_from_two_numbers_of_rows() -> None:
    def whole(more: tuple[int, ...], less: tuple[int, ...]) -> tuple[int, ...]:
        parts: Any = [(Part(key="more"), 0.5), (Part(key="less"), 0.25)]
        return scratch._whole_of(parts, {"more": more, "less": less})

    asked = (4096, 2560, -1, 0, 512), (2048, 2560, -1, 0, 384)
    assert whole(*asked) == (8192, 2560, -1, 0, 768)
    assert whole((4096, 0), (2048,)) == ()
    assert whole((4096, 0), (0, 2048)) == ()
    assert whole((), ()) == ()
