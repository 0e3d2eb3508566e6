"""What the callback costs, in one small table: steps of several experiments.

Each row is read off an experiment's own table (`Section`); experiments without results
have no row.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from experiments.results_sections import Section
from profiling.tables import Table

__all__ = ["costs"]

_Row = Mapping[str, str]
_Line = tuple[str, str, str, str, str, str]
_COLUMNS = ("what trains", "device memory", "cores")
_COLUMNS += ("step time", "quartiles", "compared with")
_PLAIN, _OURS = "plain Keras", "the callback"
_ALL = "all"  # of the machine's cores


def costs(sections: Sequence[Section]) -> Table:
    """The table, of those sections that have one.

    Example:
        >>> costs([])[2]
        []
    """
    tables = {s.name: s.tables[0] for s in sections if s.tables}
    body = [
        line
        for name, lines in _LINES.items()
        if name in tables
        for line in lines(tables[name][0], _rows(tables[name]))
    ]
    return "What it costs", _COLUMNS, body


def _rows(table: Table) -> list[_Row]:
    _, columns, body = table
    return [dict(zip(columns, cells, strict=True)) for cells in body]


def _fits(_: str, rows: list[_Row]) -> Iterator[_Line]:
    for row in rows:
        if row["time"] == "clock":
            ratio = f"{float(row['median ratio']):.2f}"
            ends = (float(row[f"{end} quartile"]) for end in ("lower", "upper"))
            spread = " to ".join(f"{end:.2f}" for end in ends)
            yield "a small U-Net", "enough for all of it", _ALL, ratio, spread, _PLAIN


def _half(_: str, rows: list[_Row]) -> Iterator[_Line]:
    for row in rows:
        ratio = row["over plain Keras"]
        if row["way"] == _OURS and ratio:
            link = row["link"]
            over = "" if link == "none" else f", link of {link}"
            device = f"half of it{over}"
            spread = row["quartiles"]
            yield "U-Net, 48^3", device, row["cores"], ratio, spread, _PLAIN


def _true_size(_: str, rows: list[_Row]) -> Iterator[_Line]:
    plain = [row for row in rows if row["way"] == "plain Keras" and row["peak"]]
    for small in plain[:1]:
        device, column = small["device"], "per voxel"
        trained = [
            row
            for row in rows
            if (row["way"], row["device"]) == (_OURS, device) and row[column]
        ]
        if trained:
            size, costs = _sizes(trained), _least_to_most(trained, column)
            base = f"{small['size']}, per voxel"
            spread = _widest(map(_of_voxels, trained))
            yield f"large U-Net, {size}", device, _ALL, costs, spread, base


def _overhead(title: str, rows: list[_Row]) -> Iterator[_Line]:
    memory = title.removeprefix("In ").partition(",")[0]
    for link in dict.fromkeys(row["link"] for row in rows):
        trained = [
            row
            for row in rows
            if (row["link"], row["way"]) == (link, _OURS) and row["over plain Keras"]
        ]
        if trained:
            where = f"{memory}, {link.partition(',')[0]}"
            costs = _least_to_most(trained, "over plain Keras")
            spread = _widest(row["quartiles"] for row in trained)
            yield f"U-Net, {_sizes(trained)}", where, _ALL, costs, spread, _PLAIN


def _of_voxels(row: _Row) -> str:
    """Quartiles of a step, per voxel over plain Keras's as the step itself is."""
    step, ratio = float(row["step"].split()[0]), float(row["per voxel"])
    ends = (float(end) / step * ratio for end in row["quartiles"].split(" to "))
    return " to ".join(f"{end:.2f}" for end in ends)


def _widest(spreads: Iterable[str]) -> str:
    """From the lowest of several quartiles to the highest.

    Example:
        >>> _widest(["1.10 to 1.20", "1.05 to 1.12"])
        '1.05 to 1.20'
    """
    lows, highs = zip(*(spread.split(" to ") for spread in spreads), strict=True)
    return f"{min(lows, key=float)} to {max(highs, key=float)}"


def _sizes(rows: list[_Row]) -> str:
    sizes = list(dict.fromkeys(row["size"] for row in rows))
    return sizes[0] if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"


def _least_to_most(rows: list[_Row], column: str) -> str:
    values = sorted({row[column] for row in rows}, key=float)
    return values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"


_LINES: Mapping[str, Callable[[str, list[_Row]], Iterator[_Line]]] = {
    "overhead_when_it_fits": _fits,
    "half_the_memory": _half,
    "true_size": _true_size,
    "step_time_overhead": _overhead,
}
