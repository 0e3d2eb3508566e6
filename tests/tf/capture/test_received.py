"""What comes from the host counts on the device, once, and only if it is read there."""

import pytest

from lms.ir.graph import Op, Tensor

pytestmark = pytest.mark.tf


def op(name: str, *reads: str, dtype: str = "float32") -> Op:
    made = Tensor(name=f"{name}:0", size=0, shape=(4, 4), dtype=dtype)
    inputs = tuple(f"{read}:0" for read in reads)
    return Op(name=name, type="T", inputs=inputs, outputs=(made,), persistent=True)


def test_only_what_the_device_reads_counts() -> None:
    from lms.tf.capture.received import with_received

    ops = [op("near"), op("far"), op("kept", "far"), op("handle", dtype="resource")]
    ops.append(Op(name="reader", type="T", inputs=("near:0", "handle:0")))
    found = with_received(ops, {"near", "far", "kept", "handle"})
    assert {o.name: [t.size for t in o.outputs] for o in found} == {
        "near": [64],
        "far": [0],
        "kept": [0],
        "handle": [0],
        "reader": [],
    }
    assert [o.name for o in found if o.persistent] == ["far", "kept", "handle"]
