"""Workers meet, or all hear why they do not."""

import socket
import threading
from contextlib import suppress
from dataclasses import replace

from lms.errors import WorkersError
from lms.machine.placement import Placement
from lms.workers.launching import free_addresses
from lms.workers.rendezvous import meet


def _placements(size: int) -> list[Placement]:
    one = Placement(addresses=free_addresses(size))
    return [replace(one, rank=rank) for rank in range(size)]


def _meet(
    placements: list[Placement], said: list[str], timeout: float = 10.0
) -> list[str | None]:
    """What each hears: None if it may go on."""
    heard: list[str | None] = ["nothing"] * len(placements)

    def one(i: int) -> None:
        try:
            meet(placements[i], said=said[i], timeout=timeout)
            heard[i] = None
        except WorkersError as error:
            heard[i] = str(error)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(placements))]
    for thread in reversed(threads):  # the chief comes last
        thread.start()
    for thread in threads:
        thread.join()
    return heard


def test_workers_that_are_alike_go_on() -> None:
    assert _meet(_placements(3), ["same"] * 3) == [None] * 3


def test_all_hear_which_worker_is_unlike() -> None:
    heard = _meet(_placements(2), ["TensorFlow 2.21", "TensorFlow 2.20"])
    assert all("2.20' on worker 1" in (text or "") for text in heard)


def test_two_with_one_rank_are_refused() -> None:
    placements = _placements(3)
    twice = [placements[0], placements[1], placements[1]]
    heard = _meet(twice, ["same"] * 3, timeout=2.0)
    # Where both try their port at the same moment, one hears of that.
    said = "two with rank 1", "must be able to listen on"
    assert any(words in (text or "") for text in heard for words in said)
    assert None not in heard


def test_a_worker_that_does_not_come_is_named_in_time() -> None:
    placements = _placements(3)
    heard = _meet(placements[:2], ["same"] * 2, timeout=1.0)
    assert all("got none from 2 (127.0.0.1:" in (text or "") for text in heard)


def test_a_chief_that_does_not_come_is_named_in_time() -> None:
    (heard,) = _meet(_placements(2)[1:], ["same"], timeout=0.5)
    assert "must reach worker 0 at 127.0.0.1:" in (heard or "")


def test_a_port_that_is_taken_is_named() -> None:
    placements = _placements(2)
    port = int(placements[0].addresses[0].rpartition(":")[2])
    with socket.create_server(("", port)):
        (heard,) = _meet(placements[:1], ["same"])
    assert "must be able to listen on 127.0.0.1:" in (heard or "")


def test_what_is_no_worker_does_not_matter() -> None:
    placements = _placements(2)
    port = int(placements[0].addresses[0].rpartition(":")[2])

    def look() -> None:
        link = None
        while link is None:
            with suppress(OSError):
                link = socket.create_connection(("127.0.0.1", port), timeout=1)
        with link:
            link.sendall(b"GET / HTTP/1.1\n")

    other = threading.Thread(target=look)
    met: list[int] = []

    def begin() -> None:
        meet(placements[0], said="same", timeout=10)
        met.append(0)

    chief = threading.Thread(target=begin)
    chief.start()
    other.start()
    other.join()
    meet(placements[1], said="same", timeout=10)
    chief.join()
    assert met == [0]
