"""What the rows of `state_on_host` say: trainings beside plain Keras's, and limits."""

import statistics
from dataclasses import dataclass

from experiments.ledger import Row, Rows
from experiments.question import shortened

__all__ = ["MODES", "TITLES", "Limit", "Training", "limits_of", "trainings_of"]

# Where state lives; the first one is what others are compared with.
MODES = {
    "plain": "plain Keras",
    "host": "state on the host",
    "updated": "state on the host, updated there",
    "slots": "slots on the host",
}

TITLES = {
    "mlp": "perceptron",
    "transformer": "transformer",
    "gpt2": "GPT-2",
    "recommender": "recommender",
}

_STARTING = 2  # steps that trace and plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One training beside plain Keras's.

    Args:
        model: Which.
        way: How its state was kept, and what was measured.
        plain: The same of plain Keras.
    """

    model: str
    way: Row
    plain: Row

    @property
    def mode(self) -> str:
        """One of `MODES`."""
        return self.way["mode"]

    @property
    def times(self) -> float:
        """State over the device."""
        return self.plain["variable_bytes"] / self.way["memory_bytes"]

    @property
    def is_equal(self) -> bool:
        """Whether it has plain Keras's numbers."""
        return not self.way["error"] and self.way["sha256"] == self.plain["sha256"]

    @property
    def state(self) -> float:
        """Bytes of state that a step copies for each parameter, both ways."""
        report = self.way["report"]
        copied = report["state_in_bytes"] + report["state_out_bytes"]
        return copied / self.way["parameters"]

    @property
    def off(self) -> float:
        """The measured peak over the predicted one, less 1."""
        report = self.way["report"]
        return report["measured_peak_bytes"] / report["predicted_peak_bytes"] - 1

    @property
    def step(self) -> float:
        """The median of steps over plain Keras's, in seconds of the processor."""
        return statistics.median(self.ratios("processor_seconds"))

    def ratios(self, clock: str) -> list[float]:
        """Steps over plain Keras's of the same turn."""
        pairs = zip(self.way["steps"], self.plain["steps"], strict=True)
        return [mine[clock] / plain[clock] for mine, plain in pairs][_STARTING:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The largest model of one mode.

    Args:
        model: Which family.
        mode: One of `MODES`.
        best: The row of the largest that trained.
        times: Its parameters over plain Keras's.
        reason: Why the next one did not train.
        is_last: Whether the search had no larger one.
    """

    model: str
    mode: str
    best: Row
    times: float
    reason: str
    is_last: bool


def trainings_of(rows: Rows) -> list[Training]:
    """All whose plain training went well."""
    return [
        Training(model=row["model"], way=way, plain=row["trainings"][0])
        for row in rows
        if row["kind"] == "trained" and not row["trainings"][0]["error"]
        for way in row["trainings"][1:]
    ]


def limits_of(rows: Rows) -> list[Limit]:
    """By model and mode, where plain Keras trained something."""
    mine = [row for row in rows if row["kind"] == "largest"]
    best: dict[tuple[str, str], Row] = {}
    for row in sorted(mine, key=lambda row: row["size"]):
        if not row["error"]:
            best[row["model"], row["mode"]] = row
    return [
        Limit(
            model=model,
            mode=mode,
            best=row,
            times=row["parameters"] / best[model, "plain"]["parameters"],
            reason=_reason(row, mine),
            is_last=_is_last(row),
        )
        for model in TITLES
        for mode in MODES
        if (row := best.get((model, mode))) and (model, "plain") in best
    ]


def _reason(best: Row, rows: Rows) -> str:
    """Why the next size did not train."""
    same = ("model", "mode")
    failed = [
        row
        for row in rows
        if row["error"]
        and row["size"] > best["size"]
        and all(row[name] == best[name] for name in same)
    ]
    if _is_last(best) or not failed:
        return "the search ends here"
    return shortened(min(failed, key=lambda row: row["size"])["error"])


def _is_last(row: Row) -> bool:
    return row["size"] == row["most"]
