"""The finding of `true_size`: sentences, a table, a goal, a figure."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from experiments.charts import Panel, Series, draw_panels
from experiments.intervals import ratio_interval, spanned
from experiments.ledger import Head, Row, Rows
from experiments.plots import COLOURS, INK, source
from experiments.question import Finding, cubed, how_it_ended, shortened
from experiments.quiet import quiet
from experiments.servers import PUBLISHED_LARGER
from lms.units import GIB, MIB, format_bytes, parse_size

__all__ = ["finding", "goals", "plot"]

_WAYS = {"plain": "plain Keras", "budget": "the callback"}
_FEWEST = 7  # steps of which an interval can be told

# Steps of plain Keras by size.
_Bases = Mapping[int, list[float]]


def finding(head: Head, rows: Rows) -> Finding:
    """The sentences and the table."""
    small, _ = head["settings"]["sizes"]
    memory = _memory(head)
    bases = _bases(rows, small, memory)
    trained = [r for r in rows if r["kind"] in ("training", "base")]
    columns = ["size", "way", "device", "voxels", "peak", "predicted", "swapped out"]
    columns += ["run twice", "step", "quartiles", "over plain Keras", "per voxel"]
    columns += ["how it ended"]
    body = [_cells(row, small, bases) for row in trained]
    said = f"{_main_part(head, rows, bases)} {' '.join(_ends(head, rows))}"
    counted = head["settings"]["steps"] - 1
    title = f"Trainings; a step is the median of {counted}, after a first one"
    return said.rstrip(), (title, columns, body)


def _bases(rows: Rows, small: int, memory: int) -> dict[int, list[float]]:
    """Steps of plain Keras by size: of all trainings with enough memory."""
    known: dict[int, list[float]] = {}
    for row in rows:
        if row["kind"] == "base" and not row["error"]:
            known.setdefault(row["size"], []).extend(_steps(row))
    plain = _training(rows, "plain", small, memory)
    if small not in known and plain and not plain["error"]:
        known[small] = _steps(plain)
    return known


def _main_part(head: Head, rows: Rows, bases: _Bases) -> str:
    small, large = head["settings"]["sizes"]
    memory = _memory(head)
    planned = _training(rows, "budget", large, memory)
    refused = _training(rows, "plain", large, memory)
    if planned is None or planned["error"] or small not in bases:
        return f"{large}^3 was not trained in {format_bytes(memory)}."
    ends = "runs out of memory at" if refused and refused["error"] else "trains"
    return (
        f"In {format_bytes(memory)} plain Keras trains {small}^3 and {ends} {large}^3. "
        f"The callback trains {large}^3 there: its measured peak is "
        f"{format_bytes(planned['peak_bytes'])}, and a step takes "
        f"{_step(planned):.1f} s, {_said_ratio(planned, bases, small)} as long per "
        f"voxel as plain Keras's of {small}^3{_beside(planned, bases)}."
    )


def _beside(planned: Row, bases: _Bases) -> str:
    """The same over plain Keras's of its own size, where that was timed."""
    size = planned["size"]
    if size not in bases:
        return ""
    ratio = _said_ratio(planned, bases, size)
    return f", and {ratio} plain Keras's of {size}^3 with enough memory"


def _ratio(row: Row, bases: _Bases, size: int) -> float:
    """Its step per voxel, over plain Keras's of a size."""
    return _step(row) / statistics.median(bases[size]) / cubed(row["size"], size)


def _said_ratio(row: Row, bases: _Bases, size: int) -> str:
    """With its interval, where steps are enough for one."""
    ratio, steps = f"{_ratio(row, bases, size):.2f} times", _steps(row)
    voxels = cubed(row["size"], size)
    if min(len(steps), len(bases[size])) < _FEWEST:
        return f"{ratio} (not decided: few steps)"
    low, high = ratio_interval(steps, bases[size])
    return f"{ratio} ({low / voxels:.2f} to {high / voxels:.2f})"


def _ends(head: Head, rows: Rows) -> Iterator[str]:
    """How far down and how far up the search went."""
    small, large = head["settings"]["sizes"]
    mine = [r for r in rows if (r["kind"], r["way"]) == ("training", "budget")]
    done = [row for row in mine if not row["error"]]
    least = [row["memory_bytes"] for row in done if row["size"] == large]
    if len(least) > 1:
        yield (
            f"The least memory in which {large}^3 trained is "
            f"{format_bytes(min(least))}."
        )
    there = [row for row in mine if row["memory_bytes"] == _memory(head)]
    best = max((r for r in there if r in done), key=lambda r: r["size"], default=None)
    if best is None or best["size"] == large:
        return
    yield (
        f"The largest that trained in {format_bytes(_memory(head))} is "
        f"{best['size']}^3, {cubed(best['size'], small):.2f} times the voxels. "
        f"{PUBLISHED_LARGER}"
    )
    if best["size"] == max(row["size"] for row in there):
        yield (
            "Larger ones were not tried, for lack of host memory and not of the "
            "device's: swapped tensors lie in this machine's memory, of which that "
            f"process took {format_bytes(best['process_peak_bytes'])}."
        )


