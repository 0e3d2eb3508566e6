"""Answers are computed of rows alone, and fail where they do."""

from typing import Any

import pytest

from experiments import capacity, cards, cost, first_step, predictions, workers
from experiments.question import Answer
from lms.units import MIB

OOM = "OOM when allocating tensor"


def _row(**more: Any) -> dict[str, Any]:
    row = {"error": None, "refused": None, "report": None, "peak_bytes": 100 * MIB}
    return row | {"memory_bytes": 100 * MIB, "losses": []} | more


def _steps(seconds: float) -> list[float]:
    return [9.0, 9.0, seconds, seconds, seconds]


def _verdicts(found: Answer) -> list[bool | None]:
    return [holds for holds, _ in found.verdicts]


def _cost(ours: float, theirs: float, processes: int) -> Answer:
    ways = (("plain", None, 1.0), ("callback", 0.5, ours), ("rule", 0.5, theirs))
    rows = [
        _row(model="unet", way=way, share=share, repeat=i, step_seconds=_steps(s))
        for way, share, s in ways
        for i in range(processes)
    ]
    return cost.answer(rows)


@pytest.mark.parametrize(
    ("ours", "theirs", "processes", "holds"),
    [(1.2, 1.5, 3, True), (1.5, 1.2, 1, False), (1.2, 1.5, 2, None)],
)
def test_a_win_is_decided_by_three_processes_and_a_loss_counts_at_once(
    ours: float, theirs: float, processes: int, *, holds: bool | None
) -> None:
    found = _cost(ours, theirs, processes)
    assert _verdicts(found) == [holds]
    assert f"slower in {int(holds is False)} of 1 pairs" in found.verdicts[0][1]
    text = f"than IBM's rule, card of 50%: 3D U-Net {ours:.2f} against {theirs:.2f}"
    assert (text in found.verdicts[0][1]) == (holds is False)


def test_where_only_a_rival_trains_it_says_so() -> None:
    rows = [
        _row(model="unet", way="plain", share=None, step_seconds=_steps(1.0)),
        _row(model="unet", way="callback", share=0.5, error=OOM),
        _row(model="unet", way="rule", share=0.5, error=OOM),
        _row(model="unet", way="rule", share=0.5, step_seconds=_steps(2.0)),
    ]
    found = cost.answer(rows)
    assert _verdicts(found) == [False]
    assert "3D U-Net nothing trained against 2.00" in found.verdicts[0][1]
    lines = {line[1]: line for line in found.more[1][2]}
    assert lines["rule"][-1] == f"1: {OOM}"
    assert lines["callback"][4] == "out of memory"
    assert found.table[2][0][2] == "did not train"


def test_a_way_that_took_plain_keras_s_memory_did_nothing() -> None:
    rows = [
        _row(model="unet", way=way, share=None, step_seconds=_steps(1.0), peak_bytes=p)
        for way, p in (("plain", 1000), ("remat:activations", 1001), ("by_hand", 500))
    ]
    assert [line[1] for line in cost.answer(rows).more[1][2]] == ["by_hand"]


def test_a_step_is_divided_by_plain_keras_s_of_its_commit_alone() -> None:
    place = {"card": "v100-pcie", "link": "pcie3", "model": "unet", "size": 192}
    plain = _row(**place, way="plain", step_seconds=_steps(1.0), commit="a")
    rows = [plain, plain | {"way": "rule", "commit": "b"}]
    found = cards.answer(rows)
    assert [line[5] for line in found.more[0][2]] == ["1.00", "no base of its commit"]
    assert found.panels[0][0].bars == []
    assert "1 trainings have a plan, 1 of them no plain step" in found.finding


