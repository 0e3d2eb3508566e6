"""Plans of recorded steps and of drawn graphs are proved: none is refused in vain."""

import pytest
from hypothesis import given

from lms.ir.graph import GraphView
from lms.ir.liveness import lower_bound, peak
from lms.machine.hardware import PRESETS, roofline
from lms.planning.placement import find_plan
from lms.planning.problem import Filters, PlanRequest, Speeds
from lms.proof.prove import Proof
from tests.graphs import scheduled
from tests.planning.stored import FOLDER, read_step
from tests.proof.drawn import proof_of
from tests.strategies import examples, graphs

pytestmark = pytest.mark.tf

STEPS = sorted(path.name.partition(".")[0] for path in FOLDER.glob("*.json.gz"))
SHORT = ("by_hand_reshape", "by_hand_skip", "by_hand_twice", "own_train_step")


def proved(graph: GraphView, share: float) -> Proof | None:
    """Plan a graph into a share of its peak; None if there is no plan."""
    graph = scheduled(graph)
    hardware = PRESETS["v100-pcie"]
    budget = max(int(share * peak(graph)), lower_bound(graph))
    asked = PlanRequest(
        budget=budget,
        speeds=Speeds(costs=roofline(graph, hardware), hardware=hardware),
        filters=Filters(),
    )
    found = find_plan(graph, asked)
    return None if found is None else proof_of(graph, found.plan, budget)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in SHORT else pytest.mark.long) for n in STEPS],
)
def test_a_recorded_step_is_proved(name: str) -> None:
    proof = proved(read_step(name).graph, 0.6)
    assert proof is None or proof.failed == ""


@given(graph=graphs())
@examples(100)
def test_a_drawn_step_is_proved(graph: GraphView) -> None:
    proof = proved(graph, 0.7)
    assert proof is None or proof.failed == ""
