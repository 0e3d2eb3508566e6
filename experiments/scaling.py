"""How close do several workers come to as many times the speed of one?

The case study's 3D U-Net at a small size trains in 1, 2 and 4 processes of this
machine, each in an emulated device of half of what plain Keras takes, with the
callback:

    together   workers of one job: gradients are averaged in each step
    apart      as many processes that train each for itself

The processes share the machine's cores, so as many independent ones are the only fair
base: efficiency is a step apart over a step together, in the mean, since processes on
shared cores take turns. Reductions of the gradients'
bytes are timed by themselves too; their share of a step is shown. Predicted and
measured peaks stand beside each other, the reductions' scratch included.

The published Table 7 (PowerAI DDL on AC922 servers, four V100s each, 100 Gb/s
InfiniBand between them) is predicted too, with no constant fitted. Each step takes as
long as published for one GPU, then a ring all-reduce carries 2 (n - 1) / n of the
gradients' bytes (today's network, float32) over its slowest link: NVLink within a
server, InfiniBand beyond. 228 subjects make whole steps: 15 with 16 GPUs.

Goals: each peak is within 10 % of the predicted one. Predicted efficiencies are not
below the published ones: DDL's also pay for reading data and for waiting.

Known weaknesses: workers of one machine send over its loopback and share its cores, so
their reductions take computing from the steps. Predicted peaks count a batch that
waits beside the step, 7 % here, which is not always there. Nothing of it ran on GPUs.
"""

import sys
from collections.abc import Iterator, Mapping
from math import ceil, prod
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

from experiments.charts import Panel, Series, draw_panels
from experiments.ledger import Head, Ledger, Row, Rows
from experiments.plots import COLOURS, MUTED, source
from experiments.question import DEVICE, Answer, Finding, settings_of
from experiments.servers import EPOCH_STEPS, SERVERS
from lms.emulation import emulate
from lms.machine.hardware import preset
from lms.units import GIB, MIB, Bytes, Seconds, format_bytes
from lms.workers.launching import launch
from profiling.record import read_json

__all__ = ["ANSWER", "main", "ring_seconds"]

_FOLDER = Path("build") / "experiments" / "scaling"
_TOLERANCE = 0.10

# Table 7: seconds of an epoch at 192^3 with TFLMS, by GPUs; four to a server.
_PUBLISHED = {1: 590, 4: 150, 8: 76, 16: 40}
_GPUS_EACH = 4
_INFINIBAND = 12.5e9  # bytes per second: 100 Gb/s
_NETWORK = {"filters": 16, "depth": 5}


def ring_seconds(size: Bytes, workers: int, rate: float) -> Seconds:
    """Of a ring all-reduce, whose every worker sends 2 (n - 1) / n of all bytes.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters
    of workstations", J. Parallel Distrib. Comput. 69 (2009).

    Args:
        size: Of what is reduced.
        workers: How many there are.
        rate: Bytes per second of the slowest link.

    Example:
        >>> ring_seconds(100, 4, 50.0), ring_seconds(100, 1, 50.0)
        (3.0, 0.0)
    """
    return 2 * (workers - 1) / workers * size / rate


def _add_settings(parser: Any) -> None:
    sizes = {"size": 32, "filters": 8, "depth": 3, "steps": 100, "idle": 5}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])


def _run(options: Any) -> None:
    names = ("size", "filters", "depth", "steps", "idle")
    settings = settings_of(options, *names)
    ledger = Ledger(options.results, settings, anew=options.anew)
    flags = [f"--{name}={getattr(options, name)}" for name in names]
    plain = ledger.once(
        {"kind": "plain", "workers": 1},
        lambda: _measured("plain", 1, GIB, [*flags, "--alone"]),
    )
    memory = max(plain["peaks"]) // 2 // MIB * MIB
    for workers in options.workers:
        for kind, more in (("together", ()), ("apart", ("--alone",))):
            row = ledger.once(
                {"kind": kind, "workers": workers},
                lambda kind=kind, workers=workers, more=more: _measured(
                    kind, workers, memory, [*flags, "--lms", *more]
                ),
            )
            print(f"{workers}, {kind}: {fmean(row['step_seconds']):.3f} s a step")
    ledger.once({"kind": "gradients", "workers": 1}, _gradients)


