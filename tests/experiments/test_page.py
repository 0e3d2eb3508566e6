"""The page of results and the README: what the rows say, and nothing else."""

import json
import re
from functools import partial
from pathlib import Path

import pytest

from experiments import page as pages
from experiments import real_cards
from experiments.__main__ import main
from experiments.page import QUESTIONS, answer_of, page
from experiments.question import Answer
from experiments.runner import RESULTS, Book

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "results.md").read_text()


def test_the_committed_pages_and_the_readme_are_what_the_rows_say() -> None:
    assert main(["page", "--check"]) == 0, "Run `python -m experiments page`."


def test_a_check_names_what_is_old_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pages, "_DOCS", tmp_path)
    assert main(["page", "--check"]) == 1
    assert "Run `python -m experiments page`" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_step_and_its_base_must_be_of_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head, *rows = (RESULTS / "cost.jsonl").read_text().splitlines()
    last = json.loads(rows[-1]) | {"commit": "f00d"}
    text = "\n".join([head, *rows[:-1], json.dumps(last)])
    (tmp_path / "cost.jsonl").write_text(f"{text}\n")
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    assert main(["page", "--check"]) == main(["page"]) == 1
    told = capsys.readouterr().err
    assert "a step and its base must be of one commit: ViT base: 9fc0aba" in told
    assert "f00d (1)" in told


def test_the_page_is_short_and_its_tables_are_small() -> None:
    lines = TEXT.splitlines()
    words = sum(len(line.split()) for line in lines if not line.startswith("|"))
    assert words <= 3000
    tables = re.findall(r"(?:^\|.*\n)+", TEXT, re.MULTILINE)
    assert tables
    assert all(len(table.splitlines()) <= 2 + 8 for table in tables)


def test_ten_lines_on_top_say_what_fails_first() -> None:
    top = TEXT[: TEXT.index("**Words.**")]
    kinds = re.findall(r"^- (\w+)", top, re.MULTILINE)
    assert len(kinds) <= 10
    assert kinds[-1] == "Never"
    assert kinds == sorted(kinds, key=["Fails", "Holds", "Undecided", "Never"].index)


def test_each_question_has_a_section_or_is_named_as_missing() -> None:
    for name in QUESTIONS:
        found = answer_of(name)
        title = pages.module_of(name).TITLE
        assert (f"## {title}" in TEXT) == (found is not None)
        assert found is not None or f"`{name}`" in TEXT


def test_what_is_left_out_of_the_top_is_counted() -> None:
    verdicts = [(False, f"claim {i} fails") for i in range(7)]
    found = Answer(finding="No.", table=("T", ["a"], [["1"]]), verdicts=verdicts)
    assert "(2 more below)" in page(dict.fromkeys(QUESTIONS, None) | {"bits": found})


def test_a_real_card_has_a_part_of_the_page_and_is_never_tested_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_cards, "RESULTS", tmp_path)
    before = page(dict.fromkeys(QUESTIONS, None))
    assert "a real GPU" in before
    for folder, peak in ((tmp_path / "h100", 3), (tmp_path / "h100" / "predicted", 2)):
        book = Book(path=folder / "cost.jsonl", card="real")
        report = {"predicted_peak_bytes": 4 << 20, "predicted_seconds": 0.5}
        for way, share, step in (("callback", 0.45, peak / 5), ("plain", None, 0.2)):
            key = {"model": "unet", "way": way, "share": share, "repeat": 1}
            row = {"error": None, "peak_bytes": peak << 20, "memory_bytes": 9 << 20}
            row |= {"step_seconds": [step], "report": report}
            book.once(key, partial(dict, row))
    (tmp_path / "h100" / "day.jsonl").write_text("{}")
    text = page(dict.fromkeys(QUESTIONS, None))
    told = "| 45% of its peak | 2 | 4 | 3 | 400.0 | 500.0 | 600.0 | 2.00 | 3.00 | 1 | "
    assert told in text
    assert "- Fails: steps take 1.20 to 1.20 times the promise." in text
    assert "a real GPU" not in text
    assert [name for name, _ in real_cards.pages()] == ["h100"]
