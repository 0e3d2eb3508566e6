"""Seven projects of 2026 that trained with wrong numbers, restated as graphs.

Each is a change of one step in which `a` leaves the device and comes back. The step as
it should be is proved; each change is refused, by the value, edge or moment it breaks.
"""

import pytest

from lms.proof.memory import Footprint
from lms.proof.prove import Promise, Proof, prove
from tests.proof.small import small_step

pytestmark = pytest.mark.tf

BEFORE = """
    perm = Const() [1, 0]
    read = ReadVariableOp(w)
    a = Tanh(x)
    b = Sin(a)
    y = MatMul(b, read)
    t = Transpose(a, perm)
    z = MatMul(t, y)
    update = AssignSubVariableOp(w, z, ^read)
"""
AFTER = """
    perm = Const() [1, 0]
    read = ReadVariableOp(w)
    a = Tanh(x)
    b = Sin(a)
    out = _CopyFromGpuToHost(a)
    b_out = _CopyFromGpuToHost(b)
    y = MatMul(b, read, ^out, ^b)
    again = Sin(in)
    begin = NoOp(^out, ^y)
    in = _CopyFromHostToGpu(out, ^begin)
    t = Transpose(in, perm)
    z = MatMul(t, y)
    kept = _CopyFromHostToGpu(b_out, ^begin)
    w_read = ReadVariableOp(w)
    w_out = _CopyFromGpuToHost(w_read)
    saved = PyFunc(w_out)
    update = AssignSubVariableOp(w, z, ^read, ^w_read, ^saved)
"""
INCIDENTS = {
    "XLA #37979, pipelined offloading: the slot of another tensor": (
        "in = _CopyFromHostToGpu(out, ^begin)",
        "in = _CopyFromHostToGpu(b_out, ^begin)",
        "result 'z:0': 't' (Transpose) makes another value",
    ),
    "DeepSpeed #8186: a reload over a live activation": (
        "y = MatMul(b, read, ^out, ^b)",
        "y = MatMul(b, read, ^b)",
        "'y' takes the memory of 'a:0', which 'out' may still hold",
    ),
    "ms-swift #10157: a tensor and its transpose share a copy": (
        "z = MatMul(t, y)",
        "z = MatMul(in, y)",
        "result 'z:0': 'z' (MatMul) makes another value",
    ),
    "ComfyUI #15846: recomputed of another input": (
        "z = MatMul(t, y)",
        "z = MatMul(again, y)",
        "result 'z:0': 'z' (MatMul) makes another value",
    ),
    "Megatron-LM #7398: an inline reload without its own copy out": (
        "in = _CopyFromHostToGpu(out, ^begin)",
        "in = _CopyFromHostToGpu(a, ^begin)",
        "'in' copies back 'a', which never left",
    ),
    "TRL #7195: read before the copy back has ended": (
        "t = Transpose(in, perm)",
        "t = Transpose(out, perm)",
        "'t' reads 'out' before its copy back",
    ),
    "OneTrainer #1306: an event too early, weights written while they leave": (
        "update = AssignSubVariableOp(w, z, ^read, ^w_read, ^saved)",
        "update = AssignSubVariableOp(w, z, ^read)",
        "'w_read' and 'update' may change places",
    ),
}
PROMISE = Promise(calls={"saved": [1]}, kept=frozenset(), releases=[("a:0", "y")])


def proved(after: str, promise: Promise = PROMISE) -> Proof:
    return prove(small_step(BEFORE, "z"), small_step(after, "z"), promise)


def test_the_step_as_it_should_be_is_proved() -> None:
    assert proved(AFTER) == Proof()


@pytest.mark.parametrize("name", INCIDENTS)
def test_an_incident_is_refused_with_the_first_thing_that_breaks(name: str) -> None:
    right, wrong, said = INCIDENTS[name]
    assert AFTER.count(right) == 1
    assert proved(AFTER.replace(right, wrong)).failed == said


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("x)", "x, ^z)", "waits in a cycle"),
        ("begin = NoOp(^out", "begin = NoOp(^other", "which is no op"),
        ("b = Sin(a)", "b = Cos(a)", "'b' (Cos) makes another value"),
        (", ^saved)", ")", "'update' may write before the commit point"),
        ("update =", "u = AssignVariableOp(w, z)\nupdate =", "change places"),
        (
            "saved = PyFunc(w_out)",
            "saved = PyFunc(out)",
            "not its variable's old value",
        ),
        ("saved = PyFunc", "other = PyFunc(w_out)\n saved = PyFunc", "'other' is new"),
        ("perm = Const() [1, 0]", "perm = Const() [0, 1]", "'t' (Transpose)"),
    ],
)
def test_a_fault_is_named(right: str, wrong: str, said: str) -> None:
    assert said in proved(AFTER.replace(right, wrong)).failed


@pytest.mark.parametrize(("wait", "most"), [(", ^b", 300), ("", 350)])
def test_bytes_are_those_of_the_worst_order_that_edges_allow(
    wait: str, most: int
) -> None:
    """Three tensors of 100 live at once; scratch of `b` may come beside."""
    step = small_step(
        f"""
        a = Tanh(x)
        b = Sin(a)
        c = Cos(a{wait})
        d = AddV2(b, c)
        """,
        "d",
    )
    sizes = {name: Footprint(outputs=[100]) for name in "acd"}
    sizes["b"] = Footprint(outputs=[100], scratch=50)
    promise = Promise(footprints={"gpu": sizes}, most={"gpu": 300})
    proof = prove(step, step, promise)
    assert (proof.proved, dict(proof.most)) == (True, {"gpu": most})
    assert bool(proof.bytes_failed) == (most > 300)


def test_a_dying_input_is_written_over_where_no_other_op_can_read_it_later() -> None:
    def most(wait: str) -> int:
        text = f"""
            a = Tanh(x)
            b = Sin(a{wait})
            c = Cos(a)
            d = AddV2(b, c)
            """
        sizes = {name: Footprint(outputs=[100], reuses=0) for name in "abcd"}
        promise = Promise(footprints={"gpu": sizes}, most={"gpu": 0})
        return prove(small_step(text, "d"), small_step(text, "d"), promise).most["gpu"]

    assert (most(", ^c"), most("")) == (200, 300)
