"""Ops in parts, as small graphs: parts side by side are the whole, each in place."""

import pytest

from lms.proof.prove import Promise, Proof, prove
from tests.proof.small import small_step

pytestmark = pytest.mark.tf

BEFORE = """
    sides = Const() [4, 6]
    one = Const() [1]
    ones = Fill(sides, one)
    y = Mul(x, ones)
    z = Tanh(y)
"""
AFTER = """
    half = Const() [2, 6]
    top = Const() [0, 0]
    low = Const() [2, 0]
    one = Const() [1]
    rows = Const() [0]
    ones = Fill(half, one)
    x0 = Slice(x, top, half)
    x1 = Slice(x, low, half)
    y0 = Mul(x0, ones)
    y1 = Mul(x1, ones)
    z0 = Tanh(y0)
    z1 = Tanh(y1)
    z = ConcatV2(z0, z1, rows)
"""
SHAPES = {0: [(4, 6)], "y": [(4, 6)], "z": [(4, 6)]}
LAWS = ("element by element", "concatenated parts are the whole")


def proved(after: str) -> Proof:
    before = small_step(BEFORE, "z")
    return prove(before, small_step(after, "z"), Promise(), SHAPES)


def test_parts_side_by_side_are_the_whole_by_laws_that_are_named() -> None:
    assert proved(AFTER) == Proof(laws=LAWS)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("ConcatV2(z0, z1, rows)", "ConcatV2(z1, z0, rows)"),
        ("ConcatV2(z0, z1, rows)", "ConcatV2(z0, z0, rows)"),
        ("rows = Const() [0]", "rows = Const() [1]"),
        ("low = Const() [2, 0]", "low = Const() [1, 0]"),
        ("y1 = Mul(x1, ones)", "y1 = Mul(x0, ones)"),
        ("z1 = Tanh(y1)", "z1 = Sinh(y1)"),
        ("Fill(half, one)", "Fill(half, rows)"),
        ("half = Const() [2, 6]", "half = Const() [2, 5]"),
    ],
)
def test_a_part_out_of_place_is_refused(right: str, wrong: str) -> None:
    assert AFTER.count(right) == 1
    assert proved(AFTER.replace(right, wrong)).failed.startswith("result 'z:0'")


def test_a_product_is_proved_by_the_columns_of_a_variable() -> None:
    before = small_step("v = ReadVariableOp(w)\ny = MatMul(x, v)", "y")
    after = """
        v = ReadVariableOp(w)
        half = Const() [6, 4]
        left = Const() [0, 0]
        right = Const() [0, 4]
        columns = Const() [1]
        v0 = Slice(v, left, half)
        v1 = Slice(v, right, half)
        y0 = MatMul(x, v0)
        y1 = MatMul(x, v1)
        y = ConcatV2(y0, y1, columns)
    """
    shapes = {0: [(4, 6)], "v": [(6, 8)], "y": [(4, 8)]}
    laws = ("product by row, column and batch", "concatenated parts are the whole")
    assert prove(before, small_step(after, "y"), Promise(), shapes) == Proof(laws=laws)
    wrong = small_step(after.replace("(y0, y1,", "(y1, y0,"), "y")
    assert not prove(before, wrong, Promise(), shapes).proved
