"""Count TensorFlow's own copies between host and device, or avoid them.

    host op ──send──> receive @device ──> device ops

TensorFlow receives a tensor once, as soon as it is made, and frees the copy after the
last reader on the device. So a received tensor counts as an output that never moves.

Kernels of a GPU keep some tensors in the host's memory: shapes, and most int32 tensors.
Such a tensor counts 0 bytes, or as received if a kernel reads it from device memory.

Known weakness: tensors that an op in a loop or branch receives count 0 bytes.

Keras's `argmax` compares signs of floats as integers, which a GPU does in the host's
memory: each step would send the whole input of `argmax` there. A comparison of floats
runs on the device, with the same answers:

    Bitcast ──> BitwiseAnd with the sign's bit ──> Less than 0
    BitwiseAnd ──> BitwiseOr with 1.0's bits ──> Bitcast: 1.0 or -1.0 ──> Less than 0.0
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf

from lms.ir.graph import Op, op_of
from lms.tf import compat
from lms.tf.nodes import Nodes, bytes_of, waits_of
from lms.tf.passes import Pass, Step

__all__ = ["SIGNS_ON_DEVICE", "with_host_memory", "with_received"]
__all__ += ["with_sent"]

_SIGN = np.iinfo(np.int32).min
_ONE = int(np.float32(1).view(np.int32))


def _signs(graph: Nodes, step: Step) -> Iterator[compat.NodeDef]:
    """Yield comparisons with 0 of which one side is the sign's bit."""
    for less in graph if "GPU" in step.device else ():
        if less.op != "Less" or less.name in step.fixed:
            continue
        if _int(graph.get(less.input[1])) != 0:
            continue
        bit = graph.get(less.input[0])
        masks = () if bit is None or bit.op != "BitwiseAnd" else bit.input
        if any(_int(graph.get(name)) == _SIGN for name in masks):
            yield less


def _int(node: compat.NodeDef | None) -> int | None:
    """Return the value of a scalar int32 constant; None for other nodes."""
    if node is None or node.op != "Const" or node.attr["dtype"].type != tf.int32:
        return None
    value = tf.make_ndarray(node.attr["value"].tensor)
    return int(value) if value.shape == () else None


def _on_device(graph: Nodes, _: Step, less: compat.NodeDef) -> None:
    name, device = less.name, less.device
    one = graph.add(compat.constant(f"{name}/one", _ONE, tf.int32, device), less)
    zero = graph.add(compat.constant(f"{name}/zero", 0.0, tf.float32, device), less)
    both, types = [less.input[0], one.name], {"T": tf.int32, "type": tf.float32}
    bits = graph.make(f"{name}/bits", "BitwiseOr", both, device, less, T=tf.int32)
    sign = graph.make(f"{name}/sign", "Bitcast", [bits.name], device, less, **types)
    graph.give(less, [sign.name, zero.name, *waits_of(less)])
    less.attr["T"].type = tf.float32.as_datatype_enum


SIGNS_ON_DEVICE = Pass(find=_signs, change=_on_device)


def with_received(
    ops: Sequence[Op], elsewhere: Collection[str], cards: Collection[str] = ()
) -> list[Op]:
    """Return ops in which tensors received from ops `elsewhere` have bytes.

    `cards` names the ops of other cards.
    """
    free = [op for op in ops if not op.fixed]
    read = {name for op in free if op.name not in elsewhere for name in op.inputs}

    def received(op: Op) -> Op:
        if op.name not in elsewhere or op.fixed:
            return op
        specs = [tf.TensorSpec(t.shape, t.dtype) for t in op.outputs]
        outputs = tuple(
            replace(t, size=bytes_of(spec)) if t.name in read else t
            for t, spec in zip(op.outputs, specs, strict=True)
        )
        if not any(tensor.size for tensor in outputs):
            return op
        never = ("persistent", "inplace", "repeatable", "constant", "reads_state")
        how = dict.fromkeys(never, False)
        may_move = op.name in cards
        return replace(op, outputs=outputs, from_host=True, from_card=may_move, **how)

    return list(map(received, ops))


def with_host_memory(
    ops: Sequence[Op], nodes: Sequence[compat.NodeDef], device: str
) -> list[Op]:
    """Return ops whose outputs in the host's memory count no bytes of a GPU."""
    if "GPU" not in device:
        return list(ops)
    kept = {n.name: compat.host_memory(n) for n in nodes if n.device in ("", device)}
    read = {
        name
        for op in ops
        if op.name in kept
        for i, name in enumerate(op.inputs)
        if i not in kept[op.name][0]
    }

    def in_host_memory(op: Op) -> Op:
        numbers = kept[op.name][1] if op.name in kept else ()
        there = [op.outputs[i] for i in numbers if op.outputs[i].size]
        if any(tensor.name in read for tensor in there):
            return replace(op, from_host=True, inplace=False, repeatable=False)
        outputs = (replace(t, size=0) if t in there else t for t in op.outputs)
        return replace(op, outputs=tuple(outputs)) if there else op

    return list(map(in_host_memory, ops))


def with_sent(
    ops: Sequence[Op],
    nodes: Sequence[compat.NodeDef],
    device: str,
    large: float = math.inf,
) -> list[Op]:
    """Mark ops whose outputs the host or another card reads.

    Another card copies a tensor as soon as the tensor is made. The rewriter waits for
    copies of `large` bytes or more, unless an alias is sent. So ops of another card
    follow the producer of such a tensor, and count as no readers.
    """
    if "GPU" not in device:
        return list(ops)
    cards = {n.name for n in nodes if "GPU" in n.device and n.device != device}
    kept = {n.name: compat.host_memory(n)[0] for n in nodes if n.device in ("", device)}
    sources = dict[str, str]()  # of tensors on the device, through aliases
    sent = set[str]()
    sizes = {t.name: t.size for op in ops for t in op.outputs}

    ordered = {op.name for op in ops if not (op.alias or op.fixed or op.persistent)}

    def waited(op: Op, name: str) -> bool:
        is_read = op.name in cards and not op.fixed
        return is_read and op_of(name) in ordered and sizes[name] >= large

    for op in ops:
        there = kept.get(op.name, range(len(op.inputs)))
        read = (name for i, name in enumerate(op.inputs) if i in there)
        sent.update(sources[n] for n in read if n in sources and not waited(op, n))
        if op.alias in sources:
            sources |= {t.name: sources[op.alias] for t in op.outputs}
        elif not (op.persistent or op.from_host or op.alias):
            sources |= {t.name: op.name for t in op.outputs if t.size}
    moved = {"to_host": True, "repeatable": False}
    marked = [replace(op, **moved) if op.name in sent else op for op in ops]

    def elsewhere(op: Op) -> Op:
        read = {name for name in op.inputs if name in sources and waited(op, name)}
        if not read:
            return op
        others = tuple(name for name in op.inputs if name not in read)
        waits = (*op.controls, *dict.fromkeys(map(op_of, read)))
        return replace(op, inputs=others, controls=waits, alias=None)

    return list(map(elsewhere, marked))
