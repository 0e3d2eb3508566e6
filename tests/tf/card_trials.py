"""Functions that measure and train in a process that has a card."""

import contextlib
import os
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import keras
import numpy as np
import tensorflow as tf

import lms
from lms.emulation.counters import counter
from lms.errors import HostMemoryError
from lms.tf import compat
from lms.tf.capture.keras_step import iterator_of, step_of
from lms.tf.capture.ops import RESERVES
from lms.tf.capture.tracing import input_specs, trace
from lms.tf.lowering import refuse_guesses, specialise
from lms.tf.measure import bench, scratch
from lms.tf.measure.devices import find_device
from lms.tf.measure.speeds import measure_hardware
from lms.tf.measure.workload import with_measured_scratch
from lms.tf.undo import CommitFlag
from profiling import links
from tests.models import SILENT
from tests.tf.recovery_trials import fail
from tests.tf.steps import descent, grouped, specialised

__all__ = ["copies_in_the_step", "full_pinned_memory", "grown_memory"]
__all__ += ["kept_variables", "known_limits"]
__all__ += [
    "in_place",
    "link_rates",
    "memory_of_chunks",
    "no_memory_of_gpu_by_nvml",
    "recurrent_layers",
]
__all__ += [
    "rates",
    "requests",
    "requests_for_images",
    "runs_before_planning",
    "scratch_in_little_room",
    "scratch_of_a_bias",
    "scratch_of_poolings",
]
__all__ += ["reserve_of_recurrent_layers", "whose_steps"]


def link_rates() -> list[float]:
    """Bytes per second to the card and from it, and seconds besides, as measured."""
    hardware: Any = measure_hardware(find_device())
    return [hardware.h2d, hardware.d2h, hardware.latency]


def rates() -> list[float]:
    """Operations and bytes per second of the card, as measured."""
    hardware: Any = measure_hardware(find_device())
    return [hardware.flops, hardware.memory_bandwidth]


def _pinned(size: int) -> Any:
    """A tensor in pinned memory."""
    node = compat.NodeDef(name="out", op="Identity", input=["x"])
    node.device = compat.device_name("CPU:0")
    node.attr["T"].type = tf.uint8.as_datatype_enum
    function = compat.build_function(
        compat.graph_def([node], None),
        [("x", tf.TensorSpec([size], tf.uint8), None)],
        ["out:0"],
    )
    with compat.planned_as_is():
        return function.call_flat(tf.zeros([size], tf.uint8))[0]


def kept_variables() -> dict[str, Any]:
    """Bytes that go to the host from pageable memory in steps that write early."""
    step, weights = descent(8, 64)
    state = tf.Variable(tf.constant(1.0))

    def counted(x: Any) -> Any:
        state.assign_add(1.0)
        return step(x * state)

    x = tf.ones([4096, 64])
    made = lms.fit_in_memory(counted, [x], budget="11MiB", recompute=False)
    prepared, is_kept, copied = _run_four_times(made, x, state)
    fail(prepared, 1)
    kept = weights.numpy()
    made(x)
    return {
        "is_kept": is_kept,
        "copied": copied,
        "state": float(state),
        "replans": made.report[0].replans,
        "wrote": not np.array_equal(kept, weights.numpy()),
    }


def _run_four_times(made: Any, x: Any, state: tf.Variable) -> tuple[Any, bool, int]:
    """Return the step, whether it keeps `state` before it runs, and pageable bytes."""
    made(x)
    (prepared,) = made._steps.values()
    handles = [id(handle) for handle, _ in prepared.kept.handles]
    before = counter("d2h_pageable")
    for _ in range(3):
        made(x)
    return prepared, id(state.handle) in handles, counter("d2h_pageable") - before


def full_pinned_memory() -> dict[str, Any]:
    """A planned step, when others have taken the pinned memory that it swaps to."""
    step, weights = descent(8, 64)
    x = tf.ones([4096, 64])
    made = lms.fit_in_memory(step, [x], budget="7MiB", recompute=False)
    made(x)  # the step's constants have passed through it then
    before, hogs = weights.numpy(), []
    with contextlib.suppress(tf.errors.ResourceExhaustedError):
        while True:  # swapped tensors are of 1 MiB
            hogs.append(_pinned(1 << 20))
    try:
        made(x)
    except HostMemoryError as error:
        said = str(error)
    else:
        said = ""
    return {
        "swaps": made.report[0].swap_count if made.report else None,
        "said": said,
        "same": bool(np.array_equal(before, weights.numpy())),
        "limit": made.report[0].host_peak_bytes if made.report else None,
    }


