"""The finding of `true_size`: sentences, a table, a goal, a figure."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.charts import Panel, Series, draw_panels
from experiments.ledger import Head, Row, Rows
from experiments.plots import COLOURS, INK, source
from experiments.question import Finding, cubed, how_it_ended, shortened
from experiments.quiet import quiet_median
from experiments.servers import PUBLISHED_LARGER
from lms.units import GIB, MIB, format_bytes, parse_size

__all__ = ["finding", "goals", "plot"]

_WAYS = {"plain": "plain Keras", "budget": "the callback"}


def finding(head: Head, rows: Rows) -> Finding:
    """The sentences and the table."""
    small, _ = head["settings"]["sizes"]
    memory = _memory(head)
    plain = _training(rows, "plain", small, memory)
    pace = _step(plain) / small**3 if plain and not plain["error"] else None
    trained = [r for r in rows if r["kind"] == "training"]
    columns = ["size", "way", "device", "voxels", "peak", "predicted", "swapped out"]
    columns += ["run twice", "step", "per voxel", "how it ended"]
    body = [_cells(row, small, pace) for row in trained]
    said = f"{_main_part(head, rows, pace)} {' '.join(_ends(head, rows))}"
    counted = head["settings"]["steps"] - 1
    title = f"Trainings; a step is the median of {counted}, after a first one"
    return said.rstrip(), (title, columns, body)


def _main_part(head: Head, rows: Rows, pace: float | None) -> str:
    small, large = head["settings"]["sizes"]
    memory = _memory(head)
    planned = _training(rows, "budget", large, memory)
    refused = _training(rows, "plain", large, memory)
    if planned is None or planned["error"] or pace is None:
        return f"{large}^3 was not trained in {format_bytes(memory)}."
    cost = _step(planned) / (pace * large**3)
    ends = "runs out of memory at" if refused and refused["error"] else "trains"
    return (
        f"In {format_bytes(memory)} plain Keras trains {small}^3 and {ends} {large}^3. "
        f"The callback trains {large}^3 there: its measured peak is "
        f"{format_bytes(planned['peak_bytes'])}, and a step takes "
        f"{_step(planned):.1f} s, {cost:.2f} times as long per voxel as plain Keras's "
        f"of {small}^3."
    )


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


def _cells(row: Row, small: int, pace: float | None) -> list[str]:
    words = [f"{row['size']}^3", _WAYS[row["way"]], format_bytes(row["memory_bytes"])]
    words.append(f"{cubed(row['size'], small):.2f}")
    if row["error"]:
        return [*words, *[""] * 6, shortened(row["error"])]
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
        x="share of the step's ops; those left out hold next to nothing",
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
