"""The idea in an afternoon: train a U-Net in half of the memory that it needs.

    python docs/tiny_lms.py

A training step is a list of operations (ops) with tensors between them. What the
forward pass makes lies around until the backward pass reads it, and that is what fills
a GPU. But an op needs only the tensors that it reads and writes. All others could wait
in the host's memory, which is large. So this program

    traces a step > reads its ops > plans what leaves when > rewrites it > runs it

and starts itself three times, to show that a step that ran out of memory then trains,
with the same losses and weights to the last bit.

No GPU is needed: `lms` emulates a card whose memory ends where we say. All else is here
and uses TensorFlow alone. The library does the same with more care (how_it_works.md).
To try, and to see fail: no triggers; a third of the memory; a rule other than Belady's.
"""

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import lms

# Memory of the card. The little is more than half of the peak, since ops need scratch
# memory and the allocator leaves holes; no graph tells of them. (The library measures.)
ENOUGH, LITTLE = "256MiB", "72MiB"
BATCH, SIZE, STEPS = 16, 96, 3
MIB = 1024 * 1024
Moves = list[list[str]]  # for each op of a step, the tensors that move before it


def compare() -> None:
    """Train three times, each in a process of its own, and print what came out."""
    print("step    card     peak      weights       losses", flush=True)
    found = []
    for kind, card in (("plain", ENOUGH), ("plain", LITTLE), ("tiny", LITTLE)):
        command = [sys.executable, __file__, kind, card]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            sys.exit(run.stderr)
        found.append(json.loads(run.stdout))
        row = "{peak:3.0f} MiB   {weights}  {losses}" if found[-1] else "out of memory"
        print(f"{kind:5}  {card:>6}  {row.format(**found[-1])}", flush=True)
    right, failed, tiny = ((run.get("weights"), run.get("losses")) for run in found)
    if not right == tiny != failed:
        sys.exit("This is not as it should be.")
    print("The bits are equal.")


if len(sys.argv) == 1:
    sys.exit(compare())
KIND, CARD = sys.argv[1:]  # from here on: one of the three
lms.emulate.limit_memory(CARD)  # before TensorFlow is there and looks for cards

import keras
import numpy as np
import tensorflow as tf

# ------------------------------------------------------------------- 1. A step to train
# Nothing is new here: a small U-Net, and a step that computes a loss, its gradients and
# new weights. A U-Net is hungry, since its skip connections keep more for longer.


def unet() -> keras.Model:
    """Two levels down, two levels up."""

    def block(x: Any, filters: int) -> Any:
        for _ in range(2):
            x = keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        return x

    x = image = keras.Input((SIZE, SIZE, 1), batch_size=BATCH)
    skips = []
    for filters in (16, 32):
        x = block(x, filters)
        skips.append(x)
        x = keras.layers.MaxPooling2D()(x)
    x = block(x, 64)
    for filters in (32, 16):
        x = keras.layers.Conv2DTranspose(filters, 2, strides=2)(x)
        x = block(keras.layers.Concatenate()([x, skips.pop()]), filters)
    return keras.Model(image, keras.layers.Conv2D(1, 1)(x))


keras.utils.set_random_seed(0)
tf.config.experimental.enable_op_determinism()
# Ops run as they are traced. (The library takes what TensorFlow's optimiser makes.)
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
model = unet()
weights = [weight.value for weight in model.trainable_weights]


