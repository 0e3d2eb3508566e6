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
_WAYS |= {"serialised": "IBM's rule, serialised"}
_WAYS |= {"timed-threshold": "IBM's rule, tuned by time"}
_GROUNDS = {
    "roofline": "by a roofline",
    "sustained": "by what ops reach of it",
    "bytes": "by that, and by bytes as published",
}
_PLACES = {"threshold": 0.0, "budget": 0.27}  # beside the server's name
_APART = 1.06  # a second point that is nearer would lie on the first


def finding(head: Head, rows: Rows) -> Finding:  # noqa: ARG001 - a finding's arguments
    """The sentences and the tables."""
    runs = runs_of(rows)
    said = " ".join(_said(runs, server) for server in SERVERS)
    notes = [*_beside_published(runs), *_waiting(runs)]
    notes += [*_roofline(runs), *_fitting(runs), *_spread(runs)]
    text = (
        "The larger size trains in a memory that the smaller one fills. These are "
        f"steps per voxel, over plain Keras's of the smaller size. {said}"
    )
    return "\n".join([text, "", *(f"- {note}" for note in notes)]), *_tables(runs)


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
            f"{run.per_voxel:.2f} with {_WAYS[run.way]}"
            for run in mine
            if run.is_swapping
        ]
        if costs:
            parts.append(f"{' and '.join(costs)} {word}")
    return f"Over {SERVERS[server].link} {'; '.join(parts)}."


def _beside_published(runs: Sequence[Run]) -> Iterator[str]:
    """What IBM's rule is predicted to cost on each ground, beside the published."""
    for ground, words in _GROUNDS.items():
        mine = [
            run
            for run in runs
            if (run.way, run.ground) == ("threshold", ground) and not run.failed
        ]
        said = [
            f"{run.step:.2f} s and {run.per_voxel:.2f} over {SERVERS[run.server].link}"
            f" (published {_published_step(run):.2f} s and "
            f"{published_cost(run.server):.2f})"
            for run in mine
        ]
        if said:
            yield (
                f"**IBM's rule, {words}**: a step of {mine[0].size}^3 is predicted at "
                f"{', '.join(said)}. Nothing is fitted to these published steps."
            )


def _published_step(run: Run) -> float:
    return SERVERS[run.server].epochs[run.size] / EPOCH_STEPS


def _waiting(runs: Sequence[Run]) -> Iterator[str]:
    """What the simulator leaves out of the rule's steps."""
    if any(run.way == "threshold" and run.waits for run in runs):
        yield (
            "**IBM's tuning knows no time.** A tensor that is copied out still needs "
            "its room until the copy has ended. Rows that say so have more on the "
            "device at once than fits: TensorFlow's allocator would wait, which is not "
            "simulated, so such a step would take longer. *Tuned by time* stands for "
            "the rule where none has to wait."
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
        and found.ground == "roofline"
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
    fits = [r for r in runs if (r.way, r.ground) == ("budget", "roofline")]
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
    words = [" ".join([run.source.value, _GROUNDS.get(run.ground, "")]).strip()]
    words += [link, f"{run.size}^3"]
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
    grounds = {run.ground for run in runs if run.source is Source.PREDICTED}
    names = [
        (Source.PREDICTED, ground, f"predicted {words}\nV100, 192³ over 144³")
        for ground, words in _GROUNDS.items()
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
        f"links are emulated. {source(head)}",
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
