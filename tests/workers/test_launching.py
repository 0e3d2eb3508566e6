"""The launcher: lines, exit codes, and ends."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lms.workers.launching import launch

ROOT = Path(__file__).parents[2]


def _run(code: str, workers: int, grace: float = 10.0) -> tuple[int, list[str]]:
    out = io.StringIO()
    command = [sys.executable, "-c", code]
    ended = launch(command, workers=workers, grace=grace, out=out)
    return ended, out.getvalue().splitlines()


RANK = "import json, os; rank = json.loads(os.environ['TF_CONFIG'])['task']['index']"
FAILS = f"{RANK}\nimport sys, time; sys.exit(7) if rank == 1 else time.sleep(600)"
DIES = f"""{RANK}
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else time.sleep(60)
"""
ENDED = "worker 1 ended with {}; ending the others"


@pytest.mark.parametrize(
    ("code", "workers", "ended", "lines"),
    [
        (f"{RANK}; print(rank)", 3, 0, ["[0] 0", "[1] 1", "[2] 2"]),
        ("import os; print('TF_CONFIG' in os.environ)", 1, 0, ["False"]),
        (FAILS, 3, 7, [ENDED.format("code 7")]),
        (DIES, 2, 128 + signal.SIGKILL, [ENDED.format("signal SIGKILL")]),
    ],
    ids=["ranks", "one worker is alone", "a failure ends all", "killed in the end"],
)
def test_lines_and_the_exit_code_are_those_of_the_workers(
    code: str, workers: int, ended: int, lines: list[str]
) -> None:
    found, printed = _run(code, workers, grace=0.5 if code == DIES else 10.0)
    assert (found, sorted(printed)) == (ended, lines)


def test_each_worker_sees_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert sorted(_run(code, 2)[1]) == ["[0] 3", "[1] 5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert sorted(_run(code, 2)[1]) == ["[0] -1", "[1] -1"]


def test_each_worker_may_have_variables_of_its_own() -> None:
    out = io.StringIO()
    command = [sys.executable, "-c", "import os; print(os.environ['OWN'])"]
    each = [{"OWN": "a"}, {"OWN": "b"}]
    assert launch(command, workers=2, each=each, out=out) == 0
    assert sorted(out.getvalue().splitlines()) == ["[0] a", "[1] b"]


def test_workers_do_not_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    with pytest.raises(ValueError, match=r"got 3 workers and 2 GPUs .*=3,5\. Start"):
        _run("", 3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_launcher(number: int) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    command = ["-m", "lms", "launch", "-n", "2", "--grace", "5", "--"]
    started = subprocess.Popen(
        [sys.executable, *command, sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    assert started.stdout is not None
    with started.stdout as lines:
        pids = [int(lines.readline().partition("] ")[2]) for _ in range(2)]
        started.send_signal(number)
        code = started.wait(timeout=20)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    assert all(_has_ended(pid) for pid in pids)


@pytest.mark.parametrize(
    ("command", "workers", "said"),
    [(["no-such-program"], 2, "a program that can be started"), (["true"], 0, "at le")],
)
def test_what_cannot_start_is_refused(
    command: list[str], workers: int, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        launch(command, workers=workers)


def _has_ended(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
            return True
        time.sleep(0.1)
    return False
