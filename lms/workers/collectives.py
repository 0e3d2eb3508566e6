"""Sums and means over the workers of a job, by TensorFlow's collective ops.

    gradients ──> buckets, the last first ──> one reduction after the other ──> parts

The key of a reduction follows from its name and shape alone, so planned and unplanned
steps of different workers reduce together. A chain of control edges orders reductions,
so no two workers wait in different ones. No result is read before the last bucket
arrives: either all variables are updated, or none.

Sources: `CollectiveReduceV2` in TensorFlow's collective_ops.cc; its ring needs a chunk
of memory for each other worker (ring_reducer.cc). One reduction of 60 small gradients
took a tenth of the time of 60 on two processes of one machine; buckets are bounded
because each is a copy of its gradients.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from lms.errors import WorkersError
from lms.machine.ranks import Placement
from lms.tf import compat
from lms.tf.failures import lost_in_words
from lms.units import MIB, Bytes, Seconds

__all__ = ["LONGEST", "Workers"]

# Group key of lms; keys of TensorFlow's strategies count up from 1.
_GROUP = 0x11_35

# Most bytes of a bucket, by implementation; TensorFlow's ring goes through the host.
_BUCKETS: Mapping[str, Bytes] = {"ring": 4 * MIB, "nccl": 32 * MIB}

# Types that GPUs do not reduce, and the types that replace them.
_REDUCED = {tf.bfloat16: tf.float32, tf.int32: tf.int64}

# Seconds to wait for another worker, which may validate, plan or write files longer.
LONGEST: Seconds = 600.0

# Types that a broadcast takes; other types are sent as a type of equal width.
_SENT = (tf.float32, tf.float64, tf.float16, tf.int32, tf.int64)
_STANDS_FOR = {4: tf.int32, 8: tf.int64, 2: tf.float16}


@dataclass(slots=True)
class _Chain:
    """Reductions of one graph so far."""

    last: Any = None  # the last result, which the next reduction waits for
    names: Counter[str] = field(default_factory=Counter)  # uses of each name


# The graph's attribute that holds its chain, so that both end together.
_CHAIN = "_lms_chain"
_functions: dict[Any, Any] = {}
_gathered: Counter[str] = Counter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The workers of a job, from the view of one worker; made by `lms.join`.

    Args:
        placement: Rank and addresses of this worker.
        reductions: Implementation of reductions: "nccl" or "ring".
        server: TensorFlow's server, kept alive; None where there is one worker.
    """

    placement: Placement
    reductions: str = "ring"
    server: Any = field(default=None, repr=False, compare=False)

    @property
    def rank(self) -> int:
        """The number of this worker, from 0."""
        return self.placement.rank

    @property
    def size(self) -> int:
        """The number of workers."""
        return self.placement.size

    @property
    def is_chief(self) -> bool:
        """Tell whether this is the worker that writes files."""
        return self.rank == 0

    def mean(self, tensors: Iterable[Any], name: str = "gradients") -> list[Any]:
        """Average tensors over all workers, in a `tf.function` or outside.

        All workers must call this with equal shapes, in the same order.

        Args:
            tensors: Gradients, say; None stays None. Sparse tensors become dense.
            name: A name, equal on all workers.

        Example:
            >>> float(Workers(placement=Placement()).mean([tf.constant(2.0)])[0])
            2.0
        """
        summed = self.sum(tensors, name)
        return [
            None if one is None else one / tf.cast(self.size, one.dtype)
            for one in summed
        ]

    def sum(self, tensors: Iterable[Any], name: str = "gradients") -> list[Any]:
        """Sum tensors over all workers; arguments as of `mean`."""
        given = list(tensors)
        there = [tf.convert_to_tensor(one) for one in given if one is not None]
        if self.size == 1 or not there:
            return given
        _refuse_unknown(there)
        sent = [tf.cast(one, _REDUCED.get(one.dtype, one.dtype)) for one in there]
        reduce = self._eagerly if hasattr(there[0], "numpy") else self._reduced
        summed = zip(reduce(sent, name), there, strict=True)
        found = (tf.cast(result, one.dtype) for result, one in summed)
        return [None if one is None else next(found) for one in given]

    def gather(self, text: str, name: str, *, timeout: Seconds = LONGEST) -> list[str]:
        """Gather a text of each worker, by rank. All must call in the same order.

        Args:
            text: The text of this worker.
            name: The topic, equal on all workers.
            timeout: Seconds to wait for each other worker.

        Raises:
            WorkersError: If a worker does not answer.
        """
        if self.size == 1:
            return [text]
        _gathered[name] += 1
        place = f"lms/{name}/{_gathered[name]}"
        compat.put_in_cluster(f"{place}/{self.rank}", text)
        return [self._heard(place, rank, timeout) for rank in range(self.size)]

    def take_chiefs(self, variables: Iterable[Any]) -> None:
        """Give variables the chief's values, bit for bit.

        Args:
            variables: `tf.Variable`s, alike on all workers.
        """
        if self.size == 1:
            return
        for variable in variables:
            own = variable.dtype
            sent = own if own in _SENT else _STANDS_FOR.get(own.size)
            if sent is None:  # bytes and truth values
                variable.assign(tf.cast(self._of_chief(variable, tf.int32), own))
            elif sent == own:
                variable.assign(self._of_chief(variable, own))
            else:
                value = self._of_chief(tf.bitcast(variable, sent), sent)
                variable.assign(tf.bitcast(value, own))

    def _heard(self, place: str, rank: int, timeout: Seconds) -> str:
        try:
            return compat.get_from_cluster(f"{place}/{rank}", timeout)
        except tf.errors.OpError as error:
            raise WorkersError(
                f"worker {rank} did not reach {place.split('/')[1]!r}: "
                f"{str(error).splitlines()[0]}. Read its output, then start all "
                "workers again."
            ) from error

    def _eagerly(self, tensors: Sequence[Any], name: str) -> Sequence[Any]:
        specs = tuple((one.dtype.name, tuple(one.shape)) for one in tensors)

        def reduced(*those: Any) -> list[Any]:
            return self._reduced(those, name)

        function = _function((self.size, name, specs), reduced, tensors)
        with lost_in_words():
            return function(*tensors)

    def _reduced(self, tensors: Sequence[Any], name: str) -> list[Any]:
        """Reduce in a graph: a reduction for each bucket, in one chain."""
        graph = tensors[0].graph
        chain = getattr(graph, _CHAIN, None)
        if chain is None:
            chain = _Chain()
            setattr(graph, _CHAIN, chain)
        chain.names[name] += 1
        place = f"{name}/{chain.names[name]}"
        results: list[Any] = [None] * len(tensors)
        for number, members in enumerate(self._buckets(tensors)):
            parts = [tf.reshape(tensors[i], [-1]) for i in members]
            flat = parts[0] if len(parts) == 1 else tf.concat(parts, 0)
            with tf.control_dependencies([] if chain.last is None else [chain.last]):
                chain.last = self._reduce(flat, f"{place}/{number}")
            sizes = [tensors[i].shape.num_elements() for i in members]
            split = [chain.last] if len(sizes) == 1 else tf.split(chain.last, sizes)
            for i, part in zip(members, split, strict=True):
                results[i] = tf.reshape(part, tensors[i].shape)
        with tf.control_dependencies([chain.last]):
            return [tf.identity(result) for result in results]

    def _reduce(self, flat: Any, name: str) -> Any:
        return tf.raw_ops.CollectiveReduceV2(
            input=flat,
            group_size=self.size,
            group_key=_GROUP,
            instance_key=_key(name, flat.dtype, flat.shape),
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint=self.reductions,
            name="lms_reduce",
        )

    def _buckets(self, tensors: Sequence[Any]) -> list[list[int]]:
        """Group indices of tensors of equal type into buckets, the last first.

        The backward pass makes gradients of the last layers first.
        """
        buckets: list[list[int]] = []
        size = 0
        for i in reversed(range(len(tensors))):
            own = tensors[i].dtype.size * tensors[i].shape.num_elements()
            fits = buckets and tensors[buckets[-1][0]].dtype == tensors[i].dtype
            if not fits or size + own > _BUCKETS[self.reductions]:
                buckets.append([])
                size = 0
            buckets[-1].append(i)
            size += own
        return buckets

    def _of_chief(self, value: Any, dtype: tf.DType) -> Any:
        shape = value.shape

        def received(own: Any) -> Any:
            common = {
                "group_size": self.size,
                "group_key": _GROUP,
                "instance_key": _key("of chief", dtype, shape),
            }
            if self.is_chief:
                return tf.raw_ops.CollectiveBcastSendV2(input=own, **common)
            return tf.raw_ops.CollectiveBcastRecvV2(T=dtype, shape=shape, **common)

        key = (self.size, "of chief", dtype.name, tuple(shape))
        own = tf.cast(value, dtype)
        function = _function(key, received, [own])
        with lost_in_words():
            return function(own)


def _refuse_unknown(tensors: Sequence[Any]) -> None:
    for one in tensors:
        if not one.shape.is_fully_defined():
            raise WorkersError(
                "a tensor that workers average must have a known shape, got "
                f"{one.shape} of {one.name!r}. Set it with `tf.ensure_shape`."
            )


def _key(name: str, dtype: tf.DType, shape: tf.TensorShape) -> int:
    return zlib.crc32(f"{name} {dtype.name} {shape}".encode()) & 0x7FFF_FFFF


def _function(key: Any, function: Callable[..., Any], tensors: Sequence[Any]) -> Any:
    """Trace a function once for each key, which must determine its ops."""
    if key not in _functions:
        specs = [tf.TensorSpec(one.shape, one.dtype) for one in tensors]
        traced = tf.function(function, autograph=False, jit_compile=False)
        _functions[key] = traced.get_concrete_function(*specs)
    return _functions[key]
