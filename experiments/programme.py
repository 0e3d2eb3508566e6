"""Mixed-integer linear programmes by name: variables, rules, and the least there is.

SciPy's `milp` solves them with HiGHS (Huangfu, Hall: "Parallelizing the dual revised
simplex method", Mathematical Programming Computation 10, 2018), on one core.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from lms.units import Seconds

__all__ = ["Programme", "Solved"]

_GAP = 1e-3  # relative: what is nearer to the least counts as that
_IMPOSSIBLE = 2  # SciPy's status


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """What was found.

    Args:
        least: No solution has a lower cost.
        done: Whether a solution has this cost; else the solver ran into its limit.
        values: Of the variables that are above 0 in the best solution found.
    """

    least: float
    done: bool
    values: Mapping[Any, float]


class Programme:
    """Variables from 0 up, and rules: sums of them that are at most so much.

    Example:
        >>> programme = Programme()
        >>> programme.add("apples", cost=3.0, whole=True)
        >>> programme.add("pears", cost=2.0)
        >>> programme.at_most({"apples": -1, "pears": -1}, -1.5)
        >>> programme.at_most({"pears": 1}, 0.75)
        >>> programme.solved(limit=10).least
        4.0
    """

    def __init__(self) -> None:
        self._costs: dict[Hashable, float] = {}
        self._whole: dict[Hashable, bool] = {}
        self._most: dict[Hashable, float] = {}
        self._rules: list[tuple[Mapping[Any, float], float]] = []

    def __contains__(self, name: Hashable) -> bool:
        return name in self._costs

    def add(
        self,
        name: Hashable,
        *,
        cost: float = 0.0,
        most: float = np.inf,
        whole: bool = False,
    ) -> None:
        """Add a variable."""
        self._costs[name], self._most[name] = cost, most
        self._whole[name] = whole

    def at_most(self, terms: Mapping[Any, float], most: float) -> None:
        """Add a rule; terms without a variable are 0."""
        known = {name: each for name, each in terms.items() if name in self and each}
        if known or most < 0:
            self._rules.append((known, most))

    def solved(self, limit: Seconds) -> Solved:
        """The solution of the least cost.

        Args:
            limit: Seconds for the solver.

        Raises:
            ValueError: If there is no solution.
        """
        most: Any = list(self._most.values())
        found: Any = milp(
            list(self._costs.values()),
            integrality=[int(whole) for whole in self._whole.values()],
            bounds=Bounds(0, most),
            constraints=self._constraints(),
            options={"time_limit": limit, "mip_rel_gap": _GAP},
        )
        if found.status == _IMPOSSIBLE:
            raise ValueError(f"the rules must have a solution, got none: {found}")
        values = [] if found.x is None else found.x
        pairs = zip(self._costs, values, strict=False)
        return Solved(
            least=float(found.mip_dual_bound),
            done=found.status == 0,
            values={name: float(value) for name, value in pairs if value > 1e-6},
        )

    def _constraints(self) -> LinearConstraint:
        number = {name: i for i, name in enumerate(self._costs)}
        entries = [
            (row, number[name], factor)
            for row, (terms, _) in enumerate(self._rules)
            for name, factor in terms.items()
        ]
        rows, columns, factors = zip(*entries, strict=True)
        shape = len(self._rules), len(number)
        matrix = coo_array((factors, (rows, columns)), shape=shape).tocsr()
        most: Any = [most for _, most in self._rules]
        return LinearConstraint(matrix, -np.inf, most)