def recurrent_layers() -> dict[str, list[list[int]]]:
    """Shapes of what cuDNN's ops make in training steps of Keras's defaults."""
    layers = keras.layers
    found: dict[str, list[list[int]]] = {}
    for layer in (
        layers.LSTM(16),
        layers.GRU(16),
        layers.Bidirectional(layers.LSTM(16)),
    ):
        parts = [keras.Input((12, 8)), layer, layers.Dense(1)]
        model: Any = keras.Sequential(parts)
        model.compile("sgd", "mse", jit_compile=False)
        specs = [tf.TensorSpec([4, 12, 8]), tf.TensorSpec([4, 1])]
        traced = trace(step_of(model, "train"), (), iterator=iterator_of(specs))
        device = find_device().full_name
        step = specialise(traced, input_specs(traced), device=device)
        refuse_guesses(step)
        ops = [op for op in step.graph.ops if op.type == "CudnnRNNV3"]
        found[type(layer).__name__] = [list(t.shape) for t in ops[0].outputs]
    return found


def scratch_of_recurrent_layers(needed: int) -> dict[str, int]:
    """Scratch of an LSTM's two ops, where the forward one was measured to need some."""
    layers = keras.layers
    model: Any = keras.Sequential([keras.Input((32, 64)), layers.LSTM(64)])
    model.compile("sgd", "mse", jit_compile=False)
    specs = [tf.TensorSpec([8, 32, 64]), tf.TensorSpec([8, 64])]
    traced = trace(step_of(model, "train"), (), iterator=iterator_of(specs))
    device = find_device()
    step = specialise(traced, input_specs(traced), device=device.full_name)
    bench.Bench._peak = lambda *_: needed  # type: ignore[method-assign]
    graph = with_measured_scratch(step, device).graph
    return {op.type: op.scratch for op in graph.ops if "CudnnRNN" in op.type}


def open_batch() -> dict[str, Any]:
    """Count ops of varying size in a step of volumes that was traced for any batch.

    A permuted shape gives the gradient of UpSampling3D its size.
    """
    x = inputs = keras.Input((8, 8, 8, 2))
    x = keras.layers.Conv3D(4, 3, padding="same")(keras.layers.UpSampling3D()(x))
    x = keras.layers.Conv3D(4, 3, strides=2)(keras.layers.UpSampling3D()(x))
    model: Any = keras.Model(inputs, x)
    model.compile("sgd", "mse", jit_compile=False)
    specs = [tf.TensorSpec([None, 8, 8, 8, 2]), tf.TensorSpec([None, *x.shape[1:]])]
    traced = trace(step_of(model, "train"), (), iterator=iterator_of(specs))
    known = [tf.TensorSpec([3, *spec.shape[1:]]) for spec in specs]
    step = specialise(traced, known, device=find_device().full_name)
    large = [op for op in step.graph.ops if any(t.size > 4096 for t in op.outputs)]
    return {
        "permuted": sum(op.type == "DataFormatVecPermute" for op in step.graph.ops),
        "guessed": step.guessed,
        "varying": [op.name for op in large if op.varies],
    }


