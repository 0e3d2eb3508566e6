"""Value numbering: equal numbers are equal values, in the step before and after.

A number stands for an op's type, attributes, device and the numbers of its inputs. So a
second run has the number of the first, and what an op reads by a detour of copies has
the number of what was copied. Beyond that:

    variables   A read has the number of the write that it follows. Every write comes
                before a read or after it: else nobody knows what is read.
    effects     An op with another effect is found in the step before by its name, and
                has the same inputs there.
    branches    A write in a loop or branch is such an effect. A read has as its number
                the names of the writes that it follows, or may follow as before. Where
                a variable is used in one branch only, of a true predicate, and outside,
                a write in the branch chooses, as `SelectV2` does, between its value and
                what was there. A branch of sparse gradients runs always if all replicas
                gather an equal constant (`all_reduce_indexed_slices` in
                cross_device_utils.py): ops of the other one are dead (executor.cc), and
                may be missing.
    loops       A loop's Merge is found by its name and taken to be equal; then its
                inputs must be equal, the edge back included.
    laws        Identities that the result names, and those of `lms.proof.laws`.
    rows        Ops that write parts into one memory (`_ParallelConcatUpdate`) write row
                after row, and nobody reads before the last: so the parts are there.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

from lms.proof.laws import SIZES, Block, Whole, find_block
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
_GATHER, _KEYS = "CollectiveGatherV2", (1, 2, 3)  # inputs: size, group and instance
_ADDS = {"AssignAddVariableOp": "-0.0", "AssignSubVariableOp": "0.0"}  # to no effect
_ASSIGN, _DRAWS = "AssignVariableOp", "StatelessRandomUniformV2"
_NEVER = "never"  # when an op of a branch that never runs does so
_SIGN, _ONE = [-(2**31)], [0x3F800000]  # bits of int32: the sign's, and those of 1.0
_FLOAT32, _INT32 = 1, 3  # TensorFlow's numbers of the types
_MINUS = 0x8000  # the bits of -0.0 in 16 bits
_WITH_ZEROS = {1, 2, 10, 14, 19}  # TensorFlow's numbers of float types and of bool
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
    wholes: dict[Hashable, list[Any]] = field(default_factory=dict[Hashable, Any])
    sides: dict[int, tuple[int, ...]] = field(default_factory=dict[int, Any])
    blocks: dict[int, tuple[int, Block]] = field(default_factory=dict[int, Any])
    equal: dict[int, int] = field(default_factory=dict[int, int])  # to the one element
    # Values behind a new first axis; counters of random numbers, and what was added.
    rows: dict[int, int] = field(default_factory=dict[int, int])
    added: dict[int, tuple[int, int]] = field(default_factory=dict[int, Any])
    written: dict[int, list[int]] = field(default_factory=dict[int, Any])  # in rows

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
        wholes = {a: (0, n) for a, n in enumerate(self.sides.get(base, ()))}
        block = tuple((a, *r) for a, r in sorted(found.items()) if r != wholes[a])
        made = self.number("block", base, block) if block else base
        self.blocks |= {made: (base, block)} if block else {}
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
        self._freed = set[Node]()  # ops with variables that have left a branch
        self._places = {split(name): i for name, i in graph.step.arguments.items()}
        self._find_accesses()
        self._agreed = {each.name for each in self._find_agreed()}
        self.when = dict[str, frozenset[Hashable]]()
        for node in graph.nodes:
            self.when[node.name] = self._conditions(node)
            self._check_when(node)
            made = self._branched(node)
            self._made[node.name] = self._numbered(node) if made is None else made
            if node.op == "_ParallelConcatUpdate":
                self._note_row(node)
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

    def compare(self) -> list[Node]:
        """Compare with the step before; return the ops with effects that are new.

        Raises:
            Refuted: Names the first op whose value differs.
        """
        first, steps = self._first, self.graph.step
        assert first is not None
        for before, after in zip(first.graph.step.results, steps.results, strict=True):
            pair = (first, split(before)), (self, split(after))
            one, other = ((own.of(each), own.behind(*each)) for own, each in pair)
            if one != other:
                maker = self.graph.by_name.get(split(after)[0])
                raise Refuted(f"result {after!r}: {self.blame(maker)}")
        for variable in sorted({*first.writes, *self.writes} - self.table.named):
            if first.version(variable) != self.version(variable):
                writers = self.graph.members(self.writes[variable]) or [None]
                raise Refuted(f"variable {variable}: {self.blame(writers[-1])}")
        for name in first.effects.keys() - self.effects.keys():
            raise Refuted(f"effect {name!r} is missing")
        return [n for name, n in self.effects.items() if name not in first.effects]

    def blame(self, node: Node | None) -> str:
        """Name the first op on the way to a node whose value is no value of before."""
        end, table = node, self.table
        while node is not None:
            end = node
            sources = (self.graph.by_name.get(name) for name, _ in node.reads)
            made = ((each, self._made.get(each.name, 0)) for each in sources if each)
            new = (each for each, n in made if isinstance(n, int) and n >= table.known)
            node = next((n for n in new if n.op not in ("Const", "Merge")), None)
        return f"{end.name!r} ({end.op}) makes another value" if end else "is another"

    def version(self, variable: int, node: Node | None = None) -> int:
        """Return the number of a variable's value at a node, or at the step's end."""
        before = self.graph.before[node.index] if node else -1
        earlier = self.writes[variable] & before
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
        ordered = graph.before[i] | graph.after[i] | 1 << i
        return graph.members(self.writes[variable] & ~ordered)

    def _find_accesses(self) -> None:
        """Find which ops read or write variables, and which have other effects."""
        accesses, used = list[tuple[int, Node]](), {n for n, _ in self.graph.readers}
        around: dict[int, set[Hashable]] = defaultdict(set)
        for node, found, gates in self._find_users():
            if not found:
                if node.op in self.graph.step.effects - _MUTE and not self._is_open(
                    node
                ):
                    self.effects[node.name] = node
                continue
            self._touched[node.name] = sorted(found)
            is_read = node.op in _READS or self._is_open(node)
            for variable in found if node.op not in _MUTE else ():
                if not is_read or node.name in used:
                    accesses.append((variable, node))
                    around[variable] |= gates
                self.writes[variable] |= 0 if is_read else 1 << node.index
        for variable, node in accesses:
            beside, gates = self._unordered(variable, node), around[variable]
            is_one = len(gates) < 2 and all(
                isinstance(g, tuple) and g[2] for g in gates
            )
            if (beside or not is_one) and self._first is None:
                self.table.named.add(variable)
            elif (beside or not is_one) and variable not in self.table.named:
                other = (beside or [node])[0].name
                raise Refuted(f"{node.name!r} and {other!r} may change places")

    def _find_users(self) -> Iterator[tuple[Node, set[int], set[Hashable]]]:
        """Yield (node, its variables, the loops and branches that these go through)."""
        behind: dict[Tensor, set[int]] = {
            tensor: {place}
            for tensor, place in self._places.items()
            if place in self.graph.step.handles
        }
        inside: dict[Tensor, set[Hashable]] = {}
        for node in self.graph.nodes:
            found = {v for read in node.reads for v in behind.get(read, ())}
            gates = {gate for read in node.reads for gate in inside.get(read, ())}
            if not found or node.op not in _HANDS_ON:
                yield node, found, gates
                continue
            for output in range(2):
                own = (*node.reads[-1], output) if node.op == "Switch" else node.op
                behind[node.name, output] = found
                inside[node.name, output] = gates | ({own} - {"Identity"})

    def _find_agreed(self) -> Iterator[Node]:
        """Yield the gathers to which all devices of a group give one equal integer."""
        groups: dict[Any, list[Node]] = defaultdict(list)
        for node in self.graph.nodes:
            if node.op == _GATHER:
                groups[tuple(self._told(node, place) for place in _KEYS)].append(node)
        for keys, nodes in groups.items():
            given = {tuple(self._constant(node, 0) or ()) for node in nodes}
            if keys[0] == len(nodes) and None not in keys and [*map(len, given)] == [1]:
                yield from nodes

    def _told(self, node: Node, place: int) -> int | None:
        """Return a number that a node reads, also in a loop or branch."""
        tensor = node.reads[place]
        while (maker := self.graph.by_name.get(tensor[0])) and maker.op in _HANDS_ON:
            tensor = maker.reads[0]
        value = integers(maker) or [None]
        known = self.graph.step.numbers.get(self._places.get(tensor, -1))
        return value[0] if maker and len(value) == 1 else known

    def _conditions(self, node: Node) -> frozenset[Hashable]:
        """Return when a node runs: in which loops, and behind which predicates."""
        begin = frozenset[Hashable]()
        if node.op == "Exit":  # of Enter, Merge, Switch, Exit
            switch = self.graph.by_name[node.reads[0][0]]
            merge = self.graph.by_name[switch.reads[0][0]]
            (enter,) = (source for source in merge.sources if source.op == "Enter")
            return begin.union(*(self.when[each.name] for each in enter.sources))
        found = [self.behind(*read) for read in node.reads]
        if node.op == "Merge":  # at the begin of a loop only Enter was numbered before
            known = zip(found, node.reads, strict=True)
            there = [w for w, (name, _) in known if name in self.when]
            there = [when for when in there if _NEVER not in when] or there
            return frozenset.intersection(*there)
        if node.op == "Enter":
            begin |= {node.proto.attr["frame_name"].s}
        return begin.union(*found, *(self.behind(name, -1) for name in node.waits))

    def _check_when(self, node: Node) -> None:
        """Check that a node runs where it did; outside of loops it may do so always.

        A Merge passes on the input that is there first: all are there when they were,
        and what now runs always, and writes, has ended before the Merge starts.
        """
        when, first, graph = self.when[node.name], self._first, self.graph
        before = when if first is None else first.when.get(node.name, when)
        is_loop = any(isinstance(each, bytes) for each in before)
        if not when <= before or (when != before and is_loop):
            raise Refuted(f"{node.name!r} runs in another branch or loop")
        self._freed |= (
            {node} if when != before and node.name in self._touched else set()
        )
        if node.op != "Merge" or self._begins(node):
            return
        if first and node.name not in self.table.keys:
            raise Refuted(f"{node.name!r} is a new Merge")
        self._agree(node, tuple(self.behind(*read) for read in node.reads))
        for freed in self._freed:
            names = [name for name, _ in node.reads], node.waits
            ends = [[graph.by_name.get(each) for each in own] for own in names]
            reads, waits = (
                [
                    n is freed or (n is not None and graph.is_first(freed, n))
                    for n in own
                ]
                for own in ends
            )
            if any(reads) and not (all(reads) or any(waits)):
                raise Refuted(f"{node.name!r} may end before {freed.name!r}")

    def behind(self, name: str, output: int) -> frozenset[Hashable]:
        """Return when a tensor is there, or an op has ended."""
        maker, when = self.graph.by_name.get(name), self.when.get(name, frozenset())
        if maker is None or maker.op != "Switch" or output < 0:
            return when
        which = self.of(maker.reads[1]), output
        if which[0] == self.table.number("true"):
            self.table.laws |= {"a branch that always runs": None}
            return when if output else when | {_NEVER}
        return when | {which}

    def _branched(self, node: Node) -> _Made | None:
        """Return the numbers of a dead op, and at both ends of an open branch."""
        table, true = self.table, self.table.number("true")
        if _NEVER in self.when[node.name]:
            self.effects.pop(node.name, None)
            return table.number("named", node.name)
        reads = list(enumerate(node.reads))
        alive = [i for i, read in reads if _NEVER not in self.behind(*read)]
        if node.op == "Merge" and len(alive) == 1 < len(reads):
            chosen = table.number("Const", _INT32, (), alive[0])
            return [self.of(node.reads[alive[0]]), chosen]
        makers = [self.graph.by_name.get(name) for name, _ in node.reads]
        if node.op == "Equal" and {n.op for n in makers if n} == {"Max", "Min"}:
            read = {n.reads[0][0] for n in makers if n}
            return true if len(read) == 1 and read <= self._agreed else None
        is_branch = node.op == "Switch" and makers[1] and makers[1].op != "LoopCond"
        # `when` tells which output of a branch's Switch has the value.
        return [self.of(node.reads[0])] * 2 if is_branch else None

    def _begins(self, node: Node) -> bool:
        """Tell whether a node begins the rounds of a loop."""
        return any(self.graph.is_back(node, source) for source in node.sources)

    def _agree(self, node: Node, key: Hashable) -> None:
        """Check that a node is what the node of its name was before."""
        if self.table.keys.setdefault(node.name, key) != key:
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
            for shape in table.shapes.get(node.name, ()):
                table.sides.setdefault(versions[0], shape or ())
            return versions[0]
        if (value := integers(node)) is not None:
            tensor = node.proto.attr["value"].tensor
            shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
            return table.number("Const", node.proto.attr["dtype"].type, shape, *value)
        if node.op == "Fill" and (shape := self._constant(node, 0)) is not None:
            made = table.number("fill", inputs[-1], *shape)
            table.equal[made], table.sides[made] = inputs[-1], tuple(shape)
            return made
        what: Any = describe(node.proto), node.proto.device * (node.op != "Const")
        if node.op == "Merge":
            what = (*what, *(self.behind(*read) for read in node.reads))
        if variables or node.name in self.effects:
            return self._accessed(node, what, inputs, versions)
        return self._by_law(node, what, inputs, table.number(*what, *inputs, ()))

    def _accessed(
        self, node: Node, what: Any, inputs: list[int], versions: tuple[int, ...]
    ) -> int:
        """Return the number of an op that reads or writes variables, or has effects."""
        table, when = self.table, self.when[node.name]
        variables = self._touched.get(node.name, ())
        writes = [v for v in variables if self.writes[v] >> node.index & 1]
        if node.name in self.effects or not table.named.isdisjoint(writes):
            self.effects[node.name] = node
            self._agree(node, (*what, *inputs, versions, when))
            made = table.number("named", node.name)
            table.written |= {made: []} if node.op == "Empty" else {}
            return made
        if writes and when and node.op in {_ASSIGN, *_ADDS}:
            table.laws |= {"a write in a branch chooses": None}
            rest = _ADDS.get(node.op, versions[0])
            inputs[1] = table.number("choice", when, inputs[1], rest)
        elif writes and when:
            what = (*what, when)
        made = table.number(*what, *inputs, versions)
        for variable in writes:
            value = table.number("written", made, variable)
            value = inputs[1] if node.op == _ASSIGN else value
            self._written[node.index, variable] = value
        return made

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
                what = "compiled", describe(each), node.proto.device
                own = table.number(*what, read, output)
                made[name] = read[0] if each.op in _SAME else own
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
        if node.op == "SelectV2":
            rest = _zero(self._source(node, 2), rank=0) or inputs[2]
            made = table.number("choice", frozenset([(inputs[0], 1)]), inputs[1], rest)
        if node.op == "ExpandDims" and self._constant(node, 1) == [0]:
            table.rows[made] = inputs[0]
            table.sides.setdefault(made, (1, *table.shape(inputs[0])))
        if node.op == "AddV2" and len(by := self._constant(node, 1) or ()) == _COUNTER:
            table.added[made] = (inputs[0], by[0]) if by[1] == 0 else (made, 0)
        if first is None and (shapes := table.shapes.get(node.name)):
            rest = (table.number("output", made, i) for i in range(1, len(shapes)))
            outputs = [made, *rest]
            for own, shape in zip(outputs, shapes, strict=True):
                table.sides.setdefault(own, shape or ())
            told = {i: self._constant(node, i) for i in range(len(inputs))}
            told = {i: value for i, value in told.items() if value is not None}
            shapes = [table.shape(number) for number in inputs]
            whole = Whole(node.proto, shapes, table.sides[made], told)
            key, start = self._masked(node, what, inputs)
            table.wholes.setdefault(key, []).append((whole, outputs, start))
        if first is None or made < table.known:
            return made
        if node.op == "Select" and _zero(self._source(node, 0)):
            table.laws |= {"a choice of no row is the other input": None}
            return inputs[2]
        base, block = table.parted(inputs[0]) if inputs else (made, ())
        gone = [*node.proto.attr["squeeze_dims"].list.i] if node.op == "Squeeze" else []
        if gone == [0] and base in table.rows:
            return table.block(table.rows[base], [(a - 1, b, e) for a, b, e in block])
        if node.op == "Less" and (sign := self._sign(node)) is not None:
            return sign
        return self._part(node, what, inputs) or made if table.shapes else made

    def _sign(self, node: Node) -> int | None:
        """Return the number of a comparison of integers that floats stand for."""
        cast, zero = self._source(node, 0), self._source(node, 1)
        either = self._source(cast, 0) if cast and cast.op == "Bitcast" else None
        bit = self._source(either, 0) if either and either.op == "BitwiseOr" else None
        if bit is None or bit.op != "BitwiseAnd" or self._constant(either, 1) != _ONE:
            return None
        masks = self._constant(bit, 0), self._constant(bit, 1)
        is_float = node.proto.attr["T"].type == _FLOAT32
        if _SIGN not in masks or not (is_float and _zero(zero) == "0.0"):
            return None
        self.table.laws |= {"a sign's bit compared as a float": None}
        whole = self.of((bit.name, 0)), self.table.number("Const", 3, (), 0)
        less = type(node.proto)(op="Less")
        less.attr["T"].CopyFrom(bit.proto.attr["T"])
        return self.table.number(describe(less), node.proto.device, *whole, ())

    def _masked(self, node: Node, what: Any, inputs: list[int]) -> tuple[Any, int]:
        """Return (a key that an op and its parts share, what its counter is ahead)."""
        table, ahead = self.table, 0
        bases = [table.parted(number)[0] for number in inputs]
        bases = [table.number("equal", table.equal.get(n, -n - 1)) for n in bases]
        if node.op in SIZES:
            bases[SIZES[node.op]] = -1
        if node.op == _DRAWS:
            bases[2], ahead = table.added.get(inputs[2], (inputs[2], 0))
        return (*what, *bases), ahead

    def _part(self, node: Node, what: Any, inputs: list[int]) -> _Made | None:
        """Return the blocks that an op makes; None if no law says so."""
        table = self.table
        if (joined := self._joined(node, inputs)) is not None:
            table.laws |= {"concatenated parts are the whole": None}
            return joined
        parts = [table.parted(number) for number in inputs]
        blocks = [() if base in table.equal else block for base, block in parts]
        shapes = [table.shape(number) for number in inputs]
        sizes = self._constant(node, SIZES[node.op]) if node.op in SIZES else None
        key, begin = self._masked(node, what, inputs)
        for whole, outputs, start in table.wholes.get(key, ()):
            count = None if node.op != _DRAWS else begin - start
            if (found := find_block(whole, blocks, shapes, sizes, count)) is not None:
                table.laws |= {found[0]: None}
                return [table.block(number, found[1]) for number in outputs]
        begin, size = self._constant(node, 1) or (), self._constant(node, 2) or ()
        shape = table.shape(inputs[0]) if node.op == "Slice" else ()
        if not shape or not len(begin) == len(size) == len(shape):
            return None
        sides = enumerate(zip(begin, size, shape, strict=True))
        ranges = [(a, b, b + s if s >= 0 else n) for a, (b, s, n) in sides]
        return table.block(inputs[0], ranges)

    def _joined(self, node: Node, inputs: Sequence[int]) -> int | None:
        """Return what blocks are side by side, or were written so; None if not."""
        told = self._constant(node, len(inputs) - 1) or []
        if node.op == "ConcatV2" and told:
            return self._side_by_side(inputs[:-1], told[0])
        parts = self.table.written.get(inputs[0]) if node.op == "Reshape" else None
        for axis in range(len(told) if parts else 0):
            if (found := self._side_by_side(parts or (), axis)) is not None:
                shape = self.table.shape(found)
                return found if [*shape] == told and prod(shape[:axis]) == 1 else None
        return None

    def _side_by_side(self, parts: Sequence[int], axis: int) -> int | None:
        table, blocks = self.table, [*map(self.table.parted, parts)]
        ranges, rest, base = list[tuple[int, int]](), set[Block](), blocks[0][0]
        if not (shape := table.sides.get(base)) or {own for own, _ in blocks} != {base}:
            return None
        for _, block in blocks:
            cut = {at: (begin, end) for at, begin, end in block}
            ranges.append(cut.pop(axis % len(shape), (0, 0)))
            rest.add(tuple((at, *cut[at]) for at in sorted(cut)))
        is_row = all(a[1] == b[0] for a, b in pairwise(ranges))
        if not is_row or len(rest) > 1 or (0, 0) in ranges:
            return None
        along = axis % len(shape), ranges[0][0], ranges[-1][1]
        return table.block(base, [*rest.pop(), along])

    def _note_row(self, node: Node) -> None:
        """Note the parts in a memory, of which an op writes the last."""
        made, written = self.of((node.name, 0)), self.table.written
        parts, row = written.get(self.of(node.reads[0])), self._source(node, 1)
        others = {*self.graph.readers.get(node.reads[0], ())} - {node}
        maker = getattr(self._source(node, 0), "op", "")  # an alias may be another's
        is_own = maker in {"Empty", node.op, COPY_IN} and not others
        is_next = parts is not None and node.proto.attr["loc"].i == len(parts)
        is_new = self._first is not None and made >= self.table.known
        if not (is_own and is_next and is_new and row and row.op == "Reshape"):
            raise Refuted(f"{node.name!r} may write over what others read")
        written[made] = [*(parts or ()), self.of(row.reads[0])]


def _zero(node: Node | None, rank: int | None = None) -> str | None:
    """Return the 0 that a constant's elements are, with its sign; None for others."""
    tensor = node.proto.attr["value"].tensor if node and node.op == "Const" else None
    if tensor is not None and rank not in (None, len(tensor.tensor_shape.dim)):
        return None
    if tensor is None or tensor.dtype not in _WITH_ZEROS or any(tensor.tensor_content):
        return None
    half = [-0.0 if n == _MINUS else n for n in tensor.half_val]
    values = *tensor.bool_val, *tensor.float_val, *tensor.double_val, *half
    found = {str(float(value)) for value in values} or {"0.0"}
    return found.pop() if found in ({"0.0"}, {"-0.0"}) else None
