"""The finding of `link_comparison`: a sentence, a table, a figure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.charts import Panel, Series, draw_panels
from experiments.ledger import Head, Row, Rows
from experiments.plots import COLOURS, MUTED, source
from experiments.question import Finding, cubed, shortened
from experiments.servers import EPOCH_STEPS, SERVERS, published_cost
from lms.units import Bytes, Seconds, format_bytes

__all__ = ["finding", "plot"]

_WAYS = {"none": "without support", "plain": "without support"}
_WAYS |= {"threshold": "IBM's rule", "budget": "budget"}
_PLACES = {"threshold": 0.0, "budget": 0.27}  # beside the server's name
_APART = 1.06  # a second point that is nearer would lie on the first


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A training, predicted or made.

    Args:
        trained: Whether it was made.
        server: Whose link.
        size: Voxels along an axis.
        memory: Of the device.
        way: As `_WAYS` has it; "fits" where the budget planner had nothing to do.
        peak: Of the device's memory.
        copied: Bytes out and in.
        twice: Ops that ran again.
        busy: Part of the step in which something was computed.
        rates: Bytes per second to the device and from it, while copying.
        step: Seconds, alone.
        beside: Seconds, while another one trains on a bus of its own; None if that was
            not tried.
        sharing: Seconds, while another one trains on the same bus; None as above.
        cost: Step over the voxel-scaled one of the smaller size without support.
        shared_cost: The same while another one trains on the same bus, over one beside
            which another one trains.
        scaled: Bytes per second each way of the scaled link; 0 for the link itself.
        replans: How often it was planned anew, since it ran out of memory.
        error: Why there is nothing of all this.
    """

    trained: bool
    server: str
    size: int
    memory: Bytes
    way: str
    peak: Bytes = 0
    copied: Bytes = 0
    twice: int = 0
    busy: float = 0.0
    rates: tuple[float, float] = (0.0, 0.0)
    step: Seconds = 0.0
    beside: Seconds | None = None
    sharing: Seconds | None = None
    cost: float = 0.0
    shared_cost: float | None = None
    scaled: float = 0.0
    replans: int = 0
    error: str = ""

    @property
    def is_swapping(self) -> bool:
        """Whether it is one of those that the comparison is about."""
        return not self.error and self.way in ("threshold", "budget")


def finding(head: Head, rows: Rows) -> Finding:  # noqa: ARG001 - a finding's arguments
    """The sentence and the table."""
    runs = _runs(rows)
    said = [
        f"{SERVERS[server].link}: published {published_cost(server):.2f}; "
        + "; ".join(_said(runs, server))
        for server in SERVERS
    ]
    text = (
        "A step of the larger size, with support, in a memory that the smaller size "
        "fills: seconds per voxel, over those of the smaller size without support. "
        f"{'. '.join(said)}. {_of_others(runs)}"
    )
    columns = ["what", "link", "size", "device", "way", "peak", "out and in", "twice"]
    columns += ["busy", "to it", "from it", "step", "two at once", "on one bus"]
    columns += ["epoch", "planned anew"]
    body = [_cells(run) for run in runs]
    return text, (f"Epochs of {EPOCH_STEPS} steps", columns, body)


def _said(runs: list[_Run], server: str) -> Iterator[str]:
    for trained, word in ((False, "predicted"), (True, "trained here")):
        mine = [r for r in runs if r.server == server and r.trained is trained]
        costs = [f"{_WAYS[r.way]} {r.cost:.2f}" for r in mine if r.is_swapping]
        if costs:
            yield f"{word}, {', '.join(costs)}"


def _of_others(runs: list[_Run]) -> str:
    """What a second training at once costs, of those made here."""
    said = [
        f"{SERVERS[run.server].link}, {_WAYS[run.way]} {run.beside / run.step:.2f} and "
        f"{run.sharing / run.step:.2f}"
        for run in runs
        if run.trained and run.is_swapping and run.beside and run.sharing
    ]
    if not said:
        return ""
    return (
        "A second training on the other core makes a step take longer. With a bus of "
        "its own, and on the same bus, the step takes this many times as long: "
        f"{'; '.join(said)}."
    )


def _cells(run: _Run) -> list[str]:
    link = SERVERS[run.server].link
    if run.scaled:
        link += f", as {run.scaled / 1e9:.3g} GB/s"
    words = ["trained" if run.trained else "predicted", link]
    words += [f"{run.size}^3", format_bytes(run.memory), _WAYS.get(run.way, run.way)]
    if run.error:
        return [*words, shortened(run.error), *[""] * 10]
    rates = [f"{rate / 1e9:.3g} GB/s" if rate else "" for rate in run.rates]
    return [
        *words,
        format_bytes(run.peak),
        format_bytes(run.copied),
        f"{run.twice:,}",
        f"{run.busy:.0%}",
        *rates,
        f"{run.step:.3f} s",
        *(f"{each:.3f} s" if each else "" for each in (run.beside, run.sharing)),
        f"{EPOCH_STEPS * run.step:.0f} s",
        str(run.replans or ""),
    ]


