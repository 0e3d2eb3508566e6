"""Errors: one family, each also the built-in error of its kind."""

import pickle

import pytest

from lms.errors import (
    BudgetError,
    HostMemoryError,
    LMSError,
    PlanError,
    UnsupportedError,
)


@pytest.mark.parametrize(
    ("error", "built_in"),
    [
        (BudgetError, ValueError),
        (PlanError, ValueError),
        (UnsupportedError, ValueError),
        (HostMemoryError, MemoryError),
    ],
)
def test_an_error_is_ours_and_the_built_in_one(
    error: type[LMSError], built_in: type[Exception]
) -> None:
    for caught_as in (LMSError, built_in):
        with pytest.raises(caught_as, match="the message"):
            raise error("the message")


def test_a_budget_error_survives_the_way_between_processes() -> None:
    error = BudgetError("too little", op_name="conv1_grad", least_bytes=4096)
    copy = pickle.loads(pickle.dumps(error))
    told = (str(copy), copy.op_name, copy.least_bytes)
    assert told == ("too little", "conv1_grad", 4096)


def searched(*pairs: tuple[int, int]) -> tuple[BudgetError, list[tuple[int, int]]]:
    """An error whose least budget is between bounds, and the bounds that were asked."""
    asked = list[tuple[int, int]]()
    bounds = (asked.append(pair) or pair for pair in pairs)
    return BudgetError("at least {} B".format, bounds=bounds), asked


def test_a_least_budget_is_searched_as_far_as_a_comparison_needs() -> None:
    error, asked = searched((10, 90), (10, 50), (30, 50), (40, 40))
    assert error.exceeds(9)
    assert not error.exceeds(90)
    assert len(asked) == 1
    assert error.exceeds(20)
    assert len(asked) == 3
    assert (error.exceeds(39), error.exceeds(40)) == (True, False)
    assert (error.least_bytes, len(asked)) == (40, 4)


def test_of_two_least_budgets_one_is_above_where_the_bounds_part() -> None:
    one, asked = searched((10, 90), (60, 90), (70, 70))
    other, _ = searched((20, 80), (20, 50), (40, 40))
    assert one.exceeds(other)
    assert not other.exceeds(one)
    assert len(asked) == 2
    assert not BudgetError("unknown").exceeds(0)


def test_a_restated_error_makes_its_message_when_somebody_reads() -> None:
    error, asked = searched((10, 90), (40, 40))
    error.restate(lambda least: least + 5, "the step needs {}".format)
    error.restate(lambda least: 2 * least)
    assert not error.exceeds(190)
    assert len(asked) == 1
    assert str(error) == "the step needs 40"
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.least_bytes, copy.exceeds(89)) == (str(error), 90, True)
