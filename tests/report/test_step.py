"""The words of a report: one line for each plan, one column for each step."""

import json
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from lms.ir.plan import SwapPlan
from lms.report.step import StepReport, headline, save_record, table
from lms.units import MIB
from tests.graphs import graph_of, make_op, one_swap

PLAIN = SwapPlan(planner="none", order=("a", "b"))
GRAPH = graph_of(make_op("a", 8 * MIB), make_op("b", 8, "a"))
SWAPPED = replace(one_swap(GRAPH, (None, "b"), chain="ab"), planner="budget")
REPORT = StepReport(
    kind="train",
    signature="2x4",
    plan=SWAPPED,
    budget_bytes=64 * MIB,
    margin_bytes=0,
    predicted_peak_bytes=60 * MIB,
    measured_peak_bytes=None,
    unplanned_peak_bytes=100 * MIB,
    persistent_bytes=10 * MIB,
    lower_bound_bytes=20 * MIB,
    swapped_out_bytes=8 * MIB,
    swapped_in_bytes=16 * MIB,
    host_peak_bytes=24 * MIB,
    swap_count=1,
    planning_seconds=0.25,
    preparation_seconds=3.0,
)


NEEDS = "LMS train step (2x4): needs"
MOVED = "60.00 MiB with 1 tensor (8.00 MiB) swapped"
SLOWER = "predicted to take 1.20 times as long as unplanned"
DOUBTED = "may exceed 64.00 MiB in another order of ops, planned:"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, f"{NEEDS} 100.00 MiB, planned into 64.00 MiB: {MOVED}"),
        ({"predicted_seconds": 0.3, "unplanned_seconds": 0.25}, f"* swapped, {SLOWER}"),
        (
            {"plan": PLAIN, "unplanned_peak_bytes": 32 * MIB},
            f"{NEEDS} 32.00 MiB, fits in 64.00 MiB, nothing is swapped",
        ),
        ({"unplanned_peak_bytes": 63 * MIB}, f"{NEEDS} 63.00 MiB, {DOUBTED} {MOVED}"),
        (
            {"budget_bytes": 62 * MIB, "margin_bytes": 2 * MIB},
            "*planned into 62.00 MiB (a margin of 2.00 MiB kept):*",
        ),
        ({"not_planned": "all sizes must be known"}, "*runs as without LMS*"),
        (
            {"plan": PLAIN, "budget_bytes": None},
            "*the device has no limit, nothing is swapped",
        ),
        ({"unknown_memory": ("loop",)}, "*(1 loop or op of unknown memory)*"),
    ],
)
def test_a_line_says_what_is_needed_and_what_moves(
    changes: dict[str, Any], line: str
) -> None:
    assert fnmatchcase(headline(replace(REPORT, **changes)), line)


def test_a_line_and_a_row_count_replans() -> None:
    anew = replace(REPORT, replans=2)
    assert headline(anew).endswith("; ran out of memory and was replanned 2 times")
    assert "replans" in table([REPORT, anew])
    assert "replans" not in table([REPORT])


@pytest.mark.parametrize(
    ("plan", "fits"),
    [(PLAIN, True), (SWAPPED, False), (replace(PLAIN, chain=("a", "b")), False)],
    ids=["plain", "swapped", "only ordered"],
)
def test_only_what_neither_swaps_nor_orders_runs_as_it_is(
    plan: SwapPlan, *, fits: bool
) -> None:
    assert replace(REPORT, plan=plan).fits_unplanned is fits


def test_a_table_has_a_column_for_each_step_and_a_dash_for_what_is_unknown() -> None:
    text = table([REPORT, replace(REPORT, kind="test", measured_peak_bytes=50 * MIB)])
    rows = {
        line.split("│")[1].strip(): line for line in text.splitlines() if "│" in line
    }
    assert "train 2x4" in text
    assert "test 2x4" in text
    measured = [cell.strip() for cell in rows["peak, measured"].split("│")[2:4]]
    assert measured == ["-", "50.00 MiB"]
    assert rows["swapped in"].count("16.00 MiB") == 2
    loops = table([replace(REPORT, unknown_memory=("loop",))])
    assert "loops and ops of unknown memory" in loops


def test_without_steps_a_table_says_what_to_do() -> None:
    assert table([]).startswith("Nothing was planned yet: fit, evaluate or predict")


def test_a_measured_peak_above_the_budget_is_marked() -> None:
    for peak, marks in ((65 * MIB, 1), (64 * MIB, 0)):
        text = table([replace(REPORT, measured_peak_bytes=peak)])
        assert text.count("(above the budget)") == marks


def test_a_report_is_readable_when_it_is_printed() -> None:
    many = replace(SWAPPED, order=tuple(str(i) for i in range(5000)))
    assert len(repr(replace(REPORT, plan=many))) < 1000


def test_a_summary_is_plain_text_where_colours_are_forced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Notebooks force them."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in table([REPORT])


def test_numbers_are_all_but_the_plan_as_json_can_hold_them() -> None:
    numbers = replace(REPORT, predicted_seconds=0.3, unplanned_seconds=0.2).numbers()
    assert json.loads(json.dumps(numbers)) == numbers | {"unknown_memory": []}
    assert numbers["slowdown"] == pytest.approx(1.5)
    assert (numbers["planner"], numbers["recomputed_ops"]) == ("budget", 0)
    assert "plan" not in numbers


def test_a_record_has_versions_and_each_step_with_its_plan(tmp_path: Path) -> None:
    save_record(tmp_path / "beside.json", [replace(REPORT, compared=7)])
    record = json.loads((tmp_path / "beside.json").read_text())
    assert {"python", "tensorflow", "keras", "numpy"} <= record["versions"].keys()
    (step,) = record["steps"]
    assert step["compared"] == 7
    assert SwapPlan.from_json(json.dumps(step["plan"])) == REPORT.plan
    assert [path.name for path in tmp_path.iterdir()] == ["beside.json"]


def test_a_row_that_says_nothing_of_any_step_is_left_out() -> None:
    assert "slowdown" not in table([REPORT])
    timed = replace(REPORT, predicted_seconds=0.3, unplanned_seconds=0.25)
    assert "│ 1.20" in table([timed]).replace("  ", "")
    assert "300 ms" in table([timed])
