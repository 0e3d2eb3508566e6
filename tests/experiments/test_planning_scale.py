"""Planning time, measured and drawn at a small size."""

from pathlib import Path

import pytest

from experiments.drawn_graphs import unet_like
from experiments.ledger import read_lines
from experiments.planning_scale import main
from lms.ir.liveness import lower_bound, peak


def test_a_result_file_says_how_it_came_about_and_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, figure = tmp_path / "scale.jsonl", tmp_path / "scale.png"
    words = ["--ops", "400", "600", "--repeats", "1", "--models"]
    assert main(["run", *words, "--results", str(results)]) == 0
    head, rows = read_lines(results)
    assert head["settings"] == {"repeats": 1, "share": 0.5}
    assert {"machine", "versions", "commit", "units"} < head.keys()
    assert [row["ops"] for row in rows] == [400, 600]
    with_margin = 33 / 32  # beside the room
    assert all(0 < row["peak_bytes"] <= row["room_bytes"] * with_margin for row in rows)
    status = main(["draw", "--results", str(results), "--figure", str(figure)])
    assert status == 0
    assert figure.exists()
    assert "600" in capsys.readouterr().out


def test_more_ops_are_more_layers_of_the_same_sizes() -> None:
    small, large = unet_like(500), unet_like(1000)
    assert (len(small.ops), len(large.ops)) == (500, 1000)
    assert lower_bound(small) == lower_bound(large)
    assert peak(large) > 1.5 * peak(small)


def test_too_few_ops_for_a_step_are_refused() -> None:
    with pytest.raises(ValueError, match="`ops` must be at least"):
        unet_like(10)
