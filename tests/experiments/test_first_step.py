"""How long the first step waits: ratios, goals and the figure; and a small run."""

from typing import Any

from experiments.first_step import ANSWER


def row(model: str, number: int, plain: float, cold: float, warm: float) -> Any:
    seconds = {"plain": plain, "cold": cold, "warm": warm}
    ways = {way: {"first_seconds": taken} for way, taken in seconds.items()}
    return {"model": model, "round": number, "ways": ways}


ROWS = [
    row("resnet50", 1, 4.0, 6.0, 5.0),
    row("vgg16", 1, 2.0, 5.0, 2.2),
    row("resnet50", 2, 4.0, 8.4, 4.0),
    row("resnet50", 3, 8.0, 12.8, 20.0),
]


def test_rounds_are_compared_one_by_one() -> None:
    text, (title, _, body) = ANSWER.finding({}, ROWS)
    assert "2.05 times" in text
    assert "at most 2.50" in text
    assert "median of 3 rounds" in title
    assert body[0] == ["ResNet50", "4.0 s", "8.4 s", "5.0 s", "1.60", "1.25"]


def test_the_worst_model_decides() -> None:
    (cold, is_cold_met), (warm, is_warm_met) = ANSWER.goals({}, ROWS)
    assert cold.endswith("2.50 (vgg16).")
    assert warm.endswith("1.25 (resnet50).")
    assert (is_cold_met, is_warm_met) == (False, True)
