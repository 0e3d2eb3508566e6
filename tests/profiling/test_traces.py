"""Timelines become traces."""

import json

from lms.machine.hardware import Costs, Hardware
from lms.simulation.executor import simulate
from profiling.traces import chrome_trace
from tests.graphs import SKIP, one_swap

SLOW = Hardware(
    name="slow",
    memory=1000,
    flops=1.0,
    memory_bandwidth=1.0,
    h2d=10.0,
    d2h=20.0,
    launch=0.1,
)
COSTS = Costs(seconds=dict.fromkeys("abcde", 1.0), source="measured")


def test_a_chrome_trace_holds_lanes_stalls_and_memory() -> None:
    graph = SKIP.graph
    plan = one_swap(graph, ("c", "e"), release="c", chain="abcde")
    timeline = simulate(graph, plan, COSTS, SLOW)
    events = json.loads(chrome_trace(timeline))["traceEvents"]
    complete = {e["name"]: (e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert complete["c"] == (6e6, 1e6)
    counted = [e["args"]["bytes"] for e in events if e["name"] == "device bytes"]
    assert max(counted) == 180, "what an op gives back at once does not show"
    assert all(e["args"]["bytes"] >= 0 for e in events if e["ph"] == "C")
