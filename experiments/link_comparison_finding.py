"""The finding of `link_comparison`: sentences, tables, a figure."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.charts import Panel, Series, draw_panels
from experiments.ledger import Head, Rows
from experiments.link_notes import GROUNDS, WAYS, notes
from experiments.link_runs import Run, Source, runs_of
from experiments.plots import COLOURS, MUTED, source
from experiments.question import Finding
from experiments.servers import EPOCH_STEPS, SERVERS, published_cost
from lms.units import format_bytes
from profiling.tables import Table

__all__ = ["finding", "plot"]

_PLACES = {"threshold": 0.0, "budget": 0.27}  # beside the server's name
_APART = 1.1  # a second point that is nearer would lie on the first


def finding(head: Head, rows: Rows) -> Finding:  # noqa: ARG001 - a finding's arguments
    """The sentences and the tables."""
    runs = runs_of(rows)
    said = " ".join(_said(runs, server) for server in SERVERS)
    text = (
        "The larger size trains in a memory that the smaller one fills. These are "
        f"steps per voxel, over plain Keras's of the smaller size. {said}"
    )
    return "\n".join([text, "", *(f"- {note}" for note in notes(runs))]), *_tables(runs)


def _said(runs: Sequence[Run], server: str) -> str:
    parts = [f"IBM published {published_cost(server):.2f}"]
    words = {Source.PREDICTED: "are predicted", Source.TRAINED: "were measured here"}
    for kind, word in words.items():
        mine = [
            run
            for run in runs
            if (run.server, run.source) == (server, kind)
            and run.ground in ("", "roofline")
            and run.way in _PLACES
        ]
        costs = [
            f"{run.per_voxel:.2f} with {WAYS[run.way]}"
            for run in mine
            if run.is_swapping
        ]
        if costs:
            parts.append(f"{' and '.join(costs)} {word}")
    return f"Over {SERVERS[server].link} {'; '.join(parts)}."


def _tables(runs: Sequence[Run]) -> tuple[Table, Table]:
    columns = ["source", "link", "size", "device", "way", "peak", "step", "epoch"]
    columns += ["over plain Keras", "per voxel", "range", "how it ended"]
    first = (f"Epochs of {EPOCH_STEPS} steps", columns, [_cells(run) for run in runs])
    there = [run for run in runs if run.busy]
    columns = ["source", "link", "size", "device", "way", "swapped", "run twice"]
    columns += ["computing", "to the device", "to the host", "step", "own bus"]
    columns += ["same bus"]
    body = [_copies(run) for run in there]
    return first, ("Copies, and another training at once", columns, body)


def _names(run: Run) -> list[str]:
    link = SERVERS[run.server].link if run.server else "none"
    if run.scaled:
        link += f", as {run.scaled / 1e9:.3g} GB/s"
    words = [" ".join([run.source.value, GROUNDS.get(run.ground, "")]).strip()]
    words += [link, f"{run.size}^3"]
    way = WAYS[run.way] + (f", {run.share:.0%}" if run.share else "")
    return [*words, format_bytes(run.memory), way]


def _cells(run: Run) -> list[str]:
    if run.failed:
        return [*_names(run), *[""] * 6, run.ended]
    return [
        *_names(run),
        "" if run.peak is None else format_bytes(run.peak),
        f"{run.step:.3f} s",
        f"{EPOCH_STEPS * run.step:.0f} s",
        "" if run.over_plain is None else f"{run.over_plain:.2f}",
        f"{run.per_voxel:.2f}",
        _range(run),
        run.ended,
    ]


def _range(run: Run) -> str:
    ends = [f"{end:.2f}" for end in run.cost_range or ()]
    return " to ".join(dict.fromkeys(ends))


def _copies(run: Run) -> list[str]:
    rates = [f"{rate / 1e9:.3g} GB/s" if rate else "" for rate in run.rates]
    own_bus = f"{run.own_bus:.3f} s" if run.own_bus else ""
    return [
        *_names(run),
        format_bytes(run.copied),
        f"{run.twice:,}",
        f"{run.busy:.0%}",
        *rates,
        f"{run.step:.3f} s",
        own_bus,
        _same_bus(run),
    ]


def _same_bus(run: Run) -> str:
    """A range, where the phases of the two make one."""
    if not run.same_bus:
        return ""
    least, most = f"{run.same_bus_least or run.same_bus:.3f}", f"{run.same_bus:.3f}"
    return f"{most} s" if least == most else f"{least} to {most} s"


def plot(head: Head, rows: Rows, path: Path) -> None:
    """Costs side by side: what is published, predicted, and was trained here."""
    runs = runs_of(rows)
    grounds = {run.ground for run in runs if run.source is Source.PREDICTED}
    names = [
        (Source.PREDICTED, ground, f"predicted {words}\nV100, 192³ over 144³")
        for ground, words in GROUNDS.items()
        if ground in grounds
    ]
    if sizes := [run.size for run in runs if run.source is Source.TRAINED]:
        name = f"trained here\n{max(sizes)}³ over {min(sizes)}³, links scaled"
        names.append((Source.TRAINED, "", name))
    panels = [
        Panel(
            title=name,
            y="per voxel, over plain Keras's smaller size (log)",
            series=[*_published(), *_series(_drawn(runs, kind, ground))],
            level=1.0,
            xlim=(-0.5, len(SERVERS) - 0.4),
            ylim=(0.8, max([5.0, *(1.15 * cost for cost in _highest(runs))])),
            xticks=[(i, server.link) for i, server in enumerate(SERVERS.values())],
            log_ticks=(1, 2, 5, 10, 20),
        )
        for kind, ground, name in names
    ]
    draw_panels(
        [panels],
        path,
        title="A larger size in the memory that a smaller one fills",
        note="Published: IBM's case study. Predicted: simulated. Trained: device and "
        "links are emulated; thin lines: over plain Keras's slowest and fastest "
        f"training. {source(head)}",
        size=(4.0 * len(panels) + 0.6, 5.6),
        share=True,
    )


def _drawn(runs: Sequence[Run], kind: Source, ground: str) -> list[Run]:
    return [run for run in runs if (run.source, run.ground) == (kind, ground)]


def _highest(runs: Sequence[Run]) -> Iterator[float]:
    """All that is drawn: no axis is cut."""
    for run in runs:
        if run.is_swapping and run.way in _PLACES:
            yield max(run.per_voxel, run.shared_cost or 0.0)


def _published() -> Iterator[Series]:
    costs = [published_cost(server) for server in SERVERS]
    yield Series(
        points=[(i - 0.27, cost) for i, cost in enumerate(costs)],
        colour=MUTED,
        label="IBM's TFLMS, published",
        marker="D",
        texts=[f"{cost:.2f}" for cost in costs],
    )


def _series(runs: list[Run]) -> Iterator[Series]:
    """Each way alone, and above it with another training on the same bus."""
    servers = list(SERVERS)
    both: list[Series] = []
    for way, place in _PLACES.items():
        mine = [run for run in runs if run.is_swapping and run.way == way]
        at = [servers.index(run.server) + place for run in mine]
        costs, colour = [run.per_voxel for run in mine], COLOURS[way]
        yield Series(
            points=list(zip(at, costs, strict=True)),
            colour=colour,
            label=WAYS[way],
            texts=[f"{cost:.2f}" for cost in costs],
            spans=[run.cost_range or (run.per_voxel, run.per_voxel) for run in mine],
        )
        label = "two on one bus" if way == "budget" else ""
        for x, run in zip(at, mine, strict=True):
            shared = run.shared_cost
            if shared and shared > _APART * run.per_voxel:
                ends = [(x, run.per_voxel * _APART), (x, shared / _APART)]
                both.append(Series(points=ends, colour=colour, marker="", line="-"))
                point = Series(
                    points=[(x, shared)],
                    colour=colour,
                    label=label,
                    texts=[f"{shared:.2f}"],
                    hollow=True,
                )
                both.append(point)
                label = ""
    yield from both
