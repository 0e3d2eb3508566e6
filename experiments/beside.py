"""Steps beside each other on one card: a graph of needs, slots and memory."""

import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from experiments.runner import OutOfTimeError
from experiments.stats import Row, trained

__all__ = ["Step", "run_all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One trial, or a few that follow each other.

    Args:
        name: For others' `needs`.
        act: Makes the row.
        needs: Steps that must have trained before.
        gib: What it takes of the card.
    """

    name: str
    act: Callable[[], Row]
    needs: tuple[str, ...] = ()
    gib: float = 2.0


def run_all(
    steps: Sequence[Step], rows: dict[str, Row], *, slots: int, room: float
) -> None:
    """Run steps beside each other, each when it can, the first ones first.

    Args:
        steps: Those; what they need stands before them.
        rows: Takes the row of each; of one that cannot run, the reason as its error.
        slots: How many run at once.
        room: GiB of the card that they share.

    Raises:
        OutOfTimeError: If the run's time is over, once all that runs has ended.
        SystemExit: If there is no card; likewise.
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
    """Its row; what goes wrong costs the others nothing."""
    try:
        return step.act()
    except OutOfTimeError:
        raise
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"[:300]}
