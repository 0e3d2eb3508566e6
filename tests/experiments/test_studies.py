"""Two studies: coarse subjects, and sums that are wrong or right."""

import numpy as np
import pytest

from experiments.coarse_subjects import coarsen
from experiments.studies import dice, sums
from unet3d.schemes import REGIONS


def test_an_image_is_averaged_and_a_label_is_not() -> None:
    volume = np.zeros((5, 4, 4), dtype=np.int16)
    volume[:4] = 8
    volume[2, 2, 2] = 72
    assert coarsen(volume, 4, labels=False).tolist() == [[[9]], [[0]]]
    assert coarsen(volume, 4, labels=True).tolist() == [[[72]], [[0]]]


@pytest.mark.parametrize(("p", "holds"), [(0.03, True), (0.06, None)])
def test_a_gain_holds_where_each_region_s_is_significant(
    p: float, *, holds: bool | None
) -> None:
    scores = [
        {"set": name, "subject": f"s{i}", "region": region, "dice": dice + 0.01 * i}
        for name, dice in (("28^3", 0.7), ("36^3", 0.8))
        for region in REGIONS
        for i in range(3)
    ]
    tests = [
        {"region": region, "median_difference": 0.1, "p": 0.01, "corrected_p": p}
        for region in REGIONS
    ]
    row = {"kind": "comparison", "pair": [28, 36], "scores": scores, "tests": tests}
    found = dice.answer([row])
    assert found.verdicts[0][0] is holds
    assert found.table[2][0][2:5] == ["0.710", "0.810", "+0.100"]


@pytest.mark.tf
def test_small_volumes_are_summed_rightly_in_all_ways() -> None:
    from experiments.sum_errors import measure

    found = measure(8)
    assert list(found)[:4] == ["sum", "loss", "Dice", "variance"]
    for ways in found.values():
        for values in ways[:2]:
            if values is not None:
                np.testing.assert_allclose(values, ways[2], rtol=1e-5)


def test_errors_are_those_of_the_label_that_is_farthest_off() -> None:
    row = sums.worst(np.array([1.0, 2.2]), np.array([1.5, 2.02]), np.array([1.0, 2.0]))
    assert row == {
        "own_error": pytest.approx(0.1),
        "our_error": pytest.approx(0.5),
        "value": 2.0,
    }
