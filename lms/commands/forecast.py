"""Forecasts of a step's memory and time on a device, before the step runs anywhere.

    capture ──> measure, or a roofline ──> plan ──> Forecast     nothing is rewritten

On the present device each op is measured alone, and the plan is the one that `fit`
would make; `fit` counts the batches in its pipeline, a forecast estimates them. For
other hardware costs come from a roofline, and scratch memory, which depends on the
kernels there, counts as nothing.

Known weaknesses: the graph is the one that TensorFlow makes for the present device, so
layouts and fused ops may differ elsewhere. A roofline is the hardware's upper bound.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lms.errors import BudgetError, LMSError, UnsupportedError
from lms.machine.hardware import Hardware
from lms.planning import select
from lms.planning.problem import MemoryBudget, PlannedStep, Speeds, budget_in
from lms.planning.select import without_plan
from lms.planning.settings import Settings
from lms.planning.strategies import modelled_speeds
from lms.report.page import Shown
from lms.report.step import StepReport
from lms.tf.attempts import NOTHING, Outcome, Rewrites, first_plan, refusal
from lms.tf.capture import keras_step
from lms.tf.capture.tracing import TracedFunction, input_specs, read_signature, trace
from lms.tf.lowering import TracedStep, refuse_guesses
from lms.tf.measure import workload as made
from lms.tf.measure.devices import find_device
from lms.tf.passes.host_variables import HostVariables, size_of
from lms.tf.prepare import Captured, capture, specialised
from lms.units import Bytes, Seconds, format_bytes

__all__ = ["Forecast", "at_rates", "captured_for", "described"]
__all__ += ["forecast", "on_card", "refused", "training_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast(Shown):
    """A planned step on some device.

    Args:
        speeds: Times of ops and copies on the device.
        on_host: Bytes of variables, and of lists of loops, that are kept on the host.
    """

    speeds: Speeds
    on_host: Bytes = 0


def training_of(
    model: Any,
    batch: Sequence[Any],
    settings: Settings | None = None,
    *,
    hardware: Hardware | None = None,
    link: Hardware | None = None,
) -> Captured:
    """Trace the training step of a Keras model as `fit` does.

    Args:
        model: A compiled model.
        batch: Specs or arrays of one step.
        settings: The user's knobs; the budget is at most the hardware's memory less a
            margin.
        hardware: The device; None measures the present one.
        link: Hardware whose link to the host is taken; None leaves the device's.

    Raises:
        UnsupportedError: If a shape is not known, or there is no device to measure.
        ValueError: If the model's own code does not accept the batch.
    """
    keras_step.check_model(model)
    specs = keras_step.batch_specs(batch)  # arrays would take device memory
    try:
        traced = _traced(model, specs)
        settings = settings or Settings()
        return captured_for(traced, settings, hardware=hardware, link=link)
    except LMSError:
        raise
    except Exception as error:  # of the model's own code, anything at all
        words = next((line for line in str(error).splitlines() if line.strip()), "")
        raise ValueError(
            f"the model must accept its batch, got {type(error).__name__}: "
            f"{words.strip()} Call `model.train_on_batch` with the batch in Python."
        ) from error


def _traced(model: Any, specs: Sequence[Any]) -> TracedFunction:
    keras_step.make_slots(model)
    if any(part is None for part in specs):  # no data set has None in an element
        step, batch = keras_step.step_of_data(model, "train"), [tuple(specs)]
        return trace(step, read_signature(batch))
    iterator = keras_step.iterator_of(specs)
    return trace(keras_step.step_of(model, "train"), (), iterator=iterator)


def captured_for(
    traced: TracedFunction,
    settings: Settings,
    *,
    hardware: Hardware | None = None,
    link: Hardware | None = None,
    rewrites: Rewrites = NOTHING,
) -> Captured:
    """Capture a step for some device; variables on the host do not move.

    Arguments as in `training_of`, and the rewrites to apply.
    """
    if hardware is None:
        found = _here(traced, settings, rewrites)
    else:
        found = _elsewhere(traced, settings, rewrites, hardware)
    return on_card(found, hardware, link)


def on_card(
    captured: Captured, hardware: Hardware | None, link: Hardware | None = None
) -> Captured:
    """Return a captured step as other hardware runs it, or with another link."""
    again = partial(captured_for, captured.traced, hardware=hardware, link=link)
    if hardware is None and link is None:
        return replace(captured, again=again)
    speeds = captured.workload.speeds()
    if hardware is not None:
        speeds = modelled_speeds(captured.workload.graph, hardware)
    if link is not None:
        there = speeds.hardware
        there = replace(there, h2d=link.h2d, d2h=link.d2h, latency=link.latency)
        speeds = replace(speeds, hardware=there)
    persistent, asked = captured.budget.persistent, captured.settings.budget
    return replace(
        captured,
        workload=replace(captured.workload, speeds=lambda: speeds),
        budget=budget_in(speeds.hardware.memory, asked=asked, persistent=persistent),
        again=again,
        is_here=False,
    )


def at_rates(captured: Captured, hardware: Hardware | None = None) -> Captured:
    """Return a step of the present device with the times of a roofline.

    By None's, those of a reference card, plans are found or not on any card.
    """
    speeds, again = modelled_speeds(captured.workload.graph, hardware), captured.again

    def rewritten(*args: Any, **named: Any) -> Captured:
        assert again is not None
        return at_rates(again(*args, **named), hardware)

    workload = replace(captured.workload, speeds=lambda: speeds)
    return replace(captured, workload=workload, again=rewritten)


def _here(traced: TracedFunction, settings: Settings, rewrites: Rewrites) -> Captured:
    if not find_device().is_gpu:
        raise UnsupportedError(
            "`hardware` must be named where there is no GPU to measure, got None. "
            "Name a card (`--hardware v100-pcie`), or measure an emulated card: python "
            "-m lms emulate --memory SIZE -- COMMAND."
        )
    inputs = input_specs(traced)
    found = capture(
        traced, inputs, settings, kind="plan", settle=True, rewrites=rewrites
    )
    if found.held_back is not None:
        raise found.held_back
    there = sum(map(size_of, rewrites.handles))  # as if they lay on the host
    # Slots that were never written share their zeros: less is in use than will be.
    persistent = max(found.step.held_bytes, found.budget.persistent - there)
    return replace(found, budget=replace(found.budget, persistent=persistent))


def _elsewhere(
    traced: TracedFunction, settings: Settings, rewrites: Rewrites, hardware: Hardware
) -> Captured:
    device = find_device()
    of_device = {device.full_name: rewrites}
    step = specialised(traced, input_specs(traced), device, of_device)
    refuse_guesses(step)
    speeds = modelled_speeds(step.graph, hardware)
    own = (step.own or step).graph
    return Captured(
        kind="plan",
        traced=traced,
        step=step,
        workload=select.workload_of(step.graph, own, lambda: speeds),
        device=device,
        settings=settings,
        budget=MemoryBudget(total=None, margin=0, persistent=step.held_bytes),
        on_host=HostVariables(),
        rewrites=rewrites,
    )


def forecast(captured: Captured, seconds: Seconds = 0.0) -> Forecast:
    """Plan a step and simulate its timeline, after `seconds` of tracing and measuring.

    Raises:
        BudgetError: If no plan fits; names the op and the least budget.
        HostMemoryError: If this host cannot hold what is swapped out.
    """
    started, tried = time.perf_counter(), list[Outcome]()
    found = first_plan(captured, tried, captured.settings)
    if found is None or found.planned is None:
        raise refusal(tried) or AssertionError
    seconds, planned = seconds + time.perf_counter() - started, found.planned
    shown = _shown(found.step.step, planned, found.seconds)
    _check_room(shown.report)
    moved = found.attempt.rewrites
    return Forecast(
        report=replace(shown.report, preparation_seconds=seconds),
        timeline=shown.timeline,
        speeds=planned.workload.speeds(),
        on_host=sum(o.size for o in moved.lists) + sum(map(size_of, moved.handles)),
    )


def refused(captured: Captured, error: BudgetError) -> Shown:
    """Return the step as TensorFlow runs it, for a page, and why it was refused."""
    planned = without_plan(captured.workload, captured.budget)
    return replace(_shown(captured.step, planned, 0.0), why=str(error))


def _shown(step: TracedStep, planned: PlannedStep, seconds: Seconds) -> Shown:
    report = made.report_of("train", step, planned, seconds)
    if planned.timeline is None:  # the step runs as TensorFlow runs it
        graph = planned.graph
        alone = made.unplanned_timeline(replace(planned.workload, graph=graph))
        report = made.over_time(report, alone, alone)
        planned = replace(planned, timeline=alone)
    return Shown(report=report, timeline=made.timeline_of("train", step, planned))


def _check_room(report: StepReport) -> None:
    """Refuse a plan above the budget, which the threshold rule may make."""
    budget, peak = report.budget_bytes or 0, report.predicted_peak_bytes
    if peak > budget + report.margin_bytes:
        raise BudgetError(
            f"`budget` must be at least {format_bytes(peak, at_least=True)} for this "
            f"plan, got {format_bytes(budget)}. Use a larger budget, or the budget "
            "planner."
        )


def described(speeds: Speeds) -> str:
    """Name the device and the source of its numbers, in one line."""
    hardware = speeds.hardware
    if speeds.costs.source == "measured":
        return f"{hardware.name}, {format_bytes(hardware.memory)}: measured here"
    return f"{hardware.name}: a roofline of stated rates, not measured"
