"""The experiments of `docs/results.md`, in order: titles, and what is emulated.

What was asked and how it was measured stands in each experiment's own docstring; what
came out is computed from its results.
"""

from collections.abc import Callable
from dataclasses import dataclass

from experiments import (
    dice_vs_volume_drawing,
    half_the_memory_drawing,
    largest_volume_drawing,
    link_comparison_drawing,
    step_time_overhead_drawing,
    true_size_drawing,
    zoo_drawing,
)
from experiments.report_findings import FINDINGS, Finding, Head, Rows

__all__ = ["CATALOGUE", "Entry"]

_DEVICE = (
    "The device: a CPU with the allocator that TensorFlow uses on GPUs and a hard "
    "limit. Copies run at the speed of the machine's memory."
)
_LINK = (
    "The device, a CPU with the allocator that TensorFlow uses on GPUs and a hard "
    "limit; and its link, to whose speed copies are slowed."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One experiment.

    Args:
        name: Its module in `experiments`; its results are called so too.
        title: Its headline.
        emulated: What stands for what is not there.
        finding: The sentence and the table of its results; None for what only draws.
        run: The words after `python -m experiments.NAME` that make its results.
    """

    name: str
    title: str
    emulated: str
    finding: Callable[[Head, Rows], Finding] | None = None
    run: str = "run"

    @property
    def command(self) -> str:
        """What makes its results."""
        return f"python -m experiments.{self.name} {self.run}"


_ALL = {
    **FINDINGS,
    "true_size": true_size_drawing.finding,
    "largest_volume": largest_volume_drawing.finding,
    "half_the_memory": half_the_memory_drawing.finding,
    "link_comparison": link_comparison_drawing.finding,
    "dice_vs_volume": dice_vs_volume_drawing.finding,
    "step_time_overhead": step_time_overhead_drawing.finding,
    "zoo": zoo_drawing.finding,
}


def _entry(name: str, title: str, emulated: str) -> Entry:
    return Entry(name=name, title=title, emulated=emulated, finding=_ALL.get(name))


CATALOGUE = (
    _entry("true_size", "The case study's network at its true size", _DEVICE),
    _entry("largest_volume", "The largest that trains in a fixed memory", _DEVICE),
    _entry("zoo", "Models that others wrote, in less memory", _DEVICE),
    _entry("step_time_overhead", "What swapping costs, against volume", _LINK),
    _entry("half_the_memory", "What a step costs in half of the memory", _LINK),
    _entry(
        "dice_vs_volume",
        "Do larger volumes give better segmentations?",
        "The patients: subjects are synthetic. The device is not: a CPU with all of "
        "the machine's memory.",
    ),
    _entry("unet3d_sizes", "Sizes that train, from files to weights", _DEVICE),
    _entry("planner_comparison", "Memory, bytes and time of each planner", _DEVICE),
    _entry("simulator_accuracy", "Steps, predicted and measured", _LINK),
    _entry(
        "link_comparison",
        "Two servers: published, predicted, trained here",
        "What is predicted: V100 cards and their links are simulated from data sheets "
        "and published measurements, nothing ran on them. What is trained: the device "
        "is a core of a CPU with the allocator that TensorFlow uses on GPUs and a hard "
        "limit, and copies are slowed to its link's speed.",
    ),
    _entry("overhead_when_it_fits", "What it costs when everything fits", _DEVICE),
    _entry(
        "planning_scale",
        "Planning time against the number of ops",
        "Nothing ran on a device: graphs are drawn or traced, then planned on the CPU.",
    ),
)
