"""Small questions to a card, each in a process of its own, as trials are."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["run_probe"]


def run_probe(
    name: str, settings: Mapping[str, Any], note: Callable[..., None], trace: Path
) -> None:
    """Ask one of them; what is found is noted at once, for a process that dies.

    Args:
        name: machine, link, launches, refused, cards, batches or transports.
        settings: What it wants to know.
        note: Takes results by name.
        trace: Name of files beside the result, without an ending.
    """
    from experiments.probes import questions, transports
    from lms.tf.measure.devices import find_device

    device = find_device()
    if name == "link":
        questions.link(settings, device, note, trace)
    elif name == "transports":
        transports.transports(settings, device, note)
    else:
        getattr(questions, name)(settings, device, note)
    note(error=None)
