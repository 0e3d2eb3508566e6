"""Draw the figures of docs/planning.md.

python docs/planning.py places      a small step in a small memory, address by address
python docs/planning.py frontier    seconds over memory; needs minutes
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.patches as patches

from lms.ir.graph import GraphView, Op, Tensor
from lms.ir.liveness import peak
from lms.ir.plan import planned_graph, resolve
from lms.ir.recompute import PREFIX
from lms.machine.hardware import PRESETS, Costs, Hardware, roofline
from lms.planning.problem import MemoryBudget, PlannedStep, Speeds
from lms.planning.select import plan_step, workload_of
from lms.planning.settings import Settings
from lms.report import style
from lms.simulation.allocator import BestFitAllocator
from lms.units import GIB, MIB

FOLDER = Path(__file__).resolve().parent
CARDS = {"v100-pcie": "V100, PCIe 3.0", "v100-nvlink": "V100, NVLink 2.0"}
SHARES = (0.8, 0.6, 0.5, 0.4, 0.3)


def main() -> int:
    """Draw one figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figure", choices=("places", "frontier"))
    if parser.parse_args().figure == "places":
        draw_places(small_step())
    else:
        draw_frontier()
    return 0


def small_step() -> GraphView:
    """Four layers and their gradients, as in the page's example."""

    def op(name: str, mib: int, *inputs: str, again: bool = False) -> Op:
        made = (Tensor(name=f"{name}:0", size=mib * MIB),)
        read = tuple(f"{each}:0" for each in inputs)
        return Op(name=name, type="T", inputs=read, outputs=made, repeatable=again)

    return GraphView(
        ops=(
            op("a", 64),
            op("b", 64, "a"),
            op("c", 64, "b", again=True),
            op("d", 32, "c"),
            op("e", 64, "d"),
            op("e'", 64, "e"),
            op("d'", 32, "e'", "d"),
            op("c'", 64, "d'", "c"),
            op("b'", 64, "c'", "b"),
            op("a'", 64, "b'", "a"),
        )
    )


def planned(graph: GraphView, budget: int) -> PlannedStep:
    """The small step's plan: each op takes 20 ms, the link copies 64 MiB in 5 ms."""
    seconds = {op.name: 0.02 for op in graph.ops} | {"c": 0.002}
    hardware = replace(PRESETS["v100-pcie"], latency=0.0)
    speeds = Speeds(costs=Costs(seconds=seconds, source="drawn"), hardware=hardware)
    room = MemoryBudget(total=budget, margin=0, persistent=0)
    work = workload_of(graph, graph, lambda: speeds)
    return plan_step(work, Settings(budget=budget), room, None)


def draw_places(graph: GraphView) -> None:
    """Where tensors lie in memory, op by op."""
    budget = 272 * MIB
    found = planned(graph, budget)
    graph = planned_graph(graph, found.plan)
    resolved = resolve(graph, found.plan)
    figure = style.new_figure(
        10.0,
        5.2,
        title=f"{peak(small_step()) // MIB} MiB of tensors in {budget // MIB} MiB",
        note="Predicted by the model of TensorFlow's allocator. "
        "python docs/planning.py places",
    )
    axes: Any = figure.add_axes((0.08, 0.16, 0.88, 0.70))
    arena, held = BestFitAllocator(budget), {}
    swapped = {swap.tensor for swap in found.plan.swaps}
    for position in range(len(resolved.ops)):
        for life in resolved.residencies:
            if life.start == position:
                held[life] = arena.allocate(life.size)
                _draw_life(axes, life, held[life], swapped)
        for life in resolved.residencies:
            if life.end == position + 1:
                arena.free(held.pop(life))
    names = [op.name.replace(PREFIX, "again ") for op in resolved.ops]
    axes.set_xticks([i + 0.5 for i in range(len(names))], names)
    axes.set_xlim(0, len(names))
    axes.set_ylim(0, budget / MIB)
    axes.set_ylabel("address, MiB")
    axes.set_xlabel("ops in the order in which they run")
    style.calm(axes)
    style.save(figure, FOLDER / "planning_places.png")


