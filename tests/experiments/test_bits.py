"""Each training of a model ends as one of four words; rows alone decide which."""

from pathlib import Path
from typing import Any

import pytest

from experiments.__main__ import main
from experiments.bits import answer, device_for
from experiments.judging import Outcome, judge, least_named
from experiments.runner import read_lines
from lms.units import MIB

OOM = "OOM when allocating tensor with shape[1,8] and type float on CPU:0"


def _row(kind: str = "training", megabytes: int = 60, **others: Any) -> dict[str, Any]:
    row = {"model": "bert", "kind": kind, "share": 0.6, "repeat": 1, "error": None}
    row |= {"memory_bytes": megabytes * MIB, "losses": ["0x1p+0", "0x1p-1"]}
    row |= {"sha256": "ab", "refused": None, "report": None, "peak_bytes": 100 * MIB}
    return row | others


def _failed(error: str, **others: Any) -> dict[str, Any]:
    """A row as it is where there is no result."""
    row = _row(error=error, **others)
    return {k: v for k, v in row.items() if k not in ("losses", "sha256", "refused")}


def _refused(
    least: float | None, megabytes: int = 60, *, kind: str = "training", steps: int = 0
) -> dict[str, Any]:
    named = None if least is None else int(least * MIB)
    refused = {"error": "too little", "op_name": "AddN", "least_bytes": named}
    return _row(kind, megabytes, refused=refused, losses=["0x1p+0"] * steps)


PLAIN = [_row("plain"), _row("plain")]
DIFFERING = {"count": 1, "of": 9, "first": ["conv/bias"]}


def _outcomes(*rows: dict[str, Any]) -> list[str]:
    return [verdict.outcome.value for verdict in judge([*PLAIN, *rows])]


def test_what_has_the_bits_of_plain_keras_is_trained() -> None:
    assert _outcomes(_row()) == ["trained"]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([_failed(OOM)], OOM),
        ([_failed("TimeoutError: not done after 900 s")], "not done after 900 s"),
        ([_row(losses=["0x1p+0", "0x1p-2"])], "from step 2 on"),
        ([_row(losses=["0x1p+0"])], "1 steps instead of 2"),
        ([_row(sha256="cd")], "variables differ"),
        ([_row(sha256="cd", differing=DIFFERING)], "1 of 9 variables differ, first co"),
        ([_refused(50, steps=1)], "refused after 1 steps"),
        ([_refused(50) | {"report": {"replans": 0}}], "refused after a plan failed"),
        ([_refused(None)], "names no least budget"),
        ([_row("asked")], "took a budget in which nothing can train"),
        ([_refused(70, kind="least")], "refused in 1.05 times"),
        # The least budget that a refusal names.
        ([_refused(70)], "was not tried"),
        ([_refused(70), _failed(OOM, kind="least")], "fails, 1 of 1 times: OOM"),
        (
            [_refused(70), _row("least", 74), _failed(OOM, kind="least")],
            "fails, 1 of 2",
        ),
    ],
)
def test_what_else_happens_is_a_defect(rows: list[dict[str, Any]], reason: str) -> None:
    verdict, *_ = judge([*PLAIN, *rows])
    assert verdict.outcome is Outcome.DEFECT
    assert reason in verdict.reason


@pytest.mark.parametrize("kind", ["training", "asked"])
def test_a_refusal_is_right_if_what_it_names_trains(kind: str) -> None:
    refused = _refused(70, kind=kind)
    assert _outcomes(refused, _row("least", 74)) == ["refused", "trained"]


@pytest.mark.parametrize(
    ("other", "outcome"), [(73.4, Outcome.REFUSED), (73.6, Outcome.DEFECT)]
)
def test_refusals_must_name_the_same_least_budget(
    other: float, outcome: Outcome
) -> None:
    rows = [_refused(70, 60), _refused(other, 45), _row("least", 80)]
    assert [v.outcome for v in judge([*PLAIN, *rows])][:2] == [outcome, outcome]


def test_nothing_above_what_trains_may_be_named() -> None:
    verdict, *others = judge([*PLAIN, _refused(70), _row("least", 74), _row("x", 50)])
    assert verdict.reason == "names 70.00 MiB, but a device of 50.00 MiB trains it"
    assert {other.outcome for other in others} == {Outcome.TRAINED}


@pytest.mark.parametrize("own", [{"sha256": "other"}, {"losses": ["0x1p+1"]}])
def test_nothing_is_compared_where_plain_keras_differs_from_itself(
    own: dict[str, Any],
) -> None:
    rows = [_row("plain"), _row("plain", **own), _row(sha256="third")]
    assert [v.outcome for v in judge(rows)] == [Outcome.NOT_COMPARED]


def test_one_plain_training_says_nothing_about_its_bits() -> None:
    assert judge([_row("plain"), _row()])[0].outcome is Outcome.NOT_COMPARED


def test_the_smallest_of_the_named_budgets_is_tried() -> None:
    rows = [_row("plain"), _refused(90), _refused(80), _failed(OOM)]
    rows += [_refused(5, kind="least"), _refused(None)]
    assert least_named(rows) == 80 * MIB
    assert least_named(PLAIN) is None


@pytest.mark.parametrize(("budget", "batch"), [(9, 0), (100, 1), (1000, 7)])
def test_a_device_for_a_budget_has_it_and_not_much_more(
    budget: int, batch: int
) -> None:
    size = device_for(budget * MIB, batch * MIB)
    left = size - max(MIB, size // 32) - batch * MIB
    assert budget * MIB <= left < (budget + 1) * MIB


@pytest.mark.parametrize("sha256", ["ab", "cd"])
def test_the_answer_fails_with_any_defect(sha256: str) -> None:
    rows = [*PLAIN, _row(sha256=sha256), _refused(9, kind="asked"), _row("least", 10)]
    rows += [{"model": "gan", "kind": "plain", "error": OOM}]
    found = answer(rows)
    (bits, said), (ends, failed), (asks, asked) = found.verdicts
    same = sha256 == "ab"
    assert (bits, ends, asks) == (same, True, True)
    assert said.startswith(f"{1 + same} of 2 trainings that ended have")
    assert failed.startswith("0 of 2 trainings failed")
    assert asked.startswith("of 1 models that were never refused 1 were asked")
    assert "0 of 2 pairs of model and card ran three times" in found.finding
    assert len(found.more[0][2]) == 3


def test_without_keras_hub_a_run_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("experiments.bits.find_spec", lambda _: None)
    with pytest.raises(SystemExit, match=r"for bert. Install it: pip install"):
        main(["run", "bits", "--models", "bert", "resnet50"])


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["small_cnn", "small_transformer"])
def test_a_small_model_trains_in_less_with_the_same_bits(
    name: str, tmp_path: Path
) -> None:
    results = tmp_path / "rows.jsonl"
    words = ["run", "bits", "--models", name, "--shares", "0.85", "--repeats", "1"]
    words += ["--results", str(results), "--folder", str(tmp_path)]
    assert main(words) == 0
    _, rows = read_lines(results)
    kinds = [row["kind"] for row in rows]
    assert kinds == ["plain", "plain", "training", "asked", "least"]
    ends = [verdict.outcome.value for verdict in judge(rows)]
    assert ends == ["trained", "refused", "trained"]
    report = rows[2]["report"]
    assert report["swapped_out_bytes"] or report["recomputed_ops"]
    assert len(rows[2]["losses"]) == 6
    before = results.read_bytes()
    assert main(words) == 0
    assert results.read_bytes() == before