def _measured(
    kind: str, workers: int, memory: Bytes, flags: list[str]
) -> dict[str, Any]:
    """Of all workers: their steps, peaks and reductions."""
    folder = _FOLDER / f"{kind}{workers}"
    folder.mkdir(parents=True, exist_ok=True)
    environ = emulate.environment(memory, cards=workers) | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    words = [sys.executable, "-m", "experiments.scaling_trial"]
    output = folder / "found.json"
    log = folder / "log.txt"
    with log.open("w") as out:
        code = launch(
            [*words, str(output.resolve()), *flags],
            workers=workers,
            environ=environ,
            out=out,
        )
    if code != 0:
        raise SystemExit(f"{kind}, {workers} workers: code {code}, see {log}")
    found = [read_json(output.with_suffix(f".{rank}.json")) for rank in range(workers)]
    return {
        "memory_bytes": memory,
        # All end a step together; those apart are a sample of one way to run.
        "step_seconds": [one for each in found for one in each["step_seconds"]],
        "reduction_seconds": max(each["reduction_seconds"] for each in found),
        "gradient_bytes": found[0]["gradient_bytes"],
        "peaks": [each["peak_bytes"] for each in found],
        "predicted_peaks": [one for e in found for one in e["predicted_peak_bytes"]],
        "swapped_out": [one for each in found for one in each["swapped_out_bytes"]],
        "replans": [one for each in found for one in each["replans"]],
    }


def _gradients() -> dict[str, Any]:
    """Bytes of the case study's gradients; only this needs TensorFlow here."""
    from unet3d.model import build_unet

    model: Any = build_unet(32, _NETWORK["filters"], _NETWORK["depth"])
    sizes = (prod(variable.shape) for variable in model.trainable_variables)
    return {"gradient_bytes": 4 * sum(sizes)}


def _predicted(size: Bytes) -> dict[int, float]:
    """Efficiency of Table 7's jobs, by GPUs: one GPU's epoch over all of theirs."""
    step = _PUBLISHED[1] / EPOCH_STEPS
    nvlink = preset(SERVERS["AC922"].hardware).d2h
    found = {}
    for gpus in _PUBLISHED:
        rate = nvlink if gpus <= _GPUS_EACH else min(nvlink, _INFINIBAND)
        epoch = ceil(EPOCH_STEPS / gpus) * (step + ring_seconds(size, gpus, rate))
        found[gpus] = _PUBLISHED[1] / gpus / epoch
    return found


def _by_kind(rows: Rows, kind: str) -> Mapping[int, Row]:
    return {row["workers"]: row for row in rows if row["kind"] == kind}


def _efficiencies(rows: Rows) -> dict[int, float]:
    together, apart = (_by_kind(rows, kind) for kind in ("together", "apart"))
    return {
        workers: fmean(apart[workers]["step_seconds"]) / fmean(row["step_seconds"])
        for workers, row in together.items()
        if workers in apart
    }


def _finding(_: Head, rows: Rows) -> Finding:
    most = max(_efficiencies(rows))
    size = _by_kind(rows, "gradients")[1]["gradient_bytes"]
    predicted = _predicted(size)
    last = max(_PUBLISHED)
    said = (
        f"On the same cores {most} workers train at {_efficiencies(rows)[most]:.0%} of "
        f"the speed of {most} that know nothing of each other. On AC922 servers "
        f"{last} GPUs are predicted to reach {predicted[last]:.1%}; published are "
        f"{_PUBLISHED[1] / last / _PUBLISHED[last]:.0%}."
    )
    return said, _here(rows), _there(predicted)


