"""The page of results: made of result files alone, whatever is missing or broken."""

import re
from pathlib import Path

import pytest

from experiments.lines import write_lines
from experiments.report import main
from experiments.report_catalogue import CATALOGUE
from experiments.report_page import Section, page

FITS = [
    {"turn": i, "seconds": {way: {"clock": [1.0], "processor": [2.0]} for way in ways}}
    for i in range(4)
    for ways in [("plain", "lms")]
]


def _page(tmp_path: Path, status: int) -> str:
    folder, output = tmp_path / "results", tmp_path / "report"
    words = ["--results", str(folder), "--profiles", str(tmp_path / "none")]
    assert main([*words, "--output", str(output)]) == status
    return (output / "index.html").read_text()


def test_what_is_missing_names_the_command_that_makes_it(tmp_path: Path) -> None:
    text = _page(tmp_path, 0)
    for entry in CATALOGUE:
        assert entry.title in text
        assert entry.command in text
    assert text.count("No result yet.") == len(CATALOGUE)


def test_a_result_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "planning_scale.jsonl").write_text("[]\n")
    text = _page(tmp_path, 1)
    assert "could not be shown" in text
    assert text.count("No result yet.") == len(CATALOGUE) - 1


@pytest.mark.tf
@pytest.mark.slow
def test_a_result_becomes_a_finding_a_table_and_a_figure(tmp_path: Path) -> None:
    path = tmp_path / "results" / "overhead_when_it_fits.jsonl"
    write_lines(path, {"steps": 1}, FITS)
    text = _page(tmp_path, 0)
    assert "takes 1.000 times as long" in text
    assert len(re.findall("data:image/png;base64,", text)) == 1
    assert "Median ratio by the clock" in text


def test_a_page_needs_nothing_beside_it() -> None:
    table = ("Sizes", ["size", "peak"], [["48^3", "1 < 2"]])
    section = Section(name="a", title="A", question="Why?", tables=(table,))
    text = page("Report", "All of it.", [section])
    assert "48³" in text
    assert "1 &lt; 2" in text
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.long
def test_all_committed_results_are_shown(tmp_path: Path) -> None:
    assert main(["--output", str(tmp_path)]) == 0
    assert "could not" not in (tmp_path / "index.html").read_text()
