"""The profilers' part of the report: one section for each kind of profile."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.report_page import Section
from profiling.drawing import FIGURES
from profiling.record import read_result
from profiling.tables import TABLES

__all__ = ["circumstantial", "profile_sections"]

Results = Mapping[str, Mapping[str, Any]]


def profile_sections(folder: Path, figures: Path) -> list[Section]:
    """The sections of the profiles in a folder.

    Args:
        folder: Of files that a `--output` of `profiling` wrote.
        figures: Folder for what is drawn.
    """
    kinds: dict[str, dict[str, Mapping[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        result = read_result(path)
        kinds.setdefault(result["kind"], {})[path.stem] = result
    return [_section(kind, kinds[kind], figures) for kind in _SAID if kind in kinds]


def _section(kind: str, results: Results, figures: Path) -> Section:
    title, question, said = _SAID[kind]
    names = ", ".join(f"`{name}.json`" for name in results)
    drawn = FIGURES[kind](results, figures) if kind in FIGURES else []
    first = next(iter(results.values()))
    emulated = "The device, a CPU of limited memory, and its link."
    return Section(
        name=f"profile-{kind}",
        title=title,
        question=question,
        finding=" ".join(said(results)),
        tables=tuple(TABLES[kind](results)),
        facts=(
            *circumstantial({**first, "settings": {}}),
            ("files", f"{names} in `profiling/results/`"),
            ("emulated", emulated),
        ),
        figures=tuple(path for path in drawn if path.suffix == ".png"),
        command=f"python -m profiling.{kind}",
    )


def circumstantial(head: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Where and how a result came about, from its first line."""
    machine, versions = head["machine"], head["versions"]
    memory = str(machine["memory"]).removesuffix(" kB")
    size = f"{int(memory) / 2**20:.0f} GiB" if memory.isdigit() else memory
    cores = f"{machine['cores']} cores"
    yield "machine", f"{machine['processor']}, {cores}, {size}, {machine['system']}"
    yield "versions", ", ".join(f"{k} {v}" for k, v in versions.items() if v)
    yield "commit", f"`{head['commit']}`"
    if head.get("date"):
        yield "date", str(head["date"])
    settings = head.get("settings") or {}
    words = ", ".join(f"{key} {value}" for key, value in settings.items())
    yield "settings", words or "none"


def _step_timeline(results: Results) -> Iterator[str]:
    for name, result in results.items():
        found, told = result["median"], result["predicted"]
        yield (
            f"{name}: a step takes {found['seconds']:.2f} s ({told['seconds']:.2f} "
            f"predicted), of which the device computes {found['utilisation']:.0%} "
            f"({told['utilisation']:.0%})."
        )


def _link_bandwidth(results: Results) -> Iterator[str]:
    for name, result in results.items():
        fits = {fit["directions"]: fit for fit in result["fits"]}
        if {"h2d", "d2h"} <= set(fits):
            ways = [fits[way]["bandwidth"] / 1e9 for way in ("h2d", "d2h")]
            stated = result["stated"]
            asked = f", asked for {stated['h2d'] / 1e9:.2f}" if stated else ""
            yield f"{name}: {ways[0]:.2f} GB/s in and {ways[1]:.2f} out{asked}."


def _utilisation(results: Results) -> Iterator[str]:
    for name, result in results.items():
        program = result["program"]
        yield (
            f"{name}: the device is busy {program['utilisation']:.0%} of the time, "
            f"sampling takes {program['sampler_cores']:.1%} of a core."
        )


def _op_costs(results: Results) -> Iterator[str]:
    for name, result in results.items():
        most = result["by_type"][0]
        yield (
            f"{name}: `{most['name']}` takes {most['share']:.0%} of the "
            f"{result['seconds']:.2f} s that all ops take, each alone."
        )


def _overhead(results: Results) -> Iterator[str]:
    for result in results.values():
        for way, found in result["ratios"].items():
            if way != "nothing":
                yield (
                    f"With {way} a step takes {found['ratio']:.3f} times as long as "
                    "unobserved."
                )


# By kind: headline, what was asked, and what the numbers say.
_SAID: Mapping[str, tuple[str, str, Callable[[Results], Iterator[str]]]] = {
    "step_timeline": (
        "A step on two links, lane by lane",
        "Where does the time of a planned step go, measured and predicted?",
        _step_timeline,
    ),
    "link_bandwidth": (
        "Copies between host and device",
        "How fast are copies, in each direction, of each size, on a shared bus?",
        _link_bandwidth,
    ),
    "utilisation": (
        "Utilisation while a program trains",
        "How busy are device and host while a whole program runs?",
        _utilisation,
    ),
    "op_costs": (
        "Where a step's time goes",
        "Which op types and layers take the time of a step?",
        _op_costs,
    ),
    "overhead": (
        "What measuring costs",
        "How much longer does a step take while it is watched?",
        _overhead,
    ),
}
