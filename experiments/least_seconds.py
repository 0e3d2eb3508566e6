"""A lower bound of a step's seconds in a memory, by mixed-integer programming.

    stage t       what runs again, stalls │ op t │
                  └────── before ───────┘ └beside┘

Stages are Checkmate's (Jain et al., "Checkmate", MLSys 2020): stage t ends with op t's
first run, and before that any op may run again. A variable of 0 or 1 says whether a
tensor holds memory from one stage to the next. Copies are POET's (Patil et al., "POET",
ICML 2022), but continuous: before op t and while op t runs parts of tensors are copied,
in each direction at most at the link's rate.

Each simulated plan is a solution of as many seconds or fewer, so no plan is faster. The
simulator's rules for a plan are rules here too:
    - Ops run one by one, and read tensors that are complete on the device.
    - A tensor is swapped in after all of it was swapped out, while it was on the
      device. It holds its memory from the first byte on.
    - While an op runs, its inputs, output and scratch and all kept tensors fit.

Relaxed, to make a bound: latencies, queues of copies, outputs of second runs for other
second runs of their stage, and the number of second runs and copies.

Known weakness: the order of first runs is given.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lms.errors import extra
from lms.ir.graph import GraphView, op_of
from lms.machine.hardware import Costs, Hardware
from lms.units import MIB, Bytes, Seconds

with extra("unet3d"):
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

__all__ = ["Step", "least_seconds", "step_of"]

_MS = 1e-3  # the programme counts milliseconds and MiB: numbers near 1
_GAP = 1e-3  # relative gap at which the solver stops
_IMPOSSIBLE = 2  # SciPy's status
_PARTS = ("came", "full", "ready", "left", "stays", "in", "in+", "out", "out+")

_Name = tuple[str, int, int]  # word, stage, op


@dataclass(frozen=True, kw_only=True)
class Step:
    """Ops by number, in the order of their first runs; each makes one tensor."""

    seconds: tuple[Seconds, ...]
    sizes: tuple[Bytes, ...]  # of outputs
    scratch: tuple[Bytes, ...]  # needed while the op runs
    reads: tuple[tuple[int, ...], ...]  # ops whose outputs each op reads
    again: tuple[bool, ...]  # may run again
    h2d: float  # bytes per second to the device
    d2h: float  # bytes per second to the host

    @cached_property
    def until(self) -> tuple[int, ...]:
        """The last stage in which an op may read each op's output, or -1."""
        found = [-1] * len(self.sizes)
        for op in reversed(range(len(found))):
            last = max(op, found[op]) if self.again[op] else op
            for source in self.reads[op]:
                found[source] = max(found[source], last)
        return tuple(found)


def step_of(graph: GraphView, costs: Costs, hardware: Hardware) -> Step:
    """Convert a graph to the step of the programme.

    Raises:
        ValueError: If an op does anything but make one new tensor.
    """
    ops = [op for op in graph.ops if not op.persistent]
    number = {op.name: i for i, op in enumerate(ops)}
    for op in ops:
        if len(op.outputs) != 1 or op.inplace or op.alias or op.fixed or op.varies:
            raise ValueError(
                f"`graph` must have ops that make one new tensor, got {op.name!r}. "
                "Draw another graph."
            )
    makers = [dict.fromkeys(map(op_of, op.inputs)) for op in ops]
    return Step(
        seconds=tuple(costs.of(op.name) for op in ops),
        sizes=tuple(op.outputs[0].size for op in ops),
        scratch=tuple(op.scratch for op in ops),
        reads=tuple(tuple(number[n] for n in own if n in number) for own in makers),
        again=tuple(op.repeatable for op in ops),
        h2d=hardware.h2d,
        d2h=hardware.d2h,
    )


def least_seconds(step: Step, memory: Bytes, *, limit: Seconds) -> tuple[Seconds, bool]:
    """Return the largest proved bound of a step's seconds; True if it is the least.

    Args:
        step: The step.
        memory: Bytes of the device for the step.
        limit: Seconds for the solver.

    Raises:
        ValueError: If no solution fits.
    """
    found = _Programme(step, memory).solved(limit)
    if found.status == _IMPOSSIBLE:
        raise ValueError(f"the rules must have a solution, got none: {found}")
    seconds = sum(step.seconds) + max(0.0, float(found.mip_dual_bound)) * _MS
    return seconds, found.status == 0


