"""Constants of int32 lie on the host: no tensor of int32 on the device is folded."""

import pytest

from lms.ir.graph import Op, Tensor
from lms.tf.compat import made_node
from lms.tf.passes.constant_folding import with_folded

pytestmark = pytest.mark.tf

MASK = Op(
    name="mask", type="Const", outputs=(Tensor(name="mask:0", size=64),), constant=True
)


@pytest.mark.parametrize(
    ("dtype", "size", "is_constant"),
    [("float32", 256, True), ("int32", 256, False), ("int32", 0, True)],
    ids=["on the device", "of int32", "of int32, on the host"],
)
def test_only_what_a_constant_can_hold_is_folded(
    dtype: str, size: int, *, is_constant: bool
) -> None:
    made = Tensor(name="cast:0", size=size, dtype=dtype)
    cast = Op(name="cast", type="Cast", inputs=("mask:0",), outputs=(made,))
    reader = Op(name="reader", type="Add", inputs=("cast:0", "x:0"))
    x = Op(name="x", type="Placeholder", outputs=(Tensor(name="x:0", size=256),))
    nodes = [made_node("mask", "Const", []), made_node("cast", "Cast", ["mask"])]
    found = {op.name: op for op in with_folded([MASK, x, cast, reader], nodes, [])}
    assert found["cast"].constant is is_constant
    assert found["reader"] == reader
