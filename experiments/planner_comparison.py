"""How far down does each planner get?

One training step of the case study's U-Net is traced once. Then each plan is built
into it, run, and the peak of the device's allocator is measured:

    none          TensorFlow's own order, nothing swapped
    threshold     TFLMS's rule at every setting of a grid; the best measured counts
    budget        at the least budget that it does not refuse; then in rooms from there
                  to the plain peak: as it is, without second runs of ops, with second
                  runs wherever they can be, and in the order in which TensorFlow lists
                  the ops instead of its own schedule

The grid: all combinations of `swapout_threshold`, `swapin_ahead` and `swapin_groupby`
as TFLMS runs them by default (no sync, no serialization), all measured. Then, for sync
mode "both" and for serialization of all levels, every combination is simulated, and
the best few of each are measured, as are the best few of the default measurements.

Three claims: the budget planner's peak is at most 1.4 times what no plan can go below
(the largest op's working set and persistent bytes), and at most 0.6 times the best
peak that TFLMS's rule reaches as TFLMS runs it by default; and in each of the rooms it
swaps out, with second runs wherever they can be, at most half the bytes of any of the
rule's settings in those modes whose measured peak is no higher. `draw` says which of
them hold. The second was set when the rule's best peak was higher: it has come so near
to what no plan can go below that 0.6 times it cannot be reached by anyone, and comes
nearer with every level serialised; both are shown.

Peaks are the allocator's, persistent bytes included. The first step is not counted: it
initialises. The device is the CPU behind the allocator of GPUs (`lms.machine.emulate`),
with a limit that nothing comes near.

Known weakness: without serialization TensorFlow starts any ready op, so the threshold
planner's peaks wander from run to run. Step times are of copies within host memory.
"""

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.ledger import Ledger
from experiments.lines import command_line
from experiments.plan_trials import (
    Traced,
    measured,
    plan_key,
    plan_row,
    settled_bytes,
    trace_step,
)
from experiments.planner_comparison_report import draw
from experiments.rule_grid import rule_rows
from lms.ir.graph import GraphView
from lms.ir.liveness import lower_bound
from lms.ir.plan import SwapPlan
from lms.machine import emulate
from lms.planning.candidates import Filters
from lms.planning.memory_budget import UNLIMITED
from lms.planning.placement import least_plan
from lms.planning.prefetch import Speeds
from lms.planning.risk import Headroom
from lms.planning.schedule import schedule
from lms.planning.select import plain_plan
from lms.planning.strategies import PlanRequest, best_plan
from lms.tf.measure.devices import find_device, take_emulated_memory
from lms.tf.measure.measuring import measure_costs, measure_hardware
from lms.units import format_bytes
from unet3d.model import build_unet

__all__ = ["main"]

_NAME = "planner_comparison"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or draw.

    Args:
        arguments: The words after `python -m experiments.planner_comparison`.

    Returns:
        The exit status: 1 if a claim does not hold.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = command_line(_NAME, __doc__, _add_settings).parse_args(words)
    if options.command == "draw":
        return draw(options.results, options.figure)
    if emulate.device_limit() is None:
        command = [sys.executable, "-m", f"experiments.{_NAME}", *words]
        return emulate.run(command, memory=options.memory).returncode
    take_emulated_memory()
    _run(options)
    return 0


def _add_settings(parser: Any) -> None:
    parser.add_argument("--memory", default="512MiB", help="of the emulated device")
    parser.add_argument("--size", type=int, default=48, help="voxels along an axis")
    parser.add_argument("--filters", type=int, default=8, help="of the top level")
    parser.add_argument("--depth", type=int, default=4, help="levels of the network")
    numbers = {"type": int, "nargs": "+"}
    thresholds = [1, 2, 5, 10, 20, 50, 100, 200, 400]
    parser.add_argument("--thresholds", default=thresholds, **numbers)
    parser.add_argument("--aheads", default=[1, 3, 10], **numbers)
    parser.add_argument("--groupbys", default=[0, 5], **numbers)
    parts = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    text = "rooms between, in parts of the plain peak"
    parser.add_argument("--parts", default=parts, type=float, nargs="*", help=text)
    parser.add_argument(
        "--few", type=int, default=3, help="how many best to go on with"
    )


