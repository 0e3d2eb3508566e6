"""The steps whose plans are recorded: models that are traced, and graphs drawn here.

A batch is only described, so that a step of gigabytes is traced on any machine. Scratch
depends on kernels: here it is a part of what an op makes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from lms.commands.forecast import captured_for
from lms.ir.graph import GraphView, Op
from lms.machine.hardware import PRESETS
from lms.planning.settings import Settings
from lms.tf.capture.keras_step import step_of_data
from lms.tf.capture.tracing import read_signature, trace
from lms.tf.measure.scratch import with_scratch
from lms.units import MIB
from tests import graphs, models
from tests.planning.drawn_graphs import unet_like
from tests.planning.stored import StoredStep
from unet3d.model import build_unet

__all__ = ["STEPS"]

# Of what an op makes, what it needs while it runs: in this many parts, by its type.
_SCRATCH_PARTS = {"Conv2D": 4, "Conv3D": 4, "MatMul": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """A model, its batch as specs, and Keras's dtype policy."""

    build: Callable[[], keras.Model]
    x: Any
    y: Any
    policy: str = "float32"


def _floats(*shape: int) -> tf.TensorSpec:
    return tf.TensorSpec(shape)


def _whole(*shape: int) -> tf.TensorSpec:
    return tf.TensorSpec(shape, tf.int32)


def _transformer(blocks: int) -> keras.Model:
    """A stack of blocks, each of attention and a feed-forward part."""
    x = inputs = keras.Input((256, 64))
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, 16, dropout=0.1)(y, y)])
        y = layers.Dense(256, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(64)(y)])
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))
    model.compile("adam", "mse")
    return model


_SUBJECTS: Mapping[str, _Subject] = {
    "unet3d": _Subject(
        build=partial(build_unet, 64, filters=16, depth=2),
        x=_floats(1, 64, 64, 64, 4),
        y=_floats(1, 64, 64, 64, 3),
    ),
    "resnet": _Subject(build=models.resnet, x=_floats(512, 32, 32, 3), y=_whole(512)),
    "resnet_bfloat16": _Subject(
        build=models.resnet,
        x=_floats(512, 32, 32, 3),
        y=_whole(512),
        policy="mixed_bfloat16",
    ),
    "transformer": _Subject(
        build=partial(_transformer, 2), x=_floats(64, 256, 64), y=_floats(64, 10)
    ),
    "transformer_float16": _Subject(
        build=partial(_transformer, 1),
        x=_floats(64, 256, 64),
        y=_floats(64, 10),
        policy="mixed_float16",
    ),
    "lstm_unrolled": _Subject(
        build=partial(models.lstm, unroll=True),
        x=_floats(4096, 6, 16),
        y=_floats(4096, 6, 1),
    ),
    "lstm_loop": _Subject(
        build=partial(models.lstm, unroll=False),
        x=_floats(4096, 6, 16),
        y=_floats(4096, 6, 1),
    ),
    "embedding": _Subject(build=models.embedding, x=_whole(1024, 64), y=_floats(1024)),
    "tagger": _Subject(build=models.tagger, x=_whole(1024, 64), y=_whole(1024, 64)),
    "two_by_two": _Subject(
        build=models.two_by_two,
        x={"image": _floats(512, 32, 32, 3), "facts": _floats(512, 6)},
        y={"again": _floats(512, 32, 32, 3), "kind": _whole(512)},
    ),
    "own_train_step": _Subject(
        build=models.clipped, x=_floats(256, 32, 32, 3), y=_floats(256, 32, 32, 3)
    ),
    "ties": _Subject(
        build=models.ties, x=_floats(32, 32, 32, 32, 4), y=_floats(32, 32, 32, 32, 3)
    ),
}


def _traced(subject: _Subject) -> StoredStep:
    keras.utils.clear_session()  # names are counted from there
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(subject.policy)
    try:
        step = step_of_data(subject.build(), "train")
        batch = [(subject.x, subject.y)]
        traced = trace(step, read_signature(batch))
        captured = captured_for(traced, Settings(), hardware=PRESETS["v100-pcie"])
        found = captured.workload
    finally:
        keras.config.set_dtype_policy("float32")
    scratch = {op.name: _scratch(op) for op in found.graph.ops + found.own.ops}
    return StoredStep(
        graph=with_scratch(found.graph, scratch, {}),
        own=with_scratch(found.own, scratch, {}),
        persistent=captured.budget.persistent,
    )


def _scratch(op: Op) -> int:
    made = sum(tensor.size for tensor in op.outputs)
    kinds = (kind for kind in _SCRATCH_PARTS if op.type.startswith(kind))
    return next((made // _SCRATCH_PARTS[kind] for kind in kinds), op.scratch)


def _drawn(graph: GraphView) -> StoredStep:
    return StoredStep(graph=graph, own=graph, persistent=10 * MIB)


def _enlarged(drawn: graphs.Drawn) -> StoredStep:
    """A hand-drawn graph with megabytes for its bytes, so that time is of copies."""

    def larger(op: Op) -> Op:
        outputs = tuple(replace(made, size=made.size * MIB) for made in op.outputs)
        return replace(op, outputs=outputs, scratch=op.scratch * MIB)

    ops = tuple(larger(op) for op in drawn.graph.ops)
    return _drawn(GraphView(ops=ops, results=drawn.graph.results))


# What makes each step, by its name.
STEPS: Mapping[str, Callable[[], StoredStep]] = {
    **{name: partial(_traced, subject) for name, subject in _SUBJECTS.items()},
    "drawn_300": lambda: _drawn(unet_like(300)),
    "drawn_450": lambda: _drawn(unet_like(450)),
    "drawn_750": lambda: _drawn(unet_like(750)),
    "by_hand_twice": lambda: _enlarged(graphs.TWICE),
    "by_hand_skip": lambda: _enlarged(graphs.SKIP),
    "by_hand_reshape": lambda: _enlarged(graphs.RESHAPE),
}
