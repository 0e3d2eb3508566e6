"""The runs that `link_comparison` compares: published, predicted, and trained here."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from experiments.ledger import Row, Rows
from experiments.link_teams import IDLE_STEPS
from experiments.question import cubed, how_it_ended, shortened
from experiments.quiet import quiet_median
from experiments.servers import EPOCH_STEPS, SERVERS
from lms.machine.presets import preset
from lms.units import Bytes, Seconds, format_bytes

__all__ = ["Run", "Source", "runs_of", "same_steps"]


class Source(Enum):
    """Where a run's numbers are from."""

    PUBLISHED = "published"
    PREDICTED = "predicted"
    TRAINED = "trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A training.

    Args:
        source: Who trained it, or none.
        server: Whose link; empty for none.
        size: Voxels along an axis.
        memory: Of the device.
        way: "plain", "threshold", "serialised", "timed-threshold", "budget", or "tflms"
            for the published one.
        ground: What the prediction rests on; empty where nothing is predicted.
        share: Part of the device that the rule was tuned for; None for another way.
        ended: How, readable; empty if there is nothing to say.
        failed: Whether there is nothing of what follows.
        peak: Of the device's memory; None if it is not known.
        copied: Bytes out and in.
        twice: Ops that ran again.
        busy: Part of the step in which something was computed.
        rates: Bytes per second to the device and from it, while copying.
        step: Seconds, alone.
        own_bus: Seconds, while another one trains on a bus of its own; None if that
            was not tried.
        same_bus: Seconds, while another one trains on the same bus; None as above. At
            most, of phases in which the other one may be.
        same_bus_least: At least, where several phases are known.
        over_plain: Step over plain Keras's of the same size; None if that is unknown.
        per_voxel: Step per voxel over plain Keras's of the smaller size; where trained,
            over the middle one of those that were trained.
        cost_range: The same over the slowest and over the fastest of those; None for
            one that is predicted.
        shared_cost: The same while another one trains on the same bus, over one beside
            which another one trains.
        scaled: Bytes per second each way of the scaled link; 0 for the link itself.
        most: On the device at once in the simulated step, copies included; 0 where
            nothing is simulated.
    """

    source: Source
    server: str
    size: int
    memory: Bytes
    way: str
    ground: str = ""
    share: float | None = None
    ended: str = ""
    failed: bool = False
    peak: Bytes | None = None
    copied: Bytes = 0
    twice: int = 0
    busy: float = 0.0
    rates: tuple[float, float] = (0.0, 0.0)
    step: Seconds = 0.0
    own_bus: Seconds | None = None
    same_bus: Seconds | None = None
    same_bus_least: Seconds | None = None
    over_plain: float | None = None
    per_voxel: float = 0.0
    cost_range: tuple[float, float] | None = None
    shared_cost: float | None = None
    scaled: float = 0.0
    most: Bytes = 0

    @property
    def waits(self) -> bool:
        """Whether more is on the device at once than fits, so that it would wait."""
        return self.most > self.memory

    @property
    def is_swapping(self) -> bool:
        """Whether it is one of those that the comparison is about."""
        return not self.failed and self.copied > 0


def runs_of(rows: Rows) -> list[Run]:
    """All of them, the published ones first."""
    runs = list(_published())
    found = [row for row in rows if row["kind"] == "predicted"]
    runs += [_predicted(row, found) for row in found]
    bases = [_base(r) for r in rows if r["kind"] == "base" and not r["error"]]
    trained = [row for row in rows if row["kind"] == "measured"]
    smallest = [small for row in trained if not (small := _smallest(row))["error"]]
    alone = [base.step for base in bases]
    alone += [small["alone"]["seconds"] for small in smallest]
    beside = [small["beside"]["seconds"] for small in smallest]
    runs += bases
    for row in trained:
        runs += [_trained(row, each, alone, beside) for each in row["trainings"]]
    return runs


def same_steps(runs: Sequence[Run]) -> list[Seconds]:
    """Steps of trainings that do the same: plain Keras at the smaller trained size."""
    plain = [r for r in runs if (r.source, r.way) == (Source.TRAINED, "plain")]
    small = min((run.size for run in plain), default=0)
    return [run.step for run in plain if run.size == small and not run.failed]


def _published() -> Iterator[Run]:
    for name, server in SERVERS.items():
        (small, first), *_ = sorted(server.epochs.items())
        for size, seconds in sorted(server.epochs.items()):
            yield Run(
                source=Source.PUBLISHED,
                server=name,
                size=size,
                memory=preset(server.hardware).memory,
                way="plain" if size == small else "tflms",
                step=seconds / EPOCH_STEPS,
                per_voxel=seconds / first / cubed(size, small),
                over_plain=1.0 if size == small else None,
                ended="trained",
            )


def _predicted(row: Row, rows: Rows) -> Run:
    run = Run(
        source=Source.PREDICTED,
        server=row["server"],
        size=row["size"],
        memory=row["memory_bytes"],
        way="plain" if row["planner"] == "none" else row["planner"],
        ground=row.get("ground", "roofline"),
    )
    if row["error"]:
        return replace(run, failed=True, ended=shortened(row["error"]))
    small = next(
        r
        for r in rows
        if (r["planner"], r["server"], r.get("ground", "roofline"))
        == ("none", run.server, run.ground)
    )
    voxels = cubed(run.size, small["size"])
    phases = row["two_on_a_bus_seconds"]
    shared = max(phases)
    return replace(
        run,
        ended=_expected(row),
        most=row.get("played_peak_bytes", 0),
        peak=row["peak_bytes"],
        copied=row["swapped_out_bytes"] + row["swapped_in_bytes"],
        twice=row["run_twice"],
        busy=row["utilisation"],
        rates=(row["h2d_rate"], row["d2h_rate"]),
        step=row["step_seconds"],
        same_bus=shared,
        same_bus_least=min(phases),
        over_plain=row["step_seconds"] / row["unplanned_seconds"],
        per_voxel=row["step_seconds"] / small["step_seconds"] / voxels,
        shared_cost=shared / small["step_seconds"] / voxels,
    )


def _expected(row: Row) -> str:
    if not row["planned"]:
        return "fits, nothing is planned"
    beyond = row.get("played_peak_bytes", 0) - row["memory_bytes"]
    return f"{format_bytes(beyond)} would have to wait for room" if beyond > 0 else ""


def _base(row: Row) -> Run:
    """Plain Keras at the smaller size, of which links are scaled."""
    return Run(
        source=Source.TRAINED,
        server="",
        size=row["size"],
        memory=row["peak_bytes"],
        way="plain",
        peak=row["peak_bytes"],
        step=quiet_median(row, skipped=IDLE_STEPS),
        over_plain=1.0,
        per_voxel=1.0,
        ended="trained",
    )


def _smallest(row: Row) -> Row:
    plain = [each for each in row["trainings"] if each["way"] == "plain"]
    return min(plain, key=lambda each: each["size"])


def _trained(
    row: Row, training: Row, alone_bases: Sequence[Seconds], beside: Sequence[Seconds]
) -> Run:
    """A training, over all steps of plain Keras at the smaller size: they are alike."""
    run = Run(
        source=Source.TRAINED,
        server=row["server"],
        size=training["size"],
        memory=row["memory_bytes"],
        way=training["way"],
        share=training["share"],
        scaled=row["link_rate"],
    )
    if training["error"]:
        return replace(run, failed=True, ended=shortened(training["error"]))
    small = _smallest(row)
    if small["error"]:
        said = f"{small['size']}^3 failed: {small['error']}"
        return replace(run, failed=True, ended=said)
    voxels = cubed(run.size, small["size"])
    report, alone = training["report"] or {}, training["alone"]
    figures, seconds = alone["recorded"], alone["seconds"]
    sharing = training["sharing"]["seconds"] if "sharing" in training else None
    plain = _plain_step(row, run.size)
    return replace(
        run,
        # Plain Keras needs more than the small device has, and gets it.
        memory=training["peak_bytes"] if run.way == "plain" else run.memory,
        ended=how_it_ended(report.get("replans"), report.get("chosen", "")),
        peak=training["peak_bytes"],
        copied=report.get("swapped_out_bytes", 0) + report.get("swapped_in_bytes", 0),
        twice=report.get("recomputed_ops", 0),
        busy=figures["utilisation"],
        rates=(figures["h2d_throughput"], figures["d2h_throughput"]),
        step=seconds,
        own_bus=training["beside"]["seconds"],
        same_bus=sharing,
        over_plain=seconds / plain if plain else None,
        per_voxel=seconds / statistics.median(alone_bases) / voxels,
        cost_range=(
            seconds / max(alone_bases) / voxels,
            seconds / min(alone_bases) / voxels,
        ),
        shared_cost=sharing and sharing / statistics.median(beside) / voxels,
    )


def _plain_step(row: Row, size: int) -> Seconds | None:
    for each in row["trainings"]:
        if (each["way"], each["size"]) == ("plain", size) and not each["error"]:
            return each["alone"]["seconds"]
    return None