class _Programme:
    """Variables of an op in a stage, and rules: sums of variables with upper limits.

    wait       milliseconds before the stage's own op, second runs included
    run        the op runs again
    room       the output holds memory when the stage begins
    came       the output gets memory in the stage, to be swapped in
    full       the output's part on the device when the stage begins;
    ready      and when the stage's own op begins
    in, out    the part that is copied before the stage's own op, or
    in+, out+  while that op runs
    left       the part that has been copied out when the stage ends
    stays      the output holds memory through all of the stage
    """

    def __init__(self, step: Step, memory: Bytes) -> None:
        self._step = step
        self._memory = memory / MIB
        self._sizes = [size / MIB for size in step.sizes]
        self._number: dict[_Name, int] = {}
        self._rules: list[tuple[Mapping[_Name, float], float]] = []
        for stage in range(len(step.sizes)):
            names = [("wait", stage, stage)]
            for op in self._alive(stage):
                own = ("room", "run", *_PARTS) if step.again[op] else ("room", *_PARTS)
                names += [(word, stage, op) for word in own]
            self._number |= {n: len(self._number) + i for i, n in enumerate(names)}
        for stage in range(len(step.sizes)):
            for op in self._alive(stage):
                self._contents(stage, op)
                self._moving(stage, op)
            self._reading(stage)
            self._fitting(stage)
            self._taking_time(stage)

    def solved(self, limit: Seconds) -> Any:
        """Solve the programme by SciPy's HiGHS, on one core.

        Source: Huangfu, Hall: "Parallelizing the dual revised simplex method",
        Mathematical Programming Computation 10 (2018).
        """
        is_wait = np.array([word == "wait" for word, *_ in self._number])
        entries = [
            (row, self._number[name], factor)
            for row, (terms, _) in enumerate(self._rules)
            for name, factor in terms.items()
        ]
        rows, columns, factors = zip(*entries, strict=True)
        shape = len(self._rules), len(self._number)
        matrix = coo_array((factors, (rows, columns)), shape=shape).tocsr()
        most: Any = [most for _, most in self._rules]
        ends: Any = np.where(is_wait, np.inf, 1.0)
        return milp(
            is_wait.astype(float),
            integrality=[int(word in ("room", "run")) for word, *_ in self._number],
            bounds=Bounds(0, ends),
            constraints=LinearConstraint(matrix, -np.inf, most),
            options={"time_limit": limit, "mip_rel_gap": _GAP},
        )

    def _rule(self, terms: Mapping[_Name, float], most: float = 0) -> None:
        """Add a rule; terms without a variable are 0."""
        known = {n: each for n, each in terms.items() if n in self._number and each}
        if known or most < 0:
            self._rules.append((known, most))

    def _alive(self, stage: int) -> Iterator[int]:
        """Return the ops before the stage's own whose outputs may still be read."""
        return (op for op in range(stage) if self._step.until[op] >= stage)

    def _contents(self, stage: int, op: int) -> None:
        """Add rules for where memory and contents come from."""
        here, after = (stage, op), (stage + 1, op)
        came = {("run", *here): -1, ("came", *here): -1}
        self._rule({("room", *after): 1, ("room", *here): -1, **came})
        self._rule({("full", *here): 1, ("room", *here): -1})
        parts = {("full", *here): 1, ("in", *here): 1, ("in+", *here): 1}
        self._rule({**parts, ("room", *here): -1, ("came", *here): -1})
        whole = {("full", *here): -1, ("in", *here): -1, ("run", *here): -1}
        self._rule({("ready", *here): 1, **whole})
        self._rule({("full", *after): 1, ("ready", *here): -1, ("in+", *here): -1})
        self._rule({("in+", *here): 1, ("room", *after): -1})

    def _moving(self, stage: int, op: int) -> None:
        """Add rules: present tensors are copied out, copied-out tensors back in."""
        here, after, before = (stage, op), (stage + 1, op), (stage - 1, op)
        present = {("room", *here): -1, ("run", *here): -1}
        self._rule({("out", *here): 1, ("out+", *here): 1, **present})
        if op not in self._step.reads[stage]:
            self._rule({("out+", *here): 1, ("room", *after): -1})
        moved = {("out", *here): -1, ("out+", *here): -1}
        self._rule({("left", *here): 1, ("left", *before): -1, **moved})
        self._rule({("came", *here): 1, ("left", *here): -1})

    def _reading(self, stage: int) -> None:
        for source in self._step.reads[stage]:
            self._rule({("ready", stage, source): -1}, -1)
        for op in self._alive(stage):
            for source in self._step.reads[op]:
                self._rule({("run", stage, op): 1, ("ready", stage, source): -1})

    def _fitting(self, stage: int) -> None:
        """Add rules of memory for the stage's own op, and for each second run in it."""
        alive, reads = list(self._alive(stage)), self._step.reads[stage]
        kept = [op for op in alive if op not in reads]
        room = {("room", stage + 1, op): self._sizes[op] for op in kept}
        self._rule(room, self._memory - self._working_set(stage))
        for op in alive:
            needed = {("room", stage + 1, op): 1.0} if op in kept else {}
            changes = {("run", stage, op): -1.0, ("came", stage, op): -1.0}
            stays = {("stays", stage, op): -1.0}
            self._rule({**needed, **changes, **stays}, 0 if op in kept else -1)
        for op in alive:
            others = (i for i in alive if i != op and i not in self._step.reads[op])
            stay = {("stays", stage, i): self._sizes[i] for i in others}
            if ("run", stage, op) in self._number:
                run = {("run", stage, op): self._working_set(op)}
                self._rule({**stay, **run}, self._memory)

    def _working_set(self, op: int) -> float:
        read = sum(self._sizes[source] for source in self._step.reads[op])
        return read + self._sizes[op] + self._step.scratch[op] / MIB

    def _taking_time(self, stage: int) -> None:
        alive, seconds = list(self._alive(stage)), self._step.seconds
        wait = {("wait", stage, stage): -1.0}
        self._rule({**{("run", stage, op): seconds[op] / _MS for op in alive}, **wait})
        for word, rate in (("in", self._step.h2d), ("out", self._step.d2h)):
            took = {op: self._step.sizes[op] / rate / _MS for op in alive}
            self._rule({**{(word, stage, op): took[op] for op in alive}, **wait})
            beside = {(f"{word}+", stage, op): took[op] for op in alive}
            self._rule(beside, seconds[stage] / _MS)
