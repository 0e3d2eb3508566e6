"""The page of results and the README: what the result files say, and nothing else."""

from pathlib import Path

import pytest

from experiments.ledger import write_lines
from experiments.results_costs import costs
from experiments.results_page import main
from experiments.results_sections import QUESTIONS, RESULTS, section_of
from experiments.results_words import unexplained

FITS = [
    {"turn": i, "seconds": {way: {"clock": [1.0], "processor": [2.0]} for way in ways}}
    for i in range(4)
    for ways in [("plain", "lms")]
]
STEPS = {"step_seconds": [9.0, 9.0, 1.0], "error": None, "peak_bytes": 2**20}
PLACE = {"card": "v100-pcie", "link": "pcie3", "model": "unet", "number": 192}
NUMBERS = ("planned_out", "planned_in", "copies_out", "copies_in", "recomputed_ops")
NUMBERS += ("planned_out_bytes", "planned_in_bytes")
NUMBERS += ("copied_out_bytes", "copied_in_bytes")
CARDS = [
    {
        **PLACE,
        **STEPS,
        **dict.fromkeys(NUMBERS, 0),
        "way": "plain",
        "busy_seconds": 0.9,
    },
    {
        **PLACE,
        **STEPS,
        "way": "callback",
        "step_seconds": [9.0, 9.0, 1.1],
        **dict.fromkeys(NUMBERS, 2),
        "promised_seconds": 1.2,
        "promised_plain_seconds": 1.0,
        "promised_peak_bytes": 2**20,
        "budget_bytes": 2**21,
        "planning_seconds": 3.0,
        "copying_in_seconds": 1.0,
        "hidden_in_seconds": 0.75,
    },
]
README = "Before.\n\n<!-- results:costs -->\nold\n<!-- /results -->\n\nAfter.\n"


def _run(tmp_path: Path, *words: str) -> int:
    paths = {"results": "results", "output": "page.md", "readme": "README.md"}
    places = [w for k, v in paths.items() for w in (f"--{k}", str(tmp_path / v))]
    return main([*places, *words])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "results" / "overhead_when_it_fits.jsonl"
    write_lines(path, {"steps": 1}, FITS)
    write_lines(path.with_stem("virtual_cards"), {"steps": 3}, CARDS)
    (tmp_path / "README.md").write_text(README)
    return tmp_path


def test_the_committed_page_and_readme_are_what_the_results_say() -> None:
    assert main(["--check"]) == 0, "Run `python -m experiments.results_page`."


def test_a_result_becomes_a_finding_a_table_and_a_cost(folder: Path) -> None:
    assert _run(folder) == 0
    page = (folder / "page.md").read_text()
    assert "takes 1.000 times as long" in page
    assert "| clock | 1.000 | 1.000 | 1.000 |" in page
    assert "- Goal met: a step takes at most 1.03 times as long" in page
    assert "No results yet: `true_size`" in page
    readme = (folder / "README.md").read_text()
    assert "| U-Net, 192^3 | 2.00 MiB | V100 16 GB | PCIe 3.0 | 1.10 | 1.20 |" in readme
    assert "- Goal met: a step takes at most 1.15 times" in page
    assert "- Goal not met: the promise is within 5 points: not so for U-Net" in page
    assert "| 2 + 2 / 2 + 2 | 2 B / 2 B | 75% |" in page
    assert readme.startswith("Before.\n")
    assert readme.endswith("<!-- /results -->\n\nAfter.\n")
    assert "old" not in readme


def test_a_check_names_what_is_old_and_writes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(folder, "--check") == 1
    said = capsys.readouterr().err
    assert "page.md is not" in said
    assert "README.md is not" in said
    assert "`python -m experiments.results_page`" in said
    assert not (folder / "page.md").exists()
    assert (folder / "README.md").read_text() == README


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_column_of_the_page_is_explained(name: str) -> None:
    for _, columns, _ in section_of(name, RESULTS).tables:
        missing = unexplained(name, columns)
        assert not missing, f"Say in experiments/results_words.py what {missing} mean."


def test_every_committed_cost_is_in_the_table() -> None:
    sections = [section_of(name, RESULTS) for name in QUESTIONS]
    body = costs(sections)[2]
    assert body
    assert all(all(cells) for cells in body)
