"""What the experiments' results say: a sentence and a table, computed from the rows.

Pure functions of a result file's first line (`head`) and of the others (`rows`).
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.planner_comparison_report import equal_peaks
from experiments.quiet import quiet_median
from lms.units import format_bytes, parse_size
from profiling.tables import Table

__all__ = ["FINDINGS", "Finding", "Head", "Rows"]

Head = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
Finding = tuple[str, Table]


def _planner_comparison(head: Head, rows: Rows) -> Finding:
    bounds = next(row for row in rows if row.get("kind") == "bounds")
    least = bounds["lower_bound_bytes"] + bounds["persistent_bytes"]
    ran = [row for row in rows if row.get("peak_bytes")]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in ran:
        groups.setdefault(_way(row), []).append(row)
    best = {name: min(g, key=lambda r: r["peak_bytes"]) for name, g in groups.items()}
    body = [
        [
            name,
            str(len(groups[name])),
            format_bytes(row["peak_bytes"]),
            f"{row['peak_bytes'] / least:.2f}",
            format_bytes(row["swapped_out_bytes"]),
            format_bytes(row["swapped_in_bytes"]),
            f"{row['step_seconds']:.2f} s",
        ]
        for name, row in best.items()
    ]
    columns = ["planner", "plans run", "least peak", "over what no plan can go below"]
    columns += ["swapped out", "swapped in", "step"]
    budget = min(r["peak_bytes"] for r in ran if r["planner"].startswith("budget"))
    plain = min(r["peak_bytes"] for r in ran if r["planner"] == "none")
    rule = min(r["peak_bytes"] for r in ran if r.get("default_modes"))
    text = (
        f"The least peak of the budget planner is {format_bytes(budget)}: "
        f"{budget / plain:.0%} of the peak without a plan, {budget / rule:.0%} of the "
        "best that TFLMS's rule reaches in its default modes, and "
        f"{budget / least:.2f} times what no plan can go below."
    )
    own = [p.ratio for p in equal_peaks(rows) if p.ratio is not None]
    twice = [p.ratio for p in equal_peaks(rows, twice=True) if p.ratio is not None]
    if own and twice:
        text += (
            " Compared with that setting of the rule which moves least at no higher a "
            f"peak, it swaps out {min(own):.2f} to {max(own):.2f} times as many bytes, "
            f"or {min(twice):.2f} to {max(twice):.2f} times as many if it runs ops "
            "twice wherever it can."
        )
    size = head["settings"]["size"]
    return text, (f"The least peak of each planner, {size}^3", columns, body)


def _way(row: Mapping[str, Any]) -> str:
    if row["planner"] == "none":
        return "no plan"
    if row["planner"] == "threshold":
        modes = "default modes" if row.get("default_modes") else "serialised or in sync"
        return f"TFLMS's rule, {modes}"
    variant = row["settings"].get("variant", "as it is")
    return row["planner"] + ("" if variant == "as it is" else f", {variant}")


def _simulator_accuracy(_: Head, rows: Rows) -> Finding:
    trained = [row for row in rows if row["error"] is None]
    peaks = [abs(_peak_off(r)) for r in trained]
    times = [abs(_in_turns(r) / _median(r) - 1) for r in trained]
    promised = [abs(_off(r, "predicted_seconds", _median(r))) for r in trained]
    text = (
        f"Of {len(rows)} trainings {len(trained)} ended well: "
        f"{sum(p <= 0.1 for p in peaks)} measured peaks lie within 10 % of the "
        f"predicted ones (median error {statistics.median(peaks):.1%}, largest "
        f"{max(peaks):.1%}), {sum(t <= 0.2 for t in times)} step times within 20 % "
        f"(median {statistics.median(times):.1%}, largest {max(times):.1%}), with ops "
        "as fast as they were between the steps. By the "
        f"promise made before them, {sum(t <= 0.2 for t in promised)} are within 20 % "
        f"(median {statistics.median(promised):.1%}, largest {max(promised):.1%})."
    )
    columns = ["model", "memory", "predicted peak", "measured peak", "off by"]
    columns += ["predicted step", "in turns", "measured step", "off by"]
    columns += ["planned anew"]
    body = [
        [
            row["model"],
            format_bytes(row["memory_bytes"]),
            *(
                (
                    format_bytes(row["predicted_peak_bytes"]),
                    format_bytes(row["measured_peak_bytes"]),
                    f"{_peak_off(row):+.1%}",
                    f"{row['predicted_seconds']:.3f} s",
                    f"{_in_turns(row):.3f} s",
                    f"{_median(row):.3f} s",
                    f"{_in_turns(row) / _median(row) - 1:+.1%}",
                    str(row["replans"]),
                )
                if row["error"] is None
                else ("failed", "", "", "", "", "", "", "")
            ),
        ]
        for row in rows
    ]
    return text, ("Predicted before the first step, and measured", columns, body)


def _in_turns(row: Mapping[str, Any]) -> float:
    """Predicted from ops as fast as they were between the steps."""
    return statistics.median(row["predicted_seconds_in_turns"])


def _median(row: Mapping[str, Any]) -> float:
    return quiet_median(row)


def _peak_off(row: Mapping[str, Any]) -> float:
    return _off(row, "predicted_peak_bytes", row["measured_peak_bytes"])


def _off(row: Mapping[str, Any], predicted: str, measured: float) -> float:
    return row[predicted] / measured - 1


def _planning_scale(head: Head, rows: Rows) -> Finding:
    largest = max(rows, key=lambda row: row["ops"])
    quick = [row for row in rows if row["ops"] <= 5000]
    within = max(quick or rows, key=lambda row: row["ops"])
    text = (
        f"{within['ops']:,} ops are planned in {within['seconds']:.1f} s, "
        f"{largest['ops']:,} in {largest['seconds']:.1f} s."
    )
    columns = ["graph", "ops", "planning", "of the processor", "of it the order"]
    columns += ["playing it", "swaps", "run twice"]
    body = [
        [
            row["graph"],
            f"{row['ops']:,}",
            f"{row['seconds']:.2f} s",
            f"{row['processor_seconds']:.2f} s",
            f"{row['order_seconds']:.2f} s",
            f"{row['simulation_seconds']:.2f} s",
            "-" if row["swaps"] is None else f"{row['swaps']:,}",
            "-" if row["twice"] is None else f"{row['twice']:,}",
        ]
        for row in rows
    ]
    repeats = head["settings"]["repeats"]
    return text, (f"Planning time, median of {repeats}", columns, body)


def _overhead_when_it_fits(head: Head, rows: Rows) -> Finding:
    turns = rows[1:]  # the first one traces
    ratios = {
        kind: [
            statistics.median(turn["seconds"]["lms"][kind])
            / statistics.median(turn["seconds"]["plain"][kind])
            for turn in turns
        ]
        for kind in ("clock", "processor")
    }
    middle = {kind: statistics.median(values) for kind, values in ratios.items()}
    text = (
        "When everything fits, a step with the callback takes "
        f"{middle['clock']:.3f} times as long as one of plain Keras by the clock, and "
        f"{middle['processor']:.3f} times as much of the processor."
    )
    body: list[list[str]] = []
    for kind, values in ratios.items():
        low, _, high = statistics.quantiles(values, n=4)
        body.append([kind, f"{middle[kind]:.3f}", f"{low:.3f}", f"{high:.3f}"])
    columns = ["time", "median ratio", "lower quartile", "upper quartile"]
    steps = head["settings"]["steps"]
    title = f"With over without, {len(turns)} turns of {steps} steps each"
    return text, (title, columns, body)


def _unet3d_sizes(head: Head, rows: Rows) -> Finding:
    largest = {
        way: max(r["size"] for r in rows if r["support"] == way and not r["error"])
        for way in ("without", "with")
    }
    memory = format_bytes(parse_size(head["settings"]["memory"], name="memory"))
    ratio = (largest["with"] / largest["without"]) ** 3
    text = (
        f"In {memory}, whole trainings with validation reach {largest['without']}^3 "
        f"without support and {largest['with']}^3 with it, {ratio:.2f} times the "
        "voxels; the case study's 144^3 to 192^3 were 2.37 times."
    )
    body = [
        [
            f"{row['support']} support",
            f"{row['size']}^3",
            f"{(row['size'] / largest['without']) ** 3:.2f}",
            *(
                ["out of memory" if "OOM" in row["error"] else "failed", "", ""]
                if row["error"]
                else [
                    format_bytes(row["peak_bytes"]),
                    format_bytes(row["swapped_out_bytes"] or 0),
                    f"{row['epoch_seconds'][-1]:.1f} s",
                ]
            ),
        ]
        for row in rows
    ]
    columns = ["training", "size", "voxels", "peak", "swapped out", "second epoch"]
    return text, (f"In {memory}", columns, body)


# By name of the experiment.
FINDINGS = {
    "planner_comparison": _planner_comparison,
    "simulator_accuracy": _simulator_accuracy,
    "planning_scale": _planning_scale,
    "overhead_when_it_fits": _overhead_when_it_fits,
    "unet3d_sizes": _unet3d_sizes,
}
