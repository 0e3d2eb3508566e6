"""Measure the ops of a training step: python -m profiling.op_costs.

Runs each op alone on the present device (`lms.tf.measure.speeds`), as the planner
does; the tables sum seconds by op type and by layer.

    python -m profiling.op_costs --output costs.json profiling/example.py:unet
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich.progress import Progress

from lms.commands.model_file import read_subject
from lms.errors import LMSError
from lms.ir.graph import GraphView, Op
from lms.machine.hardware import Costs, moved_bytes, roofline
from lms.units import Seconds
from profiling.record import write_result
from profiling.step_timeline import add_subject

__all__ = ["layer_of", "main", "table_by"]

_SHOWN = 12
_WORTH_A_ROW: Seconds = 2e-5


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        prog="python -m profiling.op_costs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_subject(parser, budget=False)
    options = parser.parse_args(arguments)
    try:
        with Progress(transient=True) as bars:
            bars.add_task("measuring ops", total=None)
            from profiling.steps import analyse

            known = analyse(read_subject(options.subject))
    except (LMSError, ValueError) as error:
        print(f"op_costs: {error}", file=sys.stderr)
        return 2
    graph, costs = known.graph, known.costs
    results = {
        "device": known.hardware.name,
        "hardware": asdict(known.hardware),
        "seconds": costs.total,
        "roofline_seconds": roofline(graph, known.hardware).total,
        "by_type": table_by(graph, costs, lambda op: op.type),
        "by_layer": table_by(graph, costs, lambda op: layer_of(op.name)),
        "op_count": len(graph.ops),
        "ops": [
            [op.name, op.type, costs.of(op.name)]
            for op in graph.ops
            if costs.of(op.name) >= _WORTH_A_ROW
        ],
    }
    write_result(options.output, "op_costs", {"subject": options.subject}, results)
    for row in results["by_type"][:_SHOWN]:
        print(f"{row['seconds'] * 1e3:8.2f} ms {row['share']:4.0%}  {row['name']}")
    print(f"written: {options.output}")
    return 0


def layer_of(name: str) -> str:
    """Return the layer of an op, or of an op of the layer's gradient.

    Example:
        >>> layer_of("unet3d_1/down0_conv_1/BiasAdd")
        'down0_conv_1'
        >>> layer_of("gradient_tape/unet3d_1/down0_conv_1/conv/Conv3DBackpropInputV2")
        'down0_conv_1'
        >>> layer_of("adam/Sub_3/ReadVariableOp"), layer_of("Sum")
        ('adam', '')
    """
    parts = re.sub(r"^gradient_tape/", "", name).split("/")
    if len(parts) == 1:
        return ""
    return parts[1] if len(parts) > 2 and parts[0] not in _LOOSE else parts[0]


# First parts of names that belong to optimizers and losses, not to models.
_LOOSE = ("adam", "sgd", "rmsprop", "adamw", "compile_loss", "loss")


def table_by(
    graph: GraphView, costs: Costs, key: Callable[[Op], str]
) -> list[dict[str, Any]]:
    """Sum seconds, ops, floating-point operations and bytes by group, slowest first.

    Args:
        graph: The step.
        costs: Seconds of each op.
        key: Returns the name of an op's group.
    """
    groups: dict[str, list[Op]] = {}
    for op in graph.ops:
        groups.setdefault(key(op), []).append(op)
    rows = [
        {
            "name": name,
            "seconds": sum(costs.of(op.name) for op in ops),
            "ops": len(ops),
            "flops": sum(op.flops for op in ops),
            "bytes": sum(moved_bytes(graph, op) for op in ops),
        }
        for name, ops in groups.items()
    ]
    total = costs.total or 1.0
    rows = [row | {"share": row["seconds"] / total} for row in rows]
    return sorted(rows, key=lambda row: (-row["seconds"], row["name"]))


if __name__ == "__main__":
    sys.exit(main())
