"""The finding of `state_on_host`: sentences, four tables, goals, a figure."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from experiments.charts import Bar, Panel, draw_panels
from experiments.ledger import Head, Row, Rows
from experiments.plots import COLOURS, source
from experiments.question import Finding, shortened
from experiments.state_on_host_rows import (
    MODES,
    TITLES,
    Limit,
    Training,
    limits_of,
    trainings_of,
)
from lms.units import format_bytes
from profiling.tables import Table

__all__ = ["finding", "goals", "plot"]

_DRAWN = (COLOURS[name] for name in ("plain", "budget", "cheap", "by_hand"))
_COLOUR = dict(zip(MODES, _DRAWN, strict=True))

_TIMES, _NEAR, _LARGER = 3.0, 0.15, 4.0
_PER_PARAMETER = {"host": 32, "updated": 12, "slots": 16}


def finding(_: Head, rows: Rows) -> Finding:
    """The sentences and the tables."""
    said = [*_said_of_trainings(trainings_of(rows)), *_said_of_largest(limits_of(rows))]
    tables = [_trained(rows), _largest(rows), _least(rows), _links(rows)]
    return " ".join(said), *(table for table in tables if table[2])


def goals(_: Head, rows: Rows) -> Iterator[tuple[str, bool]]:
    """What was to be reached."""
    trainings = trainings_of(rows)
    all_there = [each for each in trainings if each.mode == "host"]
    first = {each.model: each for each in reversed(all_there)}
    if first:
        equal = sum(each.is_equal for each in first.values())
        text = f"where state is {_TIMES:g} times the device, all train with plain"
        text += f" Keras's numbers: {equal} of {len(first)}."
        yield text, equal == len(first)
    if trained := [each for each in trainings if not each.way["error"]]:
        for mode, limit in _PER_PARAMETER.items():
            if copied := [each.state for each in trained if each.mode == mode]:
                text = f"a step copies at most {limit} bytes of state a parameter with"
                text += f" {MODES[mode]}: {max(copied):.1f}."
                yield text, max(copied) <= limit
        worst = max(abs(each.off) for each in trained)
        text = f"measured peaks are within {_NEAR:.0%} of the predicted ones"
        yield f"{text}: {worst:.0%}.", worst <= _NEAR
    if factors := [each.times for each in limits_of(rows) if each.mode == "host"]:
        text = f"at least {_LARGER:g} times plain Keras's parameters train"
        yield f"{text}: {min(factors):.1f}.", min(factors) >= _LARGER


def _said_of_trainings(trainings: Sequence[Training]) -> Iterator[str]:
    trained = [each for each in trainings if not each.way["error"]]
    for mode in _PER_PARAMETER:
        mine = [each for each in trained if each.mode == mode]
        if not mine:
            continue
        tried = sum(each.mode == mode for each in trainings)
        equal = sum(each.is_equal for each in mine)
        steps = [each.step for each in mine]
        low, high = (pick(each.state for each in mine) for pick in (min, max))
        yield (
            f"With {MODES[mode]} {len(mine)} of {tried} trainings ran whose state is "
            f"{min(e.times for e in mine):.1f} to {max(e.times for e in mine):.1f} "
            f"times the device, {equal} of them with plain Keras's numbers, bit for "
            f"bit. A step copies {low:.1f} to {high:.1f} bytes of state for each "
            f"parameter, and takes {min(steps):.2f} to {max(steps):.2f} times plain "
            "Keras's seconds of the processor."
        )


def _said_of_largest(limits: Sequence[Limit]) -> Iterator[str]:
    for mode in list(MODES)[1:]:
        mine = [each for each in limits if each.mode == mode]
        if mine:
            memory = format_bytes(mine[0].best["memory_bytes"])
            said = [
                f"{each.times:.1f} ({TITLES[each.model]}"
                + (", where the search ends)" if each.is_last else ")")
                for each in mine
            ]
            yield (
                f"In {memory} the largest model that trains with {MODES[mode]} has "
                f"so many times plain Keras's parameters: {', '.join(said)}."
            )


def _trained(rows: Rows) -> Table:
    columns = ["model", "mode", "state", "device", "times", "predicted", "peak"]
    columns += ["to the device", "to the host", "a parameter", "of it state"]
    columns += ["over plain Keras", "quartiles", "by the clock", "numbers"]
    body = [_training_cells(each) for each in trainings_of(rows)]
    for row in rows:
        if row["kind"] == "trained" and row["trainings"][0]["error"]:
            error = shortened(row["trainings"][0]["error"])
            body.append([TITLES[row["model"]], *["-"] * (len(columns) - 2), error])
    return "Three epochs with state that is larger than the device", columns, body


def _training_cells(each: Training) -> list[str]:
    way = each.way
    state = format_bytes(each.plain["variable_bytes"])
    start = [TITLES[each.model], MODES[each.mode], state]
    start.append(format_bytes(way["memory_bytes"]))
    start.append(f"{each.times:.1f}")
    if way["error"]:
        return [*start, *["-"] * 9, shortened(way["error"])]
    report, last = way["report"], way["steps"][-1]
    processor = each.ratios("processor_seconds")
    low, middle, high = statistics.quantiles(processor, method="inclusive")
    return [
        *start,
        format_bytes(report["predicted_peak_bytes"]),
        format_bytes(report["measured_peak_bytes"]),
        format_bytes(last["in_bytes"]),
        format_bytes(last["out_bytes"]),
        f"{(last['in_bytes'] + last['out_bytes']) / way['parameters']:.1f}",
        f"{each.state:.1f}",
        f"{middle:.2f}",
        f"{low:.2f} to {high:.2f}",
        f"{statistics.median(each.ratios('seconds')):.2f}",
        "equal" if each.is_equal else "not equal",
    ]


def _largest(rows: Rows) -> Table:
    columns = ["model", "mode", "parameters", "times", "peak", "what stops the next"]
    body = [
        [
            f"{TITLES[each.model]}, {format_bytes(each.best['memory_bytes'])}",
            MODES[each.mode],
            f"{each.best['parameters']:,}",
            f"{each.times:.1f}",
            format_bytes(_peak(each.best)),
            each.reason,
        ]
        for each in limits_of(rows)
    ]
    return "The largest model that trains in one memory", columns, body


def _peak(row: Row) -> int:
    """The allocator's, from the second step on."""
    return max(step["peak_bytes"] for step in row["steps"][1:])