def _run(options: Any) -> None:
    settings = {
        key: value
        for key, value in vars(options).items()
        if key not in ("command", "results", "anew")
    }
    model = build_unet(
        options.size, options.filters, options.depth, batch_size=1, seed=0
    )
    model.optimizer.build(model.trainable_variables)
    traced = trace_step(model)
    ledger = Ledger(options.results, settings, anew=options.anew)
    bounds = ledger.once({"kind": "bounds"}, lambda: _bounds(traced, options))
    ledger.once(plan_key("none", {}), lambda: _measured_plain(traced))
    ledger.once(plan_key("budget", {}), lambda: _by_budget(traced))
    _frontier(traced, options.parts, bounds["unplanned_bytes"], ledger)
    rule_rows(traced, options, ledger)


def _plain(graph: GraphView) -> SwapPlan:
    return SwapPlan(planner="none", order=tuple(op.name for op in graph.ops))


def _measured_plain(traced: Traced) -> dict[str, Any]:
    own = replace(traced, step=traced.own, graph=traced.own_graph)
    return measured(own, _plain(own.graph), "plain")


def _bounds(traced: Traced, options: Any) -> dict[str, Any]:
    """What holds for every plan, and the grid."""
    persistent = settled_bytes() + traced.step.constant_bytes
    return {
        "ops": len(traced.graph.ops),
        "lower_bound_bytes": lower_bound(traced.graph),
        "unplanned_bytes": plain_plan(traced.own_graph, traced.kept).peak,
        "persistent_bytes": persistent,
        "grid": {
            "swapout_threshold": options.thresholds,
            "swapin_ahead": options.aheads,
            "swapin_groupby": options.groupbys,
        },
    }


def _by_budget(traced: Traced) -> dict[str, Any]:
    """The budget planner in the least room that it does not refuse."""
    _, fitted, _ = least_plan([schedule(traced.graph)], filters=Filters())
    small_pool = find_device().keep_pool(fitted.small_pool)
    row = measured(traced, fitted.plan, "budget, least room")
    del small_pool
    return row | {"planned_step_bytes": fitted.peak}


def _frontier(
    traced: Traced, parts: Sequence[float], unplanned: int, ledger: Ledger
) -> None:
    """The budget planner in rooms between, in each of its variants."""
    device = find_device()
    speeds = Speeds(
        costs=measure_costs(traced.step, device.memory),
        hardware=measure_hardware(device),
    )
    scheduled = schedule(traced.graph)
    variants: Mapping[str, tuple[GraphView, bool | None]] = {
        "as it is": (scheduled, None),
        "nothing twice": (scheduled, False),
        "twice where it can": (scheduled, True),
        "TensorFlow's order": (traced.graph, None),
    }
    for part, (name, (graph, recompute)) in itertools.product(parts, variants.items()):
        budget = int(part * unplanned)
        request = PlanRequest(
            budget=budget,
            headroom=Headroom(free=budget // 32, bound=UNLIMITED),
            speeds=speeds,
            filters=Filters(),
            recompute=recompute,
        )
        settings = {"part": part, "variant": name, "room_bytes": budget}
        ledger.once(
            plan_key("budget", settings),
            lambda graph=graph, request=request: _in_a_room(traced, graph, request),
        )


def _in_a_room(
    traced: Traced, graph: GraphView, request: PlanRequest
) -> dict[str, Any]:
    fitted = best_plan(graph, request)
    if fitted is None:
        return plan_row(_plain(graph)) | {"error": "no plan fits"}
    small_pool = find_device().keep_pool(fitted.small_pool)
    row = measured(traced, fitted.plan, f"budget in {format_bytes(request.budget)}")
    del small_pool
    return row | {"planned_step_bytes": fitted.peak}


if __name__ == "__main__":
    raise SystemExit(main())
