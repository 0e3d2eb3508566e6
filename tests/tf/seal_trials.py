"""Work of the test processes: where the chunks of a sealed step lie."""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import zip_longest
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from lms import LMSCallback
from lms.tf.passes.host_variables import bytes_on_host
from lms.tf.recovery import Part
from lms.units import Bytes
from profiling.sessions import MARK, Session, recording
from tests import models
from tests.models import Case
from tests.tf import slice_trials, training

__all__ = ["sealed"]

# The calls of the step whose requests are recorded.
_FIRST, _LAST = 1, 2

_SHOWN = 4  # requests from the first difference on


class _Request(NamedTuple):
    """A chunk that an op asks for; the address 0 stands for any."""

    op: str
    size: Bytes
    address: int


def _cases() -> dict[str, Case]:
    images = models._resnet_data()
    rows = np.random.default_rng(0).standard_normal((3072, 512)).astype("float32")
    vectors = {"x": rows, "y": rows, "batch_size": 1024}
    return {
        "swaps": Case(build=lambda: _convolutions("relu"), fit=images),
        "masks by way of the host": Case(build=_masked, fit=images),
        "recomputed ops": Case(build=lambda: _convolutions("gelu"), fit=images),
        "slices": slice_trials.block(),
        "variables on the host": Case(build=_dense, fit=vectors),
        "convolutions": Case(build=models.conv_net, fit=images),
        "moving averages": Case(build=_normalised, fit=vectors),
    }


def _convolutions(activation: str) -> keras.Model:
    known: Any = {"padding": "same", "activation": activation}
    parts = [keras.layers.Conv2D(128, 3, **known) for _ in range(6)]
    ends = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(5)]
    model: Any = keras.Sequential([keras.Input((32, 32, 3)), *parts, *ends])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    return model


def _masked() -> keras.Model:
    """Convolutions with a mask of int32, which TensorFlow computes on the host."""

    @keras.saving.register_keras_serializable()
    class Mask(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            counts = tf.maximum(tf.cast(x > 0.0, tf.int32), tf.size(x) * 0)
            return tf.where(counts > 0, x, 0.1 * x)

    known: Any = {"padding": "same", "activation": "relu"}
    parts = [keras.layers.Conv2D(128, 3, **known) for _ in range(6)]
    ends = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(5)]
    model: Any = keras.Sequential(
        [keras.Input((32, 32, 3)), *parts[:2], Mask(), *parts[2:], *ends]
    )
    model.compile(
        "adam",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return model


def _dense() -> keras.Model:
    parts = [keras.layers.Dense(512, activation="tanh") for _ in range(6)]
    model: Any = keras.Sequential([keras.Input((512,)), *parts])
    model.compile("adamw", "mse", jit_compile=False)
    return model


def _normalised() -> keras.Model:
    """Twenty moving averages of 3,840 bytes each, 75 KiB together."""
    parts: list[Any] = []
    for _ in range(10):
        parts += [keras.layers.Dense(960), keras.layers.BatchNormalization()]
    ends = [keras.layers.Activation("relu"), keras.layers.Dense(512)]
    model: Any = keras.Sequential([keras.Input((512,)), *parts, *ends])
    model.compile("sgd", "mse", jit_compile=False)
    return model


def sealed(name: str, *, planned: bool, **knobs: Any) -> dict[str, Any]:
    """Train a model, and compare the requests of two steps with the planned ones.

    Args:
        name: The model.
        planned: Whether large model support is used.
        **knobs: The callback's.

    Returns:
        Hashes of all numbers, the peak; of a planned training the report, and of each
        recorded step the number of planned chunks and what differs first.
    """
    tf.config.experimental.enable_op_determinism()
    callback = LMSCallback(verbose=0, **knobs)
    recorded = _Recorded(callback)
    trained = training.train(_cases()[name], [callback, recorded] if planned else [])
    found = {"numbers": training.hashes(trained.numbers), "peak": trained.peak}
    if not planned:
        return found
    report = callback.report[0]
    return found | {
        "addresses": report.addresses,
        "replans": report.replans,
        "predicted": report.predicted_peak_bytes,
        "measured": report.measured_peak_bytes,
        "swaps": report.swap_count,
        "recomputed": len(report.plan.recomputed) if report.plan else 0,
        "cut": report.ops_cut,
        "on_host": recorded.on_host,
        "ops": len(callback.timelines[0].graph.ops),
        "chunks": recorded.chunks,
        "others": recorded.others,
    }


class _Recorded(keras.callbacks.Callback):
    """Records two steps of the first epoch, one after the other."""

    part: Part
    on_host = 0
    chunks: list[int]
    others: list[Any]

    def __init__(self, planned: LMSCallback) -> None:
        super().__init__()
        self._planned, self._session, self._all = planned, Session(), ExitStack()
        self._count = -1
        self.chunks, self.others = [], []
        self._one = ExitStack()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        del logs, batch
        self._count += 1
        if self._count == _FIRST:
            self._all.enter_context(recording(self._session))
        if _FIRST <= self._count <= _LAST:
            mark = tf.profiler.experimental.Trace(MARK, step_num=self._count, _r=1)
            self._one.enter_context(mark)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        float((logs or {})["loss"])  # the device has ended the step
        self._one.close()
        if self._count == _LAST:
            self._all.close()
            (step,) = self._planned._hooks["train"].fitted._steps.values()
            (self.part,) = step.parts
            self.on_host = bytes_on_host()
            self._compare()

    def _compare(self) -> None:
        """Compare what each recorded call asked for in its arena with the plan."""
        arena, spans = self.part.arena, self._session.spans
        if arena is None:
            return
        end, wanted = arena.address + arena.capacity, _planned(self.part)
        for mark in (span for span in spans if span.name == MARK):
            asked = [
                _Request(one["tf_op"], int(one["allocation_bytes"]), int(one["addr"]))
                for span in spans
                if span.name == "MemoryAllocation"
                and mark.start <= span.start <= mark.end
                and str((one := span.facts)["allocator_name"]).startswith("GPU_")
            ]
            probe, *inside = [
                one
                for one in asked
                if one.size >= arena.below and arena.address <= one.address < end
            ]
            assert probe.op == "Empty"  # of `Arena.is_clear`
            assert probe.address == arena.address
            others = _others(wanted, inside)
            self.chunks.append(sum(one.address > 0 for one in wanted))
            self.others.append(others)


def _planned(part: Part) -> list[_Request]:
    """The requests of a sealed step in order."""
    assert part.seal is not None
    assert part.arena is not None
    begin, addresses = part.arena.address, part.seal.addresses
    found: list[_Request] = []
    for turn, spacers in part.seal.spacers:
        sized = [each for each in spacers if each.size]
        found += [_Request(f"lms/spacer{e.number}", e.size, 0) for e in sized]
        op = turn.op if turn.copy is None else f"swap-in {turn.copy}"
        for key, size in turn.takes:
            found.append(_Request(op, size, begin + addresses[key]))
    return found


def _others(
    wanted: Sequence[_Request], asked: Sequence[_Request]
) -> list[tuple[_Request | None, _Request | None]]:
    """The planned and the real requests from the first difference on."""
    both = list(zip_longest(wanted, asked))
    for i, (plan, real) in enumerate(both):
        if (
            plan is None
            or real is None
            or plan.size != real.size
            or plan.address not in (0, real.address)
        ):
            return both[max(0, i - 2) : i + _SHOWN]
    return []
