"""Which tensors wait in a file: those that stay away the longest."""

from hypothesis import given
from hypothesis import strategies as st

from lms.ir.plan import Swap, SwapIn, SwapPlan
from lms.planning.spilling import with_file, without_file

ORDER = ("a", "b", "c", "d", "last")


def swap(tensor: str, size: int, reader: str) -> Swap:
    copies = (SwapIn(trigger=None, readers=(reader,)),)
    name = f"{tensor}:0"
    return Swap(tensor=name, size=size, release=None, swap_ins=copies)


# Away for four, one and two ops.
PLAN = SwapPlan(
    planner="",
    order=ORDER,
    swaps=(swap("a", 10, "last"), swap("b", 20, "c"), swap("c", 40, "last")),
)


def in_memory(plan: SwapPlan) -> int:
    return sum(s.size for s in plan.swaps if not s.in_file)


def filed(plan: SwapPlan) -> list[str]:
    return [s.tensor for s in plan.swaps if s.in_file]


def test_what_stays_away_the_longest_goes_first() -> None:
    found = [filed(with_file(PLAN, in_memory, room)) for room in (70, 60, 20, 0)]
    assert found == [[], ["a:0"], ["a:0", "c:0"], ["a:0", "b:0", "c:0"]]


@given(sizes=st.lists(st.integers(1, 50), max_size=4), room=st.integers(0, 200))
def test_the_host_holds_what_it_has_room_for_and_no_less(
    sizes: list[int], room: int
) -> None:
    swaps = tuple(swap(n, s, "last") for n, s in zip(ORDER, sizes, strict=False))
    plan = SwapPlan(planner="", order=ORDER, swaps=swaps)
    found = with_file(plan, in_memory, room)
    assert in_memory(found) <= room
    last = filed(found)[-1:]  # the one that stays away the shortest
    if last:
        assert in_memory(found) + sizes[len(filed(found)) - 1] > room
    assert without_file(found) == plan
    assert SwapPlan.from_json(found.to_json()) == found
