"""Calls in another process."""

import math
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from lms.machine.host import Beside


def test_a_call_returns_what_the_function_returned() -> None:
    assert Beside(math.hypot, 3.0, 4.0).wait() == 5.0


def test_the_call_runs_in_another_process_of_the_lowest_priority() -> None:
    assert Beside(os.getpid).wait() != os.getpid()
    assert Beside(os.getpriority, os.PRIO_PROCESS, 0).wait() == 19


def test_a_function_that_fails_returns_none() -> None:
    assert Beside(math.sqrt, -1.0).wait() is None


def test_a_program_without_python_calls_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    call = Beside(os.getpid)
    assert not call.is_running
    assert call.wait() is None


def test_a_call_ends_with_its_object_and_is_not_waited_for() -> None:
    call = Beside(time.sleep, 600)
    assert call.is_running
    process = call._process
    assert process is not None
    del call
    assert process.returncode == -signal.SIGKILL


def test_a_call_ends_with_the_process_that_made_it() -> None:
    outer = Beside(make_and_end)
    pid = outer.wait()
    for _ in range(200):  # the kernel's signal comes when the parent has ended
        if is_there(pid):
            time.sleep(0.05)
    assert not is_there(pid)


def make_and_end() -> int:
    call = Beside(time.sleep, 600)
    KEPT.append(call)  # only the end of this process can end the call
    assert call._process is not None
    return call._process.pid


KEPT: list[Beside] = []


def is_there(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
