"""XLA's step: Keras's own function runs where it fits, else steps are planned."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.programs import python
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf

TRIALS = "tests.fit.xla_trials"
LARGE: dict[str, Any] = {"width": 64}  # a training step needs more than 12 MiB
A_GPU = bool(list(Path("/dev").glob("nvidia[0-9]")))


@pytest.mark.slow
def test_a_tried_step_has_xla_s_bits_and_is_compiled_once(tmp_path: Path) -> None:
    dumped = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    environ = {**os.environ, "XLA_FLAGS": dumped, "CUDA_VISIBLE_DEVICES": "-1"}
    ended = python("-m", TRIALS, str(tmp_path), check=True, env=environ)
    found = json.loads(ended.stdout.splitlines()[-1])
    assert len(found) == 4
    for trained in found:
        assert trained["ours"] == trained["plain"]
        assert trained["plain"]["programs"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, {"batch": 7}, {"steps_per_execution": 2}])
def test_nothing_is_planned_where_all_steps_fit(
    worker: Worker, given: dict[str, Any]
) -> None:
    known: dict[str, Any] = {"memory": "64MiB", "width": 16, **given}
    found = worker.ask(f"{TRIALS}:on_card", **known)
    assert found["ours"] == worker.ask(f"{TRIALS}:plain", **known, jit_compile=True)
    assert found["planned"] == []
    lines = found["summary"].splitlines()
    said = [line.split(": with XLA it took")[0] for line in lines]
    assert said == [f"LMS {kind} step" for kind in ("train", "test", "predict")]


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, {"batch": 7}, {"steps_per_execution": 2}])
def test_a_step_that_runs_out_is_undone_and_planned_and_no_batch_is_lost(
    worker: Worker, given: dict[str, Any]
) -> None:
    found = worker.ask(f"{TRIALS}:on_card", memory="12MiB", **LARGE, **given)
    known: dict[str, Any] = {"memory": "64MiB", **LARGE, **given}
    assert found["ours"] == worker.ask(f"{TRIALS}:plain", **known, jit_compile=False)
    assert {*found["planned"]} == {"train"}


@pytest.mark.slow
def test_a_step_that_xla_tried_leaves_no_hole_of_the_batch_s_bytes(
    worker: Worker,
) -> None:
    found = worker.ask(f"{TRIALS}:holes_behind", memory="48MiB", batch=64)
    assert found == []


@pytest.mark.slow
def test_under_a_budget_xla_is_asked_before_its_step_runs(worker: Worker) -> None:
    trial, known = f"{TRIALS}:on_card", {"memory": "64MiB", **LARGE}
    roomy = worker.ask(trial, **known, room=32 << 20)
    assert roomy["planned"] == []
    tight = worker.ask(trial, **known, room=9 << 20)
    assert "train" in tight["planned"]
    assert tight["ours"] == worker.ask(f"{TRIALS}:plain", **known, jit_compile=False)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not A_GPU, reason="no GPU is here: nothing is proved on one")
def test_xla_tells_what_its_step_takes_on_a_gpu() -> None:
    ended = python("-m", TRIALS, check=True)
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["planned"] == []
    assert found["ours"] == pytest.approx(found["plain"], rel=1e-3)
    assert found["asked"] == pytest.approx(found["took"], rel=0.1)
