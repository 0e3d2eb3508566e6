"""All workers of a job meet before TensorFlow's servers start, or all are told why not.

    worker 1 ──"I am 1 of 2"──> chief    waits until all are there, or time is up
    worker 1 <──"go", or why not── chief

TensorFlow's own start waits for ever for a worker that does not come, and two processes
with one rank hang it. So the chief listens on its own address first, with plain
sockets; it closes them before TensorFlow's server takes the address.

Known weakness: nobody is authenticated, as in TensorFlow's gRPC: private networks only.
"""

import json
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

from lms.errors import WorkersError
from lms.machine.placement import Placement
from lms.units import Seconds

__all__ = ["meet"]

_GO: Final = "go"
_RETRY: Final = 0.2
_SHORT: Final = 0.01
_PATIENT: Final = 2.0  # seconds beyond the time limit, for the chief's reason to come
_LONGEST_LINE: Final = 4096


def meet(placement: Placement, *, said: str, timeout: Seconds) -> None:
    """Wait until all workers are there and say the same.

    Args:
        placement: Of this worker.
        said: What must be the same for all, such as versions.
        timeout: How long to wait for the others.

    Raises:
        WorkersError: If one does not come in time, comes twice, says something else, or
            if this one's port is taken.

    Example:
        >>> meet(Placement(), said="anything", timeout=1.0)
    """
    if placement.size == 1:
        return
    until = time.monotonic() + timeout
    hello = {"rank": placement.rank, "size": placement.size, "said": said}
    if placement.rank == 0:
        with _listening(placement) as listener:
            _gather(listener, placement, hello, until)
    else:
        _check_own_port(placement)
        answer = _ask_chief(placement, hello, until)
        if answer != _GO:
            raise WorkersError(answer)


def _listening(placement: Placement) -> socket.socket:
    try:
        return socket.create_server(("", _port(placement)), backlog=placement.size)
    except OSError as error:
        raise _taken(placement, error) from error


def _check_own_port(placement: Placement) -> None:
    _listening(placement).close()


def _taken(placement: Placement, error: OSError) -> WorkersError:
    return WorkersError(
        f"worker {placement.rank} must be able to listen on "
        f"{placement.addresses[placement.rank]}, got: {error.strerror}. Another "
        "program, or a worker of an earlier run, may have the port: end it, or start "
        "again with other ports."
    )


def _gather(
    listener: socket.socket, placement: Placement, hello: dict[str, Any], until: float
) -> None:
    """Let the others in, one by one; then tell all, also why it cannot go on."""
    guests: list[socket.socket] = []
    ranks: set[int] = set()
    answer = "worker 0 ended before all had joined. Look at what it prints."
    with ExitStack() as stack:
        try:
            while len(ranks) < placement.size - 1:
                one = stack.enter_context(_accepted(listener, placement, ranks, until))
                guests.append(one)
                theirs = _read(one, until)
                if theirs is None:  # no worker: something looked at the port
                    continue
                _refuse_unlike(hello, theirs, ranks)
                ranks.add(theirs["rank"])
            answer = _GO
        except WorkersError as error:
            answer = str(error)
            raise
        finally:
            _tell(guests, answer)


def _accepted(
    listener: socket.socket, placement: Placement, ranks: set[int], until: float
) -> socket.socket:
    listener.settimeout(max(_SHORT, until - time.monotonic()))
    try:
        return listener.accept()[0]
    except TimeoutError as error:
        missing = sorted(set(range(1, placement.size)) - ranks)
        where = ", ".join(f"{rank} ({placement.addresses[rank]})" for rank in missing)
        raise WorkersError(
            f"all {placement.size} workers must join, got none from {where}. Look at "
            "what they print: one that fails before `lms.join` never comes."
        ) from error


def _refuse_unlike(
    hello: dict[str, Any], theirs: dict[str, Any], ranks: set[int]
) -> None:
    rank = theirs["rank"]
    if rank in ranks or rank == 0:
        raise WorkersError(
            f"each worker must have a rank of its own, got two with rank {rank}. End "
            "the one of an earlier run, or start the job with one launcher."
        )
    for name, word in (
        ("size", "as many workers"),
        ("said", "the same versions and devices"),
    ):
        if theirs.get(name) != hello[name]:
            raise WorkersError(
                f"all workers must have {word}, got {hello[name]!r} on worker 0 and "
                f"{theirs.get(name)!r} on worker {rank}. Start all from one "
                "environment, with one launcher."
            )


def _ask_chief(placement: Placement, hello: dict[str, Any], until: float) -> str:
    """Connect as soon as the chief listens; its answer comes when all are there."""
    host, _, port = placement.addresses[0].rpartition(":")
    reason = "it is not there yet"
    while time.monotonic() < until:
        try:
            with socket.create_connection((host, int(port)), timeout=_PATIENT) as link:
                link.sendall(json.dumps(hello).encode() + b"\n")
                link.settimeout(max(_SHORT, until - time.monotonic()) + _PATIENT)
                answer = link.makefile("rb").readline(_LONGEST_LINE)
            if answer:
                return json.loads(answer)
            reason = "it ended"
        except OSError as error:
            reason = error.strerror or str(error)
        except ValueError:
            reason = "what listens there is no worker"
        time.sleep(_RETRY)
    raise WorkersError(
        f"worker {placement.rank} must reach worker 0 at {placement.addresses[0]}, "
        f"got: {reason}. Check that it runs, that its name resolves and its port is "
        "open."
    )


def _read(one: socket.socket, until: float) -> dict[str, Any] | None:
    """Read what a worker says of itself; None if that makes no sense."""
    one.settimeout(min(_PATIENT, max(_SHORT, until - time.monotonic())))
    try:
        found = json.loads(one.makefile("rb").readline(_LONGEST_LINE))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "rank" in found else None


def _tell(those: Sequence[socket.socket], text: str) -> None:
    for one in those:
        with suppress(OSError):
            one.sendall(json.dumps(text).encode() + b"\n")


def _port(placement: Placement) -> int:
    return int(placement.addresses[placement.rank].rpartition(":")[2])
