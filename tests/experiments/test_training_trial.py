"""A trial on one core."""

from pathlib import Path

import pytest

from experiments.turns import Turns

pytestmark = [pytest.mark.tf, pytest.mark.slow]


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
