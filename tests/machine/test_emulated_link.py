"""The emulated link: rates, order, sharing. Waits are checked from below only."""

import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lms.machine.emulated_link import (
    EmulatedLink,
    LinkRates,
    link_environment,
    link_rates,
)
from lms.machine.presets import preset


def nothing() -> None:
    """A copy that costs nothing."""


def seconds(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def test_a_copy_takes_its_bytes_over_the_rate_and_the_latency() -> None:
    link = EmulatedLink(LinkRates(h2d=1e6, d2h=2e6, latency=0.01))
    to = seconds(lambda: link.carry(20_000, nothing, to_device=True))
    back = seconds(lambda: link.carry(20_000, nothing, to_device=False))
    assert to >= 0.03
    assert back >= 0.02


def test_copies_in_one_direction_follow_each_other() -> None:
    link = EmulatedLink(LinkRates(h2d=1e6, d2h=1e6))
    begun: list[float] = []

    def copy() -> None:
        begun.append(link.carry(50_000, nothing, to_device=True))

    threads = [threading.Thread(target=copy) for _ in "12"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert abs(begun[1] - begun[0]) >= 0.049


@pytest.mark.parametrize("name", [None, "bus"])
def test_a_copy_is_made_at_once_and_underway_in_the_links_time(
    name: str | None, tmp_path: Path
) -> None:
    bus = None if name is None else tmp_path / name
    link = EmulatedLink(LinkRates(h2d=1e6, d2h=1e6, bus=bus))
    made: list[int] = []
    begun = time.monotonic()
    first = link.begin(50_000, lambda: made.append(1), to_device=True)
    second = link.begin(50_000, lambda: made.append(2), to_device=True)
    assert made == [1, 2]
    (start, end), (then, last) = first.wait(), second.wait()
    assert time.monotonic() - begun >= 0.1
    rounding = 1e-9  # a bus adds up slices
    assert begun <= start <= end - 0.05 + rounding
    assert end <= then + rounding
    assert then <= last - 0.05 + rounding
    assert first.wait() == (start, end)  # also when it is over


@pytest.mark.parametrize("name", [None, "bus"])
def test_nobody_waits_for_copies_that_were_cancelled(
    name: str | None, tmp_path: Path
) -> None:
    bus = None if name is None else tmp_path / name
    link = EmulatedLink(LinkRates(h2d=1e3, d2h=1e3, bus=bus))
    for _ in "12":
        link.begin(10**7, nothing, to_device=True)  # hours
    link.cancel()
    carrying = partial(link.carry, 1, nothing, to_device=True)
    waiting = threading.Thread(target=carrying, daemon=True)
    waiting.start()
    waiting.join(60)
    assert not waiting.is_alive()


def test_directions_overlap() -> None:
    link = EmulatedLink(LinkRates(h2d=1e6, d2h=1e6))
    back_made = threading.Event()
    seen: list[bool] = []
    to = threading.Thread(
        target=link.carry,
        args=(1, lambda: seen.append(back_made.wait(60))),
        kwargs={"to_device": True},
    )
    to.start()
    link.carry(1, back_made.set, to_device=False)
    to.join()
    assert seen == [True]


@pytest.mark.parametrize("name", [None, "bus"])
def test_the_copy_is_made(name: str | None, tmp_path: Path) -> None:
    bus = None if name is None else tmp_path / name
    link = EmulatedLink(LinkRates(h2d=1e9, d2h=1e9, bus=bus))
    made: list[int] = []
    link.carry(1, lambda: made.append(1), to_device=True)
    assert made == [1]


SHARE = """
import sys, time
from pathlib import Path
from lms.machine.emulated_link import EmulatedLink, LinkRates

link = EmulatedLink(LinkRates(h2d=1e6, d2h=1e6, bus=Path(sys.argv[1])))
print("ready", flush=True)
sys.stdin.readline()
link.carry(200_000, lambda: None, to_device=True)
print(time.monotonic())
"""


def test_processes_on_one_bus_share_its_bandwidth(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SHARE, str(tmp_path / "bus")]
    processes = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in "12"
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    begun = time.monotonic()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate()[0] for process in processes]
    ends = sorted(float(text) - begun for text in outputs)
    # Each alone would take 0.2 s. In turns, the first ends when most of the other's
    # bytes are over too.
    assert ends[1] >= 0.4
    assert ends[0] >= 0.3


class LateClock:
    """Each sleep ends a little late, each copy takes a while."""

    LATE = 3e-4
    COPY = 5e-3

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.LATE

    def copy(self) -> None:
        self.now += self.COPY


@pytest.mark.parametrize("name", [None, "bus"])
def test_a_link_is_not_slower_than_its_rate(
    name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LateClock()
    monkeypatch.setattr("lms.machine.emulated_link.time", clock)
    bus = None if name is None else tmp_path / name
    link = EmulatedLink(LinkRates(h2d=1e9, d2h=1e9, latency=1e-3, bus=bus))
    before = clock.now
    for _ in range(5):
        link.carry(20_000_000, clock.copy, to_device=True)  # 21 ms each
    taken = clock.now - before
    # Copies that follow each other without a pause, each asked for a little late.
    assert 5 * 0.021 <= taken <= 5 * (0.021 + clock.LATE) + 1e-9


def test_a_bus_that_an_earlier_start_of_the_machine_left_is_no_obstacle(
    tmp_path: Path,
) -> None:
    (tmp_path / "bus.h2d").write_bytes(struct.pack("d", time.monotonic() + 1e6))
    link = EmulatedLink(LinkRates(h2d=1e9, d2h=1e9, bus=tmp_path / "bus"))
    link.carry(1, nothing, to_device=True)  # would sleep for days
    (free,) = struct.unpack("d", (tmp_path / "bus.h2d").read_bytes())
    assert free <= time.monotonic()


def test_a_link_goes_through_the_environment() -> None:
    rates = LinkRates(h2d=1e9, d2h=2e9, latency=1e-5, bus=Path("bus").absolute())
    assert link_rates(link_environment(rates)) == rates
    assert link_rates({"HOME": "x"}) is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"LMS_LINK_H2D": "1"}, "`LMS_LINK_D2H` must be a number, got None"),
        ({"LMS_LINK_H2D": "fast", "LMS_LINK_D2H": "1"}, "got 'fast'"),
        ({"LMS_LINK_H2D": "0", "LMS_LINK_D2H": "1"}, "`h2d` must be bytes per second"),
    ],
)
def test_a_bad_environment_is_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        link_rates(environ)


def test_the_link_of_hardware_can_be_scaled() -> None:
    rates = LinkRates.of(preset("v100-pcie")).scaled(0.01)
    assert (rates.h2d, rates.d2h) == (1.2e8, 1.2e8)


def test_a_bus_is_the_same_file_wherever_a_process_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rates = LinkRates(h2d=1e9, d2h=1e9, bus=Path("bus"))
    carried = link_rates(link_environment(rates))
    assert carried is not None
    assert carried.bus == tmp_path / "bus"
