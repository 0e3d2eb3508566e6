"""The case study's network at its true size: 192^3 in a memory that 144^3 fills?

16 filters, 5 levels, batch 1, float32, as IBM trained it on a GPU of 16 GB, where 144^3
was the largest that trained plainly. Here the device is a memory-limited CPU of about
6.5 GiB in which today's TensorFlow trains 144^3 plainly and runs out at 192^3. Each
trial is a training of a few steps in a process of its own:

    144^3, plain            how long a step takes
    192^3, plain            runs out of memory
    192^3, with a budget    trains in the same memory
    192^3, least memory     from what the planner calls the least, in steps of 5 %
    224^3, 256^3, ...       upward, as far as device and host can carry

A step of 192^3 has 2.37 times the voxels: its time is compared with that of 144^3 times
so many. The curves are predicted bytes, op by op; the peaks beside them are measured.

Known weaknesses: swapped tensors lie in the memory of the same machine, whose size ends
the search upward. Copies run at the speed of that memory, far above a GPU's link, on
cores that would otherwise compute. The first step is left out: it initialises.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.charts import Panel, Series, draw_panels
from experiments.ledger import Head, Row, Rows
from experiments.plots import COLOURS, INK, source
from experiments.question import (
    DEVICE,
    Answer,
    Finding,
    cubed,
    how_it_ended,
    settings_of,
    shortened,
)
from experiments.quiet import quiet_median
from experiments.runner import Book, unet_flags
from experiments.search import climb
from lms.units import GIB, MIB, format_bytes, parse_size

__all__ = ["ANSWER", "main"]

_FOLDER = Path("build") / "experiments" / "true_size"
_LONGEST = 3600  # seconds of a trial
_ENOUGH = 48 * GIB  # a limit that nothing comes near, to predict
_MORE, _TRIES = 1.05, 5  # the search for the least memory
_WAYS = {"plain": "plain Keras", "budget": "LMS"}


def _add_settings(parser: Any) -> None:
    parser.add_argument("--memory", default="6.5GiB", help="of the emulated device")
    parser.add_argument("--sizes", type=int, nargs=2, default=(144, 192))
    parser.add_argument("--filters", type=int, default=16)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="of each training")
    parser.add_argument("--most", type=int, default=256, help="largest size to try")
    parser.add_argument("--seed", type=int, default=0)


def _run(options: Any) -> None:
    """Finished trials of the same settings are kept when a run goes on."""
    names = ("memory", "sizes", "filters", "depth", "steps", "seed")
    book = Book(options, settings_of(options, *names), _FOLDER, _LONGEST)
    memory = parse_size(options.memory, name="memory") // MIB * MIB
    small, large = options.sizes
    _train("plain", small, memory, options, book)
    _predict("plain", small, memory, options, book)
    _train("plain", large, memory, options, book)
    _train("budget", large, memory, options, book)
    _search_least(large, options, book)
    _search_largest(large, memory, options, book)


def _train(way: str, size: int, memory: int, options: Any, book: Book) -> Row:
    """Train a few steps in a device of `memory`."""
    return book.row(
        {"kind": "training", "way": way, "size": size, "memory_bytes": memory},
        name=f"{size}^3, {way}, in {format_bytes(memory)}",
        memory=memory,
        flags=unet_flags(way, size, options, "--curves"),
    )


def _predict(way: str, size: int, memory: int, options: Any, book: Book) -> Row:
    """Plan for a device of `memory`, without training."""
    words = ("--predict", f"--memory={memory}", "--curves")
    return book.row(
        {"kind": "prediction", "way": way, "size": size, "memory_bytes": memory},
        name=f"prediction of {size}^3, {way}, in {format_bytes(memory)}",
        memory=_ENOUGH,
        flags=unet_flags(way, size, options, *words),
    )


def _search_least(size: int, options: Any, book: Book) -> None:
    """From the least that the planner names, up until a training succeeds."""
    refused = _predict("budget", size, 2 * MIB, options, book)  # far too little
    least = refused.get("least_bytes")
    if least is None:
        book.say(f"the least for {size}^3 is not known: {refused['error']}")
        return
    memory = least * 32 / 31  # the budget is the memory less a part of 32
    for _ in range(_TRIES):
        device = (int(memory) // MIB + 1) * MIB
        if _train("budget", size, device, options, book)["error"] is None:
            return
        memory *= _MORE


def _search_largest(size: int, memory: int, options: Any, book: Book) -> None:
    """Upward from `size`, which may train, in steps of the network's own grain."""

    def trains(larger: int) -> bool:
        if larger > options.most:
            return False
        return _train("budget", larger, memory, options, book)["error"] is None

    fine = 2 ** (options.depth - 1)
    for larger, trained in climb(trains, start=size, coarse=2 * fine, fine=fine):
        if larger <= options.most:
            book.say(f"{larger}^3 {'trains' if trained else 'does not train'}")


