"""Programs that call an emulated card's driver themselves: `-m ... PROGRAM`.

Each makes two accesses to memory of the card, or of the host, by two streams or the
host. Its name says what orders them.
"""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from lms.emulation.build import DRIVER

__all__ = ["PROGRAMS"]

_SIZE = 4096


class _Card:
    """Calls of the driver, which must succeed."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL(DRIVER)
        self.first, self.second = self.stream(), self.stream()
        self.memory, self.other = self.taken(), self.taken()
        self.pinned = self.taken("cuMemAllocHost_v2")

    def __call__(self, name: str, *words: Any) -> None:
        known = [ctypes.c_void_p(w) if isinstance(w, int) else w for w in words]
        if code := getattr(self._driver, name)(*known):
            raise OSError(code, name)

    def stream(self) -> int:
        made = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(made), 1)
        return made.value or 0

    def taken(self, call: str = "cuMemAlloc_v2") -> int:
        made = ctypes.c_void_p()
        self(call, ctypes.byref(made), _SIZE)
        return made.value or 0

    def event(self, stream: int) -> int:
        made = ctypes.c_void_p()
        self("cuEventCreate", ctypes.byref(made), 0)
        self("cuEventRecord", made.value, stream)
        return made.value or 0

    def fill(self, stream: int, value: int = 1, at: int = 0, size: int = _SIZE) -> None:
        self("cuMemsetD8Async", self.memory + at, value, size, stream)

    def fetch(self, stream: int) -> None:
        self("cuMemcpyDtoHAsync_v2", self.pinned, self.memory, _SIZE, stream)

    def bring(self, stream: int) -> None:
        self("cuMemcpyHtoDAsync_v2", self.memory, self.pinned, _SIZE, stream)

    def value(self) -> int:
        """The first byte of pinned memory, read behind the driver's back."""
        return ctypes.c_ubyte.from_address(self.pinned).value


def _nothing(card: _Card) -> None:
    card.fill(card.first)
    card.fetch(card.second)


def _an_event(card: _Card) -> None:
    card.fill(card.first)
    card("cuStreamWaitEvent", card.second, card.event(card.first), 0)
    card.fetch(card.second)


def _an_event_recorded_too_early(card: _Card) -> None:
    event = card.event(card.first)
    card.fill(card.first)
    card("cuStreamWaitEvent", card.second, event, 0)
    card.fetch(card.second)


def _events_through_a_third_stream(card: _Card) -> None:
    third = card.stream()
    card.fill(card.first)
    card("cuStreamWaitEvent", third, card.event(card.first), 0)
    card("cuStreamWaitEvent", card.second, card.event(third), 0)
    card.fetch(card.second)


def _the_host(card: _Card) -> None:
    card.fill(card.first)
    card("cuEventSynchronize", card.event(card.first))
    card.fetch(card.second)


def _the_stream_s_end(card: _Card) -> None:
    card.fetch(card.first)
    card("cuStreamSynchronize", card.first)
    card.bring(card.second)


def _the_card_s_end(card: _Card) -> None:
    card.fetch(card.first)
    card("cuCtxSynchronize")
    card.bring(card.second)


def _nothing_as_both_only_read(card: _Card) -> None:
    card.fetch(card.first)
    card("cuMemcpyDtoDAsync_v2", card.other, card.memory, _SIZE, card.second)


def _nothing_on_bytes_side_by_side(card: _Card) -> None:
    card.fill(card.first, size=_SIZE // 2)
    card.fill(card.second, at=_SIZE // 2, size=_SIZE // 2)


def _nothing_on_one_byte(card: _Card) -> None:
    card.fill(card.first, size=_SIZE // 2 + 1)
    card.fill(card.second, at=_SIZE // 2, size=_SIZE // 2)


def _nothing_but_new_memory(card: _Card) -> None:
    card.fill(card.first)
    card("cuMemFree_v2", card.memory)
    card.memory = card.taken()
    card.fill(card.second)


def _an_event_and_late_copies(card: _Card) -> None:
    """Write what the host sees of a copy before and after its event."""
    card.fill(card.first, 7)
    card("cuStreamWaitEvent", card.second, card.event(card.first), 0)
    card.fetch(card.second)
    before = card.value()
    card("cuEventSynchronize", card.event(card.second))
    sys.stdout.write(f"{before} {card.value()}\n")


PROGRAMS: dict[str, Callable[[_Card], None]] = {
    function.__name__.strip("_"): function
    for function in (
        *(_nothing, _an_event, _an_event_recorded_too_early),
        *(_events_through_a_third_stream, _the_host, _the_stream_s_end),
        *(_the_card_s_end, _nothing_as_both_only_read, _nothing_on_bytes_side_by_side),
        *(_nothing_on_one_byte, _nothing_but_new_memory, _an_event_and_late_copies),
    )
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](_Card())
