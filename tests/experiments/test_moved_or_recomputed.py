"""What a step costs over a slow link: links, losses and goals, from rows."""

from typing import Any

import pytest

from experiments.moved_or_recomputed import link_rate, main
from experiments.moved_or_recomputed_finding import first_difference
from lms.machine.hardware import preset
from tests.experiments.conftest import Draw

OOM = "OOM when allocating tensor with shape[1,8] and type float on CPU:0"
SETTINGS = {"steps": 4, "idle": 1}
LOSSES = [0.5, 0.25, 0.125, 0.1, 0.05]


def _training(entrant: str, step: float, *losses: float) -> dict[str, Any]:
    row = {"entrant": entrant, "share": None, "error": None, "peak_bytes": 2**20}
    row |= {"memory_bytes": 2**30, "losses": list(losses or LOSSES)}
    row |= {"step_seconds": [9.0, step, step, step, step]}
    row |= {"stolen_seconds": [0.0, 0.0, 0.0, 0.0, 0.0]}
    if entrant not in ("plain", "by hand"):
        report = {"swapped_out_bytes": 2**20, "swapped_in_bytes": 2**21, "replans": 0}
        row["memory_bytes"] = 2**22
        row["report"] = report | {"recomputed_ops": 7, "predicted_seconds": step}
    return row


def _rows(model: str, *trainings: dict[str, Any]) -> list[dict[str, Any]]:
    row = {"kind": "turns", "model": model, "link_rate": 1e8, "memory_bytes": 2**22}
    plain = _training("plain", 2.0)
    return [
        {"kind": "training", "model": model, "error": None},
        {
            "kind": "prediction",
            "model": model,
            "forward_seconds": 0.1,
            "backward_seconds": 0.2,
            "predicted_seconds": 1.0,
        },
        row | {"trainings": [plain, *trainings]},
    ]


def test_a_link_is_as_slow_against_the_step_as_the_card_s() -> None:
    moved = 2**30
    there, here = 0.02, 3.0
    rate = link_rate(predicted=there, measured=here)
    beside = moved / preset("v100-pcie").h2d / there
    assert moved / rate / here == pytest.approx(beside)


@pytest.mark.parametrize(
    ("losses", "differs"),
    [(LOSSES, None), ([*LOSSES, 9.0], None), (LOSSES[:2], None), ([0.5, 0.2], 2)],
)
def test_losses_are_compared_step_by_step(
    losses: list[float], differs: int | None
) -> None:
    assert first_difference(losses, LOSSES) == differs


@pytest.mark.parametrize(
    ("model", "step", "status"),
    # Claimed are 2.4 and 2.2 s; by hand it takes 2.5 s.
    [("gpt2", 2.4, 0), ("gpt2", 2.42, 1), ("unet", 2.2, 0), ("unet", 2.22, 1)],
)
def test_each_kind_of_model_has_its_limit(
    model: str, step: float, status: int, draw: Draw
) -> None:
    by_hand = _training("by hand", 2.5)
    rows = _rows(model, _training("budget", step), by_hand)
    assert draw(main, rows, **SETTINGS)[0] == status


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (
            [_training("by hand", 2.1)],
            "Goal not met: GPT-2: no slower than by hand, 1.05",
        ),
        (
            [_training("threshold", 4.0, 0.5, 0.2)],
            "Goal not met: GPT-2: losses equal plain Keras's, but for ['threshold']",
        ),
    ],
)
def test_a_goal_that_does_not_hold_is_named(
    others: list[dict[str, Any]], said: str, draw: Draw
) -> None:
    rows = _rows("gpt2", _training("budget", 2.2), *others)
    drawn, found = draw(main, rows, **SETTINGS)
    assert drawn == 1
    assert said in found


def test_steps_that_others_delayed_do_not_count(draw: Draw) -> None:
    budget = _training("budget", 2.0)
    budget["step_seconds"] = [9.0, *[2.0] * 5, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0]
    budget["delayed_seconds"] = [0.0] * 6 + [6.0] * 6
    budget["stolen_seconds"] = [0.0] * 12
    rows = _rows("gpt2", budget)
    plain = rows[-1]["trainings"][0]
    plain["step_seconds"] = [9.0] + [2.0] * 11
    plain["stolen_seconds"] = [0.0] * 12
    assert draw(main, rows, **SETTINGS)[0] == 0
    del budget["delayed_seconds"]
    assert draw(main, rows, **SETTINGS)[0] == 1


def test_a_core_that_others_used_is_named(draw: Draw) -> None:
    rows = _rows("gpt2", _training("budget", 2.0))
    rows[-1]["trainings"][0]["step_seconds"] = [9.0, 2.0, 2.0, 6.0, 6.0]
    drawn, said = draw(main, rows, **SETTINGS)
    assert drawn == 1
    assert "up to 3.00 times apart" in said
    assert "Goal not met: GPT-2: nobody else used the core" in said


def test_what_did_not_train_reaches_no_goal(draw: Draw) -> None:
    failed = {"entrant": "budget", "share": None, "error": OOM}
    rows = _rows("vit", failed | {"memory_bytes": 2**22}, _training("cheap", 2.0))
    drawn, said = draw(main, rows, **SETTINGS)
    assert drawn == 1
    assert "ViT does not train" in said
    assert "got nothing" in said
    assert "ops take 30% to 30%" in said


def test_without_keras_hub_a_run_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("experiments.moved_or_recomputed.find_spec", lambda _: None)
    with pytest.raises(SystemExit, match=r"for gpt2. Install it: pip install"):
        main(["run", "--models", "gpt2", "unet"])