def _least(rows: Rows) -> Table:
    columns = [
        "model",
        "mode",
        "named",
        "device",
        "persistent",
        "largest layer",
        "in and out",
    ]
    columns += ["two slices", "named, times", "times"]
    named = {
        (row["model"], row["mode"]): row["least_bytes"]
        for row in rows
        if row["kind"] == "named"
    }
    body: list[list[str]] = []
    for row in _in_order(rows):
        if row["kind"] == "least" and not row["error"]:
            parts = _parts(row)
            least = named[row["model"], row["mode"]]
            body.append(
                [
                    TITLES[row["model"]],
                    MODES[row["mode"]],
                    format_bytes(least),
                    format_bytes(row["memory_bytes"]),
                    *map(format_bytes, parts),
                    f"{least / sum(parts):.1f}",
                    f"{row['memory_bytes'] / sum(parts):.1f}",
                ]
            )
    return "The least device that trains", columns, body


def _in_order(rows: Rows) -> list[Row]:
    """By model; without a link first, then the fastest one."""
    known = [*TITLES]

    def place(row: Row) -> tuple[int, bool, float]:
        rate = row.get("link_rate", 0)
        return known.index(row["model"]), rate > 0, -rate

    return sorted(rows, key=place)


def _parts(row: Row) -> tuple[int, int, int, int]:
    """What any plan has on the device at some time."""
    report = row["report"]
    layer = row["largest_weights_bytes"], row["largest_values_bytes"]
    return report["persistent_bytes"], *layer, 2 * report["slice_bytes"]


def _links(rows: Rows) -> Table:
    body: list[list[str]] = []
    for row in _in_order(rows):
        if row["kind"] == "link" and not row["error"]:
            step = statistics.median(each["seconds"] for each in row["steps"][1:])
            predicted = row["report"]["predicted_seconds"]
            rate = row["link_rate"]
            cells = [TITLES[row["model"]], format_bytes(row["memory_bytes"])]
            cells.append(f"{rate / 1e9:.1f} GB/s" if rate else "none")
            cells += [f"{1e3 * predicted:.0f} ms", f"{1e3 * step:.0f} ms"]
            body.append([*cells, f"{predicted / step - 1:+.0%}"])
    columns = ["model", "device", "link", "predicted", "step", "off by"]
    return "Steps with the state on the host, over a link", columns, body


def plot(head: Head, rows: Rows, path: Path) -> None:
    """The largest models by mode, bytes for each parameter, and step times."""
    memory = next(row["memory_bytes"] for row in rows if row["kind"] == "largest")
    panels = [
        Panel(
            title=f"The largest model that trains in {format_bytes(memory)}",
            y="million parameters",
            bars=[_size_bar(each) for each in limits_of(rows)],
        ),
        Panel(
            title="What a step copies of state that is so many times the device",
            y="bytes a parameter",
            bars=_bars(
                rows,
                lambda each: each.state,
                ".1f",
                mark=lambda each: _PER_PARAMETER[each.mode],
            ),
        ),
        Panel(
            title="Step, of the same state",
            y="over plain Keras",
            bars=_bars(rows, lambda each: each.step, ".2f", mark=lambda _: 1),
        ),
    ]
    draw_panels(
        [[panel] for panel in panels],
        path,
        title="Weights and optimizer slots on the host",
        note="Dotted: the most that a step may copy with Adam; and plain Keras's step, "
        f"in seconds of the processor. {source(head)}",
        size=(11.5, 10),
    )


def _size_bar(each: Limit) -> Bar:
    size = each.best["parameters"] / 1e6
    more = "" if each.mode == "plain" else f", {each.times:.1f} times"
    return Bar(
        label="",
        group=TITLES[each.model],
        height=size,
        colour=_COLOUR[each.mode],
        way=MODES[each.mode],
        text=f"{size:.1f} million{more}",
    )


def _bars(
    rows: Rows,
    height: Callable[[Training], float],
    digits: str,
    *,
    mark: Callable[[Training], float],
) -> list[Bar]:
    models, modes = [*TITLES], [*MODES]

    def place(each: Training) -> tuple[int, int, float]:
        return models.index(each.model), modes.index(each.mode), each.times

    return [
        Bar(
            label=f"{each.times:.1f}",
            group=TITLES[each.model],
            height=height(each),
            colour=_COLOUR[each.mode],
            way=MODES[each.mode],
            text=f"{height(each):{digits}}",
            mark=mark(each),
        )
        for each in sorted(trainings_of(rows), key=place)
        if not each.way["error"]
    ]
