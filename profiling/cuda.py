"""Copies between host and GPU by the CUDA driver itself, timed by its events.

Needs the driver's library alone: neither TensorFlow nor a toolkit. Pageable memory is
ordinary memory; copy engines read pinned memory directly.
Names and argument types: "CUDA Driver API", sections on memory, streams and events.

Known weakness: not yet run on a GPU.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_float, c_int, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, Final

from lms.errors import LMSError
from lms.units import Bytes, Seconds

__all__ = ["CudaError", "CudaLink", "describe_cuda_device", "open_cuda_link"]

_NO_GPU: Final = "See `nvidia-smi`, and CUDA_VISIBLE_DEVICES, which hides GPUs."
_ADVICE: Final = {  # by CUresult: out of memory, no device, no such device
    2: "Use a smaller --largest, or end other programs that use the GPU.",
    100: _NO_GPU,
    101: _NO_GPU,
}


class CudaError(LMSError):
    """An error of the CUDA driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaLink:
    """A GPU with buffers for copies in both directions.

    Args:
        driver: The driver's library.
        device: Addresses in device memory, one for each direction.
        pinned: Addresses of pinned host memory.
        pageable: Ordinary host memory.
        streams: One for each direction.
    """

    driver: Any
    device: tuple[int, int]
    pinned: tuple[int, int]
    pageable: tuple[Any, Any]
    streams: tuple[int, int]

    def seconds(self, size: Bytes, *, directions: str, pinned: bool) -> Seconds:
        """Time one copy, or one in each direction at once.

        Args:
            size: Bytes of each copy.
            directions: "h2d", "d2h" or "both".
            pinned: Whether host memory is pinned; "both" overlaps only then.
        """
        wanted = ("h2d", "d2h") if directions == "both" else (directions,)
        begin, end, other = (self._event() for _ in range(3))
        first = self.streams[0]
        self._call("cuEventRecord", begin, c_void_p(first))
        self._call("cuStreamWaitEvent", c_void_p(self.streams[1]), begin, 0)
        for direction in wanted:
            self._copy(size, direction, pinned=pinned)
        self._call("cuEventRecord", other, c_void_p(self.streams[1]))
        self._call("cuStreamWaitEvent", c_void_p(first), other, 0)
        self._call("cuEventRecord", end, c_void_p(first))
        self._call("cuEventSynchronize", end)
        taken = c_float()
        self._call("cuEventElapsedTime", byref(taken), begin, end)
        for event in (begin, end, other):
            self._call("cuEventDestroy_v2", event)
        return taken.value / 1000

    def _copy(self, size: Bytes, direction: str, *, pinned: bool) -> None:
        lane = ("h2d", "d2h").index(direction)
        memory = self.pageable[lane]
        host = c_void_p(self.pinned[lane] if pinned else ctypes.addressof(memory))
        device, stream = c_uint64(self.device[lane]), c_void_p(self.streams[lane])
        if direction == "h2d":
            self._call("cuMemcpyHtoDAsync_v2", device, host, c_size_t(size), stream)
        else:
            self._call("cuMemcpyDtoHAsync_v2", host, device, c_size_t(size), stream)

    def _event(self) -> c_void_p:
        event = c_void_p()
        self._call("cuEventCreate", byref(event), 0)
        return event

    def _call(self, name: str, *arguments: Any) -> None:
        _check(self.driver, name, getattr(self.driver, name)(*arguments))


@contextmanager
def open_cuda_link(index: int, size: Bytes) -> Iterator[CudaLink]:
    """Allocate buffers on a GPU and on the host; free the buffers at the end.

    Args:
        index: Number of the GPU.
        size: Bytes of the largest copy.

    Raises:
        CudaError: If there is no driver, or a call fails.
    """
    driver = _driver()

    def call(name: str, *arguments: Any) -> None:
        _check(driver, name, getattr(driver, name)(*arguments))

    device, context = c_int(), c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", byref(device), index)
    call("cuDevicePrimaryCtxRetain", byref(context), device)
    call("cuCtxSetCurrent", context)
    rooms, pinned, streams = [], [], []
    try:
        for _ in range(2):
            room, host, stream = c_uint64(), c_void_p(), c_void_p()
            call("cuMemAlloc_v2", byref(room), c_size_t(size))
            rooms.append(room)
            call("cuMemAllocHost_v2", byref(host), c_size_t(size))
            pinned.append(host)
            call("cuStreamCreate", byref(stream), 1)  # CU_STREAM_NON_BLOCKING
            streams.append(stream)
        pageable = tuple(ctypes.create_string_buffer(size) for _ in range(2))
        yield CudaLink(
            driver=driver,
            device=(rooms[0].value, rooms[1].value),
            pinned=(pinned[0].value, pinned[1].value),
            pageable=(pageable[0], pageable[1]),
            streams=(streams[0].value, streams[1].value),
        )
    finally:
        for stream in streams:
            call("cuStreamDestroy_v2", stream)
        for host in pinned:
            call("cuMemFreeHost", host)
        for room in rooms:
            call("cuMemFree_v2", room)
        call("cuDevicePrimaryCtxRelease_v2", device)


def describe_cuda_device(index: int) -> dict[str, Any]:
    """Read facts of a GPU: "device" (a name), "memory", "bus", and "count" of all.

    Raises:
        CudaError: If there is no driver, or a call fails.
    """
    driver, count, device, memory = _driver(), c_int(), c_int(), c_size_t()
    name, bus = (ctypes.create_string_buffer(256) for _ in range(2))
    for function, arguments in (
        ("cuInit", (0,)),
        ("cuDeviceGetCount", (byref(count),)),
        ("cuDeviceGet", (byref(device), index)),
        ("cuDeviceGetName", (name, len(name), device)),
        ("cuDeviceTotalMem_v2", (byref(memory), device)),
        ("cuDeviceGetPCIBusId", (bus, len(bus), device)),
    ):
        _check(driver, function, getattr(driver, function)(*arguments))
    told = {"device": name.value.decode(errors="replace"), "bus": bus.value.decode()}
    return told | {"memory": memory.value, "count": count.value}


def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(
            f"Could not find an NVIDIA driver: {error}. Run where `nvidia-smi` works."
        ) from error


def _check(driver: Any, name: str, code: int) -> None:
    if code == 0:
        return
    text = ctypes.c_char_p()
    driver.cuGetErrorName(code, byref(text))
    reason = (text.value or b"unknown").decode()
    advice = _ADVICE.get(code, "`nvidia-smi` may name the fault of the GPU.")
    raise CudaError(f"could not call {name} of the CUDA driver: {reason}. {advice}")
