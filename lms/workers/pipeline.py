"""Pipeline training over several devices, each stage planned for its own device.

    batch ──> micro-batches ──> stage 0 @GPU:0 ──> stage 1 @GPU:1 ──> loss
                                    └── sums of gradients ──┘ ──> weights, once

Each stage has a thread, which follows the schedule and waits for tensors of other
stages. Results do not depend on timing: gradients are added up in the order of
micro-batches, so bits are equal for all schedules and numbers of devices. Each function
of a stage is planned by itself, beside the most micro-batches that the stage holds.

Known weaknesses: the update of weights is not planned. Each stage but the last computes
its forward pass twice.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Semaphore
from typing import Any, Literal

import keras
import tensorflow as tf

from lms.errors import LMSError
from lms.fit.fitted import FittedFunction
from lms.planning.settings import Settings, read_settings
from lms.report.step import StepReport
from lms.tf.capture.tracing import signature_key
from lms.tf.measure.devices import planned_on
from lms.tf.uninterrupted import uninterrupted
from lms.workers.schedules import SCHEDULES, Action, Schedule, most_held
from lms.workers.stages import Stage, read_stages

__all__ = ["PipelineStep", "pipeline_step"]


def pipeline_step(
    stages: Sequence[Any],
    loss: Any,
    optimizer: Any,
    *,
    micro_batches: int,
    schedule: Literal["gpipe", "1f1b"] = "1f1b",
    budget: int | str | Sequence[int | str] | None = None,
    **knobs: Any,
) -> "PipelineStep":
    """Make a training step of a model that is cut into stages on devices.

    Args:
        stages: The result of `lms.cut`; or built models in order, each with the name of
            its device: `[(first, "GPU:0"), (second, "GPU:1")]`.
        loss: A name, a Keras loss, or a function of targets and outputs.
        optimizer: A Keras optimizer that was not built.
        micro_batches: Number of micro-batches in a batch, at least 1.
        schedule: "gpipe" runs all forwards, then all backwards; "1f1b" alternates, and
            holds fewer micro-batches.
        budget: The budget of each stage's device, as for `fit_in_memory`; or a list
            with one budget for each stage.
        **knobs: The other knobs of `LMSCallback`.

    Returns:
        A callable of a batch's inputs and targets; it updates the weights once and
        returns the mean loss.

    Raises:
        ValueError, TypeError: If an argument breaks its rule, such as a stage without a
            device, or on an absent one.

    Example:
        >>> dense = [keras.layers.Dense(2, name=name) for name in "ab"]
        >>> model = keras.Sequential([keras.Input((4,)), *dense])
        >>> from lms.workers.stages import cut
        >>> stages = cut(model, after=["a"], devices=["CPU:0", "CPU:0"])
        >>> step = pipeline_step(
        ...     stages, "mse", keras.optimizers.SGD(), micro_batches=2
        ... )
        >>> step(tf.ones([8, 4]), tf.ones([8, 2])).shape
        TensorShape([])
    """
    if schedule not in SCHEDULES:
        raise ValueError(
            f"`schedule` must be one of {', '.join(SCHEDULES)}, got {schedule!r}. "
            "Choose one of them."
        )
    if micro_batches < 1:
        raise ValueError(
            f"`micro_batches` must be at least 1, got {micro_batches}. Use at least as "
            "many as stages, to keep the devices busy."
        )
    if optimizer.built:
        raise ValueError(
            "`optimizer` must not be built, got one with slots, which would lie on the "
            "wrong devices. Give a new optimizer, and load its state later."
        )
    found = read_stages(stages)
    if budget is None or isinstance(budget, (int, str)):
        budgets: list[Any] = [budget] * len(found)
    else:
        budgets = list(budget)
    if len(budgets) != len(found):
        raise ValueError(
            f"`budget` must be one value, or one for each of {len(found)} stages, got "
            f"{len(budgets)}. Write {len(found)}."
        )
    settings = [read_settings(budget=one, **knobs) for one in budgets]
    for stage in found:
        stage.move()
    optimizer.build([v for stage in found for v in stage.trainable])
    return PipelineStep(
        found,
        _mean_loss(loss),
        optimizer,
        SCHEDULES[schedule](len(found), micro_batches),
        settings,
    )


def _mean_loss(loss: Any) -> Callable[[Any, Any], Any]:
    own: Any = keras.losses.get(loss)
    return lambda targets, made: tf.reduce_mean(own(targets, made))


@dataclass(frozen=True, slots=True)
class _Functions:
    """The functions of one stage for one shape of micro-batches."""

    stage: Stage
    forward: FittedFunction | None  # inputs to outputs and state; None for the last
    backward: FittedFunction  # returns loss and gradients of inputs


class PipelineStep:
    """A training step over stages; made by `pipeline_step`.

    Args:
        stages: The stages, with their variables on their devices.
        loss: The mean loss of targets and outputs.
        optimizer: The optimizer, built for the variables of all stages.
        schedule: The actions of each stage.
        settings: The user's knobs for each stage.
    """

    def __init__(
        self,
        stages: tuple[Stage, ...],
        loss: Callable[[Any, Any], Any],
        optimizer: Any,
        schedule: Schedule,
        settings: Sequence[Settings],
    ) -> None:
        self.stages = stages
        self.optimizer = optimizer
        self._loss = loss
        self._schedule = schedule
        self._micro_batches = len(schedule[0]) // 2
        self._settings = settings
        self._planned: dict[str, list[_Functions]] = {}
        self._update = tf.function(self._updated, autograph=False, jit_compile=False)

    @property
    def report(self) -> tuple[StepReport, ...]:
        """Reports of all planned functions of all stages."""
        planned = (one for each in self._planned.values() for one in each)
        both = (fitted for one in planned for fitted in (one.forward, one.backward))
        return tuple(report for one in both if one for report in one.report)

    def __call__(self, inputs: Any, targets: Any) -> Any:
        """Train on one batch; its first dimension is cut into micro-batches.

        Raises:
            ValueError: If the batch cannot be cut into equal micro-batches, or a stage
                does not accept its inputs.
        """
        parts = _cut(inputs, self._micro_batches), _cut(targets, self._micro_batches)
        key = signature_key([parts[0][0], parts[1][0]])
        if key not in self._planned:
            self._planned[key] = self._plan(parts[0][0], parts[1][0])
        run = _Run(self._planned[key], *parts)
        del parts  # TensorFlow keeps a device copy as long as its source tensor
        try:
            losses = run.losses(self._schedule)
        except BaseException:
            for stage in self.stages:
                stage.forget_sums()
            raise
        self._update()
        with tf.device("CPU:0"):
            return tf.reduce_mean(tf.add_n([tf.stack(each) for each in losses]))

    def _updated(self) -> None:
        means = [m for stage in self.stages for m in stage.mean(self._micro_batches)]
        weights = [v for stage in self.stages for v in stage.trainable]
        self.optimizer.apply(means, weights)

    def _plan(self, inputs: Any, targets: Any) -> list[_Functions]:
        """Plan each stage on its device, beside the most tensors that it holds."""
        planned: list[_Functions] = []
        held: list[Any] = []
        specs = _specs(inputs)
        for i, stage in enumerate(self.stages):
            with planned_on(stage.device), _fitting(i, specs):
                held += self._held(i, specs)
                made, state = _shapes(stage, specs)
                forward = None
                if i < len(self.stages) - 1:
                    forward = self._fitted(i, "forward", stage.forward, [specs])
                    back = partial(_backward, stage, self.optimizer.scale_loss)
                    given = [specs, state, [x for x in made if x.dtype.is_floating]]
                else:
                    back = partial(_last, stage, self._loss, self.optimizer.scale_loss)
                    given = [specs, _specs(targets)]
                backward = self._fitted(i, "backward", back, given)
            planned.append(_Functions(stage, forward, backward))
            specs = made
        del held
        return planned

    def _held(self, stage: int, inputs: Sequence[Any]) -> list[Any]:
        """Allocate the most memory that lies beside a function of a stage.

        Counts inputs of other micro-batches, as many as the previous stage may have
        sent, and gradients of one that the previous stage has not taken yet.
        """
        before = self._schedule[max(stage - 1, 0)]
        most = max(most_held(self._schedule[stage]), most_held(before))
        waiting = [x for x in inputs if x.dtype.is_floating] if stage else []
        with tf.device(self.stages[stage].device):
            lie = [*inputs] * (most - 1) + waiting
            return [tf.zeros(x.shape, x.dtype) for x in lie]

    def _fitted(self, stage: int, kind: str, function: Any, given: list[Any]) -> Any:
        fitted = FittedFunction(
            function,
            self._settings[stage],
            kind=f"stage {stage} {kind}",
            signature=given,
        )
        fitted.prepare()
        return fitted


def _cut(batch: Any, count: int) -> list[list[Any]]:
    """Split a batch into flat tensors of micro-batches, on the host.

    Raises:
        ValueError: If micro-batches would differ in size.
    """
    with tf.device("CPU:0"):
        flat = [tf.convert_to_tensor(one) for one in tf.nest.flatten(batch)]
        for one in flat:
            if not one.shape.rank or len(one) % count:
                raise ValueError(
                    f"a batch must be a multiple of {count} micro-batches, got "
                    f"{one.shape}. Use `drop_remainder=True`, or other "
                    "`micro_batches`."
                )
        parts = [tf.split(one, count) for one in flat]
    return [list(part) for part in zip(*parts, strict=True)]


def _specs(tensors: Sequence[Any]) -> list[Any]:
    return [tf.TensorSpec(one.shape, one.dtype) for one in tensors]


@contextmanager
def _fitting(stage: int, specs: Sequence[Any]) -> Iterator[None]:
    """Explain errors in the `with` block as a stage that rejects its inputs."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if isinstance(error, LMSError):
            raise
        shapes = ", ".join(f"{tuple(one.shape)}" for one in specs)
        source = f"stage {stage - 1} makes" if stage else "is in a batch"
        raise ValueError(
            f"stage {stage} must take what {source}, got {shapes}: "
            f"{str(error).splitlines()[0]} Cut the model elsewhere."
        ) from error


