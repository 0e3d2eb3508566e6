"""A run that is killed goes on; a way that dies is tried with less; time ends a run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import runner
from experiments.runner import Book, OutOfTimeError, Trial, read_lines, why_it_failed
from experiments.subjects import SUBJECTS, attempts
from lms.units import GIB, MIB

OOM = "OOM when allocating tensor with shape[1,2] and type float"


def _never() -> dict[str, int]:
    raise AssertionError("measured again")


@pytest.fixture
def book(tmp_path: Path) -> Book:
    book = Book(path=tmp_path / "results" / "sizes.jsonl", folder=tmp_path)
    book.once({"pair": (16, 32)}, lambda: {"peak_bytes": 7, "error": None})
    return book


def test_a_row_is_measured_once(book: Book) -> None:
    again = Book(path=book.path, folder=book.folder)
    assert again.once({"pair": (16, 32)}, _never)["peak_bytes"] == 7
    again.once({"pair": (32, 48)}, lambda: {"peak_bytes": 9, "error": None})
    _, rows = read_lines(book.path)
    assert [row["pair"] for row in rows] == [[16, 32], [32, 48]]
    assert rows[1]["commit"]
    assert rows[1]["machine"]["cores"] > 0


def test_what_fails_leaves_what_was_there(book: Book) -> None:
    before = book.path.read_bytes()
    with pytest.raises(AssertionError, match="measured again"):
        book.once({"pair": (1, 2)}, _never)
    assert book.path.read_bytes() == before


def test_rows_of_another_card_are_not_lost(book: Book) -> None:
    before = book.path.read_bytes()
    with pytest.raises(SystemExit, match=r"got \{'card': 'emulated'\}. Give another"):
        Book(path=book.path, card="real")
    assert book.path.read_bytes() == before


def test_a_run_whose_time_is_over_keeps_rows_and_begins_nothing(book: Book) -> None:
    over = Book(path=book.path, folder=book.folder, deadline=0.0)
    assert over.once({"pair": (16, 32)}, _never)["peak_bytes"] == 7
    with pytest.raises(OutOfTimeError):
        over.once({"pair": (1, 2)}, _never)


def test_what_a_run_s_end_cuts_off_leaves_no_row(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_ended", lambda *_: None)
    monkeypatch.setattr(runner, "_environment", lambda *_, **__: {})
    trial = Trial(model="small_cnn", longest=10.0)
    row = book.row({"name": "hung"}, trial)
    assert row["error"] == "not done after 10 s"
    ends = replace(trial, longest=float("inf"))
    with pytest.raises(OutOfTimeError):
        Book(path=book.path, folder=book.folder, deadline=1e12).row({"x": 1}, ends)


def test_a_trial_on_a_real_card_has_a_limit_and_leaves_others_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def ended(words: list[str], *_: Any) -> int:
        asked.append(json.loads(words[3]))
        Path(words[4]).with_suffix(".events.json").write_text('{"memory": []}')
        return 0

    monkeypatch.setattr(runner, "_ended", ended)
    book = Book(path=tmp_path / "a.jsonl", folder=tmp_path, card="real", room=GIB)
    other = tmp_path / "a" / "one-more.json"
    other.parent.mkdir()
    other.write_text("{}")
    knobs = {"host_memory": "256GiB", "recompute": True}  # this host has its own memory
    rows = [
        book.row({"name": name}, Trial(memory=memory, knobs=knobs))
        for name, memory in (("one", None), ("two", MIB))
    ]
    assert [one["limit"] for one in asked] == [GIB, MIB]
    assert [row["memory_bytes"] for row in rows] == [GIB, MIB]
    assert asked[0]["knobs"] == {"recompute": True}
    assert other.exists()
    assert len((tmp_path / "allocs.jsonl").read_text().splitlines()) == 2


def test_out_of_memory_is_the_reason_even_before_other_errors() -> None:
    log = f"Traceback\nResourceExhaustedError: Graph execution error:\n  {OOM}\n\nbye"
    assert why_it_failed(log, 1) == OOM
    warning = f"W0000 kernel.h:8] RESOURCE_EXHAUSTED: {OOM}\n"
    assert why_it_failed(warning, -11) == f"{OOM} - and the process crashed"
    assert why_it_failed("half a line", 9) == "exit status 9: half a line"


@pytest.mark.parametrize(
    ("way", "budgets"),
    [
        *((way, [None, 819, 716]) for way in ("rule", "serialised")),
        ("callback", [None]),
    ],
)
def test_a_rival_that_dies_is_tried_with_less(
    way: str, budgets: list[int | None], book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def dies_above(trial: Trial, *_: Any) -> dict[str, Any]:
        asked.append(trial.budget)
        good = trial.budget is not None and int(trial.budget) < 800 * MIB
        return {"error": None if good else OOM, "seconds": 1.0}

    monkeypatch.setattr(runner, "measured", dies_above)
    trial = SUBJECTS["unet"].trial(way, small=True, memory=GIB)
    last = attempts(book, {"way": way}, trial)
    assert [one and one // MIB for one in asked] == budgets
    assert bool(last["error"]) == (way == "callback")
    assert len(book.rows) == 1 + len(budgets)
