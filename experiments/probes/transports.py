"""Where a swap-in lies among kernels, by transport.

    conv 1 ──> ... conv 6 (trigger) ──> conv 7, 8, 9 ──> reader ──> conv 10 ...
       └──> swap-out                └──> swap-in ───────────┘

The copy should begin when the trigger's kernel has ended, and hide behind the next
three. The library's own rewriter makes the step, with each transport.
"""

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

import tensorflow as tf

from lms.ir.plan import Swap, SwapIn, SwapPlan
from lms.simulation.timeline import Lane, Timeline
from lms.tf.capture.tracing import trace
from lms.tf.lowering import specialise
from lms.tf.measure.devices import Device
from lms.tf.rewriting import rebuild, rewrite
from profiling.measured import measured_steps
from profiling.sessions import MARK, record_steps
from profiling.timelines import hidden_bytes

__all__ = ["transports"]

_CHANNELS, _CONVOLUTIONS, _TRIGGER, _READER = 64, 12, 5, 9
_SECONDS = 0.02  # of a convolution at the rate of large products


def transports(knobs: Mapping[str, Any], device: Device) -> Iterator[dict[str, Any]]:
    """Yield the delay of each transport's copy, and the copy's hidden part.

    `knobs` have the card's "flops", and the number of "runs".
    """
    # Voxels along an axis, so that a convolution takes about `_SECONDS`.
    edge = (knobs["flops"] * _SECONDS / (2 * 27 * _CHANNELS**2)) ** (1 / 3)
    size = max(16, min(96, round(edge / 8) * 8))
    found: dict[str, Any] = {}
    try:
        found["copy ops"] = _probe(device, size, knobs["runs"])
    except Exception as error:  # an error is a finding
        found["copy ops"] = {"error": f"{type(error).__name__}: {error}"[:300]}
    yield {"voxels": size, "transports": found}


def _probe(device: Device, size: int, runs: int) -> dict[str, Any]:
    kernel = tf.random.stateless_normal([3, 3, 3, _CHANNELS, _CHANNELS], (0, 1)) / 50

    def step(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        value = first = tf.nn.conv3d(x, kernel, [1] * 5, "SAME")
        for number in range(1, _CONVOLUTIONS):
            if number == _READER:
                value = value + first
            value = tf.nn.conv3d(value, kernel, [1] * 5, "SAME")
        return tf.reduce_sum(value)

    with tf.device(device.name):
        x = tf.random.stateless_normal([1, size, size, size, _CHANNELS], (0, 2))
    traced = trace(tf.function(step, autograph=False, jit_compile=False), [x, kernel])
    inputs = traced.flat_inputs([x, kernel])
    known = specialise(traced, inputs, device=device.full_name)
    ops = [op for op in known.graph.ops if not op.persistent]
    convolutions = [op for op in ops if "Conv3D" in op.type]
    first = convolutions[0].outputs[0]
    trigger = convolutions[_TRIGGER].name
    readers = [o.name for o in ops if first.name in o.inputs and o != convolutions[1]]
    back = SwapIn(trigger=trigger, readers=tuple(readers))
    swap = Swap(tensor=first.name, size=first.size, release=None, swap_ins=(back,))
    plan = SwapPlan(
        planner="probe",
        order=tuple(op.name for op in known.graph.ops),
        chain=tuple(op.name for op in ops),
        swaps=(swap,),
    )
    function = rebuild(traced, known, rewrite(known, plan))

    def run() -> None:
        float(function(inputs))

    run()
    session = record_steps(run, runs, advance=lambda: None)
    steps = measured_steps(session.spans, runs, mark=MARK, waits={})
    return {"bytes": first.size} | _found(steps, trigger, first.size)


def _found(steps: list[Timeline], trigger: str, size: int) -> dict[str, Any]:
    """Return medians over the runs; an error where no trace has trigger and copy."""
    late: list[float] = []
    hidden: list[float] = []
    for step in steps:
        ends = [op.end for op in step.lane(Lane.COMPUTE) if op.name == trigger]
        copies = [copy for copy in step.lane(Lane.H2D) if copy.size == size]
        if not ends or not copies or not copies[0].seconds:
            continue
        late.append(copies[0].start - max(ends))
        alone = [i for i in step.intervals if i.lane is Lane.COMPUTE or i is copies[0]]
        hidden.append(hidden_bytes(Timeline(intervals=tuple(alone)), Lane.H2D) / size)
    if not late:
        return {"error": "the trace shows no copy that takes time"}
    kernels = [sum(op.seconds for op in step.lane(Lane.COMPUTE)) for step in steps]
    found = {"late_seconds": median(late), "hidden": median(hidden)}
    return found | {"kernel_seconds": median(kernels) / _CONVOLUTIONS}
