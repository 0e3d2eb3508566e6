"""Value numbering: equal numbers are equal values, in the step before and after.

A number stands for an op's type, attributes, device and the numbers of its inputs. So a
second run has the number of the first, and what an op reads by a detour of copies has
the number of what was copied. Beyond that:

    variables   A read has the number of the write that it follows. Every write comes
                before a read or after it: else nobody knows what is read.
    effects     An op with another effect is found in the step before by its name, and
                has the same inputs there.
    branches    A write in a loop or branch is such an effect. A read has as its number
                the names of the writes that it follows, or may follow as before.
    loops       A loop's Merge is found by its name and taken to be equal; then its
                inputs must be equal, the edge back included.
    laws        Identities that the result names, and those of `lms.proof.laws`.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

from lms.proof.laws import SIZES, Block, Equal, Whole, find_block
from lms.proof.nodes import Graph, Node, Refuted, Tensor, describe, integers, split

__all__ = ["COPY_IN", "COPY_OUT", "VIEWS", "Table", "Values"]

_Made: TypeAlias = int | list[int]  # an op's number, or one for each output

COPY_OUT, COPY_IN = "_CopyFromGpuToHost", "_CopyFromHostToGpu"
VIEWS = frozenset({"Reshape", "ExpandDims", "Squeeze", "Identity", "StopGradient"})
VIEWS |= {"PreventGradient", "EnsureShape", "Bitcast"}
"""Ops whose output shares the memory of their first input."""

_SAME = {"Identity", "Snapshot", "StopGradient", "PreventGradient", COPY_OUT, COPY_IN}
_HANDS_ON = {"Identity", "Enter", "Exit", "Switch", "Merge", "NextIteration"}
_READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"}
_READS |= {"VarIsInitializedOp"}
_MUTE = {"NoOp", "DisableCopyOnRead"}  # ops without values and effects on values
_ASSIGN, _DRAWS = "AssignVariableOp", "StatelessRandomUniformV2"
_SIGN, _ONE = [-(2**31)], [0x3F800000]  # bits of int32: the sign's, and those of 1.0
_FLOAT32 = 1  # TensorFlow's number of the type
_COUNTER = 2  # numbers of 64 bits in a counter


@dataclass(slots=True)
class Table:
    """The numbers that both graphs share, and facts about them.

    Args:
        shapes: Shapes of the outputs of each op before, and of arguments by position;
            empty where no op is in parts.
    """

    shapes: Mapping[Any, Sequence[Any]]
    ids: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    known: int = 0  # numbers of the step before are below
    named: set[int] = field(default_factory=set[int])  # variables of loops and branches
    follows: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])
    keys: dict[str, Hashable] = field(default_factory=dict[str, Hashable])  # by name
    laws: dict[str, None] = field(default_factory=dict[str, None])
    wholes: dict[Hashable, list[Node]] = field(default_factory=dict[Hashable, Any])
    sides: dict[int, tuple[int, ...]] = field(default_factory=dict[int, Any])
    blocks: dict[int, tuple[int, Block]] = field(default_factory=dict[int, Any])
    equal: dict[int, int] = field(default_factory=dict[int, int])  # to the one element
    # Values behind a new first axis; counters of random numbers, and what was added.
    rows: dict[int, int] = field(default_factory=dict[int, int])
    added: dict[int, tuple[int, int]] = field(default_factory=dict[int, Any])

    def number(self, *key: Hashable) -> int:
        """Return the number of a value, a new one if the value is new."""
        return self.ids.setdefault(key, len(self.ids))

    def parted(self, number: int) -> tuple[int, Block]:
        """Return (whole tensor, block of that tensor) of a number."""
        return self.blocks.get(number, (number, ()))

    def block(self, number: int, ranges: Sequence[tuple[int, int, int]]) -> int:
        """Return the number of a block of a value, which may be a block itself."""
        base, inner = self.parted(number)
        found = {axis: (begin, end) for axis, begin, end in inner}
        for axis, begin, end in ranges:
            start, _ = found.get(axis, (0, 0))
            found[axis] = start + begin, start + end
        shape = self.sides[base]
        block = tuple((a, *r) for a, r in sorted(found.items()) if r != (0, shape[a]))
        made = self.number("block", base, block) if block else base
        if block:
            self.blocks[made] = base, block
        return made

    def fill(self, element: int, *shape: int) -> int:
        """Return the number of a tensor whose elements are all equal."""
        made = self.number("fill", element, shape)
        self.equal[made], self.sides[made] = element, shape
        return made

    def shape(self, number: int) -> tuple[int, ...]:
        """Return a value's shape; () where it is not known."""
        base, block = self.parted(number)
        cut = {axis: end - begin for axis, begin, end in block}
        return tuple(cut.get(i, n) for i, n in enumerate(self.sides.get(base, ())))


