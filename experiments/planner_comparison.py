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
them hold. With every level serialised the rule comes close to what no plan can go
below, so that 0.6 times its peak cannot be reached by anyone; both are shown.

Peaks are the allocator's, persistent bytes included. The first step is not counted: it
initialises. The device is the CPU behind the allocator of GPUs (`lms.emulate`), with a
limit that nothing comes near.

Known weakness: without serialization TensorFlow starts any ready op, so the threshold
planner's peaks wander from run to run. Step times are of copies within host memory.
"""

import gc
import itertools
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from experiments.lines import command_line, write_lines
from experiments.planner_comparison_report import draw
from lms import emulate
from lms.choosing import plain_plan
from lms.errors import BudgetError, PlanError
from lms.graph import GraphView
from lms.liveness import lower_bound, peak
from lms.plan import SwapPlan, planned_graph, validate_plan
from lms.planning.candidates import Filters, movable, smallest_worth_moving
from lms.planning.combining import Wish, best_plan
from lms.planning.fitting import fit_plan
from lms.planning.judging import Beyond, FittedPlan
from lms.planning.schedule import schedule
from lms.planning.search import grid
from lms.planning.threshold import SyncMode, plan_by_threshold
from lms.planning.timing import Speeds
from lms.room import UNLIMITED
from lms.simulator import simulate_memory
from lms.tf.devices import find_device, take_emulated_memory
from lms.tf.measuring import (
    measure_costs,
    measure_hardware,
    measure_scratch,
    with_scratch,
)
from lms.tf.planned import planned_step
from lms.tf.rebuilding import rebuild
from lms.tf.rewriting import rewrite
from lms.tf.specialising import TracedStep, specialise
from lms.tf.tracing import TracedFunction, trace
from lms.units import format_bytes
from unet3d.model import build_unet

__all__ = ["main"]

_NAME = "planner_comparison"
_STEPS = 3  # of each plan; the first one initialises


@dataclass(frozen=True, slots=True, kw_only=True)
class _Knobs:
    """One setting of TFLMS's knobs."""

    swapout_threshold: int
    swapin_ahead: int
    swapin_groupby: int
    sync_mode: str = "off"
    serialization: tuple[str, ...] = ()

    @property
    def is_default(self) -> bool:
        """Whether TFLMS would sync and serialise so when nothing is asked for."""
        return self.sync_mode == "off" and not self.serialization


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traced:
    """The traced step and what planners need of it.

    `own` is the step as TensorFlow would run it, its graph is `own_graph`; `kept` are
    bytes of constants that only it keeps.
    """

    function: TracedFunction
    step: TracedStep
    own: TracedStep
    graph: GraphView
    own_graph: GraphView
    kept: int
    min_bytes: int
    movable: frozenset[str]
    inputs: Sequence[tf.Tensor]


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
        if key not in ("command", "results")
    }
    model = build_unet(
        options.size, options.filters, options.depth, batch_size=1, seed=0
    )
    model.optimizer.build(model.trainable_variables)
    traced = _trace(model)
    rows = [
        _bounds(traced, options),
        _measured_plain(traced),
        _by_budget(traced),
        *_frontier(traced, options.parts),
        *_threshold_rows(traced, options),
    ]
    write_lines(options.results, settings, rows)


def _trace(model: Any) -> _Traced:
    def step(volumes: tf.Tensor, regions: tf.Tensor) -> Any:
        return model.train_step((volumes, regions))

    random = np.random.default_rng(0)
    volumes = random.standard_normal((1, *model.input_shape[1:]))
    regions = random.integers(0, 2, (1, *model.output_shape[1:]))
    inputs = [
        tf.raw_ops.DeepCopy(x=tensor)  # NumPy's memory would not count as the device's
        for tensor in (tf.constant(volumes, tf.float32), tf.constant(regions, tf.uint8))
    ]
    function = trace(step, inputs)
    device = find_device()
    specialised = specialise(function, inputs, device=device.full_name)
    scratch = measure_scratch(specialised, device.memory)
    graph = with_scratch(specialised.graph, scratch)
    own = specialised.own or specialised
    min_bytes = smallest_worth_moving(peak(graph))
    return _Traced(
        function=function,
        step=specialised,
        own=own,
        graph=graph,
        own_graph=with_scratch(own.graph, scratch),
        kept=own.graph.constant_bytes - graph.constant_bytes,
        min_bytes=min_bytes,
        movable=movable(graph, min_bytes=min_bytes),
        inputs=inputs,
    )


def _plain(graph: GraphView) -> SwapPlan:
    return SwapPlan(planner="none", order=tuple(op.name for op in graph.ops))


def _measured_plain(traced: _Traced) -> dict[str, Any]:
    own = replace(traced, step=traced.own, graph=traced.own_graph)
    return _measured(own, _plain(own.graph), settings={})


def _bounds(traced: _Traced, options: Any) -> dict[str, Any]:
    """What holds for every plan, and the grid."""
    persistent = _settled_bytes() + traced.step.constant_bytes
    return {
        "kind": "bounds",
        "ops": len(traced.graph.ops),
        "lower_bound_bytes": lower_bound(traced.graph),
        "persistent_bytes": persistent,
        "grid": {
            "swapout_threshold": options.thresholds,
            "swapin_ahead": options.aheads,
            "swapin_groupby": options.groupbys,
        },
    }


def _settled_bytes() -> int:
    gc.collect()
    return find_device().memory.settled_bytes() or 0


def _by_budget(traced: _Traced) -> dict[str, Any]:
    """The budget planner in the least room that it does not refuse."""
    fitted = _least_plan(schedule(traced.graph))
    nook = find_device().keep_nook(fitted.nook)
    row = _measured(traced, fitted.plan, settings={"planned_step_bytes": fitted.peak})
    del nook
    return row


