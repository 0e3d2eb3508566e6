"""Work of the test processes: steps whose swaps are made by hand, on a card."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from lms.emulation.counters import begin_trace, counter, end_trace
from lms.ir.liveness import peak
from lms.ir.plan import Swap, SwapIn, SwapPlan
from lms.machine.hardware import PRESETS, roofline
from lms.planning.placement import find_plan
from lms.planning.problem import Filters, PlanRequest, Speeds
from lms.tf.capture.tracing import trace
from lms.tf.lowering import specialise
from lms.tf.measure.devices import find_device
from lms.tf.rewriting import rebuild, rewrite
from tests.graphs import scheduled
from tests.tf.steps import DEVICE

__all__ = ["swap_and_compare", "swap_in_among_kernels"]

_COPIES = ("d2h", "h2d", "d2h_pageable", "h2d_pageable")
_PRODUCTS, _ROWS = 10, 512


def swap_and_compare() -> dict[str, Any]:
    """Train with swaps, and without, and compare."""
    tf.config.experimental.enable_op_determinism()
    x, y = tf.random.stateless_normal([8, 32, 32, 3], (1, 2)), tf.range(8) % 5
    plain, variables = _convolutional_step()
    losses = [plain(x, y).numpy() for _ in range(3)]
    numbers = [*losses, *(variable.numpy() for variable in variables)]

    function, variables = _convolutional_step()
    traced = trace(function, [x, y])
    inputs = traced.flat_inputs([x, y])
    step = specialise(traced, inputs, device=DEVICE)
    graph = scheduled(step.graph)
    hardware = PRESETS["v100-pcie"]
    asked = PlanRequest(
        budget=int(0.6 * peak(graph)),
        speeds=Speeds(costs=roofline(graph, hardware), hardware=hardware),
        filters=Filters(),
    )
    fitted = find_plan(graph, asked)
    assert fitted is not None
    swapped = rebuild(traced, step, rewrite(step, fitted.plan))
    losses = [swapped(inputs).numpy()]
    before = [counter(name) for name in _COPIES]
    losses += [swapped(inputs).numpy() for _ in range(2)]
    copied = [counter(name) - then for name, then in zip(_COPIES, before, strict=True)]
    swapped_numbers = [*losses, *(variable.numpy() for variable in variables)]
    pairs = enumerate(zip(numbers, swapped_numbers, strict=True))
    plan = fitted.plan
    return {
        "swaps": len(plan.swaps),
        "different": [i for i, (a, b) in pairs if a.tobytes() != b.tobytes()],
        "planned": [2 * plan.swapped_out_bytes, 2 * plan.swapped_in_bytes, 0, 0],
        "copied": copied,
    }


def _convolutional_step() -> tuple[Any, list[tf.Variable]]:
    """A step of gradient descent, and its variables."""
    draw = np.random.default_rng(3)
    shapes = [(3, 3, 3, 8), *[(3, 3, 8, 8)] * 3, (8, 5)]
    variables = [
        tf.Variable(0.1 * draw.standard_normal(shape).astype("float32"))
        for shape in shapes
    ]

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            for kernel in variables[:-1]:
                x = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME"))
            logits = tf.reduce_mean(x, [1, 2]) @ variables[-1]
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            )
        gradients: Any = tape.gradient(loss, variables)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    return step, variables


def swap_in_among_kernels() -> dict[str, Any]:
    """A product leaves when it is made, and is to come back after the fifth of ten.

    Returns:
        "ends" of the products and "copy", the span of the copy back, in seconds.
    """
    device = find_device()

    def step(x: tf.Tensor) -> tf.Tensor:
        made = [tf.linalg.matmul(x, x)]
        for _ in range(_PRODUCTS - 1):
            made.append(tf.linalg.matmul(made[-1], x))
        return made[-1] + made[0]

    x = tf.eye(_ROWS)
    traced = trace(tf.function(step, autograph=False, jit_compile=False), [x])
    inputs = traced.flat_inputs([x])
    known = specialise(traced, inputs, device=device.full_name)
    ops = [op for op in known.graph.ops if not op.persistent]
    first = ops[0].outputs[0]
    back = SwapIn(trigger=ops[4].name, readers=(ops[-1].name,))
    swap = Swap(tensor=first.name, size=first.size, release=None, swap_ins=(back,))
    plan = SwapPlan(
        planner="test",
        order=tuple(op.name for op in known.graph.ops),
        chain=tuple(op.name for op in ops),
        swaps=(swap,),
    )
    function = rebuild(traced, known, rewrite(known, plan))
    function(inputs)[0].numpy()
    path = Path(tempfile.mkstemp()[1])
    begin_trace()
    function(inputs)[0].numpy()
    end_trace(str(path))
    rows = [line.split(" ", 5) for line in path.read_text().splitlines()]
    ends = [float(end) for lane, _, end, *_, name in rows if lane == "0"]
    copies = [row for row in rows if row[0] == "1" and int(row[4]) == first.size]
    return {"ends": sorted(ends), "copy": [float(at) for at in copies[0][1:3]]}
