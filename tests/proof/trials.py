"""Work of the test processes: steps of models, planned and proved, then made faulty."""

from collections.abc import Mapping
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
from tests.models import CASES
from tests.proof.faults import Subject, judge, table
from tests.tf.steps import descent

__all__ = ["make_faults", "run_faulty"]


def make_faults(name: str, share: float, count: int) -> dict[str, Any]:
    """Plan a case's step into a share of its peak, prove it, and make it faulty."""
    case = CASES[name]
    keras.config.set_dtype_policy(case.policy)
    model, data = case.build(), case.data()
    make_slots(model)
    given = [
        data["x"],
        data["y"],
        *([data["sample_weight"]] * ("sample_weight" in data)),
    ]
    specs = [_specs(each, data["batch_size"]) for each in given]
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

    own, proving.prove = proving.prove, prove
    settings = read_settings(budget=budget, **knobs)
    prepared = prepare(traced, input_specs(traced), settings, **known)
    assert prepared is not None
    report = prepared.parts[0].predicted
    judged = judge(subjects[-1], count)
    return {
        "proof": report.proof,
        "laws": report.laws,
        "nodes": len(subjects[-1].after.nodes),
        "table": table(judged),
        "harmless": [f"{f.kind}: {f.place}" for f, said in judged if not said],
        "device": find_device().name,
    }


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