def grown_memory(budget: str) -> dict[str, Any]:
    """Return whether growing memory fits a large tensor after a smaller one."""
    lms.fit_in_memory(lambda x: x + 1.0, [tf.TensorSpec([4])], budget=budget)
    rows = (find_device().limit or 0) >> 8

    def taken(rows: int) -> Any:
        return tf.raw_ops.Empty(shape=[rows, 1 << 8], dtype=tf.uint8, init=False)

    large = taken(rows // 3)
    small = taken(1 << 15)  # beside it: its region cannot be given back
    del large
    try:
        taken(rows * 3 // 5)
    except tf.errors.ResourceExhaustedError:
        return {"fit": False}
    del small
    return {"fit": True}


def known_limits(budgets: Sequence[str | None]) -> list[dict[str, Any]]:
    """Trainings where the allocator keeps no statistics and knows no limit."""
    model: Any = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", jit_compile=False)
    x, found = np.ones((8, 4), "float32"), []
    for budget in budgets:
        callback = lms.LMSCallback(budget, verbose=0)
        model.fit(x, np.ones((8, 2)), verbose=SILENT, callbacks=[callback])
        found.append({"limit": find_device().limit, "said": callback.summary()})
    return found


def no_memory_of_gpu_by_nvml() -> int:
    """Return the reported GPU memory where NVML does not give any."""
    links.describe_gpus = lambda _: [
        {"index": 0, "name": "x", "memory": {"error": "n"}}
    ]
    links.stated_link = lambda _: None
    return links.describe_link()["memory"]


def whose_steps() -> list[str]:
    """Return the type of the training function once all fits, with XLA and without."""
    return [_whose_steps(jit) for jit in ("auto", False)]


def _whose_steps(jit: Any) -> str:
    """Return the type of a planned function, or of Keras's."""
    model: Any = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", jit_compile=jit)
    seen: list[Any] = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(model.train_function)

    x, y = np.ones((8, 4), "float32"), np.ones((8, 2), "float32")
    callbacks = [lms.LMSCallback(verbose=0), Look()]
    model.fit(x, y, batch_size=2, verbose=0, callbacks=callbacks)
    return type(getattr(seen[-1], "__self__", None)).__name__


def runs_before_planning() -> list[int]:
    """How many ops run alone, without guards: at first, again, in a new process."""
    weights = tf.Variable(tf.ones([256, 256]))
    spec, device = tf.TensorSpec([256, 256]), find_device()
    step = specialised(lambda x: tf.linalg.matmul(x, weights), spec)
    ran: list[int] = []
    bench_of: Any = bench.Bench
    own = bench_of.measure_scratch

    def counted(bench: Any, *args: Any) -> Any:
        ran[-1] += os.environ["TF_DISABLE_RZ_CHECK"] == "1"
        return own(bench, *args)

    bench_of.measure_scratch = counted
    for begun in (False, False, True):
        ran.append(0)
        if begun:
            bench._chosen.clear()
        scratch.measure_scratch(step, device)
    return ran


def requests() -> list[dict[str, list[int]]]:
    """Requests of a convolution's gradients, within a user's own session and after."""
    filters = tf.Variable(tf.ones([3, 3, 16, 32]))

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.conv2d(x, filters, 1, "SAME")
        return tape.gradient(y, [x, filters])

    traced = specialised(step, tf.TensorSpec([8, 64, 64, 16]))
    found: list[dict[str, list[int]]] = []
    tf.profiler.experimental.start("")
    for _ in range(2):
        graph = with_measured_scratch(traced, find_device()).graph
        found.append({op.type: [*op.asks] for op in graph.ops if op.scratch > 64 << 10})
        with contextlib.suppress(tf.errors.UnavailableError):
            tf.profiler.experimental.stop(save=False)
    return found


def requests_for_images(layout: str, batch: int) -> dict[str, list[Any]]:
    """Scratch and requests, by type, of the convolutions of one or two images."""
    filters = tf.Variable(tf.ones([3, 3, 16, 16]))
    rows = 256 // batch
    shape = [batch, rows, 256, 16] if layout == "NHWC" else [batch, 16, rows, 256]

    def step(x: tf.Tensor) -> Any:
        form: Any = {"strides": [1] * 4, "padding": "SAME", "data_format": layout}
        y = tf.raw_ops.Conv2D(input=x, filter=filters, **form)
        form |= {"out_backprop": y}
        return (
            tf.raw_ops.Conv2DBackpropInput(input_sizes=x.shape, filter=filters, **form),
            tf.raw_ops.Conv2DBackpropFilter(
                input=x, filter_sizes=filters.shape, **form
            ),
        )

    traced = specialised(step, tf.TensorSpec(shape))
    size, asks, _ = scratch.measure_scratch(traced, find_device())
    convolutions = [op for op in traced.graph.ops if "Conv2D" in op.type]
    return {op.type: [size[op.name], asks.get(op.name, ())] for op in convolutions}


def scratch_of_a_bias() -> dict[str, Any]:
    """Scratch of a bias's gradient of 4 MiB, and what its next run takes."""
    given: Any = {"data_format": "NCHW"}
    shape = [4, 16, 128, 128]

    def step(x: tf.Tensor) -> Any:
        return tf.raw_ops.BiasAddGrad(out_backprop=x, **given)

    traced, device = specialised(step, tf.TensorSpec(shape)), find_device()
    size, asks, _ = scratch.measure_scratch(traced, device)
    (name,) = (op.name for op in traced.graph.ops if op.type == "BiasAddGrad")
    x = tf.ones(shape)
    device.reset_peak()
    before = device.current_bytes or 0
    tf.raw_ops.BiasAddGrad(out_backprop=x, **given)
    taken = (device.peak_bytes or 0) - before
    return {"size": size[name], "asks": asks[name], "taken": taken}


def in_place() -> dict[str, bool]:
    """Tell by type which ops of a step may write in place, as measured."""

    def step(x: tf.Tensor) -> Any:
        return tf.tanh(tf.nn.softmax(tf.exp(x)))

    traced = specialised(step, tf.TensorSpec([256, 256]))
    graph = with_measured_scratch(traced, find_device()).graph
    return {op.type: op.inplace for op in graph.ops if op.inputs}


def scratch_in_little_room(channels: int) -> dict[str, Any]:
    """Scratch of the compiled calls, and the peak of finding it."""
    filters = tf.Variable(tf.random.stateless_normal([7, 7, 1, channels], (1, 2)))
    spec = tf.TensorSpec([2, 4, 4, channels])
    step, device = specialised(grouped(filters), spec), find_device()
    device.reset_peak()
    found, *_ = scratch.measure_scratch(step, device)
    calls = [op.name for op in step.graph.ops if "Call" in op.type]
    return {
        "scratch": sorted(found[name] for name in calls),
        "peak": device.peak_bytes,
        "memory": device.limit,
    }


def scratch_of_poolings() -> dict[str, int]:
    """Scratch of the gradients of poolings, by type."""

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.max_pool2d(x, 2, 2, "SAME")
        return tape.gradient(y, x)

    found = dict[str, int]()
    for dtype in (tf.float16, tf.float32):
        traced = specialised(step, tf.TensorSpec([8, 64, 64, 16], dtype))
        graph = with_measured_scratch(traced, find_device()).graph
        made = (op for op in graph.ops if op.type == "MaxPoolGrad")
        found |= {f"{dtype.name} {op.type}": op.scratch for op in made}
    return found


def memory_of_chunks() -> dict[str, int]:
    """Bytes of a tensor in a hole of half as much again, and of an op of constants."""
    device = find_device()

    def used() -> int:
        return device.current_bytes or 0

    hole = tf.zeros([3 << 18])
    wall = tf.zeros([1])
    before, free = used(), 3 << 20
    del hole
    inside = tf.zeros([2 << 18])
    split = used() - before + free
    del inside, wall
    function = tf.function(lambda x: x * tf.exp(tf.fill([512, 512], 0.5)))
    x = tf.ones([512, 512])
    told = specialised(function, x).graph.constant_bytes
    before = used()
    np.array(function(x))
    return {"split": split, "told": told, "kept": used() - before}


def copies_in_the_step(*, by_rows: bool) -> dict[str, Any]:
    """A step that writes a large variable early, and once runs out of memory then.

    Args:
        by_rows: Whether an op uses rows of the variable.
    """
    step, weights = descent(8, 64)
    state = tf.Variable(tf.ones([4096, 64]))
    calls = 0

    def counted(x: Any) -> Any:
        state.assign_add(tf.ones_like(state))
        return step(x * (tf.gather(state, rows) if by_rows else state))

    def failing(flag: CommitFlag) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise MemoryError("OOM as the test wants it")
        noting(flag)

    noting, x, rows = CommitFlag._note, tf.ones([4096, 64]), tf.range(4096)
    with patch.object(CommitFlag, "_note", failing):
        made = lms.fit_in_memory(counted, [x], budget="12MiB", recompute=False)
        prepared, is_kept, copied = _run_four_times(made, x, state)
        written = weights.numpy()
        made(x)
    return {
        "is_kept_before": is_kept,
        "copied": copied,
        "held": len(prepared.kept.in_step.made()),
        "state": [float(one) for one in (tf.reduce_min(state), tf.reduce_max(state))],
        "replans": made.report[0].replans,
        "wrote": not np.array_equal(written, weights.numpy()),
    }


def reserve_of_recurrent_layers(batch: int) -> dict[str, bool]:
    """Tell by the op's type if the reserve space of a masked LSTM was measured."""
    layers = keras.layers
    masked = [keras.Input((32,)), layers.Embedding(9, 64, mask_zero=True)]
    model: Any = keras.Sequential([*masked, layers.LSTM(64)])
    model.compile("sgd", "mse", jit_compile=False)
    specs = [tf.TensorSpec([batch, 32]), tf.TensorSpec([batch, 64])]
    traced = trace(step_of(model, "train"), (), iterator=iterator_of(specs))
    device = find_device()
    step = specialise(traced, input_specs(traced), device=device.full_name)
    graph = with_measured_scratch(step, device).graph
    return {op.type: not op.varies for op in graph.ops if op.type in RESERVES}
