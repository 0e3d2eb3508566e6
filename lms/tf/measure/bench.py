"""A bench that runs ops alone, and what it measured, in this process and on disk.

    op cut out ──> does it fit? ──> run alone ──> kept by the op's key

cuDNN and cuBLAS choose a kernel for an op once in a process, by the bytes free at that
moment: so convolutions and products run in each process, with ample memory, before any
step.

Measurements hold for a device's model, the threads, the enabled kernels and the
versions. If one of these differs, the device is measured again.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import tensorflow as tf

from lms.machine.host import processor_name, usable_cores
from lms.machine.inventory import installed_version
from lms.simulation.allocator import SmallPool
from lms.storage.cache import digest, read_entry, sources, write_entry
from lms.tf import compat
from lms.tf.capture.ops import RESERVED, RESERVES
from lms.tf.failures import ran_out
from lms.tf.measure.devices import Device, sync_devices
from lms.tf.measure.lone_op import LoneOp, built
from lms.units import GIB, Bytes, Seconds

__all__ = ["TIMES", "Bench", "Measurements", "keep_measurements", "measurements_of"]
__all__ += ["seconds_of", "timed_once"]

_KIND = "measured"

# A call is timed in at most 9 runs, fewer once these take 0.02 seconds. A call of at
# least 0.02 seconds takes as long without a call just before.
_RUNS, _ENOUGH, _SLOW = 9, 0.02, 0.02

# Further runs of an op whose scratch depends on the number of free threads.
_AGAIN = 4

# An op of unknown scratch runs alone only if 3 times the bytes that it reads and makes
# are free; 1.1 times its bytes if all are known.
TIMES, _SPARE = 3, 1.1

# Free chunks for constants that functions of one op hold: 1,024 of 256 bytes. Elsewhere
# constants that stay behind would fragment the memory that is planned.
_LEFT_BEHIND = SmallPool(sizes=(256,) * 1024)

# When a convolution first runs, TensorFlow puts guards of 16 MiB around its output and
# its workspace (redzone_allocator.h). Without room for these the kernel counts as
# failed, and another one, with other bits, runs in all steps (conv_ops_gpu.cc). So
# there are none where ops find less than 1 GiB free, or a convolution cannot run alone;
# guards choose no kernel.
_UNGUARDED, _GUARDED = "TF_DISABLE_RZ_CHECK", GIB

# Keys of ops for which a library has chosen its kernel in this process; of ops that
# were timed once in this process, and never before.
_chosen, timed_once = set[str](), set[str]()

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Measurements:
    """Measurements of one device.

    Args:
        scratch: Bytes that ops need beside inputs and outputs, by the op's key.
        asks: What ops ask for in order (`Op.asks`), by the op's key.
        forwards: Whether ops write in place, by type and element type.
        reserved: Bytes that cuDNN's layers leave to their gradients, by the op's key.
        seconds: Seconds of a call of an op alone, by the op's key.
        rates: Rates of computing, of memory and of the link, each behind the bytes of
            the tensors that were measured.
    """

    scratch: dict[str, Bytes] = field(default_factory=dict[str, Bytes])
    asks: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    forwards: dict[str, bool] = field(default_factory=dict[str, bool])
    reserved: dict[str, Bytes] = field(default_factory=dict[str, Bytes])
    seconds: dict[str, Seconds] = field(default_factory=dict[str, Seconds])
    rates: dict[str, tuple[int, float]] = field(
        default_factory=dict[str, tuple[int, float]]
    )


_known: dict[str, Measurements] = {}
_kept: dict[str, str] = {}  # digests of what is on disk


def measurements_of(device: Device) -> Measurements:
    """Measurements of a device, to which callers add."""
    name = _name(device)
    if name not in _known:
        _known[name] = read_entry(_KIND, name, Measurements) or Measurements()
        _kept[name] = digest(_known[name])
    return _known[name]


def keep_measurements() -> None:
    """Store new measurements on disk."""
    for name, known in _known.items():
        sure = {k: s for k, s in known.seconds.items() if k not in timed_once}
        if (new := digest(found := replace(known, seconds=sure))) != _kept[name]:
            write_entry(_KIND, name, found)
            _kept[name] = new


def _name(device: Device) -> str:
    threading = tf.config.threading
    return digest(
        sources(),
        tf.__version__,
        installed_version("nvidia-cudnn-cu12"),  # for reserve space and scratch
        device.name,
        _model(device),
        processor_name(),  # of the processor that launches the ops
        usable_cores(),
        threading.get_inter_op_parallelism_threads(),
        threading.get_intra_op_parallelism_threads(),
        compat.ops_are_deterministic(),
        compat.onednn_is_on(),
        tf.config.experimental.tensor_float_32_execution_enabled(),
    )


def _model(device: Device) -> str | None:
    if not device.is_gpu:
        return None
    index = int(device.name.rpartition(":")[2])
    physical = [
        gpu
        for gpu in tf.config.get_visible_devices("GPU")
        for _ in tf.config.get_logical_device_configuration(gpu) or [None]
    ]
    return str(tf.config.experimental.get_device_details(physical[index]))


class Bench:
    """Runs ops alone on a device within a `with` statement."""

    def __init__(self, device: Device) -> None:
        self.device, self.measured = device, measurements_of(device)
        self._pool: object = None
        self.ran_out = False

    def __enter__(self) -> "Bench":
        """Take cuDNN's guards off a small card, for its steps too."""
        if self.device.free_bytes < _GUARDED:
            self.take_guards_off()
        return self

    def take_guards_off(self) -> None:
        """Let convolutions run first without guards, unless the user has decided."""
        os.environ.setdefault(_UNGUARDED, "1")

    def __exit__(self, *_: object) -> None:
        """Free what kept the chunks for constants apart."""
        self._pool = None

    @cached_property
    def free(self) -> float:
        """Bytes for ops to run in, beside chunks for their constants."""
        self._pool = self.device.keep_pool(_LEFT_BEHIND)
        return self.device.free_bytes

    def fits(self, size: Bytes) -> bool:
        """Tell whether tensors of these bytes in sum have room."""
        return _SPARE * size <= self.free

    def has_room(self, op: LoneOp) -> bool:
        """Tell whether an op's inputs, outputs and scratch fit the free bytes.

        If not, TensorFlow would wait ten seconds for memory before it gives up
        (its allocator_retry.cc, as bfc_allocator.cc calls it).
        """
        if op.op.type in RESERVES:
            bound = op.op.outputs[RESERVED].size
            reserve = self.measured.reserved.get(op.key, bound)
            return op.moved - bound + reserve <= self.free
        if op.op.inplace and op.op.cheap:  # makes less than `moved` counts
            return op.moved <= self.free
        scratch = self.measured.scratch.get(op.key)
        if scratch is None:
            return op.moved * TIMES <= self.free
        return self.fits(op.moved + scratch)

    def tried(self, ask: Callable[[], T]) -> T | None:
        """The answer of a function that runs an op; None if the op cannot run alone.

        It cannot where memory is short, as `ran_out` says then, or on made-up values.
        """
        self.ran_out = False
        try:
            return ask()
        except (tf.errors.OpError, ValueError, MemoryError) as error:
            self.ran_out = ran_out(error)
            return None

    def time(self, op: LoneOp) -> None:
        """Time an op that can run alone; the fastest of all timings counts."""
        set_up = op.is_set_up
        taken = self.tried(lambda: seconds_of(op.call(), set_up=set_up))
        if taken is not None:
            self._keep_seconds(op, taken)

    def _keep_seconds(self, op: LoneOp, taken: Seconds) -> None:
        seconds = self.measured.seconds
        timed_once.update({op.key} - seconds.keys())
        seconds[op.key] = min(taken, seconds.get(op.key, taken))

    def idle_seconds(self, arguments: int) -> Seconds:
        """Seconds of a call that does nothing, with this number of arguments."""
        count, seconds = max(1, arguments), self.measured.seconds
        key = f"idle {count}"
        if key not in seconds:
            specs = [(f"x_{i}", tf.TensorSpec([]), None) for i in range(count)]
            passed = compat.made_node("passed", "Identity", ["x_0"], T=tf.float32)
            call = built([passed], specs, ["passed:0"])
            seconds[key] = seconds_of(partial(call, *[tf.ones([])] * count))
        return seconds[key]

    def knows_scratch(self, op: LoneOp) -> bool:
        """Tell whether scratch is known, and the op's library has chosen a kernel."""
        is_chosen = not (op.op.flops or op.tried) or op.key in _chosen
        is_known = op.op.type not in RESERVES or op.key in self.measured.reserved
        return is_chosen and is_known and op.key in self.measured.scratch

    def measure_scratch(self, op: LoneOp) -> None:
        """Measure scratch and reserve space of an op, if it can run alone."""
        if self.knows_scratch(op):
            return
        found = self.tried(lambda: self._scratch(op))
        if found is not None:
            self.measured.scratch[op.key] = found
            _chosen.add(op.key)

    def _scratch(self, op: LoneOp) -> Bytes:
        """Scratch bytes of the second run, whose seconds are kept if it is long.

        An op with more scratch than `moved` packs its inputs for each thread that
        happens to be free: the most of a few runs counts.
        """
        call = op.call()
        self._peak(call)  # the first run sets the op up
        sync_devices()
        begun = time.perf_counter()
        found = self._peak(call)
        sync_devices()
        taken = time.perf_counter() - begun
        if op.key not in self.measured.seconds and taken >= _SLOW:
            self._keep_seconds(op, taken)
        if found > op.moved:
            found = max(found, *(self._peak(call) for _ in range(_AGAIN)))
        if op.op.type in RESERVES:
            made = call()[RESERVED]
            self.measured.reserved[op.key] = made.shape.num_elements() * made.dtype.size
        return found

    def _peak(self, call: Callable[[], Any]) -> Bytes:
        """Bytes that a call takes at its peak beside its results."""
        device = self.device
        device.reset_peak()
        results = call()
        found = (device.peak_bytes or 0) - (device.current_bytes or 0)
        del results
        return max(0, found)


def seconds_of(call: Callable[[], Any], *, set_up: bool = False) -> Seconds:
    """Seconds of a call after the first one, until the devices are idle.

    The fastest of a few calls: what disturbs a call makes no device slower.

    Args:
        call: The call to time.
        set_up: Whether `call` ran before. A slow first call counts only then; else the
            first call warms up.
    """
    (first,) = _timed(call, runs=1)
    if set_up and first >= _SLOW:
        return first
    return min(_timed(call, runs=_RUNS))


def _timed(call: Callable[[], Any], *, runs: int) -> list[Seconds]:
    taken: list[Seconds] = []
    while len(taken) < runs and sum(taken) < _ENOUGH:
        sync_devices()
        begun = time.perf_counter()
        results = call()
        sync_devices()
        taken.append(time.perf_counter() - begun)
        del results
    return taken
