"""Costs of the callback, in one small table: a line for each model and memory.

It is read off the table of `virtual_cards` (`Section`), of its slower links; without it
there is no line.
"""

from collections.abc import Iterator, Mapping, Sequence

from experiments.results_sections import Section
from experiments.virtual_cards_finding import WAYS
from profiling.tables import Table

__all__ = ["costs"]

_OF = "virtual_cards"
_LINK = "PCIe"
_COLUMNS = ("what trains", "device memory", "card", "link", "step time", "promised")


def costs(sections: Sequence[Section]) -> Table:
    """The table, if the section has one.

    Example:
        >>> costs([])[2]
        []
    """
    tables = [s.tables[0] for s in sections if s.name == _OF and s.tables]
    body = [line for table in tables for line in _lines(table)]
    return "What it costs", _COLUMNS, body


def _lines(table: Table) -> Iterator[list[str]]:
    _, columns, body = table
    rows: list[Mapping[str, str]] = [
        dict(zip(columns, cells, strict=True)) for cells in body
    ]
    names = ("model", "device", "card", "link", "over plain Keras", "promised ratio")
    for row in rows:
        if row["way"] == WAYS["callback"] and row["link"].startswith(_LINK):
            yield [row[name] for name in names]