class Values:
    """The numbers of one graph's values; of the step before, or of the one after it.

    Raises:
        Refuted: If a loop or an effect is another than before, or nobody knows which
            write a read follows.
    """

    def __init__(
        self, graph: Graph, table: Table, first: "Values | None" = None
    ) -> None:
        self.graph, self.table, self._first = graph, table, first
        self.writes: dict[int, int] = defaultdict(int)  # by variable, as bits
        self.effects = dict[str, Node]()
        self._touched: dict[str, list[int]] = {}  # by node, its variables
        self._made = dict[str, _Made]()
        self._written = dict[tuple[int, int], int]()
        self._places = {split(name): i for name, i in graph.step.arguments.items()}
        self._find_accesses()
        for node in graph.nodes:
            self._made[node.name] = self._numbered(node)
        for node in graph.nodes:
            if node.op == "Merge" and self._begins(node):
                self._agree(node, tuple(self.of(each) for each in node.reads))
        if first is None:
            table.known = len(table.ids)

    def of(self, tensor: Tensor) -> int:
        """Return the number of a tensor."""
        position = self._places.get(tensor)
        if position is not None:
            made = self.table.number("argument", position)
            for shape in self.table.shapes.get(position, ()):
                self.table.sides[made] = shape or ()
            return made
        made, output = self._made[tensor[0]], tensor[1]
        if isinstance(made, list):
            return made[output]
        return self.table.number("output", made, output) if output else made

    def compare(self) -> None:
        """Compare what leaves the step with the step before.

        Raises:
            Refuted: Names the first op whose value differs.
        """
        first, steps = self._first, self.graph.step
        assert first is not None
        for before, after in zip(first.graph.step.results, steps.results, strict=True):
            if first.of(split(before)) != self.of(split(after)):
                maker = self.graph.by_name.get(split(after)[0])
                raise Refuted(f"result {after!r}: {self.blame(maker)}")
        for variable in sorted({*first.writes, *self.writes} - self.table.named):
            if first.version(variable) != self.version(variable):
                writers = self.graph.members(self.writes[variable]) or [None]
                raise Refuted(f"variable {variable}: {self.blame(writers[-1])}")
        for name in first.effects.keys() - self.effects.keys():
            raise Refuted(f"effect {name!r} is missing")

    def new_effects(self) -> list[Node]:
        """Return the ops with effects that the step before has not."""
        there = self._first.effects if self._first else ()
        return [node for name, node in self.effects.items() if name not in there]

    def blame(self, node: Node | None) -> str:
        """Name the first op on the way to a node whose value is no value of before."""
        if node is None:
            return "is another argument, or not written"
        table, bits = self.table, self.graph.before[node.index] | 1 << node.index
        for each in self.graph.members(bits):
            made = self._made.get(each.name, 0)
            is_known = isinstance(made, list) or made < table.known
            is_known |= made in table.blocks or made in table.rows
            if not is_known and each.op not in _MUTE | {"Const"}:
                return f"{each.name!r} ({each.op}) makes another value"
        return f"{node.name!r} ({node.op}) reads other values"

    def version(self, variable: int, node: Node | None = None) -> int:
        """Return the number of a variable's value at a node, or at the step's end."""
        earlier = self.writes[variable]
        earlier &= self.graph.before[node.index] if node else -1
        if variable in self.table.named and node is not None:
            return self._followed(variable, node, earlier)
        if not earlier:
            return self.table.number("initial", variable)
        return self._written[earlier.bit_length() - 1, variable]

    def _followed(self, variable: int, node: Node, earlier: int) -> int:
        """Return a number for the writes that a node follows, or may follow.

        Of writes in no order with the node of this name before, any may come first.
        """
        names = frozenset(each.name for each in self.graph.members(earlier))
        beside = frozenset(each.name for each in self._unordered(variable, node))
        key, table = ("follows", node.name, variable), self.table
        if self._first is not None and key in table.follows:
            sure, open_ones = table.follows[key]
            if sure <= names <= sure | open_ones and beside <= open_ones:
                names, beside = sure, open_ones
        table.follows.setdefault(key, (names, beside))
        if not (names or beside):
            return table.number("initial", variable)
        return table.number("follows", variable, names, beside)

    def _unordered(self, variable: int, node: Node) -> list[Node]:
        """Return the writes to a variable that come neither before a node nor after."""
        graph, i = self.graph, node.index
        left = self.writes[variable] & ~(graph.before[i] | graph.after[i] | 1 << i)
        return graph.members(left)

    def _find_accesses(self) -> None:
        """Find which ops read or write variables, and which have other effects."""
        step, inside = self.graph.step, set[str]()  # `inside` loops and branches
        accesses, used = list[tuple[int, Node]](), {n for n, _ in self.graph.readers}
        behind: dict[Tensor, set[int]] = {
            tensor: {i} for tensor, i in self._places.items() if i in step.handles
        }
        for node in self.graph.nodes:
            found = {v for read in node.reads for v in behind.get(read, ())}
            is_inside = any(source in inside for source, _ in node.reads)
            if found and node.op in _HANDS_ON:
                behind |= {(node.name, output): found for output in range(2)}
                inside |= {node.name} if is_inside or node.op != "Identity" else set()
            elif found:
                self._touched[node.name] = sorted(found)
                is_read = node.op in _READS or self._is_open(node)
                if node.op not in _MUTE and (not is_read or node.name in used):
                    accesses += [(variable, node) for variable in found]
                    self.table.named |= found if is_inside else set()
                for variable in found if not (is_read or node.op in _MUTE) else ():
                    self.writes[variable] |= 1 << node.index
            elif node.op in step.effects - _MUTE and not self._is_open(node):
                self.effects[node.name] = node
        for variable, node in accesses:
            beside = self._unordered(variable, node)
            if beside and self._first is None:
                self.table.named.add(variable)
            elif beside and variable not in self.table.named:
                raise Refuted(f"{node.name!r} and {beside[0].name!r} may change places")

    def _begins(self, node: Node) -> bool:
        """Tell whether a node begins the rounds of a loop."""
        return any(self.graph.is_back(node, source) for source in node.sources)

    def _agree(self, node: Node, key: Hashable) -> None:
        """Check that a node is what the node of its name was before."""
        if self._first is None:
            self.table.keys[node.name] = key
        elif self.table.keys.get(node.name, key) != key:
            raise Refuted(f"{node.name!r} has other inputs: {self.blame(node)}")

    def _numbered(self, node: Node) -> _Made:
        """Return the number of a node, or of each of its outputs."""
        table = self.table
        if node.op in _MUTE or (node.op == "Merge" and self._begins(node)):
            return table.number("named", node.name)
        inputs = [self.of(each) for each in node.reads]
        if node.op in _SAME:
            return inputs[0]
        if self._is_open(node):
            return list(self._opened(node, inputs))
        variables = self._touched.get(node.name, ())
        versions = tuple(self.version(each, node) for each in variables)
        if node.op == "ReadVariableOp" and versions:
            return versions[0]
        if (value := integers(node)) is not None:
            sides = node.proto.attr["value"].tensor.tensor_shape.dim
            shape = tuple(dim.size for dim in sides)
            return table.number("Const", node.proto.attr["dtype"].type, shape, *value)
        if node.op == "Fill" and (shape := self._constant(node, 0)) is not None:
            return table.fill(inputs[-1], *shape)
        what = describe(node.proto), node.proto.device * (node.op != "Const")
        writes = [v for v in variables if self.writes[v] >> node.index & 1]
        if node.name in self.effects or not table.named.isdisjoint(writes):
            self.effects[node.name] = node
            self._agree(node, (*what, *inputs, versions))
            return table.number("named", node.name)
        made = table.number(*what, *inputs, versions)
        for variable in writes:
            value = table.number("written", made, variable)
            value = inputs[1] if node.op == _ASSIGN else value
            self._written[node.index, variable] = value
        return made if variables else self._by_law(node, what, inputs, made)

    def _is_open(self, node: Node) -> bool:
        """Tell whether a node is a call that XLA compiles and that only reads."""
        attr = node.proto.attr
        if "_XlaMustCompile" not in attr or not attr["_XlaMustCompile"].b:
            return False
        function = self.graph.step.functions.get(attr["f"].func.name)
        inner = () if function is None else function.node_def
        effects = self.graph.step.effects - {"ReadVariableOp"}
        return bool(inner) and not any(each.op in effects for each in inner)

    def _opened(self, node: Node, inputs: Sequence[int]) -> Iterator[int]:
        """Yield numbers of a compiled call's outputs, which may leave the call."""
        table = self.table
        function = self.graph.step.functions[node.proto.attr["f"].func.name]
        inner = {each.name: each for each in function.node_def}
        names = (argument.name for argument in function.signature.input_arg)
        made = dict(zip(names, inputs, strict=True))
        versions = {
            table.number("argument", variable): self.version(variable, node)
            for variable in self._touched.get(node.name, ())
        }

        def value(name: str) -> int:
            if name not in made:
                source, _, output = name.partition(":")
                each = inner[source]
                read = tuple(value(other) for other in each.input if other[0] != "^")
                key = (
                    "compiled",
                    each.op,
                    describe(each),
                    node.proto.device,
                    read,
                    output,
                )
                made[name] = read[0] if each.op in _SAME else table.number(*key)
                if each.op == "ReadVariableOp":
                    made[name] = versions[read[0]]
            return made[name]

        if not self._first or node.proto.attr["f"].func.name.endswith("_lms"):
            table.laws |= {"a compiled call's outputs by themselves": None}
        yield from (value(function.ret[o.name]) for o in function.signature.output_arg)

    def _constant(self, node: Node | None, position: int) -> list[int] | None:
        return integers(self._source(node, position))

    def _source(self, node: Node | None, place: int) -> Node | None:
        """Return the op that makes an input; None for arguments and missing inputs."""
        given = node.reads[place : place + 1 or None] if node else []
        return self.graph.by_name.get(given[0][0]) if given else None

    def _by_law(self, node: Node, what: Any, inputs: list[int], made: int) -> _Made:
        """Return the numbers that a law gives a pure op's outputs, or its own."""
        table, first = self.table, self._first
        if node.op == "ExpandDims" and self._constant(node, 1) == [0]:
            table.rows[made] = inputs[0]
            table.sides.setdefault(made, (1, *table.shape(inputs[0])))
        if node.op == "AddV2" and len(by := self._constant(node, 1) or ()) == _COUNTER:
            table.added[made] = (inputs[0], by[0]) if by[1] == 0 else (made, 0)
        if first is None:
            for output, shape in enumerate(table.shapes.get(node.name, ())):
                own = table.number("output", made, output) if output else made
                table.sides.setdefault(own, shape or ())
            if table.shapes:
                table.wholes.setdefault(self._masked(node, what, inputs), []).append(
                    node
                )
        if first is None or made < table.known:
            return made
        if node.op == "Select" and _is_nothing(self._source(node, 0)):
            table.laws |= {"a choice of no row is the other input": None}
            return inputs[2]
        base, block = table.parted(inputs[0]) if inputs else (made, ())
        gone = [*node.proto.attr["squeeze_dims"].list.i] if node.op == "Squeeze" else []
        if gone == [0] and base in table.rows:
            ranges = [(axis - 1, begin, end) for axis, begin, end in block]
            return table.block(table.rows[base], ranges) if block else table.rows[base]
        if node.op == "Less" and (sign := self._sign(node)) is not None:
            return sign
        return self._part(first, node, what, inputs) or made if table.shapes else made

    def _sign(self, node: Node) -> int | None:
        """Return the number of a comparison of integers that floats stand for."""
        cast, zero = self._source(node, 0), self._source(node, 1)
        either = self._source(cast, 0) if cast and cast.op == "Bitcast" else None
        bit = self._source(either, 0) if either and either.op == "BitwiseOr" else None
        if bit is None or bit.op != "BitwiseAnd" or self._constant(either, 1) != _ONE:
            return None
        masks = self._constant(bit, 0), self._constant(bit, 1)
        is_float = node.proto.attr["T"].type == _FLOAT32
        if _SIGN not in masks or not (is_float and _is_nothing(zero)):
            return None
        self.table.laws |= {"a sign's bit compared as a float": None}
        whole = self.of((bit.name, 0)), self.table.number("Const", 3, (), 0)
        less = type(node.proto)(op="Less")
        less.attr["T"].CopyFrom(bit.proto.attr["T"])
        return self.table.number(describe(less), node.proto.device, *whole, ())

    def _masked(self, node: Node, what: Any, inputs: Sequence[int]) -> Hashable:
        """Return a key that an op and its parts share."""
        table = self.table
        bases = [table.parted(number)[0] for number in inputs]
        bases = [table.number("equal", table.equal.get(n, -n - 1)) for n in bases]
        for place in range(len(bases)):
            bases[place] = -1 if place == SIZES.get(node.op) else bases[place]
        if node.op == _DRAWS:
            bases[2] = table.added.get(inputs[2], (inputs[2], 0))[0]
        return *what, *bases

    def _part(
        self, first: "Values", node: Node, what: Any, inputs: list[int]
    ) -> _Made | None:
        """Return the blocks that an op makes; None if no law says so."""
        table = self.table
        if (
            node.op == "ConcatV2"
            and len(inputs) > 1
            and (whole := self._joined(node, inputs)) is not None
        ):
            table.laws |= {"concatenated parts are the whole": None}
            return whole
        blocks = [self._block(number) for number in inputs]
        sizes = self._constant(node, SIZES[node.op]) if node.op in SIZES else None
        for each in table.wholes.get(self._masked(node, what, inputs), ()):
            makers = [first.graph.by_name.get(source) for source, _ in each.reads]
            told = ((i, integers(maker)) for i, maker in enumerate(makers))
            whole = Whole(
                each.proto,
                [table.shape(first.of(read)) for read in each.reads],
                table.shapes[each.name][0] or (),
                {i: value for i, value in told if value is not None},
            )
            count = None
            if node.op == _DRAWS:
                counters = inputs[2], first.of(each.reads[2])
                own, start = (table.added.get(n, (0, 0))[1] for n in counters)
                count = own - start
            if (found := find_block(whole, blocks, sizes, count)) is not None:
                table.laws |= {found[0]: None}
                outputs = range(len(table.shapes[each.name]))
                return [
                    table.block(first.of((each.name, i)), found[1]) for i in outputs
                ]
        begin = self._constant(node, 1) if node.op == "Slice" else None
        size = self._constant(node, 2) if node.op == "Slice" else None
        shape = table.shape(inputs[0]) if inputs else ()
        if begin is None or size is None or not len(begin) == len(size) == len(shape):
            return None
        ends = [
            b + s if s >= 0 else n for b, s, n in zip(begin, size, shape, strict=True)
        ]
        return table.block(
            inputs[0], [*zip(range(len(begin)), begin, ends, strict=True)]
        )

    def _block(self, number: int) -> Block | Equal:
        base, block = self.table.parted(number)
        return [*self.table.shape(number)] if base in self.table.equal else block

    def _joined(self, node: Node, inputs: Sequence[int]) -> int | None:
        """Return what blocks are side by side; None if they are not."""
        table, (*parts, _) = self.table, inputs
        base = table.parted(parts[0])[0]
        elements = {table.equal.get(number, -1) for number in parts}
        if (
            len(elements) == 1
            and -1 not in elements
            and (at := self._constant(node, -1))
        ):
            shape = [*table.sides[base]]
            shape[at[0]] = sum(table.sides[number][at[0]] for number in parts)
            others = {(*s[: at[0]], *s[at[0] :][1:]) for s in map(table.shape, parts)}
            return table.fill(elements.pop(), *shape) if len(others) == 1 else None
        axes, shape = self._constant(node, len(parts)), table.sides.get(base)
        ranges, rest = list[tuple[int, int]](), set[Block]()
        for own, block in map(table.parted, parts):
            if own != base or not axes or not shape:
                return None
            cut = {axis: (begin, end) for axis, begin, end in block}
            ranges.append(cut.pop(axes[0] % len(shape), (0, 0)))
            rest.add(tuple((axis, *cut[axis]) for axis in sorted(cut)))
        is_row = all(a[1] == b[0] for a, b in pairwise(ranges))
        if not (axes and shape and is_row and len(rest) == 1) or (0, 0) in ranges:
            return None
        along = axes[0] % len(shape), ranges[0][0], ranges[-1][1]
        return table.block(base, [*rest.pop(), along])


def _is_nothing(node: Node | None) -> bool:
    """Tell whether a node is a constant of zeros, or of False."""
    if node is None or node.op != "Const":
        return False
    tensor = node.proto.attr["value"].tensor
    return not any([*tensor.bool_val, *tensor.float_val, *tensor.tensor_content])
