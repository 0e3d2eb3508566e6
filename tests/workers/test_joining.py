"""Workers join, or all hear why they do not."""

import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from lms.emulation import emulate
from lms.machine.ranks import Placement, cluster_variables
from lms.workers.launching import free_addresses
from tests.tf.worker import Worker

pytestmark = [pytest.mark.tf, pytest.mark.slow]


def _placements(size: int) -> list[Placement]:
    one = Placement(addresses=free_addresses(size))
    return [replace(one, rank=rank) for rank in range(size)]


def _join(
    worker: Worker,
    placements: list[Placement],
    more: list[dict[str, str]] | None = None,
    timeout: float = 8.0,
) -> list[str]:
    """The messages that each process hears."""
    each = more or [{} for _ in placements]
    pairs = zip(placements, each, strict=True)
    environs = [cluster_variables(placement) | own for placement, own in pairs]
    trial = "tests.workers.parallel_trials:joined"
    return worker.ask_together(trial, environs, memory="64MiB", timeout=timeout)


def test_all_hear_which_worker_is_unlike(worker: Worker) -> None:
    unlike = [{"LMS_REDUCTIONS": "ring"}, {"LMS_REDUCTIONS": "nccl"}]
    printed = _join(worker, _placements(2), unlike, timeout=60)
    said = "must have the same reductions, got ring on worker 0 and nccl on worker 1"
    assert all(said in text for text in printed)


def test_workers_of_unlike_worlds_do_not_hang(worker: Worker) -> None:
    two, three = _placements(2), _placements(3)
    other = replace(two[1], addresses=(*two[1].addresses, three[2].addresses[2]))
    first, second = _join(worker, [two[0], other])
    assert "the same number of workers, got 2 on worker 0 and 3 on worker 1" in first
    assert "WorkersError" in second


def test_a_worker_that_does_not_come_is_named_to_all_in_time(worker: Worker) -> None:
    printed = _join(worker, _placements(3)[:2])
    assert all("got none from 2 (127.0.0.1:" in text for text in printed)


def test_a_chief_that_does_not_come_is_named_in_time(worker: Worker) -> None:
    (printed,) = _join(worker, _placements(2)[1:], timeout=2)
    assert "must reach worker 0 at 127.0.0.1:" in printed


def test_of_two_with_one_rank_none_goes_on(worker: Worker) -> None:
    placements = _placements(3)
    elsewhere = (placements[0].addresses[0], *free_addresses(1))
    twice = replace(placements[1], addresses=(*elsewhere, placements[2].addresses[2]))
    first, *others = _join(worker, [*placements[:2], twice])
    assert "got none from 2 (127.0.0.1:" in first
    assert any("two with rank 1" in text for text in others)
    assert all("WorkersError" in text for text in others)


def test_a_port_that_is_taken_is_named(worker: Worker) -> None:
    placements = _placements(2)
    port = int(placements[0].addresses[0].rpartition(":")[2])
    with socket.create_server(("", port)):
        (printed,) = _join(worker, placements[:1])
    assert "worker 0 must be able to listen on 127.0.0.1:" in printed


def test_ctrl_c_ends_a_worker_that_waits() -> None:
    placement, _ = _placements(2)
    started = subprocess.Popen(
        [sys.executable, "-c", "import lms; lms.join(timeout=60)"],
        env={**emulate.environment("64MiB"), **cluster_variables(placement)},
        stderr=subprocess.DEVNULL,
    )
    with started:
        port = int(placement.addresses[0].rpartition(":")[2])
        while not _listens(port):
            time.sleep(0.1)
        time.sleep(1)
        started.send_signal(signal.SIGINT)
        # Half of what it would wait for the other.
        assert started.wait(timeout=30) != 0


def test_the_chief_serves_who_ends_later() -> None:
    code = (
        "import time, lms, lms.tf.compat as compat; chief = lms.join().is_chief; "
        "chief or (time.sleep(4), compat.put_in_cluster('late', ''))"
    )
    environment = emulate.environment("64MiB")
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment | cluster_variables(one)
        )
        for one in _placements(2)
    ]
    assert [one.wait(timeout=60) for one in started] == [0, 0]


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
