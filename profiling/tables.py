"""Results of profilers as tables of text: pure functions of the files.

The first table is the case study's: utilisation and the throughput of copies in each
direction, one row for each run.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lms.units import format_bytes

__all__ = ["TABLES", "Table", "markdown", "markdown_rows"]

# A title, the names of the columns, and the rows.
Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
Results = Mapping[str, Mapping[str, Any]]


def markdown(table: Table) -> str:
    """Format a table as Markdown.

    Example:
        >>> print(markdown(("Peak", ["run", "bytes"], [["a", "3"]])))
        ## Peak
        <BLANKLINE>
        | run | bytes |
        | --- | --- |
        | a | 3 |
        <BLANKLINE>
    """
    title, head, rows = table
    return f"## {title}\n\n{markdown_rows(head, rows)}\n"


def markdown_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""Format columns and rows as Markdown, without a title.

    Example:
        >>> print(markdown_rows(["run", "a|b"], [["a", ""]]))
        | run | a\|b |
        | --- | --- |
        | a |  |
    """
    lines = [head, ["---"] * len(head), *rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def _steps(results: Results) -> list[Table]:
    head = ["run", "", "step", "utilisation", "host to device", "device to host"]
    head += ["waits for swap-ins", "for swap-outs", "for the host"]
    rows: list[list[str]] = []
    for name, result in results.items():
        for label, figures in (
            ("measured", result["median"]),
            ("predicted", result["predicted"]),
        ):
            waits = [v for key, v in figures.items() if key.startswith("idle: ")]
            rows.append(
                [
                    name,
                    label,
                    _seconds(figures["seconds"]),
                    f"{figures['utilisation']:.0%}",
                    _rate(figures["h2d_throughput"]),
                    _rate(figures["d2h_throughput"]),
                    *(_seconds(wait) for wait in waits),
                ]
            )
    return [("One training step", head, rows)]


def _links(results: Results) -> list[Table]:
    head = ["run", "memory", "direction", "bandwidth", "stated", "latency", "error"]
    rows = [
        [
            name,
            fit["memory"],
            fit["directions"],
            _rate(fit["bandwidth"]),
            _stated(result["stated"], fit["directions"]),
            f"{fit['latency'] * 1e6:.0f} us",
            f"{fit['error']:.0%}",
        ]
        for name, result in results.items()
        for fit in result["fits"]
    ]
    tables: list[Table] = [("Copies between host and device", head, rows)]
    together = [
        [
            name,
            str(row["devices"]),
            row["directions"],
            _rate(sum(row["bandwidths"]) / len(row["bandwidths"])),
            _rate(sum(row["bandwidths"])),
        ]
        for name, result in results.items()
        for row in result["together"]
    ]
    if together:
        head = ["run", "devices at once", "direction", "each", "together"]
        tables.append(("Several devices", head, together))
    return tables


def _utilisations(results: Results) -> list[Table]:
    rows = [
        [f"{name}, {gpu['name']}", counter, _told(counter, gpu[counter])]
        for name, result in results.items()
        for gpu in result["gpus"]
        for counter in _GPU
    ]
    return [("Utilisation while a program runs", ["run", "counter", "mean"], rows)]


_GPU = ("gpu_utilisation", "memory_utilisation", "used_memory", "pcie_received")
_GPU += ("pcie_sent", "nvlink_received", "nvlink_sent", "sm_clock", "power")


def _told(counter: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return f"not available: {value['not available']}"
    if counter.endswith("utilisation"):
        return f"{value:.0%}"
    if counter.endswith(("received", "sent")):
        return _rate(value)
    return format_bytes(round(value)) if "memory" in counter else f"{value:.4g}"


def _costs(results: Results) -> list[Table]:
    tables: list[Table] = []
    for name, result in results.items():
        for key, label in (("by_type", "op type"), ("by_layer", "layer")):
            rows = [
                [
                    row["name"] or "(none)",
                    _seconds(row["seconds"]),
                    f"{row['share']:.0%}",
                    str(row["ops"]),
                    f"{row['flops'] / row['seconds'] / 1e9:.3g}"
                    if row["flops"] and row["seconds"]
                    else "",
                ]
                for row in result[key][:12]
            ]
            head = [label, "seconds", "share", "ops", "GFLOP/s"]
            title = f"{name}: {_seconds(result['seconds'])} of ops by {label}"
            tables.append((title, head, rows))
    return tables


def _overheads(results: Results) -> list[Table]:
    head = ["run", "with", "step", "over plain", "quartiles"]
    rows = [
        [
            name,
            way,
            _seconds(found["seconds"]),
            f"x {found['ratio']:.3f}",
            f"{found['lower_quartile']:.3f} to {found['upper_quartile']:.3f}",
        ]
        for name, result in results.items()
        for way, found in result["ratios"].items()
    ]
    return [("Overhead of profilers", head, rows)]


# Functions by kind of result.
TABLES = {
    "step_timeline": _steps,
    "link_bandwidth": _links,
    "utilisation": _utilisations,
    "op_costs": _costs,
    "overhead": _overheads,
}


def _seconds(value: float) -> str:
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.3f} s"


def _rate(value: float) -> str:
    return f"{value / 1e9:.3g} GB/s"


def _stated(stated: Mapping[str, Any] | None, directions: str) -> str:
    if stated is None or stated["bandwidth"] is None:
        return "not known"
    return _rate(stated["bandwidth"] * (2 if directions == "both" else 1))
