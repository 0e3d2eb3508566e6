"""A trial trains, and says what it took."""

import json
from pathlib import Path

import pytest

from experiments import training_trial
from experiments.turns import Turns

pytestmark = [pytest.mark.tf, pytest.mark.slow]


def test_a_trial_trains_and_says_what_it_took(tmp_path: Path) -> None:
    output = tmp_path / "trial.json"
    words = ["--model=transformer", "--shape", "length=8", "batch=1", "--curves"]
    words += ["--way=budget", "--budget=1GiB", "--steps=2", f"--output={output}"]
    assert training_trial.main(words) == 0
    result = json.loads(output.read_text())
    assert len(result["step_seconds"]) == len(result["losses"]) == 2
    assert result["losses"][1] < result["losses"][0]
    assert max(result["curves"]["planned"]) > 0
    assert result["report"]["swap_count"] == 0


def test_a_trial_on_one_core_is_there_with_all_its_threads(tmp_path: Path) -> None:
    shape = ("--shape", "size=8", "filters=2", "depth=2")
    trial = Turns(
        "one core",
        memory=2**28,
        flags=("--model=unet", "--way=plain", "--steps=2", "--core=0", *shape),
        folder=tmp_path,
    )
    while trial.waits:
        trial.step()
    error, result = trial.end()
    assert error is None
    assert len(result["losses"]) == 2
    assert result["cores"] == 1
