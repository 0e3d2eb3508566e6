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
