"""Steps as files: what was traced once is planned without TensorFlow.

A file is JSON of the graph's fields by name; a field that has its default is left out.
An op of TensorFlow's own graph that is the planned graph's too is its number there.
"""

import gzip
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from lms.ir.graph import GraphView, Op, Tensor

__all__ = ["FOLDER", "StoredStep", "read_step", "write_step"]

FOLDER = Path(__file__).with_name("recorded")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStep:
    """A step on no device yet.

    Args:
        graph: What is planned.
        own: TensorFlow's own graph of the step.
        persistent: Bytes that are in use beside it.
    """

    graph: GraphView
    own: GraphView
    persistent: int


def write_step(name: str, step: StoredStep) -> None:
    """Write a step; the same step makes the same bytes."""
    number = {op: i for i, op in enumerate(step.graph.ops)}
    data = {
        "persistent": step.persistent,
        "results": step.graph.results,
        "own_results": step.own.results,
        "ops": [_as_data(op) for op in step.graph.ops],
        "own_ops": [number.get(op, _as_data(op)) for op in step.own.ops],
    }
    text = json.dumps(data, separators=(",", ":"))
    _path(name).write_bytes(gzip.compress(text.encode(), mtime=0))


def read_step(name: str) -> StoredStep:
    """Read the step that `write_step` wrote."""
    data = json.loads(gzip.decompress(_path(name).read_bytes()))
    ops = tuple(_op(op) for op in data["ops"])
    own = tuple(ops[op] if isinstance(op, int) else _op(op) for op in data["own_ops"])
    return StoredStep(
        graph=GraphView(ops=ops, results=tuple(data["results"])),
        own=GraphView(ops=own, results=tuple(data["own_results"])),
        persistent=data["persistent"],
    )


def _path(name: str) -> Path:
    return FOLDER / f"{name}.json.gz"


def _as_data(value: Op | Tensor) -> dict[str, Any]:
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    default = {field.name: field.default for field in fields(value)}
    if isinstance(value, Op):
        found["outputs"] = tuple(_as_data(tensor) for tensor in value.outputs)
    return {
        name: part
        for name, part in found.items()
        if default[name] is MISSING or part != default[name]
    }


def _op(data: Mapping[str, Any]) -> Op:
    found = _as_fields(data)
    made = found.pop("outputs", ())
    return Op(outputs=tuple(Tensor(**_as_fields(part)) for part in made), **found)


def _as_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in data.items()
    }
