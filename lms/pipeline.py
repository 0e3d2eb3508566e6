"""From a step to one that fits: the stages in order. This file maps the library.

    trace ──> specialise ──> schedule ──> plan ──> validate ──> rewrite ──> rebuild
                                           ^                                  │
                                           └──── out of memory (recovery) <───┘

`fit_in_memory` is the public door for custom training loops; `LMSCallback` is the one
for Keras. Both make a `FittedFunction`, which plans once for each signature.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from lms.ir.graph import GraphView
from lms.ir.liveness import lower_bound
from lms.ir.plan import planned_graph, validate_plan
from lms.ir.write_guard import WriteGuard, guard_writes
from lms.machine.costs import completed
from lms.planning import candidates
from lms.planning.memory_budget import HostBudget, MemoryBudget
from lms.planning.prefetch import Speeds
from lms.planning.risk import FittedPlan
from lms.planning.select import (
    choose_for_host,
    fits,
    fits_easily,
    plain_memory,
    plain_plan,
    played_peak,
)
from lms.planning.settings import Settings, read_settings
from lms.report import StepReport, StepTimeline
from lms.simulation.allocator import SmallPool
from lms.simulation.executor import simulate
from lms.simulation.memory import simulate_memory
from lms.tf.capture.loops import one_round_at_a_time
from lms.tf.capture.specialising import TracedStep, specialise
from lms.tf.capture.tracing import (
    PREPARING,
    TracedFunction,
    called_signature,
    flat_specs,
    gives_tensors,
    read_signature,
    signature_key,
    trace,
)
from lms.tf.capture.writes import CommitFlag, KeptVariables
from lms.tf.compat import NodeDef
from lms.tf.measure.compact_variables import settle_variables
from lms.tf.measure.device_budget import measure_budget, with_holes
from lms.tf.measure.devices import Device, find_device, take_emulated_memory
from lms.tf.measure.host_memory import free_host_bytes
from lms.tf.measure.measuring import measure_costs, measure_hardware
from lms.tf.measure.microbenchmark import forget_functions
from lms.tf.measure.scratch import measure_scratch, with_scratch
from lms.tf.recovery import PreparedStep, run_recovering
from lms.tf.rewrite.plan_nodes import planned_step
from lms.tf.rewrite.rebuilding import rebuild
from lms.tf.rewrite.rewriting import rewrite
from lms.units import Bytes

__all__ = ["FittedFunction", "fit_in_memory"]

take_emulated_memory()


def fit_in_memory(
    function: Callable[..., Any],
    signature: Sequence[Any],
    *,
    budget: int | str | None = None,
    **knobs: Any,
) -> "FittedFunction":
    """Make a training step run within a memory budget.

    Args:
        function: A `tf.function`, or a Python function that can become one, such as a
            step with a `GradientTape` that updates variables.
        signature: Its arguments as specs (`tf.TensorSpec`) or example tensors, which
            then are taken for the data: any batch beside them takes more memory. Only
            the first dimension of an argument may be unknown; then each batch size is
            planned when it first comes.
        budget: Device memory in bytes, or text such as "96MiB"; None takes what the
            device has.
        **knobs: The other knobs of `LMSCallback`.

    Returns:
        A callable with the same arguments and results, and `report`.

    Raises:
        BudgetError: If no plan keeps the step within the budget.
        UnsupportedError: If a shape is unknown beyond the batch.

    Example:
        >>> import lms
        >>> import tensorflow as tf
        >>> weights = tf.Variable(tf.ones([4, 2]))
        >>> def step(x):
        ...     with tf.GradientTape() as tape:
        ...         loss = tf.reduce_sum(tf.square(x @ weights))
        ...     weights.assign_sub(0.1 * tape.gradient(loss, weights))
        ...     return loss
        >>> fitted = lms.fit_in_memory(step, [tf.TensorSpec([3, 4])], budget="1GiB")
        >>> float(fitted(tf.ones([3, 4])))
        96.0
    """
    fitted = FittedFunction(
        function,
        read_settings(budget=budget, **knobs),
        kind="step",
        signature=signature,
    )
    fitted.prepare()
    return fitted


class FittedFunction:
    """A step that is planned for each signature it is called with.

    Args:
        function: What to trace.
        settings: The user's knobs.
        kind: Its name in reports.
        signature: Specs to trace with; None traces with what it is called with.
        planned_anew: Is told of each plan that takes the place of one that failed.
        own: What would run otherwise, called with the same arguments: it says which
            shapes a trace leaves open. None is the function itself.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        settings: Settings,
        *,
        kind: str,
        signature: Sequence[Any] | None = None,
        planned_anew: Callable[[StepReport], None] | None = None,
        own: Any = None,
    ) -> None:
        self._function = function
        self._own = function if own is None else own
        self._settings = settings
        self._kind = kind
        self._signature = None if signature is None else read_signature(signature)
        self._has_example = signature is not None and gives_tensors(signature)
        self._planned_anew = planned_anew
        self._traced: dict[str, TracedFunction] = {}
        self._steps: dict[str, PreparedStep] = {}

    @property
    def report(self) -> tuple[StepReport, ...]:
        """One report for each signature, in the order they came."""
        return tuple(step.report() for step in self._steps.values())

    @property
    def timelines(self) -> tuple[StepTimeline, ...]:
        """Predicted memory over a step for each signature."""
        return tuple(step.timeline for step in self._steps.values())

    def __call__(self, *args: Any) -> Any:
        """Run one step; plans first if this signature is new."""
        traced = self._trace(self._called(args), None)
        return self._run(traced, traced.flat_inputs(args))

    def draw_and_run(self, iterator: Any) -> Any:
        """Run one step on the next element of a `tf.data` iterator.

        Raises:
            StopIteration: If there is no next element.
        """
        traced = self._trace((), iterator)
        return self._run(traced, traced.flat_inputs([next(iterator)]))

    def runs_plain(self, *args: Any) -> bool:
        """Whether this signature was seen and needs no plan."""
        traced = self._traced.get(signature_key(self._called(args)))
        if traced is None:
            return False
        key = _key(traced, traced.flat_inputs(args))
        return key in self._steps and self._steps[key].is_sure

    def prepare(self) -> None:
        """Plan now, if the signature leaves nothing open."""
        specs = flat_specs(self._signature or ())
        if all(spec.shape.is_fully_defined() for spec in specs):
            traced = self._trace(self._signature or (), None)
            self._prepared(traced, specs, data_is_there=self._has_example)

    def fits_unplanned(self) -> bool:
        """Whether all signatures so far run without a plan, and with room to spare."""
        return all(step.is_sure for step in self._steps.values())

    def note_peak(self) -> None:
        """Take the peak of steps that ran without this function, as Keras's own do."""
        for step in self._steps.values():
            step.note_peak()

    def release(self) -> None:
        """Give host memory back; the next step takes it again."""
        for step in self._steps.values():
            step.transport.release()

    def _called(self, args: Sequence[Any]) -> Sequence[Any]:
        """What a call is traced with."""
        return called_signature(self._signature, args) if self._signature else args

    def _trace(self, args: Sequence[Any], iterator: Any) -> TracedFunction:
        key = signature_key(args if iterator is None else [iterator.element_spec])
        if key not in self._traced:
            self._traced[key] = trace(
                self._function, args, iterator=iterator, own=self._own
            )
        return self._traced[key]

    def _run(self, traced: TracedFunction, inputs: Sequence[Any]) -> Any:
        """Run a step; it is planned anew if it runs out of memory."""
        step = self._prepared(traced, inputs, data_is_there=True)
        key = _key(traced, inputs)

        def take_place(step: PreparedStep) -> None:
            self._steps[key] = step
            if self._planned_anew is not None:
                self._planned_anew(step.report())

        try:
            return run_recovering(step, inputs, take_place)
        finally:
            if self._steps[key].rebuilt is None:  # it could not be planned anew
                del self._steps[key]

    def _prepared(
        self, traced: TracedFunction, inputs: Sequence[Any], *, data_is_there: bool
    ) -> PreparedStep:
        key = _key(traced, inputs)
        if key not in self._steps:
            with PREPARING:
                self._steps[key] = _prepare(
                    traced,
                    inputs,
                    self._settings,
                    self._kind,
                    data_is_there=data_is_there,
                    reads_ahead=not self._has_example,  # the example is the data
                    settle=not self._steps,
                )
        return self._steps[key]


