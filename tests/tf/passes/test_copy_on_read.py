"""Embeddings are not copied at reads and updates; where they are, that is counted."""

from typing import Any

import pytest
import tensorflow as tf

from lms.tf.lowering import TracedStep
from tests.tf.steps import specialised
from tests.tf.worker import Worker

pytestmark = pytest.mark.tf


def _step(function: Any) -> TracedStep:
    table = tf.Variable(tf.ones([64, 16]))
    return specialised(lambda: function(table))


def _read(step: TracedStep) -> Any:
    return next(op for op in step.graph.ops if op.type == "ReadVariableOp")


def test_the_mark_is_taken_off_once_rows_are_gathered_and_before_each_update() -> None:
    def tied(table: tf.Variable) -> tf.Tensor:
        scores = tf.linalg.matmul(tf.gather(table, [1, 2]), table, transpose_b=True)
        table.assign_sub(tf.ones([64, 16]) * tf.reduce_sum(scores))
        return scores

    step = _step(tied)
    nodes = {node.name: node for node in step.nodes}
    (gather,) = (n for n in nodes.values() if n.op == "ResourceGather")
    users = {
        nodes[name[1:]].name: node.op
        for node in nodes.values()
        for name in node.input
        if name[0] == "^" and nodes[name[1:]].op == "DisableCopyOnRead"
    }
    assert sorted(users.values()) == ["AssignSubVariableOp", "ReadVariableOp"]
    (mark,) = (name for name, op in users.items() if op == "ReadVariableOp")
    assert f"^{gather.name}" in nodes[mark].input
    assert _read(step).persistent
    assert step.own is not None
    copy = _read(step.own)  # TensorFlow's own step takes one
    assert (copy.persistent, copy.outputs[0].size) == (False, 64 * 16 * 4)


def test_what_is_gathered_after_all_was_read_is_copied_and_counted() -> None:
    def late(table: tf.Variable) -> tf.Tensor:
        whole = tf.convert_to_tensor(table)
        rows = tf.cast(tf.reduce_max(whole), tf.int32)
        return tf.gather(table, rows) + tf.reduce_sum(whole)

    step = _step(late)
    assert step.own is None
    assert not _read(step).persistent


@pytest.mark.slow
def test_embeddings_and_slots_that_are_written_in_rows_train_on_the_host(
    worker: Worker,
) -> None:
    asked: dict[str, Any] = {"optimizer": "adagrad", "share": 0.75}
    asked |= {"memory": "1GiB", "policy": "float32", "kind": "embedded"}
    trial = worker.ask("tests.tf.state_trials:in_part", **asked)
    assert trial == {"differ": [], "on_host": True, "within": True, "left": 0}