def _finding(head: Head, rows: Rows) -> Finding:
    """The sentence and the table."""
    small, large = head["settings"]["sizes"]
    memory = _memory(head)
    plain = _training(rows, "plain", small, memory)
    pace = _step(plain) / small**3 if plain and not plain["error"] else None
    trained = [r for r in rows if r["kind"] == "training"]
    columns = ["size", "way", "device", "voxels", "peak", "predicted", "swapped out"]
    columns += ["step", "step per voxel", "how it ended"]
    body = [_cells(row, small, pace) for row in trained]
    parts = [_main_part(rows, small, large, memory, pace)]
    done = [row for row in trained if not row["error"]]
    lms = [r for r in done if (r["way"], r["size"]) == ("budget", large)]
    if len(lms) > 1:
        least = format_bytes(min(row["memory_bytes"] for row in lms))
        parts.append(f"the least memory in which {large}^3 trained is {least}")
    sizes = [row["size"] for row in done if row["memory_bytes"] == memory]
    if (best := max(sizes, default=0)) > large:
        parts.append(
            f"the largest that trained in {format_bytes(memory)} is {best}^3, "
            f"{cubed(best, small):.2f} times the voxels"
        )
    text = ". ".join(f"{part[:1].upper()}{part[1:]}" for part in parts if part)
    return f"{text}.", ("Trainings", columns, body)


def _main_part(
    rows: Rows, small: int, large: int, memory: int, pace: float | None
) -> str:
    planned = _training(rows, "budget", large, memory)
    refused = _training(rows, "plain", large, memory)
    if planned is None or planned["error"] or pace is None:
        return f"{large}^3 was not trained in {format_bytes(memory)}"
    cost = _step(planned) / (pace * large**3)
    ends = "runs out of memory" if refused and refused["error"] else "trains"
    return (
        f"In {format_bytes(memory)}, where {small}^3 trains plainly and {large}^3 "
        f"{ends}, {large}^3 trains with large model support: "
        f"{format_bytes(planned['peak_bytes'])} measured, a step of "
        f"{_step(planned):.1f} s, {cost:.2f} times as long per voxel as one of "
        f"{small}^3"
    )


def _cells(row: Row, small: int, pace: float | None) -> list[str]:
    words = [f"{row['size']}^3", _WAYS[row["way"]], format_bytes(row["memory_bytes"])]
    words.append(f"{cubed(row['size'], small):.2f}")
    if row["error"]:
        return [*words, "", "", "", "", "", shortened(row["error"])]
    report = row.get("report", {})
    predicted = report.get("predicted_peak_bytes")
    swapped = report.get("swapped_out_bytes")
    return [
        *words,
        format_bytes(row["peak_bytes"]),
        "-" if predicted is None else format_bytes(predicted),
        format_bytes(swapped) if swapped else "-",
        f"{_step(row):.1f} s",
        f"{_step(row) / (pace * row['size'] ** 3):.2f}" if pace else "-",
        how_it_ended(report.get("replans")),
    ]


def _step(row: Row) -> float:
    """The median without the first, which initialises."""
    return quiet_median(row, skipped=1)


def _memory(head: Head) -> int:
    return parse_size(head["settings"]["memory"]) // MIB * MIB


def _training(
    rows: Rows, way: str, size: int, memory: int, kind: str = "training"
) -> Row | None:
    names, wanted = ("kind", "way", "size", "memory_bytes"), (kind, way, size, memory)
    found = (row for row in rows if tuple(row[name] for name in names) == wanted)
    return next(found, None)