def _runs(rows: Rows) -> list[_Run]:
    found = [row for row in rows if row["kind"] == "predicted"]
    runs = [_predicted(row, found) for row in found]
    for row in rows:
        if row["kind"] == "measured":
            runs += [_trained(row, each) for each in row["trainings"]]
    return runs


def _predicted(row: Row, rows: Rows) -> _Run:
    run = _Run(
        trained=False,
        server=row["server"],
        size=row["size"],
        memory=row["memory_bytes"],
        way=row["planner"],
        error=row["error"] or "",
    )
    if run.error:
        return run
    small = next(
        r for r in rows if r["planner"] == "none" and r["server"] == run.server
    )
    voxels = cubed(run.size, small["size"])
    shared = row["two_on_a_bus_seconds"]
    return replace(
        run,
        way="fits" if run.way != "none" and not row["planned"] else run.way,
        peak=row["peak_bytes"],
        copied=row["swapped_out_bytes"] + row["swapped_in_bytes"],
        twice=row["run_twice"],
        busy=row["utilisation"],
        rates=(row["h2d_rate"], row["d2h_rate"]),
        step=row["step_seconds"],
        sharing=shared,
        cost=row["step_seconds"] / small["step_seconds"] / voxels,
        shared_cost=shared / small["step_seconds"] / voxels,
    )


def _trained(row: Row, training: Row) -> _Run:
    run = _Run(
        trained=True,
        server=row["server"],
        size=training["size"],
        memory=row["memory_bytes"],
        way=training["way"],
        scaled=row["link_rate"],
        error=training["error"] or "",
    )
    if run.error:
        return run
    plain = [each for each in row["trainings"] if each["way"] == "plain"]
    small = min(plain, key=lambda each: each["size"])
    if small["error"]:
        return replace(run, error=f"{small['size']}^3 failed: {small['error']}")
    voxels = cubed(run.size, small["size"])
    report, alone = training["report"] or {}, training["alone"]
    figures = alone["recorded"]
    sharing = training["sharing"]["seconds"] if "sharing" in training else None
    return replace(
        run,
        # Without support it needs more than the small device has, and gets it.
        memory=training["peak_bytes"] if run.way == "plain" else run.memory,
        peak=training["peak_bytes"],
        copied=report.get("swapped_out_bytes", 0) + report.get("swapped_in_bytes", 0),
        twice=report.get("recomputed_ops", 0),
        replans=report.get("replans", 0),
        busy=figures["utilisation"],
        rates=(figures["h2d_throughput"], figures["d2h_throughput"]),
        step=alone["seconds"],
        beside=training["beside"]["seconds"],
        sharing=sharing,
        cost=alone["seconds"] / small["alone"]["seconds"] / voxels,
        shared_cost=sharing and sharing / small["beside"]["seconds"] / voxels,
    )


def plot(head: Head, rows: Rows, path: Path) -> None:
    """Costs side by side: what is published, predicted, and was trained here."""
    runs = _runs(rows)
    names = [(False, "predicted: V100, 192³ over 144³")]
    if sizes := [run.size for run in runs if run.trained]:
        name = f"trained here: {max(sizes)}³ over {min(sizes)}³, links scaled"
        names.append((True, name))
    panels = [
        Panel(
            title=name,
            y="over the voxel-scaled step without",
            series=[*_published(), *_series([r for r in runs if r.trained is trained])],
            level=1.0,
            xlim=(-0.5, len(SERVERS) - 0.4),
            ylim=(0.8, 20),
            xticks=[(i, server.link) for i, server in enumerate(SERVERS.values())],
            log_ticks=(1, 2, 5, 10, 20),
        )
        for trained, name in names
    ]
    draw_panels(
        [panels],
        path,
        title="A step with support in the memory that a smaller size fills",
        note="Published: IBM's case study, V100 16 GB. Predicted: simulated, from data "
        f"sheets. Trained: device and links are emulated. {source(head)}",
        size=(5.0 * len(panels) + 0.6, 5.2),
        share=True,
    )


def _published() -> Iterator[Series]:
    costs = [published_cost(server) for server in SERVERS]
    yield Series(
        points=[(i - 0.27, cost) for i, cost in enumerate(costs)],
        colour=MUTED,
        label="published, V100",
        marker="D",
        texts=[f"{cost:.2f}" for cost in costs],
    )


def _series(runs: list[_Run]) -> Iterator[Series]:
    """Each planner alone, and above it with another training on the same bus."""
    servers = list(SERVERS)
    both: list[Series] = []
    for way, place in _PLACES.items():
        mine = [run for run in runs if run.is_swapping and run.way == way]
        at = [servers.index(run.server) + place for run in mine]
        costs, colour = [run.cost for run in mine], COLOURS[way]
        yield Series(
            points=list(zip(at, costs, strict=True)),
            colour=colour,
            label=_WAYS[way],
            texts=[f"{cost:.2f}" for cost in costs],
        )
        label = "two on one bus" if way == "budget" else ""
        for x, run in zip(at, mine, strict=True):
            shared = run.shared_cost
            if shared and shared > _APART * run.cost:
                ends = [(x, run.cost * _APART), (x, shared / _APART)]
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
