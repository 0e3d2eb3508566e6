"""Trials beside each other: needs, memory and turns; and trials that are copies."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from experiments import runner
from experiments.beside import Step, run_all
from experiments.runner import OutOfTimeError, Trial
from experiments.turns import Turn
from lms.workers import processes

GOOD = {"error": None}


class Card:
    """Counts memory and slots that fake trials hold, and notes their order."""

    def __init__(self) -> None:
        self.lock, self.ended = threading.Lock(), list[str]()
        self.gib = self.count = self.most_gib = self.most_count = 0.0

    def step(self, name: str, gib: float, *needs: str, error: Any = None) -> Step:
        act = partial(self._act, name, gib, error)
        return Step(name=name, act=act, needs=needs, gib=gib)

    def _act(self, name: str, gib: float, error: Any) -> dict[str, Any]:
        self._take(gib, 1)
        time.sleep(0.02)
        self._take(-gib, -1)
        self.ended.append(name)
        if isinstance(error, Exception):
            raise error
        return {"error": error}

    def _take(self, gib: float, count: int) -> None:
        with self.lock:
            self.gib, self.count = self.gib + gib, self.count + count
            self.most_gib = max(self.most_gib, self.gib)
            self.most_count = max(self.most_count, self.count)


def test_a_graph_keeps_to_needs_slots_and_memory() -> None:
    card, rows = Card(), dict[str, Any]()
    steps = [card.step("base", 4), card.step("after", 1, "base")]
    steps += [card.step(f"small {i}", 3) for i in range(6)]
    run_all(steps, rows, slots=3, room=8)
    assert set(rows) == {step.name for step in steps}
    assert card.ended.index("base") < card.ended.index("after")
    assert 4 < card.most_gib <= 8
    assert 2 <= card.most_count <= 3


def test_what_fails_costs_only_those_that_need_it() -> None:
    card, rows = Card(), dict[str, Any]()
    steps = [card.step("base", 1, error="OOM"), card.step("after", 1, "base")]
    steps += [card.step("later", 1, "after"), card.step("large", 9)]
    steps += [card.step("wrong", 1, error=KeyError("x")), card.step("other", 1)]
    run_all(steps, rows, slots=2, room=8)
    assert rows["after"] == {"error": "needs base"}
    assert rows["later"] == {"error": "needs after"}
    assert rows["large"] == {"error": "needs 9.0 GiB of the card"}
    assert rows["wrong"] == {"error": "KeyError: 'x'"}
    assert rows["other"] == GOOD


def test_a_run_whose_time_is_over_starts_nothing_more() -> None:
    card, rows = Card(), dict[str, Any]()
    steps = [card.step("over", 1, error=OutOfTimeError()), card.step("next", 1)]
    with pytest.raises(OutOfTimeError):
        run_all(steps, rows, slots=1, room=8)
    assert card.ended == ["over"]


@pytest.mark.parametrize("kind", ["timed", "compared"])
def test_what_is_timed_has_the_card_for_itself(kind: str, tmp_path: Path) -> None:
    waits = kind == "timed"
    first, second = (Turn(str(tmp_path), alone=each) for each in (waits, True))
    done = threading.Event()

    def share() -> None:
        with second.taken(alone=False):
            done.set()

    thread = threading.Thread(target=share)
    with first.taken(), first.taken():
        thread.start()
        assert done.wait(0.3) != waits
    thread.join()
    assert done.is_set()
    assert (second.waited > 0.2) == waits


PROGRAM = """
import os, sys
print("begun", os.environ["OWN"], flush=True)
how = sys.argv[1]
if how == "waits":
    import time; time.sleep(60)
if how.startswith("-"):
    os.kill(os.getpid(), -int(how))
raise SystemExit(int(how))
"""


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("start", [processes.spawned, processes.copied])
def test_a_trial_s_end_is_told_whoever_started_it(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    program, log = tmp_path / "program.py", tmp_path / "log"
    program.write_text(PROGRAM)
    ends = dict[str, Any]()
    for how in ("0", "3", f"-{int(signal.SIGSEGV)}", "waits"):
        trial = Trial(longest=5.0 if how == "waits" else 60.0)
        words = [sys.executable, str(program), how]
        environ = {**os.environ, "OWN": how}
        with log.open("w") as sink:
            ends[how] = runner._ended(words, trial, environ, sink, 60.0, start)
        assert f"begun {how}" in log.read_text()
    assert list(ends.values()) == [0, 3, -signal.SIGSEGV, None]
