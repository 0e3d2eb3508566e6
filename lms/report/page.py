"""One HTML page of steps: memory by layer over time, copies, each tensor's fate.

    steps ──> plain data as JSON ──> page.html, which draws it; nothing else is loaded

Bytes are counted at each op of the plan's order, and drawn where the device runs that
op: their sum is `StepTimeline.planned`. What an op writes over counts as the output.
Where no seconds are known, as of a step that fits, the axis counts ops.

Known weaknesses: a layer is found by the scopes in the names of its ops. An estimate of
recomputation is of the tensor's own op, where the op's inputs are on the device.
"""

import html
import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from lms.ir.graph import op_of
from lms.ir.liveness import written_over
from lms.ir.plan import ResolvedPlan, resolve
from lms.ir.recompute import PREFIX, original_name
from lms.report.step import StepReport, StepTimeline, headline
from lms.simulation.timeline import Lane, Timeline
from lms.units import Seconds

__all__ = ["Shown", "as_page", "in_cell"]

_OUTSIDE = "outside of layers"
_BEFORE = re.compile(
    r"^(ConstantFolding/)?(StatefulPartitionedCall/)?(gradient_tape/)?"
)
_NUMBER = re.compile(r"_\d+$")  # which TensorFlow appends to a scope's name

# The page is this many pixels high in a notebook's cell.
_HEIGHT = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A step to show, and why it was refused or failed; empty where it was not."""

    report: StepReport
    timeline: StepTimeline
    why: str = ""


def as_page(steps: Sequence[Shown], layers: Collection[str] = ()) -> str:
    """Return the page of steps as HTML; `layers` are names of the model's layers.

    Example:
        >>> as_page([])[:15]
        '<!doctype html>'
    """
    # A name may hold "</script>" or "<!--".
    data = json.dumps([_data(each, layers) for each in steps], separators=(",", ":"))
    frame = files("lms.report").joinpath("page.html").read_text("utf-8")
    return frame.replace("[/*steps*/]", data.replace("<", "\\u003c"))


def in_cell(said: str, page: str) -> str:
    """Return a text and a page in a frame, for a notebook's cell."""
    given = f'sandbox="allow-scripts" style="width:100%;height:{_HEIGHT}px;border:0"'
    frame = f'<iframe {given} srcdoc="{html.escape(page)}"></iframe>'
    return f"<pre>{html.escape(said)}</pre>{frame if page else ''}"


def _data(shown: Shown, known: Collection[str]) -> dict[str, Any]:
    line, link = shown.timeline, shown.timeline.hardware
    resolved = resolve(line.graph, line.plan)
    ops = resolved.ops
    layer_of = _layers([op.name for op in ops], known)
    layers = _numbers(layer_of(op.name) for op in ops)
    types = _numbers(op.type for op in ops)
    place = _numbers(op.name for op in ops)
    tensors = _tensors(line, resolved, place)
    number = _numbers(tensors)
    return {
        "head": headline(shown.report),
        "why": shown.why,
        "report": shown.report.numbers(),
        "device": link and link.name,
        "source": line.costs and line.costs.source,
        "link": link and [link.latency, link.d2h, link.h2d],
        "times": _times(line, resolved),
        "ops": [(op.name, layers[layer_of(op.name)], types[op.type]) for op in ops],
        "tensors": list(tensors.values()),
        "lives": [
            (number[original_name(root)], start, end, int(root.startswith(PREFIX)))
            for root, start, end in _lives(resolved, line.graph.roots)
        ],
        "scratch": _changes([op.scratch for op in ops]),
        "used": _changes(line.planned.device),
        "spans": [*_spans(line.lanes or Timeline(), place, number)],
        "held": _held(line, layer_of),
        "layers": list(layers),
        "types": list(types),
    }


def _spans(
    lanes: Timeline, place: Mapping[str, int], number: Mapping[str, int]
) -> Iterator[tuple[int, str, float, float]]:
    """Yield each op's position or copy's tensor, its lane; of waits their cause."""
    for i in lanes.intervals:
        of = number.get(original_name(i.name), -1)
        of = place[i.name] if i.lane is Lane.COMPUTE else of
        yield of, i.lane.name, _ms(i.start), _ms(i.end)
    for wait in lanes.stalls:
        of = number.get(original_name(wait.tensor), -1)
        yield of, wait.cause.value, _ms(wait.start), _ms(wait.end)


def _numbers(texts: Iterable[str]) -> dict[str, int]:
    return {text: i for i, text in enumerate(dict.fromkeys(texts))}


