"""PCIe against NVLink, 144^3 against 192^3: published, predicted, and trained here.

Of the case study's servers "x86" has PCIe 3.0 x16, "AC922" NVLink 2.0. Epochs of 228
steps, in a memory that the smaller size fills, are compared with plain Keras's epochs
of the smaller size, scaled by voxels.

Predicted: the network at its true size (16 filters, 5 levels, batch 1, float32) is
traced, planned and played on a V100 of either server, on three grounds:

    roofline    ops take what a roofline of the data sheet gives, copies what others
                measured on these links: nothing is fitted
    sustained   one number more for a server: the part of the roofline that ops reach,
                from the published step of 144^3 alone
    bytes       a second one: copies take as much longer as the card's memory, which
                144^3 is said to have filled, is larger than the predicted peak of 144^3

In the card's 16 GB, does 192^3 need help at all? And in a memory of which 144^3 needs
all but a twentieth, as the published runs did: what does 192^3 cost by IBM's rule, and
with the callback? The published steps of 192^3 are fitted to nowhere. IBM's rule is
tuned as TFLMS's second version did; also with all levels serialised, which a user of
TFLMS had to ask for; and tuned by time too (`lms.planning.timed_thresholds`).

Trained: a small network at two sizes with the same ratio of voxels, on a device of 1.05
times what the smaller takes. Its links are scaled so that copying weighs as much
against computing as on the servers: the time to copy a card's memory once, over the
published step of 144^3 which filled that card, is the time to copy what plain Keras
takes at the smaller size, over its step here. Each training has one core. It trains
alone, beside one on the other core that has a bus of its own, and beside one that
shares its bus (`experiments.link_trainings`). IBM's rule is tuned for 0.9 of the
device; where that fails, for less.

Known weaknesses: a roofline is what the card could do at best, so computing takes less
than published, and copies weigh more against it. The published runs are of TFLMS's
first version, whose settings are not known: the second version's rule and tuning stand
for them. Two predicted trainings on a bus make three steps each, the second of which
counts, and the other one begins in four moments of a step: at once is the worst. In the
simulator no allocation waits: where a step by the rule has more on the device at once
than fits, it would take longer. The published epoch also holds reading and the host's
gaps between batches (44 s of x86's with TFLMS). Where trained, copies take time of the
core that computes, and two trainings share more than the bus: so a pair on one bus is
compared with a pair on two.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.ledger import provenance
from experiments.link_comparison_finding import finding, plot
from experiments.link_trainings import train
from experiments.question import Answer, settings_of
from experiments.runner import Book
from experiments.servers import EPOCH_STEPS, SERVERS, Server
from lms.errors import BudgetError
from lms.ir.plan import planned_graph
from lms.machine.costs import completed, roofline
from lms.machine.hardware import Hardware
from lms.machine.presets import preset
from lms.planning.prefetch import Speeds
from lms.planning.settings import read_settings
from lms.simulation.executor import Bus, Job, simulate_together
from lms.simulation.timeline import Lane

__all__ = ["ANSWER", "main"]

_FOLDER = Path("build") / "experiments" / "link_comparison"
_WAYS = ("threshold", "serialised", "timed-threshold", "budget")
_PHASES = 4  # moments of a step in which another device begins its own
_LARGEST = 0.95  # of the memory, what 144^3 takes: it was the largest that trained
_EMULATED = (
    "What is predicted: V100 cards and their links are simulated from data sheets "
    "and published measurements, nothing ran on them. What is trained: the device "
    "is a core of a CPU with the allocator that TensorFlow uses on GPUs and a hard "
    "limit, and copies are slowed to its link's speed."
)


def _add_settings(parser: Any) -> None:
    parser.add_argument("--sizes", type=int, nargs=2, default=(144, 192))
    parser.add_argument("--filters", type=int, default=16)
    parser.add_argument("--depth", type=int, default=5)
    trained = parser.add_argument_group("what is trained here")
    trained.add_argument("--small", type=int, default=48, help="voxels along an axis")
    trained.add_argument("--large", type=int, default=64)
    trained.add_argument("--trained-filters", type=int, default=8)
    trained.add_argument("--trained-depth", type=int, default=4)
    trained.add_argument("--steps", type=int, default=10, help="of each kind, timed")
    trained.add_argument("--record", type=int, default=3, help="of each kind, observed")
    trained.add_argument("--seed", type=int, default=0)
    trained.add_argument("--servers", nargs="+", choices=SERVERS, default=[*SERVERS])


def _run(options: Any) -> None:
    """What is finished of the same settings is kept when a run goes on."""
    if min(options.steps, options.record) < 1:
        raise SystemExit(
            "--steps and --record must be at least 1, got "
            f"{options.steps} and {options.record}. Ask for more."
        )
    names = ("sizes", "filters", "depth", "small", "large", "trained_filters")
    names += ("trained_depth", "steps", "record", "seed")
    book = Book(options, settings_of(options, *names), _FOLDER)
    if book.find({"kind": "predicted"}) is None:
        known = provenance()
        book.add(*(row | known for row in _predicted(options)))
    train(options, book)


def _predicted(options: Any) -> list[dict[str, Any]]:
    """Both sizes on both servers, on each ground."""
    small, large = (_workload(size, options) for size in options.sizes)
    rows: list[dict[str, Any]] = []
    for name, server in SERVERS.items():
        card = preset(server.hardware)
        first = _row(name, options.sizes[0], small, card, "none")
        grounds = _grounds(server, card, first)
        tight = int(first["unplanned_peak_bytes"] / _LARGEST)
        for ground, hardware in grounds.items():
            ways = [(small, hardware, "none"), (large, hardware, "budget")]
            ways += [(large, replace(hardware, memory=tight), way) for way in _WAYS]
            rows += [
                _row(name, options.sizes[each is large], each, device, way)
                | {"ground": ground}
                for each, device, way in ways
            ]
    return rows


def _grounds(
    server: Server, card: Hardware, first: Mapping[str, Any]
) -> dict[str, Hardware]:
    """The card as it is, slowed to the published step, and with slower copies."""
    slower = server.epochs[144] / EPOCH_STEPS / first["step_seconds"]
    sustained = replace(
        card,
        flops=card.flops / slower,
        memory_bandwidth=card.memory_bandwidth / slower,
        launch=card.launch * slower,
    )
    more = card.memory / first["unplanned_peak_bytes"]
    copying = replace(sustained, h2d=card.h2d / more, d2h=card.d2h / more)
    return {"roofline": card, "sustained": sustained, "bytes": copying}


def _workload(size: int, options: Any) -> Any:
    """A traced step; only this needs TensorFlow."""
    import tensorflow as tf

    from lms.commands.forecast import workload_of
    from unet3d.model import build_unet

    model = build_unet(size, options.filters, options.depth)

    def step(x: tf.Tensor, y: tf.Tensor) -> object:
        return model.train_step((x, y))

    cube = (1, size, size, size)
    signature = [tf.TensorSpec((*cube, 4)), tf.TensorSpec((*cube, 3), tf.uint8)]
    return workload_of(step, signature, hardware=preset(SERVERS["x86"].hardware))


def _row(
    server: str, size: int, workload: Any, hardware: Hardware, way: str
) -> dict[str, Any]:
    from lms.commands.forecast import forecast

    speeds = Speeds(costs=roofline(workload.graph, hardware), hardware=hardware)
    row = {"kind": "predicted", "server": server, "size": size, "planner": way}
    row["memory_bytes"] = hardware.memory
    knobs: dict[str, Any] = {"planner": None if way == "none" else way}
    if way == "serialised":
        knobs = {"planner": "threshold", "serialization": [":"]}
    try:
        found = forecast(replace(workload, speeds=speeds), read_settings(**knobs))
    except BudgetError as error:
        return row | {"error": str(error)}
    played = found.timeline
    return row | {
        "error": None,
        "planned": found.plan.planner != "none",
        "swap_count": len(found.plan.swaps),
        "run_twice": len(found.plan.recomputed),
        "unplanned_peak_bytes": found.unplanned_peak_bytes,
        "peak_bytes": found.peak_bytes,
        "played_peak_bytes": workload.persistent_bytes + played.device_peak,
        "swapped_out_bytes": found.plan.swapped_out_bytes,
        "swapped_in_bytes": found.plan.swapped_in_bytes,
        "step_seconds": played.seconds,
        "unplanned_seconds": found.unplanned.seconds,
        "utilisation": played.utilisation,
        "h2d_rate": played.throughput(Lane.H2D),
        "d2h_rate": played.throughput(Lane.D2H),
        "two_on_a_bus_seconds": _two_on_a_bus(found),
    }


def _two_on_a_bus(found: Any) -> list[float]:
    """The second of three steps, of the slower of two devices on one bus, by phase."""
    workload, speeds = found.workload, found.workload.speeds
    # What fits runs as TensorFlow's own graph.
    graph = workload.own
    if not found.fits_unplanned:
        graph = planned_graph(workload.graph, found.plan)
    job = Job(
        graph=graph,
        plan=found.plan,
        costs=completed(speeds.costs, graph, speeds.hardware),
        hardware=speeds.hardware,
    )
    bus = Bus(h2d=speeds.hardware.h2d, d2h=speeds.hardware.d2h)
    steps: list[float] = []
    for phase in range(_PHASES):
        late = replace(job, start=found.timeline.seconds * phase / _PHASES)
        first = job, replace(job, after=0), replace(job, after=1)
        other = late, replace(job, after=3), replace(job, after=4)
        ends = [t.seconds for t in simulate_together([*first, *other], bus=bus)]
        steps.append(max(ends[1] - ends[0], ends[4] - ends[3]))
    return steps


ANSWER = Answer(
    name="link_comparison",
    title="Two servers: published, predicted, trained here",
    emulated=_EMULATED,
    about=__doc__,
    add_settings=_add_settings,
    run=_run,
    finding=finding,
    plot=plot,
)
main = ANSWER.main

if __name__ == "__main__":
    raise SystemExit(main())
