"""Tensors that pass between host and device: which take memory there, how long."""

from typing import Any

import pytest
import tensorflow as tf

from lms.ir.graph import Op, Tensor
from lms.tf import compat
from lms.tf.passes.host_transfers import with_host_memory, with_received, with_sent

pytestmark = pytest.mark.tf


def op(name: str, *reads: str, dtype: str = "float32") -> Op:
    made = Tensor(name=f"{name}:0", size=0, shape=(4, 4), dtype=dtype)
    inputs = tuple(f"{read}:0" for read in reads)
    return Op(name=name, type="T", inputs=inputs, outputs=(made,), persistent=True)


def test_only_what_the_device_reads_counts() -> None:
    ops = [op("near"), op("far"), op("kept", "far"), op("handle", dtype="resource")]
    ops.append(Op(name="reader", type="T", inputs=("near:0", "handle:0")))
    found = with_received(ops, {"near", "far", "kept", "handle"})
    assert not found[0].persistent
    assert {o.name: [t.size for t in o.outputs] for o in found} == {
        "near": [64],
        "far": [0],
        "kept": [0],
        "handle": [0],
        "reader": [],
    }
    assert [o.name for o in found if o.persistent] == ["far", "kept", "handle"]


def test_what_a_gpu_keeps_in_the_host_s_memory_takes_none_of_its_own() -> None:
    gpu = "/device:GPU:0"
    types = {"sum": "AddN", "less": "Less", "cast": "Cast", "wide": "Identity"}
    nodes = [compat.NodeDef(name=name, op=op) for name, op in types.items()]
    for node in nodes:
        node.attr["T"].type = node.attr["SrcT"].type = tf.int32.as_datatype_enum
    nodes[0].attr["N"].i = 2
    nodes[-1].attr["T"].type = tf.float32.as_datatype_enum

    def made(name: str, *inputs: str) -> Op:
        tensor = Tensor(name=f"{name}:0", size=64, shape=(16,), dtype="int32")
        return Op(name=name, type="T", inputs=inputs, outputs=(tensor,))

    ops = [made("sum"), made("less", "sum:0", "sum:0"), made("cast"), made("wide")]
    found = with_host_memory(ops, nodes, gpu)
    assert [op.outputs[0].size for op in found] == [0, 0, 64, 64]
    assert with_host_memory(ops, nodes, "/device:CPU:0") == ops

    read = with_host_memory([*ops[:2], made("cast", "sum:0")], nodes, gpu)
    assert [op.outputs[0].size for op in read] == [64, 0, 64]
    assert [op.from_host for op in read] == [True, False, False], "it is received"


def of_int32(name: str, size: int, *inputs: str, **flags: Any) -> Op:
    outputs = (Tensor(name=f"{name}:0", size=size, dtype="int32"),)
    return Op(name=name, type="", inputs=inputs, outputs=outputs, **flags)


@pytest.mark.parametrize(
    ("size", "reader", "is_sent"),
    [(256, "Minimum", True), (0, "Minimum", False), (256, "Cast", False)],
    ids=["read by the host", "made by the host", "read by the device"],
)
def test_what_the_host_reads_of_the_device_is_marked(
    size: int, reader: str, *, is_sent: bool
) -> None:
    ops = [
        of_int32("x", 256, persistent=True),
        of_int32("a", size, "x:0"),
        of_int32("view", size, "a:0", alias="a:0"),
        of_int32("low", 0, "view:0", "x:0"),
    ]
    types = {"T": "int32"} if reader == "Minimum" else {"SrcT": "int32", "DstT": "half"}
    nodes = [
        compat.made_node("a", "Cast", ["x"], SrcT="float32", DstT="int32"),
        compat.made_node("view", "Reshape", ["a"]),
        compat.made_node("low", reader, ["view", "x"], **types),
    ]
    found = {op.name: op.to_host for op in with_sent(ops, nodes, "/device:GPU:0")}
    assert found == {"x": False, "a": is_sent, "view": False, "low": False}
    assert with_sent(ops, nodes, "/device:CPU:0") == ops
