"""State on the host: what rows say is computed, and a small run is made of trials."""

from pathlib import Path
from typing import Any

import pytest

from experiments.ledger import read_lines, write_lines
from experiments.search import bisect
from experiments.state_on_host import ANSWER, main, rungs

OOM = "OOM when allocating tensor with shape[8,8] and type float on CPU:0"
REFUSED = "`budget` must be at least 9.00 MiB for op 'x': got 8.00 MiB."


def _way(mode: str, memory: int, times: float, **others: Any) -> dict[str, Any]:
    step = {"seconds": 2 * times, "processor_seconds": times}
    step |= {"in_bytes": 700, "out_bytes": 500, "peak_bytes": 3}
    report = {"state_in_bytes": 600, "state_out_bytes": 400}
    report |= {"predicted_peak_bytes": 100, "measured_peak_bytes": 110}
    report |= {"predicted_seconds": times, "slice_bytes": 10, "persistent_bytes": 5}
    way = {"mode": mode, "memory_bytes": memory, "error": None, "parameters": 40}
    way |= {"variable_bytes": 480, "sha256": "a", "steps": [step] * 4}
    way |= {"largest_weights_bytes": 8, "largest_values_bytes": 7}
    return way | {"report": report} | others


def _trained(*ways: dict[str, Any]) -> dict[str, Any]:
    plain = _way("plain", 4096, 1.0)
    return {"kind": "trained", "model": "mlp", "trainings": [plain, *ways]}


def _tried(mode: str, size: int, error: str | None = None) -> dict[str, Any]:
    row = _way(mode, 2**25, 1.0, parameters=1000 * size)
    row |= {"kind": "largest", "model": "mlp", "size": size, "most": 64}
    return row | {"error": error}


def test_the_largest_size_is_searched_by_halves() -> None:
    tried = list(bisect(lambda place: place <= 2, 8))
    assert tried == [(4, False), (2, True), (3, False)]
    assert rungs(64, 2)[::8] == [64, 128, 256]


def test_steps_are_compared_turn_by_turn_without_the_first_two() -> None:
    way = _way("host", 160, 3.0)
    way["steps"] = [
        {**step, "processor_seconds": n} for n, step in enumerate(way["steps"])
    ]
    _, (_, columns, body) = ANSWER.finding({}, [_trained(way)])
    cells = dict(zip(columns, body[0], strict=True))
    assert cells["times"] == "3.0"
    assert cells["a parameter"] == "30.0"
    assert cells["of it state"] == "25.0"
    assert cells["over plain Keras"] == "2.50"
    assert cells["quartiles"] == "2.25 to 2.75"
    assert cells["by the clock"] == "3.00"
    assert cells["numbers"] == "equal"


def test_what_is_refused_is_a_line_with_the_least_budget() -> None:
    refused = {"mode": "host", "memory_bytes": 80, "error": REFUSED}
    rows = [_trained(_way("host", 160, 2.0), refused)]
    said, (_, _, body) = ANSWER.finding({}, rows)
    assert "1 of 2 trainings ran" in said
    assert body[1][-1] == "no plan: at least 9.00 MiB for x"
    goals = dict(ANSWER.goals({}, rows))
    assert all(goals.values())


def test_other_numbers_and_a_far_peak_miss_the_goals() -> None:
    way = _way("host", 160, 2.0, sha256="b")
    way["report"]["measured_peak_bytes"] = 120
    equal, copied, near = ANSWER.goals({}, [_trained(way)])
    assert (equal[1], copied[1], near[1]) == (False, True, False)
    assert "0 of 1" in equal[0]
    assert "20%" in near[0]


def test_a_model_that_cannot_be_made_says_so() -> None:
    missing = {"mode": "plain", "error": "ModuleNotFoundError: keras-hub must be there"}
    row = {"kind": "trained", "model": "gpt2", "trainings": [missing]}
    said, (_, _, body) = ANSWER.finding({}, [row])
    assert said == ""
    assert body[0][0] == "GPT-2"
    assert body[0][-1] == "keras-hub must be there"


@pytest.mark.parametrize(("largest", "is_met"), [(16, True), (15, False)])
def test_the_largest_is_compared_by_parameters(largest: int, *, is_met: bool) -> None:
    rows = [_tried("plain", 4), _tried("plain", 5, OOM)]
    rows += [_tried("host", largest), _tried("host", largest + 1, REFUSED)]
    _, (_, _, body) = ANSWER.finding({}, rows)
    assert body[0][-1] == "out of memory at a tensor of [8,8]"
    assert body[1][2:4] == [f"{1000 * largest:,}", f"{largest / 4:.1f}"]
    ((text, met),) = ANSWER.goals({}, rows)
    assert met is is_met
    assert text.endswith(f"{largest / 4:.1f}.")


def test_a_search_that_ends_says_so() -> None:
    rows = [_tried("plain", 4), _tried("host", 64)]
    said, (_, _, body) = ANSWER.finding({}, rows)
    assert "where the search ends" in said
    assert body[1][-1] == "the search ends here"


def test_the_least_device_is_compared_with_its_parts(tmp_path: Path) -> None:
    least = _way("host", 80, 2.0) | {"kind": "least", "model": "mlp"}
    named = {"kind": "named", "model": "mlp", "mode": "host", "least_bytes": 70}
    link = _way("host", 160, 2.2) | {"kind": "link", "model": "mlp", "link_rate": 5e8}
    rows = [named, {**least, "error": OOM}, least, link]
    _, (_, _, body), (_, _, links) = ANSWER.finding({}, rows)
    assert body[0][:2] == ["perceptron", "state on the host"]
    parts = ["5 B", "8 B", "7 B", "20 B"]
    assert body[0][2:] == ["70 B", "80 B", *parts, "1.8", "2.0"]
    assert links[0][2:] == ["0.5 GB/s", "2200 ms", "4400 ms", "-50%"]
    results, figure = tmp_path / "rows.jsonl", tmp_path / "one.png"
    drawn = [_trained(_way("host", 160, 2.0)), _tried("plain", 4), _tried("host", 16)]
    write_lines(results, {}, drawn)
    assert main(["draw", "--results", str(results), "--figure", str(figure)]) == 0
    assert figure.exists()


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.long
def test_trials_take_turns_and_have_equal_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.state_on_host._FOLDER", tmp_path / "trials")
    results = tmp_path / "rows.jsonl"
    words = ["run", "--models", "recommender", "--parts", "trained"]
    words += ["--epochs", "2", "--steps", "2", "--results", str(results)]
    assert main(words) == 0
    _, (row,) = read_lines(results)
    plain, *others = row["trainings"]
    for way in others:
        assert way["error"] is None
        assert way["sha256"] == plain["sha256"]
        assert way["variable_bytes"] >= 3 * way["memory_bytes"]
        report, step = way["report"], way["steps"][-1]
        assert step["in_bytes"] == report["state_in_bytes"] + report["swapped_in_bytes"]
        assert (
            step["out_bytes"] == report["state_out_bytes"] + report["swapped_out_bytes"]
        )
