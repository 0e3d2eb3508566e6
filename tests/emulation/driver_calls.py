"""Programs that call an emulated card's driver themselves: `-m ... PROGRAM`.

Each makes two accesses to memory of the card, or of the host, by two streams or the
host. Its name says what orders them.
"""

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from lms.emulation.build import DRIVER

__all__ = ["PROGRAMS", "run"]

_SIZE = 4096
_BLOCKING, _NON_BLOCKING = 0, 1  # flags of streams
_LEGACY: Final = 1  # CUDA's handles of default streams
_PER_THREAD: Final = 2


class _Card:
    """Calls of the driver, which must succeed."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL(DRIVER)
        self._kept: list[Any] = []
        self.first, self.second = self.stream(), self.stream()
        self.memory, self.other = self.taken(), self.taken()
        self.pinned = self.taken("cuMemAllocHost_v2")

    def __call__(self, name: str, *words: Any) -> None:
        known = [ctypes.c_void_p(w) if isinstance(w, int) else w for w in words]
        if code := getattr(self._driver, name)(*known):
            raise OSError(code, name)

    def stream(self, flags: int = _NON_BLOCKING) -> int:
        made = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(made), flags)
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

    def call(self, stream: int, function: Callable[..., Any]) -> None:
        """Let the host call a function when a stream has ended what it has now."""
        self._kept.append(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function))
        self("cuLaunchHostFunc", stream, self._kept[-1], None)

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


def _a_function_of_the_host(card: _Card) -> None:
    called = threading.Event()
    card.fill(card.first)
    card.call(card.first, lambda _: called.set())
    called.wait()
    card.fetch(card.second)


def _a_function_of_the_host_queued_too_early(card: _Card) -> None:
    filled, called = threading.Event(), threading.Event()
    card.call(card.stream(), lambda _: filled.wait())  # one thread calls all functions
    card.call(card.first, lambda _: called.set())
    card.fill(card.first)
    filled.set()
    called.wait()
    card.fetch(card.second)


def _the_legacy_stream_between_blocking_ones(card: _Card) -> None:
    card.fill(card.stream(_BLOCKING))
    card("cuMemsetD8Async", card.other, 0, _SIZE, _LEGACY)
    card.fetch(card.stream(_BLOCKING))


def _the_legacy_stream_s_end(card: _Card) -> None:
    card.fill(card.stream(_BLOCKING))
    card("cuStreamSynchronize", _LEGACY)
    card.fetch(card.second)


def _an_event_of_the_legacy_stream(card: _Card) -> None:
    card.fill(card.stream(_BLOCKING))
    card("cuStreamWaitEvent", card.second, card.event(0), 0)
    card.fetch(card.second)


def _nothing_as_one_stream_does_not_block(card: _Card) -> None:
    card.fill(card.first)
    card.fetch(_LEGACY)


def _nothing_as_both_streams_only_block(card: _Card) -> None:
    card.fill(card.stream(_BLOCKING))
    card.fetch(card.stream(_BLOCKING))


def _the_legacy_stream_after_a_thread_s_own(card: _Card) -> None:
    card.fill(_PER_THREAD)
    card.fetch(_LEGACY)


def _nothing_after_a_thread_s_own_stream(card: _Card) -> None:
    card.fill(_PER_THREAD)
    card.fetch(card.stream(_BLOCKING))


def _nothing_between_two_threads_own_streams(card: _Card) -> None:
    card.fill(_PER_THREAD)
    other = threading.Thread(target=card.fetch, args=(_PER_THREAD,))
    other.start()
    other.join()


def _a_copy_that_the_host_waits_for(card: _Card) -> None:
    card.fill(card.stream(_BLOCKING))
    card("cuMemcpyDtoH_v2", card.pinned, card.memory, _SIZE)
    card.bring(card.second)


def _nothing_before_a_copy_without_a_stream(card: _Card) -> None:
    card.fill(card.first)
    card("cuMemcpyDtoH_v2", card.pinned, card.memory, _SIZE)


def _a_copy_of_pinned_memory_without_a_stream(card: _Card) -> None:
    card("cuMemcpyHtoD_v2", card.memory, card.pinned, _SIZE)
    card.fetch(card.second)


def _nothing_as_pageable_memory_was_only_read(card: _Card) -> None:
    card("cuMemcpyHtoD_v2", card.memory, ctypes.create_string_buffer(_SIZE), _SIZE)
    card.fetch(card.second)


def _nothing_after_a_copy_within_the_card(card: _Card) -> None:
    card("cuMemcpyDtoD_v2", card.memory, card.other, _SIZE)
    card.fetch(card.second)


def _nothing_after_a_memset_without_a_stream(card: _Card) -> None:
    card("cuMemsetD8_v2", card.memory, 1, _SIZE)
    card.fetch(card.second)


def _an_event_and_late_copies(card: _Card) -> None:
    """Write what the host sees of a copy before and after its event."""
    card.fill(card.first, 7)
    card("cuStreamWaitEvent", card.second, card.event(card.first), 0)
    card.fetch(card.second)
    before = card.value()
    card("cuEventSynchronize", card.event(card.second))
    sys.stdout.write(f"{before} {card.value()}\n")


PROGRAMS: dict[str, Callable[[_Card], None]] = {
    name.strip("_"): made
    for name, made in list(globals().items())
    if name.startswith(("_nothing", "_a_", "_an_", "_the_", "_events"))
}


def run(name: str) -> None:
    """Run a program on this process's card."""
    PROGRAMS[name](_Card())


if __name__ == "__main__":
    run(sys.argv[1])