def _least_plan(graph: GraphView) -> FittedPlan:
    """The refusal of a room that is far too small names the least."""
    try:
        return fit_plan(graph, 1, filters=Filters())
    except BudgetError as error:
        if error.least_bytes is None:
            raise
        return fit_plan(graph, error.least_bytes, filters=Filters())


def _frontier(traced: _Traced, parts: Sequence[float]) -> Iterator[dict[str, Any]]:
    """The budget planner in rooms between, in each of its variants."""
    device = find_device()
    speeds = Speeds(
        costs=measure_costs(traced.step, device.memory),
        hardware=measure_hardware(device),
    )
    unplanned = plain_plan(traced.own_graph, traced.kept).peak
    scheduled = schedule(traced.graph)
    variants: Mapping[str, tuple[GraphView, bool | None]] = {
        "as it is": (scheduled, None),
        "nothing twice": (scheduled, False),
        "twice where it can": (scheduled, True),
        "TensorFlow's order": (traced.graph, None),
    }
    for part, (name, (graph, recompute)) in itertools.product(parts, variants.items()):
        room = int(part * unplanned)
        near = Beyond(free=room // 32, bound=UNLIMITED)
        wish = Wish(
            room=room,
            beyond=near,
            speeds=speeds,
            filters=Filters(),
            recompute=recompute,
        )
        settings = {"part": part, "variant": name, "room_bytes": room}
        fitted = best_plan(graph, wish)
        if fitted is None:
            yield _row(_plain(graph), settings) | {
                "planner": "budget",
                "error": "no plan fits",
            }
            continue
        nook = device.keep_nook(fitted.nook)
        yield _measured(traced, fitted.plan, settings=settings) | {
            "planned_step_bytes": fitted.peak
        }
        del nook


def _threshold_rows(traced: _Traced, options: Any) -> list[dict[str, Any]]:
    """Everything in TFLMS's default modes, then the best few in the others."""
    default = [
        _Knobs(swapout_threshold=threshold, swapin_ahead=ahead, swapin_groupby=groupby)
        for threshold, ahead, groupby in itertools.product(
            options.thresholds, options.aheads, options.groupbys
        )
    ]
    rows = [_by_threshold(traced, knobs) for knobs in default]
    ranked = sorted(
        (row for row in rows if row["peak_bytes"] is not None),
        key=lambda row: row["peak_bytes"],
    )
    best = [
        _Knobs(**{**row["settings"], "serialization": ()})
        for row in ranked[: options.few]
    ]
    others = [
        replace(knobs, sync_mode=mode, serialization=serialization)
        for mode, serialization in _MODES
        for knobs in (*best, *_simulated_best(traced, options, mode, serialization))
    ]
    rows += [_by_threshold(traced, knobs) for knobs in dict.fromkeys(others)]
    return rows


_MODES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("both", ()),
    ("off", (":",)),
    ("both", (":",)),
)


def _simulated_best(
    traced: _Traced, options: Any, mode: str, serialization: tuple[str, ...]
) -> Iterator[_Knobs]:
    choices = grid(
        traced.graph,
        thresholds=options.thresholds,
        aheads=options.aheads,
        groupbys=options.groupbys,
        movable=traced.movable,
        min_bytes=traced.min_bytes,
        sync_mode=SyncMode.parse(mode),
        serialization=serialization,
    )
    for choice in sorted(choices, key=lambda choice: choice.peak)[: options.few]:
        yield _Knobs(
            swapout_threshold=choice.swapout_threshold,
            swapin_ahead=choice.swapin_ahead,
            swapin_groupby=choice.swapin_groupby,
        )


def _by_threshold(traced: _Traced, knobs: _Knobs) -> dict[str, Any]:
    wanted: dict[str, Any] = asdict(knobs) | {
        "sync_mode": SyncMode.parse(knobs.sync_mode)
    }
    plan = plan_by_threshold(
        traced.graph, movable=traced.movable, min_bytes=traced.min_bytes, **wanted
    )
    return _measured(traced, plan, settings=asdict(knobs)) | {
        "default_modes": knobs.is_default
    }


def _row(plan: SwapPlan, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of a plan that has not run."""
    return {
        "kind": "plan",
        "planner": plan.planner,
        "settings": dict(settings),
        "swap_count": len(plan.swaps),
        "recomputed_ops": len(plan.recomputed),
        "swapped_out_bytes": plan.swapped_out_bytes,
        "swapped_in_bytes": plan.swapped_in_bytes,
        "peak_bytes": None,
        "step_seconds": None,
        "error": None,
    }


def _measured(
    traced: _Traced, plan: SwapPlan, *, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Build a plan into the step and run it."""
    graph = planned_graph(traced.graph, plan)
    validate_plan(graph, plan)
    device = find_device()
    transport = device.transport()
    row = _row(plan, settings) | {
        "simulated_step_bytes": simulate_memory(graph, plan).device_peak,
        "start_bytes": _settled_bytes(),
    }
    step = planned_step(traced.step, plan)
    try:
        rebuilt = rebuild(traced.function, step, rewrite(step, plan, transport))
    except PlanError as error:
        return row | {"error": str(error)}
    seconds = []
    for number in range(_STEPS):
        started = time.perf_counter()
        tf.nest.map_structure(np.asarray, rebuilt(traced.inputs))
        seconds.append(time.perf_counter() - started)
        if number == 0:
            device.memory.reset_peak()
    row["peak_bytes"] = device.memory.peak_bytes
    row["step_seconds"] = statistics.median(seconds[1:])
    transport.release()
    print(f"{plan.planner:9}", format_bytes(row["peak_bytes"] or 0), dict(settings))
    return row


if __name__ == "__main__":
    raise SystemExit(main())
