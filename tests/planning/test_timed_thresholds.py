"""Thresholds by time: worked out on the skip graph, and never worse than by memory."""

from hypothesis import given, reject, settings
from hypothesis import strategies as st

from lms.errors import BudgetError
from lms.ir.graph import GraphView
from lms.machine.costs import Costs
from lms.machine.hardware import Hardware
from lms.planning.candidates import movable
from lms.planning.prefetch import Speeds
from lms.planning.tflms_autotune import Trials, tune
from lms.planning.tflms_rule import SyncMode, level_graph
from lms.planning.timed_thresholds import fastest_thresholds
from lms.simulation.executor import simulate
from tests.graphs import SKIP
from tests.strategies import graphs

FREE = {"swapout_threshold": None, "swapin_ahead": None, "swapin_groupby": None}

# 100 bytes a second each way; the host runs ahead.
LINK = Hardware(
    name="test", memory=1000, flops=1.0, memory_bandwidth=1.0, h2d=100.0, d2h=100.0
)


def speeds_of(graph: GraphView) -> Speeds:
    """A second for each op."""
    seconds = {op.name: 1.0 for op in graph.ops}
    return Speeds(costs=Costs(seconds=seconds, source="measured"), hardware=LINK)


def test_copies_are_waited_for_where_allocations_would_wait_else() -> None:
    # Five ops and a second for the copy back. By memory alone only swap-ins are waited
    # for: a second in all. But a is copied out while b runs and is there beside c:
    # 190, so c would wait. With both waited for c starts a second later: 120.
    trials = Trials(level_graph(SKIP.graph, min_bytes=1), frozenset(["a:0"]))
    assert tune(trials, 189, FREE, SyncMode.OFF).rule.sync_mode is SyncMode.SWAP_IN
    found = fastest_thresholds(trials, 189, FREE, SyncMode.OFF, speeds_of(SKIP.graph))
    assert found.choice.rule.sync_mode is SyncMode.BOTH
    assert (found.seconds, found.peak) == (7.0, 120)


@given(graphs(max_ops=12), st.integers(50, 300))
@settings(deadline=None, max_examples=30)
def test_it_fits_and_is_no_slower_than_tflmss_own_choice_if_that_fits_too(
    graph: GraphView, budget: int
) -> None:
    trials = Trials(level_graph(graph, min_bytes=1), movable(graph, min_bytes=1))
    try:
        own = tune(trials, budget, FREE, SyncMode.OFF)
    except BudgetError:
        reject()
    speeds = speeds_of(graph)
    found = fastest_thresholds(trials, budget, FREE, SyncMode.OFF, speeds)
    assert found.choice.peak <= budget
    ordered, plan = trials.levelled.graph, trials.plan(own.rule)
    played = simulate(ordered, plan, speeds.costs, speeds.hardware)
    if played.device_peak <= budget:
        assert found.peak <= budget
        assert found.seconds <= played.seconds
