"""Branches that always run, and writes that leave a branch and choose.

A branch always runs by what replicas gather: the other one may be missing.
"""

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


# A write in a branch that runs if numbers are finite, and the write that chooses.
GIVEN = """\
    g = Tanh(x)
    other = Cos(x)
    finite = All(x)
    before = ReadVariableOp(w)
"""
IN_A_BRANCH = """\
    h = Switch(w, finite)
    value = Switch(g, finite)
    mark = Switch(finite, finite)
    yes = Identity(mark:1)
    no = Identity(mark:0)
    u = {write}(h:1, value:1, ^before)
    again = ReadVariableOp(h:1, ^u)
    double = Tanh(again)
    v = AssignVariableOp(h:1, double)
    done = Merge(no, yes, ^v)
    z = ReadVariableOp(w, ^done)
"""
CHOOSING = """\
    old = {old}
    chosen = SelectV2(finite, g, old)
    u = {write}(w, chosen, ^before)
    again = ReadVariableOp(w, ^u)
    double = Tanh(again)
    later = ReadVariableOp(w, ^u)
    either = SelectV2(finite, double, later)
    v = AssignVariableOp(w, either)
    z = ReadVariableOp(w, ^v)
"""
WRITES = {
    "AssignVariableOp": "ReadVariableOp(w)",
    "AssignAddVariableOp": "Const() -0.0",
    "AssignSubVariableOp": "Const() 0.0",
}


@pytest.mark.parametrize(("write", "old"), WRITES.items())
def test_a_write_in_a_branch_chooses(write: str, old: str) -> None:
    branch = GIVEN + IN_A_BRANCH.format(write=write)
    chosen = GIVEN + CHOOSING.format(write=write, old=old)
    assert proved(branch, chosen) == Proof(laws=("a write in a branch chooses",))
    for right, wrong in (
        ("chosen = SelectV2(finite, g, old)", "chosen = SelectV2(finite, old, g)"),
        ("chosen = SelectV2(finite, g, old)", "chosen = SelectV2(g, g, old)"),
        ("chosen = SelectV2(finite, g, old)", "chosen = SelectV2(finite, other, old)"),
        ("chosen = SelectV2(finite, g, old)", "chosen = SelectV2(finite, g, other)"),
        ("(w, chosen, ^before)", "(w, g, ^before)"),
        ("later = ReadVariableOp(w, ^u)", "later = ReadVariableOp(w, ^old)"),
        ("later = ReadVariableOp(w, ^u)", "later = Identity(before)"),
        ("v = AssignVariableOp(w, either)", "v = AssignVariableOp(w, double)"),
        ("finite = All(x)", "finite = Any(x)"),
        (f"old = {old}", "old = Const() 1.0"),
        (
            f"old = {old}",
            "old = Const() 0.0" if "-0.0" in old else "old = Const() -0.0",
        ),
    ):
        assert right in chosen
        assert not proved(branch, chosen.replace(right, wrong)).proved, wrong


@pytest.mark.parametrize("output", [0, 1])
def test_a_write_that_leaves_its_branch_without_a_choice_is_refused(
    output: int,
) -> None:
    branch = GIVEN + IN_A_BRANCH.format(write="AssignVariableOp")
    assert proved(branch, branch).proved
    out = branch.replace("h:1", "w").replace("value:1", "g")
    assert not proved(branch, out).proved
    swapped = branch.replace(f"h:{output}", "h:0").replace(f"value:{output}", "value:0")
    assert proved(branch, swapped).proved is (output == 0)


def test_a_merge_tells_which_predicate_chose() -> None:
    step = """\
        finite = All(x)
        any = Any(x)
        a = Switch(x, finite)
        t = Tanh(a:1)
        z = Merge(a:0, t)
    """
    assert proved(step, step) == Proof()
    assert not proved(step, step.replace("Switch(x, finite)", "Switch(x, any)")).proved
    assert not proved(
        step, step.replace("Tanh(a:1)", "Tanh(a:0)").replace("(a:0, t)", "(a:1, t)")
    ).proved


LOOP = """\
    e = Enter(x)
    m = Merge(e, n)
    p = Any(m)
    c = LoopCond(p)
    s = Switch(m, c)
    b = Tanh(s:1)
    n = NextIteration(b)
    z = Exit(s)
"""
OTHER = "q = All(m)\n    d = LoopCond(q)\n    r = Switch(m, d)\n"
# Faults in a loop: for each, pairs of right and wrong lines.
LOOPS = {
    "the other output leaves": [("Exit(s)", "Exit(s:1)")],
    "another predicate ends it": [
        ("s = Switch(m, c)\n", f"s = Switch(m, c)\n    {OTHER}"),
        ("Exit(s)", "Exit(r)"),
    ],
    "a round reads the other output": [("b = Tanh(s:1)", "b = Tanh(s:0)")],
    "a round is without end": [("b = Tanh(s:1)", "b = Tanh(m)")],
    "a renamed round reads the other output": [
        ("b = Tanh(s:1)", "b2 = Tanh(s:0)"),
        ("n = NextIteration(b)", "n2 = NextIteration(b2)"),
        ("Merge(e, n)", "Merge(e, n2)"),
    ],
    "all of it follows another predicate": [
        ("p = Any(m)", "q = All(m)"),
        ("c = LoopCond(p)", "d = LoopCond(q)"),
        ("s = Switch(m, c)", "s = Switch(m, d)"),
    ],
}


@pytest.mark.parametrize("kind", LOOPS)
def test_a_loop_stays_as_it_is(kind: str) -> None:
    wrong = LOOP
    for right, other in LOOPS[kind]:
        assert wrong.count(right) == 1
        wrong = wrong.replace(right, other)
    assert proved(LOOP, LOOP) == Proof()
    assert not proved(LOOP, wrong).proved


BEFORE_ANOTHER = """\
    h = Switch(w, finite)
    value = Switch(g, finite)
    mark = Switch(finite, finite)
    u = AssignVariableOp(h:1, value:1, ^before)
    yes = Identity(mark:1, ^u)
    no = Identity(mark:0)
    done = Merge(no, yes)
    later = AssignVariableOp(w, other, ^done)
    z = ReadVariableOp(w, ^later)
"""


def test_a_write_that_left_ends_before_what_waited_for_its_branch() -> None:
    """TensorFlow starts a Merge when the first of its inputs is there."""
    step = GIVEN + BEFORE_ANOTHER
    assert proved(step, step).proved
    left = step.replace("h = Switch(w, finite)", "old = ReadVariableOp(w, ^before)")
    left = left.replace(
        "value = Switch(g, finite)", "chosen = SelectV2(finite, g, old)"
    ).replace("(h:1, value:1, ^before)", "(w, chosen, ^before)")
    refused = proved(step, left)
    assert refused.failed == "'done' may end before 'u'"
    assert proved(step, left.replace("Merge(no, yes)", "Merge(no, yes, ^u)")).proved
    free = step.replace("no = Identity(mark:0)", "no = Identity(finite)")
    assert not proved(step, free).proved


def test_a_result_is_there_when_it_was() -> None:
    step = "finite = All(x)\n    z = Tanh(x)\n"
    dead = step + "    s = Switch(z, finite)\n    y = Identity(s:1)\n"
    whole = small_step(step, "z")
    assert not prove(whole, small_step(dead, "y"), Promise()).proved
