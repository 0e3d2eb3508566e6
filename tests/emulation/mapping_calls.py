"""Programs that map memory of an emulated card themselves: `-m ... PROGRAM`.

Each writes its findings as JSON.
"""

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any, Final

from lms.emulation.build import DRIVER

__all__ = ["PROGRAMS"]

_MIB: Final = 1 << 20
_SIZE: Final = 4 * _MIB
_READ_WRITE: Final = 3
_ON_CARD: Final = 1  # the kind of a location


class _Location(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("card", ctypes.c_int))


class _Memory(ctypes.Structure):
    """CUmemAllocationProp: pinned memory of a card."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("rest", ctypes.c_char * 16),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class _Card:
    """The driver; a call returns CUDA's code."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL(DRIVER)

    def __call__(self, name: str, *words: Any) -> int:
        known = [ctypes.c_size_t(w) if isinstance(w, int) else w for w in words]
        return getattr(self._driver, name)(*known)

    def created(self, size: int = _SIZE) -> tuple[int, int]:
        """Return (CUDA's code, the handle of new memory)."""
        handle, memory = ctypes.c_ulonglong(), _Memory(1, 0, _Location(_ON_CARD, 0))
        code = self("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(memory), 0)
        return code, handle.value

    def reserved(self, size: int = _SIZE) -> int:
        at = ctypes.c_ulonglong()
        self("cuMemAddressReserve", ctypes.byref(at), size, 0, 0, 0)
        return at.value

    def mapped(self) -> tuple[int, int]:
        """Return (address, handle) of memory that no access is allowed to."""
        (_, handle), at = self.created(), self.reserved()
        self("cuMemMap", at, _SIZE, 0, handle, 0)
        return at, handle

    def allow(self, at: int, size: int = _SIZE) -> int:
        access = _Access(_Location(_ON_CARD, 0), _READ_WRITE)
        return self("cuMemSetAccess", at, size, ctypes.byref(access), 1)

    def used(self) -> int:
        """Return bytes in use."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value


def _life(card: _Card) -> dict[str, Any]:
    """Copy to mapped memory and back; count bytes in use until the memory is gone."""
    (_, handle), at = card.created(), card.reserved()
    used = [card.used()]
    codes = [card("cuMemMap", at, _SIZE, 0, handle, 0), card.allow(at)]
    sent = ctypes.create_string_buffer(bytes(range(256)), 256)
    back = ctypes.create_string_buffer(256)
    last = at + _SIZE - 256
    codes += [card("cuMemcpyHtoD_v2", last, sent, 256)]
    codes += [card("cuMemcpyDtoH_v2", back, last, 256)]
    codes += [card("cuMemRelease", handle)]
    used += [card.used()]
    codes += [card("cuMemUnmap", at, _SIZE)]
    used += [card.used()]
    codes += [card("cuMemAddressFree", at, _SIZE)]
    return {"codes": codes, "used": used, "same": back.raw == sent.raw}


def _limit(card: _Card) -> dict[str, Any]:
    """Create memory until there is none, then take some in the other way."""
    codes = [0]
    while codes[-1] == 0:
        codes.append(card.created(64 * _MIB)[0])
    at = ctypes.c_ulonglong()
    other = card("cuMemAlloc_v2", ctypes.byref(at), 64 * _MIB)
    return {"taken": len(codes) - 2, "codes": [codes[-1], other]}


def _mistakes(card: _Card) -> dict[str, Any]:
    """Make each mistake once; return CUDA's code of each."""
    at, handle = card.mapped()
    _, other = card.created()
    empty = card.reserved()
    return {
        "memory that is no multiple of a granule": card.created(100)[0],
        "addresses that are taken": card("cuMemMap", at, _SIZE, 0, other, 0),
        "addresses past the end": card("cuMemMap", empty + _MIB, _SIZE, 0, other, 0),
        "an unknown handle": card("cuMemMap", empty, _SIZE, 0, other + 1, 0),
        "access to addresses without memory": card.allow(empty),
        "half a mapping": card("cuMemUnmap", at, _SIZE // 2),
        "addresses in use": card("cuMemAddressFree", at, _SIZE),
        "a second place": card("cuMemMap", empty, _SIZE, 0, handle, 0),
    }


def _no_access(card: _Card) -> dict[str, Any]:
    at, _ = card.mapped()
    card("cuMemsetD8_v2", at, 1, 256)
    return {}


def _unmapped(card: _Card) -> dict[str, Any]:
    at, _ = card.mapped()
    card.allow(at)
    card("cuMemsetD8_v2", at, 1, 256)
    card("cuMemUnmap", at, _SIZE)
    sys.stdout.write("unmapped\n")
    sys.stdout.flush()
    card("cuMemsetD8_v2", at, 1, 256)
    return {}


PROGRAMS: dict[str, Callable[[_Card], dict[str, Any]]] = {
    "life": _life,
    "limit": _limit,
    "mistakes": _mistakes,
    "no access": _no_access,
    "unmapped": _unmapped,
}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(PROGRAMS[sys.argv[1]](_Card())))
