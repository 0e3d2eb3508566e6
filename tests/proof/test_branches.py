"""A branch that always runs, by what replicas gather: the other one may be missing."""

import pytest

from lms.proof.prove import Promise, Proof, prove
from tests.proof.small import small_step

pytestmark = pytest.mark.tf

GATHERED = """\
    two = Const() [2]
    length = Const() [4]
    key = Identity(x)
    g0 = CollectiveGatherV2(length, two, two, key)
    g1 = CollectiveGatherV2(length, two, two, x)
    rows = Const() [0]
    most = Max(g0, rows)
    least = Min(g0, rows)
    equal = Equal(most, least)
    a = ReadVariableOp(w)
"""
BRANCHES = """\
    which = Switch(equal, equal)
    never = Identity(which:0)
    always = Identity(which:1)
    pair = Switch(a, equal)
    t = Tanh(pair:1)
    t_gathered = CollectiveGatherV2(t, two, two, two, ^always)
    p = Cos(pair:0)
    p_gathered = CollectiveGatherV2(p, two, two, two, ^never)
    joined = Merge(p_gathered, t_gathered)
    chosen = Merge(p, t, ^p_gathered, ^t_gathered)
    z = Pack(joined, chosen, joined:1)
"""
OPEN = """\
    t = Tanh(a)
    t_gathered = CollectiveGatherV2(t, two, two, two)
    one = Const() 1
    number = Identity(one)
    z = Pack(t_gathered, t, number)
"""


def proved(before: str, after: str) -> Proof:
    step = small_step(before, "z", x=5)
    return prove(step, small_step(after, "z", x=5), Promise())


def test_an_open_branch_is_the_branch_and_no_op_of_the_other_is_missed() -> None:
    proof = proved(GATHERED + BRANCHES, GATHERED + OPEN)
    assert proof == Proof(laws=("a branch that always runs",))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("g1 = CollectiveGatherV2(length,", "g1 = CollectiveGatherV2(two,"),
        (
            "g1 = CollectiveGatherV2(length, two,",
            "g1 = CollectiveGatherV2(length, length,",
        ),
        ("two, two, x)", "two, two, rows)"),
        ("two, two, x)", "two, two, a)"),
        ("Min(g0", "Min(g1"),
        ("length = Const() [4]", "length = Const() [4, 5]"),
        ("length = Const() [4]", "length = Tanh(w)"),
        ("Max(g0", "Sum(g0"),
    ],
)
def test_a_branch_that_may_not_run_stays(right: str, wrong: str) -> None:
    assert GATHERED.count(right) == 1
    open_ones = GATHERED.replace(right, wrong)
    assert not proved(open_ones + BRANCHES, open_ones + OPEN).proved
    assert proved(open_ones + BRANCHES, open_ones + BRANCHES) == Proof()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (" ^never)", " ^always)"),
        ("a = ReadVariableOp(w)", "a = ReadVariableOp(w, ^p)"),
        ("t = Tanh(pair:1)", "t = Tanh(pair:0)"),
        ("t = Tanh(pair:1)", "t = Tanh(pair:1, ^p)"),
    ],
)
def test_an_op_runs_in_its_branch_alone(right: str, wrong: str) -> None:
    """A branch may run or not, by what the other replica gives to the reduction."""
    step = GATHERED.replace("length, two, two, x", "a, two, two, x") + BRANCHES
    assert step.count(right) == 1
    assert proved(step, step) == Proof()
    assert not proved(step, step.replace(right, wrong)).proved


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("t = Tanh(a)", "t = Cos(a)"),
        ("t_gathered = CollectiveGatherV2(t,", "t_gathered = CollectiveGatherV2(a,"),
        ("one = Const() 1", "one = Const() 0"),
    ],
)
def test_the_branch_that_is_open_must_be_the_one_that_runs(
    right: str, wrong: str
) -> None:
    assert OPEN.count(right) == 1
    faulty = OPEN.replace(right, wrong)
    assert not proved(GATHERED + BRANCHES, GATHERED + faulty).proved
