"""Both planners, measured and drawn at a small size, and at equal measured peaks."""

from typing import Any

from experiments.planner_comparison_finding import equal_peaks


def _rule(peak: int, moved: int, *, default: bool = True) -> dict[str, Any]:
    row = {"planner": "threshold", "settings": {}, "default_modes": default}
    return row | {"peak_bytes": peak, "swapped_out_bytes": moved}


def _budget(variant: str, peak: int, moved: int) -> dict[str, Any]:
    settings = {"part": 0.5, "variant": variant}
    row = {"planner": "budget", "settings": settings}
    return row | {"peak_bytes": peak, "swapped_out_bytes": moved}


def test_the_rule_may_not_take_more_memory() -> None:
    rows = [
        _rule(90, 50),  # few bytes, and a higher peak
        _rule(70, 80),
        _rule(60, 100),
        _rule(65, 60, default=False),
        _budget("as it is", 75, 40),
        _budget("twice where it can", 66, 25),
    ]
    (own,) = equal_peaks(rows)
    assert own.ratio == 40 / 80
    (twice,) = equal_peaks(rows, twice=True)
    assert twice.ratio == 25 / 100


def test_where_the_rule_does_not_get_nothing_is_compared() -> None:
    rows = [_rule(90, 50), _rule(20, 0), _budget("as it is", 30, 70)]
    (own,) = equal_peaks(rows)
    assert own.rule is None
    assert own.ratio is None