def _ms(seconds: Seconds) -> float:
    return round(seconds * 1e3, 6)  # to a nanosecond


def _changes(values: Sequence[int]) -> list[tuple[int, int]]:
    """Return positions and values, where the value differs from the one before."""
    both = enumerate(zip(values, (0, *values), strict=False))
    return [(i, now) for i, (now, before) in both if now != before]


def _lives(
    resolved: ResolvedPlan, roots: Mapping[str, str]
) -> list[tuple[str, int, int]]:
    """Return roots, first positions on the device, and first positions behind.

    An input that is written over ends before the op that does so.
    """
    lives = resolved.residencies
    ends = [life.end for life in lives]
    dying: dict[int, dict[str, int]] = defaultdict(dict)
    for i, life in enumerate(lives):
        if life.dies_at is not None:
            dying[life.dies_at][life.root] = i
    for at, here in dying.items():
        sizes = {root: lives[i].size for root, i in here.items()}
        if (found := written_over(resolved.ops[at], roots, sizes)) is not None:
            ends[here[found[1]]] = at
    return [(a.root, a.start, end) for a, end in zip(lives, ends, strict=True)]


def _tensors(
    line: StepTimeline, resolved: ResolvedPlan, place: Mapping[str, int]
) -> dict[str, list[Any]]:
    """Return what is told of each tensor: its op's position, output, bytes, shape.

    Then whether it stays, the number of swap-ins, whether it is recomputed, whether its
    op may run twice, and that op's milliseconds, if known.
    """
    graph, plan, costs = line.graph, line.plan, line.costs
    swaps = {original_name(s.tensor): len(s.swap_ins) for s in plan.swaps}
    again = {original_name(item.op) for item in plan.recomputed}
    found: dict[str, list[Any]] = {}
    for root, buffer in resolved.buffers.items():
        name = original_name(root)
        tensor, op = graph.tensors[root], graph.by_name[op_of(root)]
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        found[name] = [
            place[op_of(name)],
            *(name.rpartition(":")[2], buffer.size, f"{tensor.dtype} {shape}"),
            *(int(buffer.pinned), swaps.get(name, 0), int(op_of(name) in again)),
            int(op.repeatable and not op.varies),
            costs and _ms(costs.of(op.name)),
        ]
    return found


def _times(line: StepTimeline, resolved: ResolvedPlan) -> list[float] | None:
    """Return when the device begins each op, and the step's end; None if not known."""
    if line.lanes is None:
        return None
    starts = {i.name: i.start for i in line.lanes.lane(Lane.COMPUTE)}
    times = [line.lanes.seconds]
    for op in reversed(resolved.ops):  # an op without seconds begins with the next
        times.append(starts.get(op.name, times[-1]))
    return [*map(_ms, reversed(times))]


def _layers(names: Iterable[str], known: Collection[str]) -> Callable[[str], str]:
    """Return a function that finds an op's layer by its name.

    TensorFlow numbers scopes anew: of the layers `conv` and `conv_1` the scopes may be
    `conv_1` and `conv_1_1`. Without known layers, two scopes count as the layer.
    """
    scopes = {scope for name in names for scope in _scopes(name)}
    exact = all(s in known for s in scopes if _NUMBER.sub("", s) in known)

    def layer_of(name: str) -> str:
        outer = _scopes(name)
        own = outer if exact else [_NUMBER.sub("", scope) for scope in outer]
        found = [scope for scope in own if scope in known]
        return "/".join(found or outer[: 1 if known else 2]) or _OUTSIDE

    return layer_of


def _scopes(name: str) -> list[str]:
    return _BEFORE.sub("", original_name(name)).split("/")[:-1]


def _held(line: StepTimeline, layer_of: Callable[[str], str]) -> list[list[Any]]:
    """Return kind, layer and bytes of what the step has from its start.

    A variable that is read below a scope without gradients alone is a slot or counter.
    """
    graph, rows = line.graph, list[list[Any]]()
    backward = (op.name for op in graph.ops if "gradient_tape/" in op.name)
    trained = {scope for name in backward for scope in _scopes(name)[:1]}
    for name, size, is_input, is_on_host in line.held:
        readers = [op.name for op in graph.consumers.get(f"{name}:0", ())]
        own = [
            n for n in readers if not trained or trained.intersection(_scopes(n)[:1])
        ]
        kind = "batch" if is_input else "weights" if own else "optimizer's slots"
        layer = layer_of((own or readers or [""])[0])
        rows.append([kind, layer, size, int(is_on_host)])
    return rows