def _claims(head: Head, rows: Rows) -> list[tuple[str, bool]]:
    (small, large), memory = head["settings"]["sizes"], _memory(head)
    wanted = (("plain", small), ("plain", large), ("budget", large))
    found = [_training(rows, *each, memory) for each in wanted]
    ended = [row and bool(row["error"]) for row in found]
    text = f"{large}^3 trains with large model support where {small}^3 trains plainly"
    return [(f"{text} and {large}^3 does not.", ended == [False, True, False])]


def _plot(head: Head, rows: Rows, path: Path) -> None:
    """Memory over one step: the smaller size plainly, the larger one planned."""
    small, large = head["settings"]["sizes"]
    memory = _memory(head)
    plain = _training(rows, "plain", small, memory)
    planned = _training(rows, "budget", large, memory)
    if not plain or not planned or "curves" not in planned:
        return
    predicted = _training(rows, "plain", small, memory, "prediction") or {}
    held, curves = planned["report"]["persistent_bytes"], planned["curves"]
    unplanned = max(curves["unplanned"]) + held
    grey, blue, red = "#BBBBBB", COLOURS["threshold"], COLOURS["budget"]
    series = [_curve(curves["unplanned"], held, grey, line="--")]
    if "curves" in predicted:
        own = predicted["persistent_bytes"]
        series.append(_curve(predicted["curves"]["unplanned"], own, blue))
    series.append(_curve(curves["planned"], held, red))
    names = (
        (memory, f"device memory\n{_gib(memory)}", INK),
        (0.93 * unplanned, f"{large}³ without a plan:\n{_gib(unplanned)}", "#8A8A8A"),
        (0.55 * memory, f"{small}³, plain Keras\n{_peak(plain)}", blue),
        (0.22 * memory, f"{large}³, LMS\n{_peak(planned)}", red),
    )
    most = max(curves["host"])
    said = f"{large}³, on the host\nat most {_gib(most)}"
    device = Panel(
        y="on the device (GiB)",
        series=series,
        level=memory / GIB,
        beside=[(size / GIB, text, colour) for size, text, colour in names],
        ylim=(0, 1.08 * max(unplanned, memory) / GIB),
    )
    host = Panel(
        x="share of the step's ops",
        y="host (GiB)",
        series=[_curve(curves["host"], 0, red)],
        beside=[(0.5 * most / GIB, said, red)],
        xlim=(_begin(curves["unplanned"]), 1),
        ylim=(0, 1.1 * most / GIB),
    )
    draw_panels(
        [[device], [host]],
        path,
        title=f"{large}³ in a memory for {small}³: {cubed(large, small):.2f} times the "
        "voxels",
        note="3D U-Net of the case study, batch 1, float32. Curves predicted, peaks of "
        f"the allocator measured; the device is emulated. {source(head)}",
        size=(10.0, 5.6),
        share=True,
        heights=(3.2, 1),
    )


def _curve(values: Sequence[int], base: int, colour: str, *, line: str = "-") -> Series:
    last = max(1, len(values) - 1)
    return Series(
        points=[(i / last, (value + base) / GIB) for i, value in enumerate(values)],
        colour=colour,
        marker="",
        line=line,
        filled=line == "-",
    )


def _begin(curve: Sequence[int]) -> float:
    """Where to begin: a step starts with small ops that hold next to nothing."""
    first = next(i for i, size in enumerate(curve) if size >= max(curve) / 20)
    return max(0.0, first / len(curve) - 0.01)


def _peak(row: Row) -> str:
    return f"measured peak {_gib(row['peak_bytes'])}" if not row["error"] else "failed"


def _gib(size: int) -> str:
    return f"{size / GIB:.3g} GiB"


ANSWER = Answer(
    name="true_size",
    title="The case study's network at its true size",
    emulated=DEVICE,
    about=__doc__,
    add_settings=_add_settings,
    run=_run,
    finding=_finding,
    plot=_plot,
    claims=_claims,
)
main = ANSWER.main

if __name__ == "__main__":
    raise SystemExit(main())
