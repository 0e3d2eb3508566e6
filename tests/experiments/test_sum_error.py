"""The table of errors, on volumes so small that all ways are right."""

from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.tf


def test_small_volumes_are_summed_rightly_in_all_ways() -> None:
    from experiments.volume_sums import measure

    found = measure(8)
    assert list(found)[:4] == ["sum", "loss", "Dice", "variance"]
    for ways in found.values():
        for values in ways[:2]:
            if values is not None:
                np.testing.assert_allclose(values, ways[2], rtol=1e-5)


def test_the_error_is_that_of_the_label_that_is_farthest_off() -> None:
    from experiments.sum_error import worst

    row = worst(np.array([1.0, 2.2]), np.array([1.5, 2.02]), np.array([1.0, 2.0]))
    assert row == {
        "own_error": pytest.approx(0.1),
        "error": pytest.approx(0.01),
        "value": 2.0,
    }


def test_a_run_goes_on_and_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from experiments.sum_error import main

    words = ["--results", str(tmp_path / "sums.jsonl")]
    assert main(["run", *words, "--sizes", "8"]) == 0
    assert main(["run", *words, "--sizes", "8", "12"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "12^3"
    figure = tmp_path / "sums.png"
    assert main(["draw", *words, "--figure", str(figure)]) == 0
    assert figure.exists()
    said = capsys.readouterr().out
    assert said.count("8^3") >= 6
    assert "Goal met" in said
