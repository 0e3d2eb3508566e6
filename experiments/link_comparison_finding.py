"""The finding of `link_comparison`: sentences, tables, a figure."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.charts import Panel, Series, draw_panels
from experiments.ledger import Head, Rows
from experiments.link_runs import Run, Source, runs_of, same_steps
from experiments.plots import COLOURS, MUTED, source
from experiments.question import Finding
from experiments.servers import EPOCH_STEPS, SERVERS, published_cost
from lms.units import format_bytes
from profiling.tables import Table

__all__ = ["finding", "plot"]

_WAYS = {"plain": "plain Keras", "tflms": "IBM's TFLMS"}
_WAYS |= {"threshold": "IBM's rule", "budget": "the callback"}
_PLACES = {"threshold": 0.0, "budget": 0.27}  # beside the server's name
_APART = 1.06  # a second point that is nearer would lie on the first
_OFF = 1.2  # so much above what was published is worth a reason


def finding(head: Head, rows: Rows) -> Finding:  # noqa: ARG001 - a finding's arguments
    """The sentences and the tables."""
    runs = runs_of(rows)
    said = " ".join(_said(runs, server) for server in SERVERS)
    notes = [*_rule_of_ibm(runs), *_roofline(runs), *_fitting(runs), *_spread(runs)]
    text = (
        "The larger size trains in a memory that the smaller one fills. These are "
        f"steps per voxel, over plain Keras's of the smaller size. {said}"
    )
    return "\n".join([text, "", *(f"- {note}" for note in notes)]), *_tables(runs)


def _said(runs: Sequence[Run], server: str) -> str:
    parts = [f"IBM published {published_cost(server):.2f}"]
    words = {Source.PREDICTED: "are predicted", Source.TRAINED: "were measured here"}
    for kind, word in words.items():
        mine = [r for r in runs if (r.server, r.source) == (server, kind)]
        costs = [
            f"{run.per_voxel:.2f} with {_WAYS[run.way]}"
            for run in mine
            if run.is_swapping
        ]
        if costs:
            parts.append(f"{' and '.join(costs)} {word}")
    return f"Over {SERVERS[server].link} {'; '.join(parts)}."


def _rule_of_ibm(runs: Sequence[Run]) -> Iterator[str]:
    """Why the rule is not what was published."""
    for run in runs:
        if (run.source, run.way) != (Source.PREDICTED, "threshold") or run.failed:
            continue
        times = run.per_voxel / published_cost(run.server)
        if times > _OFF:
            yield (
                f"**IBM's rule is not IBM's tuning.** Over {SERVERS[run.server].link} "
                f"the rule is predicted {times:.1f} times as slow as published, since "
                "it is tuned for another goal. Here a simulated step must fit in which "
                "no allocation waits for a copy, and what was found over this link "
                f"moves {format_bytes(run.copied)} in each step, out and in. IBM's "
                "second version tuned by memory alone: one plan for every link, at 0.9 "
                "of the device's memory, and a step that waits for its copies "
                "(`sync_mode`) where nothing else fitted. The published runs are of "
                "the first version, whose settings are not known."
            )


def _roofline(runs: Sequence[Run]) -> Iterator[str]:
    """How far below the published step the predicted one is."""
    pairs = [
        (known, found)
        for known in runs
        for found in runs
        if (known.source, found.source) == (Source.PUBLISHED, Source.PREDICTED)
        and (known.server, known.size) == (found.server, found.size)
        and known.way == found.way == "plain"
    ]
    said = [
        f"{found.step:.2f} s where {known.step:.2f} s were published"
        for known, found in pairs
    ]
    if said:
        most = max(known.step / found.step for known, found in pairs)
        yield (
            "**A predicted step is the least that the card could need.** Its ops take "
            "what a roofline of the data sheet gives. So plain Keras's step of "
            f"{pairs[0][0].size}^3 is predicted at {', and '.join(said)}, reading and "
            "gaps of the host included. Copies then weigh up to "
            f"{most:.1f} times as much against computing as they did there: predicted "
            "ratios of steps that wait for copies are too high."
        )


def _fitting(runs: Sequence[Run]) -> Iterator[str]:
    """Whether the larger size needs help in the whole card."""
    fits = [r for r in runs if (r.source, r.way) == (Source.PREDICTED, "budget")]
    whole = next((r for r in fits if not r.failed and not r.is_swapping), None)
    tight = next((r for r in fits if r.is_swapping), None)
    if whole and tight:
        yield (
            f"**Today {whole.size}^3 is predicted to fit without help.** In the card's "
            f"{format_bytes(whole.memory)} today's graph has a peak of "
            f"{format_bytes(whole.peak or 0)} with nothing swapped, where IBM needed "
            f"TFLMS. So it is predicted in {format_bytes(tight.memory)}, of which the "
            "smaller size takes all but a twentieth."
        )


def _spread(runs: Sequence[Run]) -> Iterator[str]:
    steps = same_steps(runs)
    if len(steps) > 1:
        low, high = min(steps), max(steps)
        yield (
            f"**Trainings that do the same differ.** Plain Keras's step of the smaller "
            f"size was timed {len(steps)} times here: it took {low:.3f} s to "
            f"{high:.3f} s, up to {high / low - 1:.0%} longer. Ratios over it may be "
            "off by as much; *over plain Keras* compares with the larger size instead."
        )


def _tables(runs: Sequence[Run]) -> tuple[Table, Table]:
    columns = ["source", "link", "size", "device", "way", "peak", "step", "epoch"]
    columns += ["over plain Keras", "per voxel", "how it ended"]
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
    words = [run.source.value, link, f"{run.size}^3"]
    way = _WAYS[run.way] + (f", {run.share:.0%}" if run.share else "")
    return [*words, format_bytes(run.memory), way]


def _cells(run: Run) -> list[str]:
    if run.failed:
        return [*_names(run), *[""] * 5, run.ended]
    return [
        *_names(run),
        "" if run.peak is None else format_bytes(run.peak),
        f"{run.step:.3f} s",
        f"{EPOCH_STEPS * run.step:.0f} s",
        "" if run.over_plain is None else f"{run.over_plain:.2f}",
        f"{run.per_voxel:.2f}",
        run.ended,
    ]


def _copies(run: Run) -> list[str]:
    rates = [f"{rate / 1e9:.3g} GB/s" if rate else "" for rate in run.rates]
    buses = (run.own_bus, run.same_bus)
    return [
        *_names(run),
        format_bytes(run.copied),
        f"{run.twice:,}",
        f"{run.busy:.0%}",
        *rates,
        f"{run.step:.3f} s",
        *(f"{each:.3f} s" if each else "" for each in buses),
    ]


def plot(head: Head, rows: Rows, path: Path) -> None:
    """Costs side by side: what is published, predicted, and was trained here."""
    runs = runs_of(rows)
    names = [(Source.PREDICTED, "predicted: V100, 192³ over 144³")]
    if sizes := [run.size for run in runs if run.source is Source.TRAINED]:
        name = f"trained here: {max(sizes)}³ over {min(sizes)}³, links scaled"
        names.append((Source.TRAINED, name))
    panels = [
        Panel(
            title=name,
            y="per voxel, over plain Keras's smaller size (log)",
            series=[*_published(), *_series([r for r in runs if r.source is kind])],
            level=1.0,
            xlim=(-0.5, len(SERVERS) - 0.4),
            ylim=(0.8, 20),
            xticks=[(i, server.link) for i, server in enumerate(SERVERS.values())],
            log_ticks=(1, 2, 5, 10, 20),
        )
        for kind, name in names
    ]
    draw_panels(
        [panels],
        path,
        title="A larger size in the memory that a smaller one fills",
        note="Published: IBM's case study. Predicted: simulated; the rule is not tuned "
        f"as IBM did. Trained: device and links are emulated. {source(head)}",
        size=(5.0 * len(panels) + 0.6, 5.6),
        share=True,
    )


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
            label=_WAYS[way],
            texts=[f"{cost:.2f}" for cost in costs],
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
