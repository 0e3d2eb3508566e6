"""Work of the test processes: steps of models, planned and proved, then made faulty."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms import fit_in_memory
from lms.errors import LMSError
from lms.planning.settings import read_settings
from lms.tf import building, proving
from lms.tf.capture.keras_step import iterator_of, make_slots, step_of
from lms.tf.capture.tracing import input_specs, trace
from lms.tf.measure.devices import find_device
from lms.tf.prepare import capture, prepare
from lms.tf.rewriting import rebuild
from tests.models import CASES
from tests.proof.faults import EQUAL, Fault, Subject, judge, table
from tests.tf.steps import descent

__all__ = ["make_faults", "run_faulty"]


def make_faults(name: str, share: float, count: int) -> dict[str, Any]:
    """Plan a case's step into a share of its peak, prove it, and make it faulty."""
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(7)
    case = CASES[name]
    keras.config.set_dtype_policy(case.policy)
    model, data = case.build(), case.data()
    make_slots(model)
    given = [data[key] for key in ("x", "y", "sample_weight") if key in data]
    specs = [_specs(each, data.get("batch_size", 32)) for each in given]
    traced = trace(step_of(model, "train"), (), iterator=iterator_of(specs))
    known: Any = {"kind": "train", "settle": False}
    knobs: Any = case.knobs
    found = capture(traced, input_specs(traced), read_settings(**knobs), **known)
    spare = found.budget.persistent + found.step.input_bytes
    budget = spare + int(share * found.workload.plain.peak)
    subjects = list[Subject]()

    def prove(before: Any, after: Any, promise: Any, shapes: Any) -> Any:
        given = {"before": before, "after": after, "promise": promise}
        subjects.append(Subject(shapes=shapes, **given))
        return own(before, after, promise, shapes)

    def seen(traced: Any, step: Any, nodes: Any, **more: Any) -> Any:
        built.append((traced, step))
        return rebuild(traced, step, nodes, **more)

    own, proving.prove = proving.prove, prove
    building.rebuild, built = seen, list[Any]()
    settings = read_settings(budget=budget, **knobs)
    prepared = prepare(traced, input_specs(traced), settings, **known)
    assert prepared is not None
    report, subject = prepared.parts[0].predicted, subjects[-1]
    batch = [*map(_batch, tf.nest.flatten(given), tf.nest.flatten(specs))]
    bits = partial(_bits, *built[-1], batch, _values(built[-1][1]))
    judged = list[tuple[Fault, str]]()
    for fault, said in judge(subject, count):
        is_open = not said and bits(fault.nodes) == bits(subject.after.nodes)
        judged.append((fault, EQUAL if is_open else said))
    return {
        "proof": report.proof,
        "laws": report.laws,
        "nodes": len(subject.after.nodes),
        "table": table(judged),
        "missed": [f"{f.kind}: {f.place}" for f, said in judged if not said],
        "device": find_device().name,
    }


def _batch(array: Any, spec: tf.TensorSpec) -> tf.Tensor:
    return tf.constant(np.asarray(array)[: spec.shape[0]], spec.dtype)


def _values(step: Any) -> list[np.ndarray]:
    """Return the values of a step's variables."""
    read = tf.raw_ops.ReadVariableOp
    pairs = step.variables.values()
    return [read(resource=handle, dtype=dtype).numpy() for handle, dtype in pairs]


def _bits(
    traced: Any, step: Any, batch: Any, before: Sequence[np.ndarray], nodes: Any
) -> list[bytes]:
    """Return the bits of what some nodes return, and of the variables after."""
    for (handle, _), value in zip(step.variables.values(), before, strict=True):
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(value))
    results = tf.nest.flatten(rebuild(traced, step, nodes)(batch))
    values = [*(each.numpy() for each in results), *_values(step)]
    return [np.asarray(value).tobytes() for value in values]


def run_faulty(count: int, budget: str) -> dict[str, Any]:
    """Plan and run a step while a copy back reads another's copy out in some builds.

    Args:
        count: How many builds are faulty; with -1 the proof itself has a fault.
        budget: Bytes of the step.

    Returns:
        The `error`, or what the report says of the step.
    """
    step, _ = descent(8, 64)
    own, left = building.one_round_at_a_time, [count]

    def faulty(nodes: Any) -> Any:
        nodes, left[0] = own(nodes), left[0] - 1
        if left[0] >= 0:
            first, second, *_ = (n for n in nodes if n.op == "_CopyFromHostToGpu")
            first.input[0] = second.input[0]
        return nodes

    def unready(*_: Any) -> Any:
        raise KeyError("a fault")

    building.one_round_at_a_time = faulty
    if count < 0:
        proving.prove = unready
    x = tf.ones([4096, 64])
    try:
        run = fit_in_memory(step, [x], budget=budget, recompute=False)
        loss = float(run(x))
    except LMSError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    (report,) = run.report
    told = {"loss": loss, "swaps": report.swap_count, "built": count - left[0]}
    return told | {"proof": report.proof, "not_planned": report.not_planned}


def _specs(data: Any, size: int) -> Any:
    def spec(array: Any) -> tf.TensorSpec:
        kind = np.asarray(array).dtype
        kind = np.dtype("float32") if kind == np.float64 else kind
        return tf.TensorSpec((size, *np.shape(array)[1:]), kind)

    if isinstance(data, Mapping):
        return {name: spec(each) for name, each in data.items()}
    return spec(data)
