"""Where copies lie among kernels, on a card in slow motion."""

import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

from lms.emulation.counters import begin_trace, end_trace
from lms.ir.plan import Swap, SwapIn, SwapPlan
from lms.tf.capture.specialising import specialise
from lms.tf.capture.tracing import trace
from lms.tf.measure.devices import find_device
from lms.tf.rewrite.rebuilding import rebuild
from lms.tf.rewrite.rewriting import rewrite

__all__ = ["swap_in_among_kernels"]

_PRODUCTS, _ROWS = 10, 512


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
    function = rebuild(traced, known, rewrite(known, plan, device.transport()))
    function(inputs)[0].numpy()
    path = Path(tempfile.mkstemp()[1])
    begin_trace()
    function(inputs)[0].numpy()
    end_trace(str(path))
    rows = [line.split(" ", 5) for line in path.read_text().splitlines()]
    ends = [float(end) for lane, _, end, *_, name in rows if lane == "0"]
    copies = [row for row in rows if row[0] == "1" and int(row[4]) == first.size]
    return {"ends": sorted(ends), "copy": [float(at) for at in copies[0][1:3]]}