def _key(traced: TracedFunction, inputs: Sequence[Any]) -> str:
    """What a plan is made for."""
    return f"{id(traced)} {signature_key(inputs)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What is planned, into one room or another.

    `graph` is the step's, `own` TensorFlow's own, both with measured scratch. `plain`
    is the plan for the latter, `kept` the bytes of constants that only it keeps.
    `measure` says what room there is now.
    """

    kind: str
    traced: TracedFunction
    step: TracedStep
    graph: GraphView
    own: GraphView
    kept: Bytes
    plain: FittedPlan
    device: Device
    settings: Settings
    measure: Callable[..., MemoryBudget]

    def speeds(self) -> Speeds:
        """How long ops and copies take on the present device; measured once."""
        return Speeds(
            costs=measure_costs(self.step, self.device.memory),
            hardware=measure_hardware(self.device),
        )


def _prepare(  # noqa: PLR0913 - what differs between callers
    traced: TracedFunction,
    inputs: Sequence[Any],
    settings: Settings,
    kind: str,
    *,
    data_is_there: bool,
    reads_ahead: bool,
    settle: bool,
) -> PreparedStep:
    """All stages for one signature."""
    started = time.perf_counter()
    device = find_device()
    step = specialise(traced, inputs, device=device.full_name)
    if settle:  # once: other plans rely on where variables lie
        settle_variables(step, device)
    measure = partial(measure_budget, step, settings, device, reads_ahead=reads_ahead)
    budget = measure(data_is_there=data_is_there)
    try:
        subject = _subject(traced, step, settings, kind, device, measure)
        prepared = _build(subject, budget)
    finally:
        forget_functions()
    seconds = traced.seconds + time.perf_counter() - started
    prepared.predicted = replace(prepared.predicted, preparation_seconds=seconds)
    return prepared


def _subject(
    traced: TracedFunction,
    step: TracedStep,
    settings: Settings,
    kind: str,
    device: Device,
    measure: Callable[..., MemoryBudget],
) -> _Subject:
    """What is planned, with measured scratch."""
    scratch = measure_scratch(step, device.memory)
    graph = with_scratch(step.graph, scratch)
    own = with_scratch((step.own or step).graph, scratch)
    kept = own.constant_bytes - graph.constant_bytes
    if kind in ("train", "step"):  # evaluation lacks ops that training has
        candidates.check_scopes(graph, settings.filters)
    return _Subject(
        kind=kind,
        traced=traced,
        step=step,
        graph=graph,
        own=own,
        kept=kept,
        plain=plain_plan(own, kept),
        device=device,
        settings=settings,
        measure=measure,
    )


def _build(subject: _Subject, budget: MemoryBudget) -> PreparedStep:
    """The stages from the plan on; repeated when a step ran out of memory."""
    started = time.perf_counter()
    graph, step, device = subject.graph, subject.step, subject.device
    speeds = cache(subject.speeds)
    if subject.settings.planner == "budget" and not fits(subject.plain, budget):
        budget = with_holes(budget, device)
    taken = None if budget.is_whole_device else budget.total
    host = HostBudget(
        free=free_host_bytes(device, taken), by_size=device.holds_input_pipeline
    )
    fitted = choose_for_host(
        graph, subject.plain, subject.settings, budget, speeds, host
    )
    plan = fitted.plan
    unplanned = simulated = plain_memory(subject.own, subject.kept)
    is_plain = plan == subject.plain.plan
    if is_plain:
        graph, step = subject.own, step.own or step
    else:
        graph, step = planned_graph(graph, plan), planned_step(step, plan)
        simulated = simulate_memory(graph, plan)
    planned = time.perf_counter()
    validate_plan(graph, plan)
    played, reached = None, fitted.peak
    if not is_plain:
        costs = completed(speeds().costs, graph, speeds().hardware)
        played = simulate(graph, plan, costs, speeds().hardware)
        reached = played_peak(fitted, played)
    is_sure = is_plain and fits_easily(subject.plain, budget)
    transport, commit_flag = device.transport(), CommitFlag()
    guard = WriteGuard()
    if plan.planner == "budget":
        ordered = graph.reordered(plan.order)
        guard = guard_writes(ordered, simulated.device, budget.step)
    begun = commit_flag.node(guard)
    nodes = rewrite(step, plan, transport, begun, guard.late, asks=device.is_emulated)
    nodes = nodes if is_sure else one_round_at_a_time(nodes)
    timeline = StepTimeline(
        kind=subject.kind,
        signature=step.signature,
        unplanned=unplanned,
        planned=simulated,
        persistent_bytes=budget.persistent,
        lanes=played,
    )
    return PreparedStep(
        rebuilt=rebuild(subject.traced, step, nodes),
        transport=transport,
        memory=device.memory,
        predicted=StepReport(
            kind=subject.kind,
            signature=step.signature,
            plan=plan,
            budget_bytes=budget.total,
            margin_bytes=budget.margin,
            predicted_peak_bytes=budget.persistent + reached,
            predicted_seconds=None if played is None else played.seconds,
            measured_peak_bytes=None,
            unplanned_peak_bytes=budget.persistent + subject.plain.peak,
            persistent_bytes=budget.persistent,
            lower_bound_bytes=lower_bound(subject.graph),
            swapped_out_bytes=plan.swapped_out_bytes,
            swapped_in_bytes=plan.swapped_in_bytes,
            host_peak_bytes=simulated.host_peak,
            swap_count=len(plan.swaps),
            planning_seconds=planned - started,
            preparation_seconds=time.perf_counter() - started,
            unknown_loops=step.unknown_loops,
        ),
        timeline=timeline,
        small_pool=device.keep_pool(
            _with_constants(fitted.small_pool, step.nodes, nodes)
        ),
        commit_flag=commit_flag,
        kept=KeptVariables.of(
            tuple(step.variables) if is_plain and not is_sure else guard.kept,
            step.variables,
        ),
        is_sure=is_sure,
        can_be_planned=subject.settings.planner == "budget",
        budget=budget,
        measure=partial(subject.measure, data_is_there=True),
        plan_into=partial(_build_alone, subject),
    )


def _with_constants(
    small_pool: SmallPool, before: Sequence[NodeDef], after: Sequence[NodeDef]
) -> SmallPool:
    """The nook with room for the small constants of the nodes that a plan adds."""
    added = sum(node.op == "Const" for node in after)
    added -= sum(node.op == "Const" for node in before)
    return (
        replace(small_pool, sizes=small_pool.sizes + (1,) * added)
        if small_pool.sizes
        else small_pool
    )


def _build_alone(subject: _Subject, budget: MemoryBudget) -> PreparedStep:
    with PREPARING:
        return _build(subject, budget)
