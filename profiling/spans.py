"""Records of TensorFlow's profiler, as plain spans of time.

The profiler writes an XSpace (xplane.proto): planes of lines of events. Times of a line
count from its own start in picoseconds; all lines count from the start of the session.

Sources: xplane.proto, xplane_schema.cc and cupti_collector.cc of XLA (`tsl/profiler`,
`backends/profiler/gpu`): a GPU's plane is `/device:GPU:0`, a line is a stream, and
copies have "memcpy_details" ("kind_src:pinned kind_dst:device size:4096 dest:0 ...").
An H200's traces agree (experiments/results/h200/events.jsonl.xz): "tf_op" has an op's
full name and type, but for memsets and for copies of the program itself.

Records of an emulated card's driver (`lms.emulation.counters`) become spans, too.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lms.units import Seconds

__all__ = ["Span", "card_spans", "copied_bytes", "read_spans"]

_MEMORY = ("MemoryAllocation", "MemoryDeallocation")
_CARD = "/device:GPU:0"
_COPIES = {"1": "MemcpyH2D", "2": "MemcpyD2H"}  # by the driver's lane


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """An event of a trace.

    Args:
        plane: The device, such as `/host:CPU` or `/device:GPU:0`.
        line: The thread or stream.
        name: The event.
        start: Seconds from the start of the session.
        end: As `start`.
        facts: Other facts of the event, by name.
    """

    plane: str
    line: str
    name: str
    start: Seconds
    end: Seconds
    facts: Mapping[str, Any] = field(default_factory=dict)


def read_spans(space: Any, *, mark: str) -> list[Span]:
    """Read kernels, copies, memory and marks of a session, in order of start.

    Args:
        space: An XSpace.
        mark: Name of the caller's own events (`tf.profiler.experimental.Trace`).
    """
    spans = [span for plane in space.planes for span in _of_plane(plane, mark)]
    return sorted(spans, key=lambda span: (span.start, span.end))


def card_spans(text: str, clock: Callable[[Seconds], Seconds]) -> Iterator[Span]:
    """Read records of an emulated card's driver.

    Args:
        text: The file that `lms.emulation.counters.end_trace` wrote.
        clock: Maps the card's time to the profiler's.

    Example:
        >>> (copy,) = card_spans("2 0.5 1.5 0.4 64 D2H", lambda moment: moment + 1)
        >>> copy.name, copy.start, copied_bytes(copy)
        ('MemcpyD2H', 1.5, 64)
    """
    for line in text.splitlines():
        lane, start, end, _, size, name = line.split(" ", 5)
        is_copy = lane in _COPIES
        yield Span(
            plane=_CARD,
            line=lane,
            name=_COPIES.get(lane, name),
            start=clock(float(start)),
            end=clock(float(end)),
            facts={"memcpy_details": f"size:{size}"} if is_copy else {"tf_op": name},
        )


def copied_bytes(span: Span) -> int:
    """Return the bytes of a copy on a GPU; 0 for other events.

    Example:
        >>> details = "kind_src:pinned kind_dst:device size:4096 dest:0 async:1"
        >>> copied_bytes(Span(plane="", line="", name="MemcpyH2D", start=0, end=1,
        ...                   facts={"memcpy_details": details}))
        4096
    """
    found = re.search(r"\bsize:(\d+)", str(span.facts.get("memcpy_details", "")))
    return int(found[1]) if found else 0


def _of_plane(plane: Any, mark: str) -> Iterator[Span]:
    on_device = plane.name.startswith("/device:GPU:")
    for line in plane.lines:
        # Other lines repeat the streams' events, by name scope and by step.
        if on_device and not line.name.startswith("Stream #"):
            continue
        for event in line.events:
            name = plane.event_metadata[event.metadata_id].name
            told = name == mark or name in _MEMORY
            if not (on_device or told):
                continue
            start = line.timestamp_ns * 1e-9 + event.offset_ps * 1e-12
            yield Span(
                plane=plane.name,
                line=line.display_name or line.name,
                name=name,
                start=start,
                end=start + event.duration_ps * 1e-12,
                facts=_facts(plane, event),
            )


def _facts(plane: Any, event: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind)
        if kind == "ref_value":
            value = plane.stat_metadata[value].name
        facts[plane.stat_metadata[stat.metadata_id].name] = value
    return facts
