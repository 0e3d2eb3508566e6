"""What a program does, as Linux tells it: CPU time, and whether any thread runs.

An emulated device computes in the threads of its program. It is busy at a moment when
one of them runs, or would run if it had a core (state R); threads that carry copies
over the emulated link sleep. So the share of moments in which one runs is the
utilisation of the device, for any program, without asking it.

Source: proc_pid_stat(5) and proc_pid_task(5); psutil does not tell a thread's state.

Known weakness: what Python does between ops counts as busy, and so does the part of a
copy that the CPU makes itself. `profiling.step_timeline` parts them.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lms.units import Seconds

__all__ = ["ProgramWatch", "parse_stat"]

_TICK = os.sysconf("SC_CLK_TCK")

# Threads are looked for anew after so many samples: that is the dear part.
_LOOK_AGAIN: Final = 10


def parse_stat(text: str) -> tuple[str, Seconds]:
    """State and CPU seconds of a thread or process.

    Args:
        text: Of a `stat` file; a name in it may hold blanks and brackets.

    Example:
        >>> state, seconds = parse_stat("7 (a (b) c) R 1 " + "0 " * 9 + "300 100 0")
        >>> state, seconds * _TICK
        ('R', 400.0)
    """
    fields = text[text.rindex(")") + 2 :].split(maxsplit=13)
    return fields[0], (int(fields[11]) + int(fields[12])) / _TICK


@dataclass(slots=True)
class ProgramWatch:
    """A process, its children but this one, and all their threads.

    Args:
        root: Number of the process.
    """

    root: int
    _threads: dict[str, int] = field(default_factory=dict)  # folder -> open file
    _sampled: int = 0

    def sample(self) -> dict[str, Any]:
        """Look once.

        Returns:
            "running" (how many threads run), "threads" (how many there are), and
            "cpu_seconds" of the threads that live, so far.
        """
        if self._sampled % _LOOK_AGAIN == 0:
            self._look_for_threads()
        self._sampled += 1
        running, seconds = 0, 0.0
        for folder, file in list(self._threads.items()):
            try:
                text = os.pread(file, 512, 0).decode(errors="replace")
            except OSError:  # it has ended
                os.close(self._threads.pop(folder))
                continue
            state, spent = parse_stat(text)
            running += state == "R"
            seconds += spent
        return {
            "running": running,
            "threads": len(self._threads),
            "cpu_seconds": seconds,
        }

    def close(self) -> None:
        """Close what was opened."""
        for file in self._threads.values():
            os.close(file)
        self._threads.clear()

    def _look_for_threads(self) -> None:
        for process in self._family():
            for folder in _folders(Path(f"/proc/{process}/task")):
                if folder not in self._threads:
                    with suppress(OSError):
                        file = os.open(f"{folder}/stat", os.O_RDONLY)
                        self._threads[folder] = file

    def _family(self) -> Iterator[int]:
        """The process and all below it."""
        new = [self.root]
        while new:
            process = new.pop()
            if process == os.getpid():  # a sampler that the program itself has started
                continue
            yield process
            for folder in _folders(Path(f"/proc/{process}/task")):
                with suppress(OSError):
                    new += map(int, Path(folder, "children").read_text().split())


def _folders(tasks: Path) -> list[str]:
    try:
        return [str(path) for path in tasks.iterdir()]
    except OSError:
        return []
