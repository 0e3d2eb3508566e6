"""A run that is killed goes on; a run anew measures all of it."""

from pathlib import Path

import pytest

from experiments.ledger import Ledger, read_lines, write_lines

SETTINGS = {"sizes": (16, 32), "steps": 3}


def _never() -> dict[str, int]:
    raise AssertionError("measured again")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "results" / "sizes.jsonl"
    Ledger(path, SETTINGS).once({"pair": (16, 32)}, lambda: {"peak_bytes": 7})
    return path


def test_a_row_is_measured_once(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger(path, SETTINGS)
    assert "1 row of sizes.jsonl kept" in capsys.readouterr().out
    assert ledger.once({"pair": (16, 32)}, _never)["peak_bytes"] == 7
    ledger.once({"pair": (32, 48)}, lambda: {"peak_bytes": 9})
    _, rows = read_lines(path)
    assert [row["pair"] for row in rows] == [[16, 32], [32, 48]]
    assert rows[1]["commit"]
    assert rows[1]["machine"]["cores"] > 0


def test_what_fails_leaves_what_was_there(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(AssertionError, match="measured again"):
        Ledger(path, SETTINGS).once({"pair": (1, 2)}, _never)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({**SETTINGS, "steps": 4}, "got steps = 3 instead of 4. Give"),
        ({"sizes": (16, 32)}, "got steps = 3 instead of None. Give"),
        ({**SETTINGS, "seed": 0}, "got seed = None instead of 0. Give"),
    ],
)
def test_rows_of_other_settings_are_not_lost(
    settings: dict[str, object], word: str, path: Path
) -> None:
    before = path.read_bytes()
    with pytest.raises(SystemExit, match=word):
        Ledger(path, settings)
    assert path.read_bytes() == before
    Ledger(path, settings, anew=True).once({"size": 8}, lambda: {"peak_bytes": 8})
    assert len(read_lines(path)[1]) == 1


def test_the_head_names_the_commits_of_its_rows(path: Path) -> None:
    write_lines(path, {}, [{"commit": "abc"}, {"commit": "def"}, {"commit": "abc"}])
    head, _ = read_lines(path)
    assert head["commit"] == "abc, def"
