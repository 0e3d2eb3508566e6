"""The table of errors, on a volume so small that both ways are right."""

import numpy as np
import pytest

pytestmark = pytest.mark.tf


def test_small_volumes_are_summed_rightly_in_both_ways() -> None:
    from experiments.sum_error import measure

    found = measure(8)
    assert list(found) == ["sum", "loss", "Dice", "variance"]
    for own, ours, exact in found.values():
        np.testing.assert_allclose(own, exact, rtol=1e-5)
        np.testing.assert_allclose(ours, exact, rtol=1e-5)


def test_the_table_has_a_row_of_errors_for_each_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from experiments.sum_error import main

    assert main(["--sizes", "8", "12"]) == 0
    rows = capsys.readouterr().out.splitlines()[4:]
    assert [row.split(" | ")[0] for row in rows if row] == ["| 8^3"] * 4 + [
        "| 12^3"
    ] * 4