def _shapes(stage: Stage, specs: Sequence[Any]) -> Any:
    """Return specs of outputs and state."""
    traced = tf.function(stage.forward, autograph=False)
    made, state = traced.get_concrete_function(list(specs)).structured_outputs
    return _specs(made), _specs(state)


def _backward(
    stage: Stage, scaled: Callable[[Any], Any], inputs: Any, state: Any, gradients: Any
) -> Any:
    return stage.backward(inputs, state, gradients, scaled)


def _last(
    stage: Stage,
    loss: Callable[[Any, Any], Any],
    scaled: Callable[[Any], Any],
    inputs: Any,
    targets: Any,
) -> Any:
    def of(made: Any) -> tuple[Any, Any]:
        value = loss(targets[0] if len(targets) == 1 else targets, made)
        value = sum(stage.model.losses, value)
        return value, scaled(value)

    return stage.last(inputs, of)


@dataclass(frozen=True, slots=True)
class _Inbox:
    """Queues of tensors from other stages, in order of micro-batches, or their error.

    Inputs are copied to the stage's device by the sender, gradients by the receiver: at
    most one micro-batch's gradients may wait.
    """

    forward: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    backward: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    room: Semaphore = field(default_factory=Semaphore)

    def fail(self, error: BaseException, waits: int) -> None:
        self.forward.put(error)
        self.backward.put(error)
        self.room.release(waits)


