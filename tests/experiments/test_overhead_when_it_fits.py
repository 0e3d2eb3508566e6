"""The cost of the callback, measured and drawn at a small size."""

from pathlib import Path

import pytest

from experiments.ledger import read_lines
from experiments.overhead_when_it_fits import main

pytestmark = [pytest.mark.tf, pytest.mark.slow]


def test_every_turn_times_both_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, figure = tmp_path / "overhead.jsonl", tmp_path / "overhead.png"
    words = "--memory 256MiB --size 8 --filters 2 --depth 2 --turns 3 --steps 2"
    assert main(["run", *words.split(), "--results", str(results)]) == 0
    _, rows = read_lines(results)
    assert [row["turn"] for row in rows] == [0, 1, 2, 3]
    times = [row["seconds"][name]["clock"] for row in rows for name in ("plain", "lms")]
    assert all(len(seconds) == 2 for seconds in times)
    main(["draw", "--results", str(results), "--figure", str(figure)])
    assert figure.exists()
    assert "with the callback takes" in capsys.readouterr().out
