"""Compare each tensor that comes back from the host with the one that left.

    producer ──> digest ──> swap-out ╌╌ host ╌╌> swap-in ──> digest ──> readers
                   └──────── both to the host ─────────────────┘
                                      │
                   compared at the commit point, before variables are written

A digest is the sum of a tensor's words of 64 bits, modulo 2^64: a sum is the same in
any order of its kernel's threads. One word with other bits always changes the digest.
Changes of several words may cancel each other, as of the top bit in two words, and
words that only change places do not change the digest.

Sums run on the device (`Sum` of int64, reduction_ops_sum.cc); the tensor is read as
int64 without a copy. Where its bytes are no multiple of 8, less than 64 bytes at its
end are added as numbers: a slice that ends elsewhere would be a copy of the tensor
(`IsDim0SliceAligned`, slice_op.cc).

Where a digest differs, the call at the commit point fails, so no late write begins and
the early ones are undone. Tensors that come back for a late write are compared when the
step ends: such a difference is reported, and cannot be undone.

Where op determinism is on, second runs of ops are compared with the first, one op a
step in turn: an op before the step says how many words each of these digests adds up,
which is 0 for all but one.

Known weaknesses: tensors of bool are not watched, as no kernel reads them as numbers;
nor are tensors of unknown size, and variables and lists of loops that lie on the host.
Other workers may have used a step's gradients before the difference is found.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import tensorflow as tf

from lms.ir.graph import GraphView, Op, Tensor, op_of
from lms.ir.liveness import peak
from lms.ir.plan import Swap, SwapIn
from lms.ir.recompute import original_name
from lms.planning.addresses import CHUNK
from lms.planning.candidates import movable, smallest_worth_moving
from lms.planning.problem import PlannedStep
from lms.simulation.allocator import rounded_up
from lms.tf import compat
from lms.tf.nodes import COPY_OUT, Nodes
from lms.units import KIB, Bytes

__all__ = ["Watch", "reserved_for_watch"]

_WORD = 8  # bytes of int64

# By bytes of an element: the type as which a tensor is cut, and its integers. The
# device has kernels that cut these types (slice_op.cc); int32 is cut on the host.
_PLAIN = {1: tf.int8, 2: tf.float16, 4: tf.float32, 8: tf.int64, 16: tf.int64}
_INTEGERS = {1: tf.int8, 2: tf.int16, 4: tf.int32}

_MOST = 2**31  # elements that an int32 counts
_ALIGNED = 64  # bytes; EIGEN_MAX_ALIGN_BYTES

# At most 2 sums run at once: of a tensor that leaves, and of one that is back.
_SUMS = 2

# One op packs at most 32 digests, so that its output is one chunk of 256 bytes.
_PACKED = 32

# Scratch of a sum: the device's library keeps 8 bytes for each of its blocks of
# threads. It has no more blocks than fit on the card 5 times (cub/device/
# dispatch_reduce.cuh), which is 48 KiB on a card of 144 multiprocessors, and at most
# one block for 1/1024 of the tensor's bytes.
_SCRATCH_MOST, _SCRATCH_PART = 48 * KIB, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A tensor's way out and back: the swap, the swap-in, the names of both digests."""

    swap: Swap
    copy: SwapIn
    left: str
    back: str

    def words(self, graph: GraphView) -> str:
        """Name the tensor, its op and the plan's entry."""
        op = graph.by_name[op_of(self.swap.tensor)]
        after = f" after op {self.copy.trigger!r}" if self.copy.trigger else ""
        return (
            f"tensor {self.swap.tensor!r} of op {op.name!r} ({op.type}), "
            f"{self.swap.size} bytes, which the plan copies back{after} for op "
            f"{self.copy.readers[0]!r}, came back from the host with other bytes"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Again:
    """A second run of an op: two tensors, the names of their digests, their words."""

    first: str
    second: str
    left: str
    back: str
    count: int

    def words(self, graph: GraphView) -> str:
        """Name the tensor, its op and the plan's entry."""
        op = graph.by_name[op_of(self.first)]
        return (
            f"tensor {self.first!r} of op {op.name!r} ({op.type}) had other bytes when "
            f"the plan ran the op again as {op_of(self.second)!r}"
        )


@dataclass(slots=True, kw_only=True)
class Watch:
    """The digests of one device's part of a step.

    Args:
        device: Full name of the device.
        graph: The planned graph.
        label: Prefix of new names.
        early: Pairs of digests that are compared at the commit point.
        late: Pairs of digests that are compared at the end of the step.
        again: Second runs, which are compared at the commit point, one a step.
        unwatched: Number of the tensors that leave the device and have no digest.
        compared: Copies that were compared so far.
        compared_again: Second runs that were compared so far.
        changed: Words about the pairs that differed in the last call.
    """

    device: str
    graph: GraphView
    label: str
    early: list[_Entry] = field(default_factory=list[_Entry])
    late: list[_Entry] = field(default_factory=list[_Entry])
    again: list[_Again] = field(default_factory=list[_Again])
    unwatched: int = 0
    compared: int = 0
    compared_again: int = 0
    changed: list[str] = field(default_factory=list[str])
    _turn: int = -1

    @classmethod
    def of(
        cls, planned: PlannedStep, device: str, number: int, before: frozenset[str]
    ) -> "Watch":
        """Return the digests of a planned step.

        Args:
            planned: The planned step.
            device: Full name of its device.
            number: Number of the device among those of the step.
            before: Names of the ops that end before late writes begin.
        """
        own = cls(device=device, graph=planned.graph, label=f"lms{number or ''}")
        position = planned.graph.reordered(planned.plan.order).position
        for i, swap in enumerate(planned.plan.swaps):
            if own._words(planned.graph.tensors[swap.tensor]) is None:
                own.unwatched += 1
                continue
            prefix = f"{own.label}/{i}/{op_of(swap.tensor)}"
            for k, copy in enumerate(swap.swap_ins):
                names = {"left": f"{prefix}/digest", "back": f"{prefix}/in{k}/digest"}
                first = min(copy.readers, key=position.__getitem__)
                part = own.early if first in before else own.late
                part.append(_Entry(swap=swap, copy=copy, **names))
        if compat.ops_are_deterministic():
            own._find_second_runs(before.intersection(planned.plan.chain))
        return own

    def _find_second_runs(self, names: Collection[str]) -> None:
        """Find the second runs among ordered ops, of tensors that may move."""
        least = smallest_worth_moving(peak(self.graph))
        for op in self.graph.ops:
            first = self.graph.by_name[original_name(op.name)]
            if first is op or not (op.name in names and first.name in names):
                continue
            for made, again in zip(first.outputs, op.outputs, strict=True):
                prefix = f"{self.label}/again{len(self.again)}"
                count, _ = self._words(made) or (0, 0)
                if count and made.size >= least:
                    pair = _Again(
                        first=made.name,
                        second=again.name,
                        left=f"{prefix}/first/digest",
                        back=f"{prefix}/second/digest",
                        count=count,
                    )
                    self.again.append(pair)

    def turn(self) -> np.ndarray:
        """Return how many words of each second run are compared in the next step."""
        self._turn = (self._turn + 1) % max(1, len(self.again))
        every = enumerate(self.again)
        counts = [each.count * (i == self._turn) for i, each in every]
        return np.array(counts, np.int32)

    @property
    def turns(self) -> str:
        """Name of the op that says how many words are compared."""
        return f"{self.label}/turn/end"

    def add_second_runs(self, nodes: Nodes, op: Op) -> list[str]:
        """Add the digests of an op's tensors that are compared with another run's."""
        made, names = {t.name: t for t in op.outputs}, list[str]()
        for i, each in enumerate(self.again):
            for tensor, name in ((each.first, each.left), (each.second, each.back)):
                if tensor in made:
                    prefix = name.removesuffix("/digest")
                    names += self.add(nodes, prefix, tensor, made[tensor], turn=i)
        return names

    def sizes(self) -> list[Bytes]:
        """Return the bytes of each chunk that the digests take on the device."""
        parts = [_digests(part) for part in (self.at_commit, self.late)]
        packs = [pack for part in parts for pack in _packs(part)]
        every = {name for part in parts for name in part}
        sizes = [entry.swap.size for entry in (*self.early, *self.late)]
        sizes += [each.count * _WORD for each in self.again]
        scratch = [_scratch(max(sizes))] * _SUMS if sizes else []
        # A digest of two parts takes a chunk for a slice, a cast, sums and their sum.
        chunks = 5 * len(every) if self._has_rests() else len(every)
        return [CHUNK] * (chunks + 2 * len(packs)) + scratch

    def _has_rests(self) -> bool:
        """Tell whether some digest adds up bytes beyond the words."""
        tensors = self.graph.tensors
        swapped = (tensors[one.swap.tensor] for one in (*self.early, *self.late))
        return any((self._words(tensor) or (0, 0))[1] for tensor in swapped)

    def _words(self, tensor: Tensor) -> tuple[int, int] | None:
        """Return (words to add up, elements beyond); None without a digest."""
        dtype, size = tf.as_dtype(tensor.dtype), tensor.size
        is_number = dtype.is_floating or dtype.is_integer or dtype.is_complex
        if not is_number or dtype.size not in _PLAIN or size >= _MOST * dtype.size:
            return None
        if self.graph.by_name[op_of(tensor.name)].varies:
            return None
        whole = size // _WORD if size % _WORD == 0 else size // _ALIGNED * 8
        return whole, (size - whole * _WORD) // _PLAIN[dtype.size].size

    def go_on(self, before: "Watch") -> None:
        """Count on from what the watch of an earlier build of the step has counted."""
        self.compared += before.compared
        self.compared_again += before.compared_again
        self._turn = before._turn  # noqa: SLF001 - of this class

    @property
    def at_commit(self) -> list[_Entry | _Again]:
        """Pairs of digests that are compared at the commit point."""
        return [*self.early, *self.again]

    def add(
        self,
        nodes: Nodes,
        name: str,
        tensor: str,
        made: Tensor,
        *,
        turn: int | None = None,
    ) -> list[str]:
        """Add the digest of a tensor; returns its name, or nothing without one.

        Args:
            nodes: The step's nodes.
            name: Prefix of the digest's name.
            tensor: Name of the tensor that is read.
            made: The tensor as planned.
            turn: Number of the second run that it belongs to: whole words alone are
                added up, and these in its turn.
        """
        if (parted := self._words(made)) is None:
            return []
        words, rest = parted
        kind = _PLAIN[tf.as_dtype(made.dtype).size]
        maker = _Maker(nodes, self.device, f"{name}/digest", f"{self.label}/numbers")
        each = _WORD // kind.size
        parts, plain = list[str](), maker.read(tensor, tf.as_dtype(made.dtype), kind)
        if rest:
            plain = maker.shape(plain, kind, [words * each + rest])
        if words:
            head = maker.cut(plain, kind, 0, words * each) if rest else plain
            head = maker.shape(head, kind, [words] + [each] * (each > 1))
            head = maker.read(head, kind, tf.int64)
            if turn is not None:
                head = maker.cut_as_told(head, self.turns, turn)
            parts.append(head)
        if rest and turn is None:
            tail = maker.cut(plain, kind, words * each, rest)
            tail = maker.read(tail, kind, number := _INTEGERS[kind.size])
            parts.append(maker.make("Cast", [tail], SrcT=number, DstT=tf.int64))
        types, first = {"T": tf.int64, "Tidx": tf.int32}, maker.numbers(0)
        sums = [maker.make("Sum", [part, first], **types) for part in parts]
        joined = "AddV2" if len(sums) > 1 else "Identity"
        nodes.make(maker.prefix, joined, sums, self.device, T=tf.int64)
        return [maker.prefix]

    def inputs(self, part: Sequence[_Entry | _Again]) -> list[str]:
        """Return the names of the copies of packed digests on the host."""
        count = -(-len(_digests(part)) // _PACKED)
        return [f"{self._named(part)}{i}/out" for i in range(count)]

    def pack(self, nodes: Nodes) -> None:
        """Add ops that pack the digests and copy them to the host."""
        for part in (self.at_commit, self.late):
            for i, names in enumerate(_packs(_digests(part))):
                pack = f"{self._named(part)}{i}"
                node = compat.made_node(pack, "Pack", names, self.device, T=tf.int64)
                node.attr["N"].i, node.attr["axis"].i = len(names), 0
                nodes.add(node)
                nodes.make(f"{pack}/out", COPY_OUT, [pack], self.device, T=tf.int64)

    def compare(
        self, part: Sequence[_Entry | _Again], given: Sequence[np.ndarray]
    ) -> None:
        """Compare digests; `changed` says which differ.

        Args:
            part: `at_commit` or `late`.
            given: What `inputs` names.
        """
        found = dict(zip(_digests(part), np.concatenate(given), strict=True))
        for pair in part:
            if found[pair.left] != found[pair.back]:
                self.changed.append(pair.words(self.graph))
        self.compared += sum(isinstance(pair, _Entry) for pair in part)
        self.compared_again += any(isinstance(pair, _Again) for pair in part)

    def _named(self, part: Sequence[_Entry | _Again]) -> str:
        return f"{self.label}/digests/{'late' if part is self.late else 'commit'}"


@dataclass(slots=True)
class _Maker:
    """Makes the ops of one digest.

    Args:
        nodes: The step's nodes.
        device: Full name of the device.
        prefix: Name of the digest.
        constants: Prefix of the names of constants, which digests share.
        count: Number of the ops made.
    """

    nodes: Nodes
    device: str
    prefix: str
    constants: str
    count: int = 0

    def make(self, op: str, inputs: Sequence[str], **types: tf.DType) -> str:
        """Add an op; returns its name."""
        self.count += 1
        name = f"{self.prefix}/{op}{self.count}"
        return self.nodes.make(name, op, inputs, self.device, **types).name

    def numbers(self, *values: int) -> str:
        """Add a constant of int32, which lies on the host; equal ones are one."""
        name = f"{self.constants}/{'_'.join(map(str, values))}"
        if self.nodes.get(name) is None:
            self.nodes.add(compat.constant(name, values, tf.int32, self.device))
        return name

    def read(self, tensor: str, kind: tf.DType, to: tf.DType) -> str:
        """Read a tensor's bits as another type, without a copy."""
        return tensor if kind == to else self.make("Bitcast", [tensor], T=kind, type=to)

    def shape(self, tensor: str, kind: tf.DType, shape: Sequence[int]) -> str:
        """Read a tensor in another shape, without a copy."""
        types = {"T": kind, "Tshape": tf.int32}
        return self.make("Reshape", [tensor, self.numbers(*shape)], **types)

    def cut(self, tensor: str, kind: tf.DType, begin: int, size: int) -> str:
        """Slice a flat tensor, without a copy where the slice is aligned."""
        inputs = [tensor, self.numbers(begin), self.numbers(size)]
        return self.make("Slice", inputs, T=kind, Index=tf.int32)

    def cut_as_told(self, tensor: str, sizes: str, number: int) -> str:
        """Slice the first words, as many as a number of `sizes` says."""
        size = self.cut(sizes, tf.int32, number, 1)
        inputs = [tensor, self.numbers(0), size]
        return self.make("Slice", inputs, T=tf.int64, Index=tf.int32)


def _digests(part: Sequence[_Entry | _Again]) -> list[str]:
    """Return the names of the digests of some pairs, each once."""
    return [*dict.fromkeys(chain.from_iterable((e.left, e.back) for e in part))]


def _packs(digests: Sequence[str]) -> list[Sequence[str]]:
    """Return digests in groups that one op packs."""
    starts = range(0, len(digests), _PACKED)
    return [digests[start : start + _PACKED] for start in starts]


def _scratch(size: Bytes) -> Bytes:
    return rounded_up(min(_SCRATCH_MOST, size // _SCRATCH_PART))


def reserved_for_watch(graph: GraphView) -> Bytes:
    """Return the bytes that the digests of a step may take on the device.

    The step is not planned yet: all tensors that may move count.
    """
    roots = movable(graph, min_bytes=smallest_worth_moving(peak(graph)))
    sizes = [graph.tensors[root].size for root in roots]
    digests = 3 * len(sizes)  # of a tensor that comes back twice
    digests *= 5 if any(size % _WORD for size in sizes) else 1
    chunks = digests + 2 * (2 + digests // _PACKED)
    # Each chunk of a pool is followed by a guard chunk.
    scratch = _SUMS * _scratch(max(sizes, default=0))
    return 2 * (chunks * CHUNK + scratch) * bool(sizes)
