"""Runs steps at once on one card, as their needs, slots and memory allow."""

import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from experiments.runner import OutOfTimeError
from experiments.stats import Row, trained

__all__ = ["Step", "run_all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A trial, or a few trials in sequence.

    Args:
        name: The step's name in `needs` of other steps.
        act: Runs the step and returns its row.
        needs: Names of steps that must have trained before.
        gib: GiB of the card that the step takes.
    """

    name: str
    act: Callable[[], Row]
    needs: tuple[str, ...] = ()
    gib: float = 2.0


def run_all(
    steps: Sequence[Step], rows: dict[str, Row], *, slots: int, room: float
) -> None:
    """Run steps at once, each as soon as it can, the first steps first.

    Args:
        steps: The steps, each behind the steps that it needs.
        rows: Gets each step's row; for a step that cannot run, the reason as an error.
        slots: Number of steps that run at once.
        room: GiB of the card that the steps share.

    Raises:
        OutOfTimeError: If the run's time is over, once running steps have ended.
        SystemExit: If there is no card, once running steps have ended.
    """
    waiting, running = list(steps), dict[Future[Row], Step]()
    with ThreadPoolExecutor(slots) as pool:
        while True:
            for step in tuple(waiting):
                if not all(name in rows for name in step.needs):
                    continue
                missing = [name for name in step.needs if not trained(rows[name])]
                if missing or step.gib > room + sum(s.gib for s in running.values()):
                    why = missing[0] if missing else f"{step.gib:.1f} GiB of the card"
                    rows[step.name] = {"error": f"needs {why}"}
                    waiting.remove(step)
                elif len(running) < slots and step.gib <= room:
                    waiting.remove(step)
                    room -= step.gib
                    running[pool.submit(_row_of, step)] = step
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                step = running.pop(future)
                room += step.gib
                rows[step.name] = future.result()


def _row_of(step: Step) -> Row:
    """Run a step; an exception becomes a row with an error."""
    try:
        return step.act()
    except OutOfTimeError:
        raise
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"[:300]}