class _Run:
    """The run of one batch through the stages."""

    def __init__(
        self, planned: Sequence[_Functions], inputs: list[Any], targets: list[Any]
    ) -> None:
        self._planned = planned
        self._inboxes = [_Inbox() for _ in planned]
        self._targets = deque(targets)
        self._losses: list[list[Any]] = [[] for _ in planned]
        self._errors: list[BaseException] = []
        for one in inputs:
            self._inboxes[0].forward.put(one)

    def losses(self, schedule: Schedule) -> list[list[Any]]:
        """Run all stages; return the losses of each stage by micro-batch."""
        with uninterrupted(), ThreadPoolExecutor(len(schedule)) as threads:
            threads.map(self._follow, range(len(schedule)), schedule)
        if self._errors:
            raise self._errors[0]
        return self._losses

    def _follow(self, stage: int, actions: Sequence[Action]) -> None:
        """Run a stage's actions; an error ends the other stages too."""
        held: list[list[Any]] = []
        try:
            with planned_on(self._planned[stage].stage.device):
                for action in actions:
                    if action.kind == "forward":
                        held.append(self._forward(stage))
                    else:
                        self._backward(stage, held.pop(0))
        except BaseException as error:
            self._errors.append(error)
            for inbox in self._inboxes:
                inbox.fail(error, len(actions))

    def _forward(self, stage: int) -> list[Any]:
        """Send outputs to the next stage; return the backward pass's arguments."""
        inputs = _taken(self._inboxes[stage].forward)
        if not stage:
            inputs = self._moved(stage, inputs)
        forward = self._planned[stage].forward
        if forward is None:
            return [inputs]
        made, state = forward(inputs)
        self._inboxes[stage + 1].forward.put(self._moved(stage + 1, made))
        return [inputs, state]

    def _backward(self, stage: int, held: list[Any]) -> None:
        if len(held) == 1:
            more = self._moved(stage, self._targets.popleft())
        else:
            more = self._moved(stage, _taken(self._inboxes[stage].backward))
            self._inboxes[stage].room.release()
        loss, made = self._planned[stage].backward(*held, more)
        self._losses[stage].append(loss)
        if stage:
            self._inboxes[stage - 1].room.acquire()
            self._inboxes[stage - 1].backward.put(made)

    def _moved(self, stage: int, tensors: Sequence[Any]) -> list[Any]:
        with tf.device(self._planned[stage].stage.device):
            return [tf.identity(one) for one in tensors]


def _taken(inbox: SimpleQueue[Any]) -> list[Any]:
    """Wait for the next tensors.

    Raises:
        BaseException: The error of another stage.
    """
    found = inbox.get()
    if isinstance(found, BaseException):
        raise found
    return found
