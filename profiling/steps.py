"""A model's training step, planned by the library, ready to be profiled.

A second trace of the step gives the graph for the simulator and the table of costs. Two
traces of a step on one device give equal graphs; the validator would refuse others.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from lms.commands.model_file import Subject
from lms.fit.fitted import FittedFunction
from lms.ir.graph import GraphView
from lms.ir.plan import SwapPlan, planned_graph, validate_plan
from lms.machine.hardware import Costs, Hardware
from lms.planning.settings import RECOMPUTE_WORDS, read_settings
from lms.report.step import StepReport
from lms.tf.capture.tracing import trace
from lms.tf.lowering import specialise
from lms.tf.measure.devices import find_device
from lms.tf.measure.speeds import measure_costs, measure_hardware
from lms.tf.measure.workload import with_measured_scratch
from profiling.record import paced, slow_motion

__all__ = ["StepGraph", "TrainingStep", "analyse", "example_batch", "fit_step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """A planned step and its batch.

    Args:
        fitted: The step; called with `batch`.
        batch: Tensors.
    """

    fitted: FittedFunction
    batch: tuple[Any, ...]

    @property
    def report(self) -> StepReport:
        """The plan, and the measured memory."""
        return self.fitted.report[0]

    def run(self) -> None:
        """Run a step, and wait until the device has ended it."""
        self.fitted(*self.batch)
        tf.test.experimental.sync_devices()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGraph:
    """Graph, costs and hardware of a step, known without running the whole step.

    Args:
        graph: The step's ops, with scratch.
        costs: Measured seconds of each op, without an emulated card's slow motion.
        hardware: The device and its link, likewise.
    """

    graph: GraphView
    costs: Costs
    hardware: Hardware


def fit_step(
    subject: Subject, budget: int | str | None, recompute: str = "auto"
) -> TrainingStep:
    """Plan a model's training step.

    Args:
        subject: The model and its batch.
        budget: As `LMSCallback` takes it.
        recompute: The knob `recompute` as a word of `python -m lms plan`.

    Raises:
        BudgetError: If no plan fits.
    """
    step, batch = _step_of(subject), example_batch(subject.batch)
    recomputed = RECOMPUTE_WORDS[recompute]
    settings = read_settings(budget=budget, recompute=recomputed, replan=False)
    fitted = FittedFunction(step, settings, kind="train", signature=batch)
    fitted.prepare()
    return TrainingStep(fitted=fitted, batch=batch)


def analyse(subject: Subject, plan: SwapPlan | None = None) -> StepGraph:
    """Trace a model's training step and measure its ops.

    Args:
        subject: The model and its batch.
        plan: A plan of the same step, which must be valid for this trace too.
    """
    device, batch = find_device(), example_batch(subject.batch)
    traced = trace(_step_of(subject), batch)
    step = specialise(traced, traced.flat_inputs(batch), device=device.full_name)
    graph = with_measured_scratch(step, device).graph
    if plan is not None:
        graph = planned_graph(graph, plan)
        validate_plan(graph, plan)
    costs, slow = measure_costs(step, device), slow_motion()
    own = {name: seconds / slow for name, seconds in costs.seconds.items()}
    return StepGraph(
        graph=graph,
        costs=replace(costs, seconds=own),
        hardware=Hardware(**paced(asdict(measure_hardware(device)))),
    )


def example_batch(batch: Sequence[Any]) -> tuple[Any, ...]:
    """Turn specs into tensors: floats from 0 to 1, integers 0 or 1. Arrays stay.

    Example:
        >>> (x,) = example_batch([tf.TensorSpec([2, 3])])
        >>> x.shape
        TensorShape([2, 3])
    """
    random = np.random.default_rng(0)

    def made(value: Any) -> Any:
        if not isinstance(value, tf.TensorSpec):
            return tf.convert_to_tensor(value)
        shape = [1 if size is None else size for size in value.shape.as_list()]
        numbers = random.random(shape)
        whole = value.dtype.is_integer or value.dtype.is_bool
        return tf.cast(numbers.round() if whole else numbers, value.dtype)

    return tuple(tf.nest.map_structure(made, tuple(batch)))


def _step_of(subject: Subject) -> Callable[..., Any]:
    """Return the model's step; builds the optimizer's slots before any trace."""
    model: Any = subject.model
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)

    def step(*batch: Any) -> Any:
        return model.train_step(batch)

    return step