def _here(rows: Rows) -> Any:
    columns = ["workers", "device each", "step apart", "step together", "quartiles"]
    columns += ["efficiency", "reductions", "of the step", "peak", "predicted"]
    body = []
    for workers, ratio in _efficiencies(rows).items():
        row = _by_kind(rows, "together")[workers]
        apart = fmean(_by_kind(rows, "apart")[workers]["step_seconds"])
        step = fmean(row["step_seconds"])
        low, _, high = quantiles(row["step_seconds"], n=4)
        body.append(
            [
                str(workers),
                format_bytes(row["memory_bytes"]),
                f"{apart * 1e3:.0f} ms",
                f"{step * 1e3:.0f} ms",
                f"{low * 1e3:.0f} to {high * 1e3:.0f} ms",
                f"{ratio:.2f}",
                f"{row['reduction_seconds'] * 1e3:.1f} ms",
                f"{row['reduction_seconds'] / step:.0%}",
                format_bytes(max(row["peaks"])),
                format_bytes(max(row["predicted_peaks"])),
            ]
        )
    return "Workers of this machine", columns, body


def _there(predicted: Mapping[int, float]) -> Any:
    columns = ["GPUs", "epoch, published", "efficiency, published", "predicted"]
    body = [
        [
            str(gpus),
            f"{seconds} s",
            f"{_PUBLISHED[1] / gpus / seconds:.0%}",
            f"{predicted[gpus]:.1%}",
        ]
        for gpus, seconds in _PUBLISHED.items()
    ]
    return "Table 7 of the case study, 192^3 on AC922 servers", columns, body


def _goals(_: Head, rows: Rows) -> Iterator[tuple[str, bool]]:
    off = max(
        abs(predicted / peak - 1)
        for kind in ("together", "apart")
        for row in _by_kind(rows, kind).values()
        for peak, predicted in zip(row["peaks"], row["predicted_peaks"], strict=True)
    )
    yield f"each peak within 10 % of the predicted one: {off:.1%}.", off <= _TOLERANCE
    predicted = _predicted(_by_kind(rows, "gradients")[1]["gradient_bytes"])
    below = [
        gpus
        for gpus, seconds in _PUBLISHED.items()
        if predicted[gpus] < _PUBLISHED[1] / gpus / seconds
    ]
    text = "predicted efficiencies are not below the published ones"
    yield f"{text}: {below or 'none is'}.", not below


def _plot(head: Head, rows: Rows, path: Path) -> None:
    ideal = [(workers, workers) for workers in _PUBLISHED]
    predicted = _predicted(_by_kind(rows, "gradients")[1]["gradient_bytes"])
    here = [(workers, workers * r) for workers, r in _efficiencies(rows).items()]
    published = [(g, _PUBLISHED[1] / seconds) for g, seconds in _PUBLISHED.items()]
    there = [(gpus, gpus * ratio) for gpus, ratio in predicted.items()]
    blue, red = COLOURS["threshold"], COLOURS["budget"]
    series = [
        Series(points=ideal, colour=MUTED, label="as many times", marker="", line="--"),
        Series(points=published, colour=blue, label="DDL, published", marker="s"),
        Series(points=there, colour=red, label="AC922s, predicted", hollow=True),
        Series(points=here, colour=red, label="this machine's cores", marker="^"),
    ]
    panel = Panel(
        x="workers",
        y="times the speed of one",
        series=series,
        xlim=(0, None),
        ylim=(0, None),
    )
    draw_panels(
        [[panel]],
        path,
        title="Speed of several workers",
        note=f"Here: over as many independent processes. {source(head)}",
        size=(9, 5),
    )


ANSWER = Answer(
    name="scaling",
    title="Several workers",
    emulated=DEVICE,
    about=__doc__,
    add_settings=_add_settings,
    run=_run,
    finding=_finding,
    plot=_plot,
    goals=_goals,
)
main = ANSWER.main

if __name__ == "__main__":
    raise SystemExit(main())
