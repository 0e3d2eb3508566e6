"""Workers join, or all hear why they do not."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from lms.emulation import emulate
from lms.machine.placement import Placement, cluster_variables
from lms.workers.launching import free_addresses

pytestmark = [pytest.mark.tf, pytest.mark.slow]

JOIN = "import lms; lms.join(timeout={}); print('joined')"


def _placements(size: int) -> list[Placement]:
    one = Placement(addresses=free_addresses(size))
    return [replace(one, rank=rank) for rank in range(size)]


def _started(
    placement: Placement, timeout: float, more: Mapping[str, str]
) -> subprocess.Popen[str]:
    environ = {**emulate.environment("64MiB"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.Popen(
        [sys.executable, "-c", JOIN.format(timeout)],
        env={**environ, **cluster_variables(placement), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _join(
    placements: list[Placement],
    more: list[dict[str, str]] | None = None,
    timeout: float = 15.0,
) -> list[str]:
    """The text that each prints."""
    each = more or [{} for _ in placements]
    pairs = zip(placements, each, strict=True)
    started = [_started(placement, timeout, own) for placement, own in pairs]
    return [one.communicate(timeout=120)[0] for one in started]


def test_all_hear_which_worker_is_unlike() -> None:
    unlike = [{"LMS_REDUCTIONS": "ring"}, {"LMS_REDUCTIONS": "nccl"}]
    printed = _join(_placements(2), unlike, timeout=60)
    said = "must have the same reductions, got ring on worker 0 and nccl on worker 1"
    assert all(said in text for text in printed)


def test_workers_of_unlike_worlds_do_not_hang() -> None:
    two, three = _placements(2), _placements(3)
    other = replace(two[1], addresses=(*two[1].addresses, three[2].addresses[2]))
    first, second = _join([two[0], other])
    assert "the same number of workers, got 2 on worker 0 and 3 on worker 1" in first
    assert "WorkersError" in second


def test_a_worker_that_does_not_come_is_named_to_all_in_time() -> None:
    printed = _join(_placements(3)[:2])
    assert all("got none from 2 (127.0.0.1:" in text for text in printed)


def test_a_chief_that_does_not_come_is_named_in_time() -> None:
    (printed,) = _join(_placements(2)[1:], timeout=2)
    assert "must reach worker 0 at 127.0.0.1:" in printed


def test_of_two_with_one_rank_none_goes_on() -> None:
    placements = _placements(3)
    elsewhere = (placements[0].addresses[0], *free_addresses(1))
    twice = replace(placements[1], addresses=(*elsewhere, placements[2].addresses[2]))
    first, *others = _join([*placements[:2], twice])
    assert "got none from 2 (127.0.0.1:" in first
    assert any("two with rank 1" in text for text in others)
    assert all("WorkersError" in text for text in others)


def test_a_port_that_is_taken_is_named() -> None:
    placements = _placements(2)
    port = int(placements[0].addresses[0].rpartition(":")[2])
    with socket.create_server(("", port)):
        (printed,) = _join(placements[:1])
    assert "worker 0 must be able to listen on 127.0.0.1:" in printed


def test_ctrl_c_ends_a_worker_that_waits() -> None:
    placement, _ = _placements(2)
    with _started(placement, 60, {}) as started:
        port = int(placement.addresses[0].rpartition(":")[2])
        while not _listens(port):
            time.sleep(0.1)
        time.sleep(1)
        started.send_signal(signal.SIGINT)
        # Half of what it would wait for the other.
        assert started.wait(timeout=30) != 0


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