def _cells(row: Row, small: int, bases: _Bases) -> list[str]:
    size, device = row["size"], row.get("memory_bytes")
    words = [f"{size}^3", _WAYS[row["way"]]]
    words.append(format_bytes(device) if device else "enough")
    words.append(f"{cubed(size, small):.2f}")
    if row["error"]:
        return [*words, *[""] * 8, shortened(row["error"])]
    report = row.get("report", {})
    predicted = report.get("predicted_peak_bytes")
    swapped = report.get("swapped_out_bytes")
    return [
        *words,
        format_bytes(row["peak_bytes"]),
        "-" if predicted is None else format_bytes(predicted),
        format_bytes(swapped) if swapped else "-",
        str(report["recomputed_ops"]) if report else "-",
        f"{_step(row):.1f} s",
        spanned(_steps(row)),
        f"{_ratio(row, bases, size):.2f}" if size in bases else "-",
        f"{_ratio(row, bases, small):.2f}" if small in bases else "-",
        how_it_ended(report.get("replans")),
    ]


def _step(row: Row) -> float:
    return statistics.median(_steps(row))


def _steps(row: Row) -> list[float]:
    """Undisturbed ones without the first, which initialises."""
    return quiet(row["step_seconds"][1:], row["stolen_seconds"][1:])


def _memory(head: Head) -> int:
    return parse_size(head["settings"]["memory"]) // MIB * MIB


def _training(
    rows: Rows, way: str, size: int, memory: int, kind: str = "training"
) -> Row | None:
    names, wanted = ("kind", "way", "size", "memory_bytes"), (kind, way, size, memory)
    found = (row for row in rows if tuple(row.get(name) for name in names) == wanted)
    return next(found, None)


def goals(head: Head, rows: Rows) -> list[tuple[str, bool]]:
    """Whether the larger size trains where it should not."""
    (small, large), memory = head["settings"]["sizes"], _memory(head)
    wanted = (("plain", small), ("plain", large), ("budget", large))
    found = [_training(rows, *each, memory) for each in wanted]
    ended = [row and bool(row["error"]) for row in found]
    text = f"the callback trains {large}^3 where plain Keras trains {small}^3"
    return [(f"{text} and runs out at {large}^3.", ended == [False, True, False])]


def plot(head: Head, rows: Rows, path: Path) -> None:
    """Memory over one step: the smaller size by plain Keras, the larger one planned."""
    small, large = head["settings"]["sizes"]
    memory = _memory(head)
    plain = _training(rows, "plain", small, memory)
    planned = _training(rows, "budget", large, memory)
    if not plain or not planned or "curves" not in planned:
        return
    predicted = _training(rows, "plain", small, memory, "prediction") or {}
    held, curves = planned["report"]["persistent_bytes"], planned["curves"]
    unplanned = max(curves["unplanned"]) + held
    pale, grey, red = "#9A9A9A", COLOURS["plain"], COLOURS["budget"]
    series = [_curve(curves["unplanned"], held, pale, line="--")]
    if "curves" in predicted:
        own = predicted["persistent_bytes"]
        series.append(_curve(predicted["curves"]["unplanned"], own, grey))
    series.append(_curve(curves["planned"], held, red))
    names = (
        (memory, f"device memory\n{_gib(memory)}", INK),
        (
            0.93 * unplanned,
            f"{large}³, plain Keras\npredicted {_gib(unplanned)}",
            pale,
        ),
        (0.55 * memory, f"{small}³, plain Keras\n{_peak(plain)}", grey),
        (0.22 * memory, f"{large}³, the callback\n{_peak(planned)}", red),
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
        x="share of the step's ops; a step begins with many that hold next to nothing",
        y="host (GiB)",
        series=[_curve(curves["host"], 0, red)],
        beside=[(0.5 * most / GIB, said, red)],
        xlim=(0, 1),
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


def _peak(row: Row) -> str:
    return f"measured peak {_gib(row['peak_bytes'])}" if not row["error"] else "failed"


def _gib(size: int) -> str:
    return f"{size / GIB:.3g} GiB"