def test_the_largest_size_is_the_last_that_trained_beside_its_price() -> None:
    sizes = {"plain": 144, "rule": 160, "callback": 256}
    rows = [
        _row(kind="training", model="unet", way=way, size=size + 16 * i, error=error)
        | {"step_seconds": _steps(size**3 * (2.0 if way == "callback" else 1.0))}
        | {"peak_bytes": size}
        for way, size in sizes.items()
        for i, error in enumerate((None, OOM))
    ]
    found = capacity.answer(rows)
    assert found.table[2][0][2:7] == ["144", "256", "5.62", "2.00", "0, 0.00 times"]
    assert _verdicts(found) == [None]
    text = "5.62 times (size 256) at 2.00 times; IBM's rule 1.37 times"
    assert text in found.verdicts[0][1]


def test_a_wait_is_compared_within_its_round() -> None:
    waits = {"plain": (2.0, 4.0, 2.0), "cold": (2.8, 8.0, 2.8), "warm": (2.0, 4.0, 2.0)}
    rows = [
        _row(model="gru", kind=kind, repeat=i, first_seconds=seconds)
        for kind, each in waits.items()
        for i, seconds in enumerate(each)
    ]
    found = first_step.answer(rows)
    assert _verdicts(found) == [True, True]
    assert found.table[2][0][4] == "1.40 (1.40 to 2.00, 3 processes)"
    zoo = [row | {"kind": "plain", "question": "bits"} for row in rows[:1]]
    zoo.append(zoo[0] | {"kind": "training", "share": 0.3, "first_seconds": 9.0})
    found = first_step.answer([*rows, *zoo])
    assert _verdicts(found) == [False, True, True]
    known = ["2.0 s", "", "9.0 s", "", "4.50 (one process)", "2.8 s, 2.0 s"]
    assert found.table[2][0][1:] == known


def test_efficiency_is_of_medians_and_the_speed_of_one_stands_beside_it() -> None:
    seconds = {("alone", 1): 1.0, ("together", 2): 2.5, ("apart", 2): 2.0}
    rows = [
        _row(kind=kind, workers=n, step_seconds=[[9.0] * 5 + [s] * 4] * n)
        for (kind, n), s in seconds.items()
    ]
    found = workers.answer(rows)
    (line,) = found.table[2]
    assert line[4:] == ["0.80 (one process)", "0.80"]
    assert _verdicts(found) == [None]


@pytest.mark.parametrize(
    ("peak", "holds"),
    [(1000, (True, True)), (1001, (False, True)), (900, (True, False))],
)
def test_a_peak_above_its_promise_fails(peak: int, holds: tuple[bool, bool]) -> None:
    report = {"predicted_peak_bytes": 1000 * MIB, "predicted_seconds": 1.0}
    row = _row(report=report, peak_bytes=peak * MIB, step_seconds=_steps(1.1))
    row |= {"question": "cost"}
    found = predictions.answer([row])
    assert tuple(_verdicts(found)[:2]) == holds
    assert _verdicts(found)[2:] == [True, False, None]
    assert "off its prediction by 10% in the median" in found.verdicts[3][1]
    anew = predictions.answer([row, row | {"report": report | {"replans": 1}}])
    assert _verdicts(anew)[2] is False


def test_what_ibm_published_is_not_reproduced_and_its_kernels_are_slower() -> None:
    place = {"card": "v100-pcie", "link": "pcie3", "model": "unet"}
    rows = [
        _row(**place, size=144, way="plain", step_seconds=_steps(54 / 228)),
        _row(**place, size=192, way="plain", step_seconds=_steps(1.0)),
        _row(**place, size=192, way="rule", step_seconds=_steps(2.0))
        | {"lanes": {"utilisation": 0.5}},
    ]
    assert cards.real_over_emulated(rows) == ["4.00"]
    found = cards.answer(rows)
    assert _verdicts(found) == [False]
    assert "took 4.00 times as long" in found.verdicts[0][1]
    assert [line[2] for line in found.table[2]][:2] == ["54 s", "456 s"]
    assert found.table[2][-1][2] == "1.78 to 2.23"
    assert found.panels[0][0].bars[0].text == "IBM's rule, 2.00"
