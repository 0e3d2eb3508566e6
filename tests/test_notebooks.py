"""The notebooks of docs/ run in a kernel, on emulated cards that are too small."""

import json
import sys
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.programs import python

# The outputs of one cell of code; each maps a kind of text to the text.
Cell: TypeAlias = list[dict[str, str]]

NOTEBOOKS = Path(__file__).parent.parent / "docs" / "notebooks"

pytestmark = [pytest.mark.tf, pytest.mark.usefixtures("card")]


def _shown(name: str, parameters: str, cards: int, folder: Path) -> list[Cell]:
    """Run a notebook on cards of 64 MiB; returns what its cells of code showed."""
    emulated = ["-m", "lms", "emulate", "--memory", "64MiB", "--cards", str(cards)]
    run = [sys.executable, "-m", "tests.notebooks", str(NOTEBOOKS / name), parameters]
    python(*emulated, "--", *run, str(folder), check=True)
    return json.loads((folder / "shown.json").read_text())


def _text(cell: Cell) -> str:
    return "".join(output.get("text/plain", "") for output in cell)


def test_a_first_training_runs_out_by_keras_and_trains_by_the_callback(
    tmp_path: Path,
) -> None:
    parameters = "SIDE, CHANNELS, BATCH = 64, 32, 16"
    shown = _shown("first_training.ipynb", parameters, 1, tmp_path)
    *_, plain, trained, table, history = shown
    assert "Plain Keras ran out of memory." in _text(plain)
    assert "planned into 64.00 MiB" in _text(trained)
    assert "Epoch 2/2" in _text(trained)
    (page,) = (output["text/html"] for output in table)
    assert "Large model support" in page
    assert "<iframe" in page
    assert all(0 < peak <= 64 * 2**20 for peak in json.loads(_text(history)))
    assert (tmp_path / "run.html").stat().st_size > 0


@pytest.mark.long
def test_two_cards_train_one_replica_each_by_the_callback(tmp_path: Path) -> None:
    parameters = "SIDE, CHANNELS, BATCH = 64, 32, 32"
    shown = _shown("two_gpus.ipynb", parameters, 2, tmp_path)
    *_, begun, _, _, trained, table = shown
    assert "2 replicas" in _text(begun)
    assert "Epoch 2/2" in _text(trained)
    (page,) = (output["text/html"] for output in table)
    assert "Large model support" in page
