"""A training whose steps are of several kinds: alone, or while a mate makes one too."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.ledger import Row
from experiments.quiet import quiet_median
from experiments.turns import Turns
from profiling.timelines import median_figures

__all__ = ["IDLE_STEPS", "Team"]

# Of each training: the first ones initialise, and show what runs out of memory.
IDLE_STEPS = 4


@dataclass(slots=True, kw_only=True)
class Team:
    """A training, and those that may step with it.

    Args:
        told: What tells it from others.
        first: The training that is measured.
        mates: By kind of step, who steps at the same time; None for nobody.
        kinds: Of what kind each step of the first one was.
    """

    told: dict[str, Any]
    first: Turns
    mates: Mapping[str, Turns | None]
    kinds: list[str] = field(default_factory=lambda: ["idle"] * IDLE_STEPS)

    @property
    def everyone(self) -> list[Turns]:
        """The first one and its mates."""
        return [self.first, *(mate for mate in self.mates.values() if mate)]

    @property
    def waits(self) -> bool:
        """Whether the first one has steps left, and nobody has failed."""
        return all(each.waits for each in self.everyone)

    def step(self, kind: str) -> None:
        """Let the first one make a step, with its mate if it has one."""
        if kind not in self.mates or not self.waits:
            return
        self.kinds.append(kind)
        mate = self.mates[kind]
        together = [self.first, *([mate] if mate else [])]
        for each in together:
            each.begin()
        for each in together:
            each.finish()

    def end(self, recorded: int) -> dict[str, Any]:
        """The row: seconds of each kind of step, and what was recorded of so many."""
        ended = [(each.waits, *each.end()) for each in self.everyone]
        # A mate that waits would make more steps: nobody needs them.
        errors = [error for waited, error, _ in ended if error and not waited]
        _, stopped, result = ended[0]
        row = self.told | {"error": errors[0] if errors else stopped}
        if row["error"]:
            return row
        seen = recorded * len(self.mates)
        timed = len(result["step_seconds"]) + seen  # a new plan began them anew
        row |= {"peak_bytes": result["peak_bytes"], "report": result.get("report")}
        row["cores"] = result["cores"]
        kinds = self.kinds[-timed:-seen], self.kinds[-seen:]
        return row | {kind: _summary(result, *kinds, kind) for kind in self.mates}


def _summary(
    result: Row, timed: Sequence[str], seen: Sequence[str], kind: str
) -> dict[str, Any]:
    """Steps of one kind: `timed` and `seen` say which those of the result are."""

    def of_kind(name: str, kinds: Sequence[str]) -> list[Any]:
        pairs = zip(result[name], kinds, strict=True)
        return [value for value, is_ in pairs if is_ == kind]

    chosen = {name: of_kind(name, timed) for name in ("step_seconds", "stolen_seconds")}
    figures = median_figures(of_kind("recorded", seen))
    return chosen | {"seconds": quiet_median(chosen), "recorded": figures}
