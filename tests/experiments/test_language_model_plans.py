"""GPT-2 on published hardware: goals are met or not, and a refusal is shown."""

from pathlib import Path
from typing import Any

import pytest

from experiments.language_model_plans import main
from lms.units import GIB
from tests.experiments.conftest import Draw

CARDS = ("v100-pcie", "v100-nvlink", "h100-pcie5")


def _rows(seconds: float, gib: float) -> list[dict[str, Any]]:
    """By hand: 5 GiB and 1.3 s. The callback in 6 GiB: as it is asked for."""
    ways = {
        "plain": (13.5, 1.0),
        "by hand": (5.0, 1.3),
        "callback, as by hand": (4.5, 1.4),
        "callback, 6 GiB": (gib, seconds),
    }
    rest = {"error": None, "swapped_out_bytes": 0, "twice": 0}
    rows = [
        {"card": card, "way": way, "peak_bytes": size * GIB, "seconds": took, **rest}
        for card in CARDS
        for way, (size, took) in ways.items()
    ]
    error = {"error": "`budget` must be at least 5 GiB", "least_bytes": 5 * GIB}
    return [*rows, *({"card": one, "way": "callback, 4 GiB"} | error for one in CARDS)]


@pytest.mark.parametrize(
    ("seconds", "gib", "status"), [(1.3, 5.0, 0), (1.31, 5.0, 1), (1.3, 5.1, 1)]
)
def test_blocks_by_hand_are_to_be_reached_in_bytes_and_in_time(
    seconds: float, gib: float, status: int, draw: Draw
) -> None:
    drawn, said = draw(main, _rows(seconds, gib), length=1024)
    assert drawn == status
    assert said.count("refused") == len(CARDS)


def test_without_keras_hub_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("experiments.language_model_plans.find_spec", lambda _: None)
    with pytest.raises(SystemExit, match=r"pip install -e '.\[zoo\]'"):
        main(["run", "--results", str(tmp_path / "rows.jsonl")])
