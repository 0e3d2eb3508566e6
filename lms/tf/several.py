"""Prepare a step that runs on several devices: a plan for each, one after the other.

    GPU:0  capture ──> plan ──> order ╮
    GPU:1                             ╰──> capture ──> plan ──> order ──> build one step

Each device has its own budget and its own attempts (`lms.tf.attempts`). A device keeps
the orders of the devices before (`lms.tf.capture.device_orders`). A rewrite changes the
graph of all, so they are planned again, by the attempts that they had reached. After an
out of memory the device that ran out makes its next attempt.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lms.errors import LMSError, UnsupportedError
from lms.planning.select import fits, without_plan
from lms.planning.settings import Settings
from lms.tf.attempts import NOTHING, Attempt, Outcome, first_plan
from lms.tf.building import UnsealedError, build
from lms.tf.capture.device_orders import order_on
from lms.tf.capture.tracing import PREPARING
from lms.tf.measure.devices import Device
from lms.tf.measure.lone_op import forget_functions
from lms.tf.passes.host_variables import HostVariables
from lms.tf.recovery import PreparedStep

__all__ = ["StepOfDevices"]

_LOG = logging.getLogger("lms")


@dataclass(slots=True, kw_only=True)
class StepOfDevices:
    """A step of several devices, and the attempt that each device has reached.

    Args:
        capture: Captures the step for a device (`lms.tf.prepare.capture`).
        devices: The devices.
        settings: The user's knobs.
        attempts: The last attempt of each device.
        needs_plan: Whether the unplanned step ran out of memory.
        step: The step as first captured.
        on_host: The variables that lay on the host then.
    """

    capture: Callable[..., Any]
    devices: Sequence[Device]
    settings: Settings
    attempts: list[Attempt]
    needs_plan: bool = False
    step: Any = None
    on_host: HostVariables | None = None

    @classmethod
    def of(
        cls, capture: Callable[..., Any], devices: Sequence[Device], settings: Settings
    ) -> "StepOfDevices":
        """Return the step before its first attempt.

        Raises:
            UnsupportedError: If a stored plan was given: it is for one device.
        """
        if settings.plan is not None:
            raise UnsupportedError(
                f"`plan` must be left out for a step of {len(devices)} devices, got "
                "the plan of one. Each gets its own without."
            )
        settings, first = replace(settings, replan=False), [Attempt()] * len(devices)
        return cls(capture=capture, devices=devices, settings=settings, attempts=first)

    def fits(self) -> bool:
        """Tell whether the unplanned step fits on all devices, with a batch ahead."""

        def is_roomy(number: int) -> bool:
            found = self._captured(number)
            ahead = found.budget.persistent + found.step.input_bytes
            return fits(found.workload.plain, replace(found.budget, persistent=ahead))

        return all(map(is_roomy, range(len(self.devices))))

    def prepare(self, tried: list[Outcome]) -> PreparedStep:
        """Prepare the step again after an out of memory of one device.

        Args:
            tried: What was tried there; ends with the failure.

        Raises:
            LMSError: If there is no plan, and the step may not run unplanned.
        """
        self.capture = partial(self.capture, settle=False)  # plans rely on addresses
        number = self.devices.index(tried[-1].step.device)
        self.needs_plan |= not tried[-1].attempt.planned
        self.attempts[number] = replace(tried[-1].attempt, planned=True)
        with PREPARING:
            return self.built({number: tried})

    def sealed_again(self, *founds: Outcome) -> PreparedStep:
        """Build the step again in the memory that is free now; raises as `prepare`."""
        self.capture = partial(self.capture, settle=False)
        self.needs_plan = False
        self.attempts = [found.attempt for found in founds]
        with PREPARING:
            return self.built({})

    def built(self, failed: Mapping[int, list[Outcome]]) -> PreparedStep:
        """Plan each device, and build the step; raises as `prepare`.

        Args:
            failed: What was tried on the device that ran out of memory, by its number.
        """
        try:
            founds = self._planned(dict(failed))
            while True:
                try:
                    prepared = build(founds, self)
                    break
                except UnsealedError as error:
                    attempt, why = self.attempts[error.number], str(error)
                    self.attempts[error.number] = replace(attempt, unsealed=why)
                except LMSError as error:
                    is_last = not all(found.attempt.planned for found in founds)
                    is_asked = self.settings.asks_for_a_plan
                    if is_last or (is_asked and not getattr(error, "is_fault", False)):
                        raise
                    error = error.with_traceback(None)
                    founds = self._without_plan(error, founds[0])
                    continue
                founds = self._planned({})
        finally:
            forget_functions()
        for number, tried in failed.items():
            before = [Outcome(attempt=e.attempt, failure=e.failure) for e in tried]
            prepared.parts[number].tried = before
        return prepared

    def _planned(self, failed: dict[int, list[Outcome]]) -> list[Outcome]:
        """Return each device's plan; raises as `prepare`."""
        founds = list[Outcome]()
        while len(founds) < len(self.devices):
            number = len(founds)
            tried, attempt = failed.pop(number, []), self.attempts[number]
            step = self._captured(number, founds)
            if tried:
                tried[-1] = replace(tried[-1], step=step)
            found = first_plan(step, tried, self.settings, attempt)
            if found is None or found.planned is None:
                error = step.refusal(tried)
                error.args = (f"{error} Planned was {step.device.name}.",)
                return self._without_plan(error, found)
            self.attempts[number] = found.attempt
            if found.attempt.rewrites is not attempt.rewrites:
                founds.clear()  # the graph of all devices has changed
            else:
                founds.append(found)
        return founds

    def _captured(self, number: int, founds: Sequence[Outcome] = ()) -> Any:
        orders = list[Sequence[str]]()
        for found in founds:
            assert found.planned is not None
            plan, graph = found.planned.plan, found.planned.graph
            if not plan.is_empty:
                orders.append(order_on(graph.reordered(plan.order), plan.chain))
        named = zip(self.devices, self.attempts, strict=True)
        others = {device.full_name: attempt.rewrites for device, attempt in named}
        captured = self.capture(
            self.settings,
            rewrites=self.attempts[number].rewrites,
            device=self.devices[number],
            others=others,
            behind=orders,
        )
        if self.step is None:
            self.step, self.on_host = captured.step, captured.on_host
        return captured

    def _without_plan(self, error: LMSError, found: Outcome | None) -> list[Outcome]:
        """Return outcomes of the unplanned step, or raise why there is no plan."""
        assert self.on_host is not None
        moved = HostVariables.of(self.step.variables, self.on_host.handles)
        moved.come_back()
        if found is None or self.needs_plan:
            raise error
        self.attempts = [replace(each, rewrites=NOTHING) for each in self.attempts]
        founds = list[Outcome]()
        for number, attempt in enumerate(self.attempts):
            step = self._captured(number)
            if not (number or step.is_said):
                said = "The %s step cannot be planned and runs as without LMS: %s"
                _LOG.warning(said, step.kind, error)
            # The error must not keep frames and their tensors alive.
            error.__cause__ = error.__context__ = error.__traceback__ = None
            planned = without_plan(step.workload, step.budget)
            held = replace(step, held_back=error)
            unplanned = replace(attempt, planned=False)
            founds.append(Outcome(attempt=unplanned, step=held, planned=planned))
        return founds
