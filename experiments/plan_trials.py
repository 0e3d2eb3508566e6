"""A traced training step, and what a plan built into it measures.

For `experiments.planner_comparison`: the step is traced once, every plan is built
into it and run in one process.
"""

import gc
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from lms.errors import PlanError
from lms.ir.graph import GraphView
from lms.ir.liveness import peak
from lms.ir.plan import SwapPlan, planned_graph, validate_plan
from lms.planning.candidates import movable, smallest_worth_moving
from lms.simulation.memory import simulate_memory
from lms.tf.capture.specialising import TracedStep, specialise
from lms.tf.capture.tracing import TracedFunction, trace
from lms.tf.measure.devices import find_device
from lms.tf.measure.scratch import measure_scratch, with_scratch
from lms.tf.rewrite.rebuilding import planned_step, rebuild
from lms.tf.rewrite.rewriting import rewrite
from lms.units import format_bytes

__all__ = ["Traced", "measured", "plan_key", "plan_row", "settled_bytes", "trace_step"]

_STEPS = 3  # of each plan; the first one initialises


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
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


def trace_step(model: Any) -> Traced:
    """Trace a step of a compiled U-Net on drawn data, with scratch measured.

    Args:
        model: A compiled model of one input and one output, its optimizer built.
    """

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
    scratch = measure_scratch(specialised, device)
    graph = with_scratch(specialised.graph, scratch)
    own = specialised.own or specialised
    min_bytes = smallest_worth_moving(peak(graph))
    return Traced(
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


def settled_bytes() -> int:
    """Bytes in use on the device between two steps."""
    gc.collect()
    return find_device().memory.settled_bytes() or 0


def plan_key(planner: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What tells a plan's row from all others."""
    return {"kind": "plan", "planner": planner, "settings": dict(settings)}


def plan_row(plan: SwapPlan) -> dict[str, Any]:
    """What is known of a plan that has not run."""
    return {
        "swap_count": len(plan.swaps),
        "recomputed_ops": len(plan.recomputed),
        "swapped_out_bytes": plan.swapped_out_bytes,
        "swapped_in_bytes": plan.swapped_in_bytes,
        "peak_bytes": None,
        "step_seconds": None,
        "error": None,
    }


def measured(traced: Traced, plan: SwapPlan, name: str) -> dict[str, Any]:
    """Build a plan into the step, run it, and say the `name` and the peak."""
    graph = planned_graph(traced.graph, plan)
    validate_plan(graph, plan)
    device = find_device()
    row = plan_row(plan) | {
        "simulated_step_bytes": simulate_memory(graph, plan).device_peak,
        "start_bytes": settled_bytes(),
    }
    step = planned_step(traced.step, planned_graph(traced.step.graph, plan))
    try:
        rebuilt = rebuild(
            traced.function, step, rewrite(step, plan, device.transport())
        )
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
    print(f"{name}: {format_bytes(row['peak_bytes'] or 0)}", flush=True)
    return row