@tf.function
def plain_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Gradient descent by one batch; returns its loss."""
    with tf.GradientTape() as tape:
        errors = tf.nn.sigmoid_cross_entropy_with_logits(y, model(x))
        loss = tf.reduce_mean(errors)
    for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
        weight.assign_sub(0.5 * gradient)
    return loss


# --------------------------------------------------------- 2. The step as a list of ops
# Tracing runs the Python code once, without numbers, and writes down a node for each op
# that it comes to: a graph. TensorFlow may run a graph in any order in which inputs
# come first. To say what is in memory when, we need one: that of the Python code.


@dataclass(frozen=True)
class Op:
    """The tensors that an op reads, and those it makes with their bytes."""

    name: str
    reads: list[str]
    makes: dict[str, int]


# Results of these are there before the step begins: they need no room of their own.
THERE_BEFORE = {"Placeholder", "Const", "ReadVariableOp"}


def in_order(graph: Any) -> list[Any]:
    """The nodes as they were written, but none before its inputs.

    A node's input is `conv`, or `conv:1` for the second result of `conv`, or `^conv`:
    no tensor, but the wish to wait until `conv` has ended.
    """
    nodes = {node.name: node for node in graph.node}
    ordered: dict[str, Any] = {}

    def place(name: str) -> None:
        if name not in ordered:
            for source in nodes[name].input:
                place(source.removeprefix("^").partition(":")[0])
            ordered[name] = nodes[name]

    for name in nodes:
        place(name)
    return list(ordered.values())


def read_op(node: Any, graph: tf.Graph) -> Op:
    """A node as an op; tracing has found the shapes of its results."""
    tensors = [name for name in node.input if name[0] != "^"]
    reads = [name if ":" in name else f"{name}:0" for name in tensors]
    made = graph.get_operation_by_name(node.name).outputs
    if node.op in THERE_BEFORE:
        made = []
    makes = {t.name: t.dtype.size * t.shape.num_elements() for t in made}
    return Op(node.name, reads, makes)


# ------------------------------------------------------------------- 3. What lives when
# A tensor lives from the op that makes it to the last op that reads it, and needs room
# all the while. The most that lives at once is the peak: so much must a card have.


def find_uses(ops: list[Op]) -> dict[str, list[int]]:
    """Where in the order each tensor is made and read: its life, from first to last."""
    uses: dict[str, list[int]] = {}
    for now, op in enumerate(ops):
        for tensor in (*op.makes, *op.reads):
            uses.setdefault(tensor, []).append(now)
    return uses


def find_peak(ops: list[Op]) -> int:
    """The most bytes that live at once."""
    uses, most = find_uses(ops), 0
    living: dict[str, int] = {}
    for now, op in enumerate(ops):
        living |= op.makes
        most = max(most, sum(living.values()))
        living = {t: size for t, size in living.items() if uses[t][-1] > now}
    return most


# -------------------------------------------------------------------------- 4. The plan
# Go through the ops, and keep account of what is on the card. Where the next op does
# not fit, the tensor leaves that is read again last of all: its room is free for the
# longest time (Belady, 1966). Where the next op reads a tensor that has left, that must
# come back, and another one may have to leave for it.


def belady(ops: list[Op], budget: int) -> tuple[Moves, Moves]:
    """Return for each op the tensors that leave before it, and that return."""
    uses = find_uses(ops)
    sizes = {tensor: size for op in ops for tensor, size in op.makes.items()}
    leave: Moves = [[] for _ in ops]
    come: Moves = [[] for _ in ops]
    here: dict[str, int] = {}
    for now, op in enumerate(ops):
        come[now] = [t for t in sizes if t in op.reads and t not in here]
        new = op.makes | {tensor: sizes[tensor] for tensor in come[now]}
        while sum(here.values()) + sum(new.values()) > budget:
            next_read = {
                tensor: min(position for position in uses[tensor] if position > now)
                for tensor, size in here.items()
                if tensor not in op.reads and size > MIB / 16  # small ones are no help
            }
            if not next_read:
                raise MemoryError(f"Op {op.name} alone needs more than {budget} bytes.")
            last = max(next_read, key=lambda tensor: next_read[tensor])
            leave[now].append(last)
            del here[last]
        here |= new
        here = {t: size for t, size in here.items() if uses[t][-1] > now}
    return leave, come


# ----------------------------------------------------------------------- 5. The rewrite
# The same nodes, and copies, for which TensorFlow has ops. It starts whatever has its
# inputs and knows nothing of our order; so that becomes inputs, `^op` (dotted).
#
#     op 0 ┄┄┄> op 1 ┄┄┄> op 2 ┄┄┄> op 3 ┄┄┄> op 4   each op waits for the one before
#      │                   ^          ┆        ^
#      │                   ┆room      ┆trigger │
#      └──> swap-out ┄┄┄┄┄┄┘          v        │
#              └──────────────────> swap-in ───┘
#
# - A swap-out starts once its tensor is made, and copies while the next ops run.
# - The op that needs the room waits until the copy has ended. Whoever reads the tensor
#   on the card has run by then, and TensorFlow frees what nobody is going to read.
# - A swap-in would start at once and take the room again. So it has a trigger: the op
#   before the one that reads. (The library triggers earlier, so that nobody waits.)


def rewrite(nodes: list[Any], ops: list[Op], leave: Moves, come: Moves) -> Any:
    """Return a new graph that obeys the plan."""
    graph = tf.Graph().as_graph_def()  # an empty one
    on_host = {t: f"host/{t.replace(':', '/')}" for tensors in leave for t in tensors}
    newest: dict[str, str] = {}  # for tensors that have come back: where to read them
    before: list[str] = []  # the op before, to wait for

    def copy(name: str, op: str, inputs: list[str]) -> None:
        node = graph.node.add(name=name, op=op, input=inputs, device="/GPU:0")
        node.attr["T"].type = tf.float32.as_datatype_enum  # as all large tensors here

    for now, (node, op) in enumerate(zip(nodes, ops, strict=True)):
        room = [f"^{on_host[tensor]}" for tensor in leave[now]]
        for tensor in come[now]:
            newest[tensor] = f"{on_host[tensor]}/back_{now}"
            inputs = [on_host[tensor], *before, *room]
            copy(newest[tensor], "_CopyFromHostToGpu", inputs)
        new = graph.node.add()
        new.CopyFrom(node)
        waits = {name for name in node.input if name[0] == "^"} | {*before, *room}
        new.input[:] = [*(newest.get(t, t) for t in op.reads), *sorted(waits)]
        for tensor in on_host.keys() & op.makes.keys():
            copy(on_host[tensor], "_CopyFromGpuToHost", [tensor])
        if node.op not in THERE_BEFORE:
            before = [f"^{node.name}"]
    return graph


# ---------------------------------------------------------------- 6. All of it in a row
# The new graph becomes a function again, and gets what the traced one got: a batch, and
# the variables with the weights. Then it trains.


def tiny_step(x: tf.Tensor, y: tf.Tensor) -> Any:
    """Run the plain step in half of the memory."""
    traced = plain_step.get_concrete_function(x, y)
    nodes = in_order(traced.graph.as_graph_def())
    ops = [read_op(node, traced.graph) for node in nodes]
    graph = rewrite(nodes, ops, *belady(ops, budget=find_peak(ops) // 2))
    places, loss = [place.name for place in traced.inputs], traced.outputs[0].name

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        given = [x, y, *map(tf.identity, traced.captured_inputs)]
        inputs = dict(zip(places, given, strict=True))
        return tf.graph_util.import_graph_def(graph, inputs, [loss])[0]

    return step


def train(step: Any, x: tf.Tensor, y: tf.Tensor) -> dict[str, Any]:
    """Losses, fingerprint of the weights, and peak; nothing if memory runs out."""
    try:
        losses = [float(step(x, y)) for _ in range(STEPS)]
    except tf.errors.ResourceExhaustedError:
        return {}
    bits = np.concatenate([weight.numpy().ravel() for weight in weights]).tobytes()
    digest = hashlib.sha256(bits).hexdigest()[:12]
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"] / MIB
    return {"losses": losses, "weights": digest, "peak": peak}


images = tf.random.stateless_normal((BATCH, SIZE, SIZE, 1), seed=(0, 0))
masks = tf.cast(images > 0, tf.float32)
step = tiny_step(images, masks) if KIND == "tiny" else plain_step
print(json.dumps(train(step, images, masks)))
