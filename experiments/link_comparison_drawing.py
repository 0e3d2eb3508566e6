"""What `link_comparison` found: a table, a sentence, a figure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.finding_console import show_finding
from experiments.lines import read_lines
from experiments.plots import COLOURS, INK, calm, legend_above, new_figure, save, source
from experiments.report_findings import Finding, Head, Rows
from experiments.servers import EPOCH_STEPS, SERVERS, published_cost
from experiments.shortening import shortened
from lms.units import Bytes, Seconds, format_bytes

__all__ = ["draw", "finding"]

_WAYS = {"none": "without support", "plain": "without support"}
_WAYS |= {"threshold": "TFLMS's rule", "budget": "budget"}
_PUBLISHED = "#6B6B6B"
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


def draw(results: Path, path: Path) -> int:
    """Print and draw; always 0: nothing is claimed."""
    head, rows = read_lines(results)
    console = show_finding(finding(head, rows))
    _plot(head, _runs(rows), path)
    console.print(f"Drawn: {path}", soft_wrap=True)
    return 0


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


def _predicted(row: Mapping[str, Any], rows: Rows) -> _Run:
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
    voxels = (run.size / small["size"]) ** 3
    return replace(
        run,
        way="fits" if run.way != "none" and not row["planned"] else run.way,
        peak=row["peak_bytes"],
        copied=row["swapped_out_bytes"] + row["swapped_in_bytes"],
        twice=row["run_twice"],
        busy=row["utilisation"],
        rates=(row["h2d_rate"], row["d2h_rate"]),
        step=row["step_seconds"],
        sharing=row["two_on_a_bus_seconds"],
        cost=row["step_seconds"] / small["step_seconds"] / voxels,
        shared_cost=row["two_on_a_bus_seconds"] / small["step_seconds"] / voxels,
    )


def _trained(row: Mapping[str, Any], training: Mapping[str, Any]) -> _Run:
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
    voxels = (run.size / small["size"]) ** 3
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


def _plot(head: Head, runs: list[_Run], path: Path) -> None:
    """Costs side by side: what is published, predicted, and was trained here."""
    panels = [(False, "predicted: V100, 192³ over 144³")]
    if any(run.trained for run in runs):
        sizes = [run.size for run in runs if run.trained]
        name = f"trained here: {max(sizes)}³ over {min(sizes)}³, links scaled"
        panels.append((True, name))
    width = 5.0 * len(panels) + 0.6
    figure = new_figure(
        width,
        5.2,
        title="A step with support in the memory that a smaller size fills",
        note=(
            "Published: IBM's case study, V100 16 GB. Predicted: simulated, from data "
            f"sheets. Trained: device and links are emulated. {source(head)}"
        ),
    )
    axes: Any = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    figure.subplots_adjust(
        left=0.65 / width, right=1 - 0.2 / width, top=0.76, bottom=0.16, wspace=0.06
    )
    for panel, (trained, name) in zip(axes, panels, strict=True):
        _panel(panel, [run for run in runs if run.trained is trained], name)
    axes[0].set_ylabel("over the voxel-scaled step without", fontsize=11, color=INK)
    legend_above(figure, axes[0])
    save(figure, path)


def _panel(axes: Any, runs: list[_Run], name: str) -> None:
    calm(axes)
    axes.set_title(name, loc="left", fontsize=11, color=INK)
    axes.axhline(1.0, color=INK, linewidth=1, linestyle=(0, (6, 3)))
    places = {"threshold": 0.0, "budget": 0.27}
    for label, style in (
        ("published, V100", _style(_PUBLISHED, "D")),
        *((_WAYS[way], _style(COLOURS[way], "o")) for way in places),
        ("two on one bus", _style(COLOURS["budget"], "o", hollow=True)),
    ):
        axes.plot([], [], label=label, **style)
    for at, server in enumerate(SERVERS):
        _point(axes, at - 0.27, published_cost(server), _style(_PUBLISHED, "D"))
        for run in runs:
            if run.server != server or not run.is_swapping:
                continue
            x, colour = at + places[run.way], COLOURS[run.way]
            _point(axes, x, run.cost, _style(colour, "o"))
            if run.shared_cost and run.shared_cost > _APART * run.cost:
                ends = [run.cost, run.shared_cost]
                axes.plot([x, x], ends, color=colour, linewidth=1.2, zorder=1)
                _point(axes, x, run.shared_cost, _style(colour, "o", hollow=True))
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(min(0.8, low), max(20, high))
    ticks = (1, 2, 5, 10, 20)
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(-0.5, len(SERVERS) - 0.4)
    axes.set_xticks(range(len(SERVERS)), [each.link for each in SERVERS.values()])


def _style(colour: str, marker: str, *, hollow: bool = False) -> dict[str, Any]:
    face = "white" if hollow else colour
    shape = {"marker": marker, "markersize": 8, "linestyle": "none"}
    return {"color": colour, "markerfacecolor": face, **shape}


def _point(axes: Any, x: float, y: float, style: Mapping[str, Any]) -> None:
    axes.plot([x], [y], **style)
    axes.annotate(
        f"{y:.2f}",
        (x, y),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        color=INK,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
    )