def _draw_life(axes: Any, life: Any, address: int, swapped: set[str]) -> None:
    name = life.root.removesuffix(":0").replace(PREFIX, "again ")
    moves, again = life.root in swapped, life.root.startswith(PREFIX)
    colour = style.BLUE if moves else style.GREEN if again else style.MUTED
    corner = life.start, address / MIB
    axes.add_patch(
        patches.Rectangle(
            corner,
            life.end - life.start,
            life.size / MIB,
            facecolor=style.tint(colour, 0.35),
            edgecolor="white",
            linewidth=2,
        )
    )
    middle = (life.start + life.end) / 2, (address + life.size / 2) / MIB
    kind = " moves" if moves else ""
    axes.text(*middle, name + kind, ha="center", va="center", fontsize=style.FONT - 2)


def draw_frontier() -> None:
    """Predicted seconds over plain Keras's, over the part of its peak that there is."""
    figure = style.new_figure(
        10.0,
        4.6,
        title="Seconds that memory costs",
        note="Predicted from data sheets, down to 0.3 of the memory. "
        "python docs/planning.py frontier",
    )
    lines = {name: _frontier(*step) for name, step in _steps().items()}
    for place, (card, said) in enumerate(CARDS.items()):
        axes: Any = figure.add_axes((0.08 + 0.48 * place, 0.17, 0.40, 0.66))
        for colour, (name, found) in zip(style.COLOURS, lines.items(), strict=False):
            points = found[card]
            axes.plot(*zip(*points, strict=True), color=colour, marker="o")
            axes.text(*points[-1], f" {name}", color=colour, va="bottom", ha="left")
        axes.set_title(said, fontsize=style.FONT, loc="left")
        axes.set_xlim(1.0, 0.0)
        axes.set_ylim(1.0, 2.5)
        axes.set_xlabel("budget over the peak of plain Keras")
        axes.set_ylabel("step over plain Keras")
        style.calm(axes)
    style.save(figure, FOLDER / "planning_frontier.png")


def _steps() -> dict[str, tuple[GraphView, GraphView, int]]:
    import keras
    import tensorflow as tf

    from lms.commands.forecast import training_of
    from unet3d.model import build_unet

    resnet = keras.applications.ResNet50(weights=None)  # pyright: ignore[reportArgumentType]
    resnet.compile("adam", "sparse_categorical_crossentropy")
    images = tf.TensorSpec([64, 224, 224, 3]), tf.TensorSpec([64])
    volume = [1, 144, 144, 144]
    volumes = tf.TensorSpec([*volume, 4]), tf.TensorSpec([*volume, 3])
    subjects = {
        "3D U-Net": (build_unet(144, 16, 5, batch_size=1), volumes),
        "ResNet50": (resnet, images),
    }
    card = replace(PRESETS["v100-pcie"], memory=1024 * GIB)
    steps = {}
    for name, (model, specs) in subjects.items():
        found = training_of(model, specs, hardware=card)
        work = found.workload
        steps[name] = work.graph, work.own, found.budget.persistent
    return steps


def _frontier(
    graph: GraphView, own: GraphView, persistent: int
) -> dict[str, list[tuple[float, float]]]:
    return {card: _points(graph, own, persistent, PRESETS[card]) for card in CARDS}


def _points(
    graph: GraphView, own: GraphView, persistent: int, hardware: Hardware
) -> list[tuple[float, float]]:
    from lms.errors import BudgetError
    from lms.tf.measure.workload import unplanned_timeline

    speeds = Speeds(costs=roofline(graph, hardware), hardware=hardware)
    work = workload_of(graph, own, lambda: speeds)
    plain = unplanned_timeline(work).seconds
    points = [(1.0, 1.0)]
    for share in SHARES:
        total = int(share * (work.plain.peak + persistent))
        room = MemoryBudget(total=total, margin=0, persistent=persistent)
        try:
            found = plan_step(work, Settings(budget=total), room, None)
        except BudgetError:
            break
        assert found.timeline is not None  # less than plain needs
        points.append((share, found.timeline.seconds / plain))
    return points


if __name__ == "__main__":
    raise SystemExit(main())
