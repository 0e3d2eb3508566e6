"""Small questions to a card, each in a process of its own, as trials are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiling.record import write_json

__all__ = ["run_probe"]


def run_probe(name: str, knobs: Mapping[str, Any], output: Path) -> None:
    """Ask one of them; what is found is written at once, for a process that dies.

    Args:
        name: machine, launches, refused, cards, batches or transports.
        knobs: What it wants to know.
        output: JSON file.
    """
    from experiments.probes import questions, transports
    from lms.tf.measure.devices import find_device

    probe = getattr(transports if name == "transports" else questions, name)
    row: dict[str, Any] = {}
    for found in probe(knobs, find_device()):
        row |= found
        write_json(output, row)
    write_json(output, row | {"error": None})
