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


IN_PLACE = AFTER.replace(
    "    z = ConcatV2(z0, z1, rows)\n",
    """
    two = Const() [2, 12]
    line = Const() [1, 12]
    sides = Const() [4, 6]
    empty = Empty(two)
    r0 = Reshape(z0, line)
    r1 = Reshape(z1, line)
    u0 = _ParallelConcatUpdate(empty, r0) 0
    u1 = _ParallelConcatUpdate(u0, r1) 1
    z = Reshape(u1, sides)
""",
).replace("\n\n", "\n")


def test_parts_written_in_order_into_one_memory_are_the_whole() -> None:
    assert proved(IN_PLACE) == Proof(laws=LAWS)


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("Update(empty, r0) 0", "Update(empty, r1) 0", "result 'z:0'"),
        ("Update(u0, r1) 1", "Update(u0, r0) 1", "result 'z:0'"),
        ("Update(u0, r1) 1", "Update(u0, r1) 0", "'u1' may write over"),
        ("Update(empty, r0) 0", "Update(empty, r0) 1", "'u0' may write over"),
        ("Update(u0, r1) 1", "Update(empty, r1) 1", "'u0' may write over"),
        ("Reshape(u1, sides)", "Reshape(u0, sides)", "'u1' may write over"),
        ("sides = Const() [4, 6]", "sides = Const() [6, 4]", "result 'z:0'"),
        ("sides = Const() [4, 6]", "sides = Const() [3, 8]", "result 'z:0'"),
        ("r1 = Reshape(z1, line)", "r1 = Tanh(z1)", "'u1' may write over"),
        ("empty = Empty(two)", "empty = Fill(two, one)", "'u0' may write over"),
        ("z1 = Tanh(y1)", "z1 = Sinh(y1)", "result 'z:0'"),
    ],
)
def test_a_part_written_in_the_wrong_place_is_refused(
    right: str, wrong: str, said: str
) -> None:
    assert IN_PLACE.count(right) == 1
    assert proved(IN_PLACE.replace(right, wrong)).failed.startswith(said)


@pytest.mark.parametrize("tensor", ["empty", "u0"])
def test_a_memory_that_another_op_reads_between_two_writes_is_refused(
    tensor: str,
) -> None:
    between = IN_PLACE + f"    seen = Tanh({tensor})\n    done = NoOp(^seen)\n"
    assert "may write over what others read" in proved(between).failed


def test_a_whole_that_is_written_over_once_more_is_refused() -> None:
    over = "    u2 = _ParallelConcatUpdate({}, r0) {}\n    done = NoOp(^u2)\n"
    for source, place in (("u1", 2), ("z", 0)):
        again = IN_PLACE + over.format(source, place)
        assert "may write over what others read" in proved(again).failed


def test_a_memory_of_two_names_is_refused() -> None:
    renamed = IN_PLACE.replace("Update(empty", "Update(own").replace(
        "    r0 =", "    own = Identity(empty)\n    r0 ="
    )
    assert "may write over what others read" in proved(renamed).failed


def test_a_step_that_wrote_into_a_memory_itself_is_refused() -> None:
    step = """
        start = _ParallelConcatStart()
        u0 = _ParallelConcatUpdate(start, x) 0
        y = Identity(start, ^u0)
    """
    one = small_step(step, "y")
    assert "may write over" in prove(one, one, Promise(), {}).failed


def test_parts_along_a_later_axis_are_no_rows_of_one_memory() -> None:
    columns = IN_PLACE.replace("half = Const() [2, 6]", "half = Const() [4, 3]")
    columns = columns.replace("low = Const() [2, 0]", "low = Const() [0, 3]")
    assert proved(columns).failed.startswith("result 'z:0'")
