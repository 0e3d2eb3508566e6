"""Plans by IBM's rule, as the tests of the rule want them."""

from typing import Any

from lms.ir.graph import GraphView
from lms.ir.plan import SwapPlan, validate_plan
from lms.planning.candidates import movable
from lms.planning.tflms_rule import plan_by_threshold

__all__ = ["plan", "readers"]


def plan(graph: GraphView, threshold: int = 1, **knobs: Any) -> SwapPlan:
    """A valid plan that moves `a:0` if anything."""
    knobs = {"swapin_ahead": 1, "swapin_groupby": 0, "min_bytes": 1} | knobs
    able = knobs.pop("movable", movable(graph, min_bytes=1) & {"a:0"})
    made = plan_by_threshold(graph, swapout_threshold=threshold, movable=able, **knobs)
    validate_plan(graph, made)
    return made


def readers(made: SwapPlan) -> list[str]:
    """The readers of each swap-in, as one word."""
    return ["".join(c.readers) for swap in made.swaps for c in swap.swap_ins]
