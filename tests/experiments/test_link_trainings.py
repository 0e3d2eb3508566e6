"""Trainings over links, told what they took: which steps count, and what is left."""

from typing import Any, cast

import pytest

from experiments.link_teams import Team
from experiments.link_trainings import _WAYS, _left
from experiments.servers import SERVERS, published_cost
from experiments.turns import Turns


class _Training:
    """A training that is told of what kind its steps are, and takes as long.

    Args:
        steps: That count; those before a replan do not.
        recorded: Steps that follow.
        replanned: After how many steps it is planned anew.
        fails: After how many steps it fails.
    """

    def __init__(
        self, steps: int, recorded: int = 0, *, replanned: int = 0, fails: int = 0
    ) -> None:
        self.left = steps + recorded
        self.recorded = recorded
        self.replanned, self.fails = replanned, fails
        self.made = 0
        self.took: list[float] = []
        self.now = 0.0

    @property
    def waits(self) -> bool:
        return self.left > 0 and not 0 < self.fails <= self.made

    def begin(self) -> None:
        self.left -= 1
        self.made += 1
        self.took.append(self.now)
        if self.made == self.replanned:
            self.left += self.made
            self.took.clear()

    def finish(self) -> None:
        pass

    def end(self) -> tuple[str | None, dict[str, Any]]:
        if self.waits or self.left:
            return "OOM when" if 0 < self.fails <= self.made else "killed", {}
        timed = self.took[: -self.recorded]
        return None, {
            "step_seconds": timed,
            "stolen_seconds": [0.0] * len(timed),
            "recorded": [{"seconds": each} for each in self.took[-self.recorded :]],
            "peak_bytes": 7,
            "cores": 1,
        }


SECONDS = {"alone": 1.0, "beside": 2.0, "sharing": 3.0}


def _ended(first: _Training, mates: dict[str, _Training | None]) -> dict[str, Any]:
    team = Team(
        told={"way": "budget"},
        first=cast("Turns", first),
        mates=cast("Any", mates),
        kinds=["idle", "idle"],
    )
    while team.waits:
        for kind, taken in SECONDS.items():
            first.now = taken
            team.step(kind)
    return team.end(2)


def _mates(*kinds: str) -> dict[str, _Training | None]:
    return {kind: _Training(10**9) if kind != "alone" else None for kind in kinds}


@pytest.mark.parametrize("kinds", [("alone", "beside"), ("alone", "beside", "sharing")])
@pytest.mark.parametrize("replanned", [0, 1, 5, 11])
def test_kinds_of_steps_are_told_apart(kinds: tuple[str, ...], replanned: int) -> None:
    steps = 4 * len(kinds)
    first = _Training(steps, 2 * len(kinds), replanned=replanned)
    row = _ended(first, _mates(*kinds))
    assert row["error"] is None
    for kind in kinds:
        assert row[kind]["step_seconds"] == [SECONDS[kind]] * 4
        assert row[kind]["seconds"] == SECONDS[kind]
        assert row[kind]["recorded"] == {"seconds": SECONDS[kind]}
    assert ("sharing" in row) is ("sharing" in kinds)


def test_who_fails_says_why_and_ends_all() -> None:
    first = _Training(12, 6)
    mates = _mates("alone", "beside", "sharing") | {"sharing": _Training(99, fails=2)}
    assert _ended(first, mates)["error"] == "OOM when"
    assert first.made < 12
    first = _Training(12, 6, fails=3)
    assert _ended(first, _mates("alone", "beside"))["error"] == "OOM when"


def test_a_link_weighs_as_much_as_on_its_server() -> None:
    """Copying the peak once takes the part of a step that it took of the card's."""
    for name, size, rate in (("x86", 16 * 2**30, 12e9), ("AC922", 16 * 2**30, 64e9)):
        server = SERVERS[name]
        step = server.epochs[144] / 228
        assert server.scaled_rate(peak=size, step=step) == pytest.approx(rate)
        assert server.scaled_rate(peak=size // 16, step=step) == pytest.approx(
            rate / 16
        )
    assert published_cost("x86") > published_cost("AC922") > 1


def test_a_way_that_fails_in_its_turns_has_what_it_has_not_tried_yet() -> None:
    by_name = {way.name: way for way in _WAYS}
    rule = by_name["threshold"]
    rows: list[dict[str, Any]] = [{"way": "threshold", "error": "OOM when"}]
    second = _left(rule, rows)
    assert second is not None
    assert second.shares == rule.shares[1:]
    assert _left(by_name["budget"], [{"way": "budget", "error": "OOM when"}]) is None
    assert _left(rule, [*rows, {"way": "threshold", "error": None}]) is None
    assert _left(rule, rows * len(rule.shares)) is None
