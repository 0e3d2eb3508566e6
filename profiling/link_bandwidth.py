"""Measure copies between host and device: python -m profiling.link_bandwidth.

Each direction and both at once, per size, from each kind of host memory; then several
devices at once, each in a process of its own. The fit says latency and bandwidth.

    python -m profiling.link_bandwidth --output link.json
"""

import argparse
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.progress import Progress

from lms.errors import LMSError
from lms.units import GIB, KIB, MIB, Bytes, Seconds, parse_size
from profiling.link_fit import fit_link
from profiling.links import DIRECTIONS, Timer, describe_link, open_link, room_for_copies
from profiling.record import write_result

__all__ = ["main", "sizes_between", "summary"]

_LEAST, _MOST = 5, 50  # copies of one size


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write; 3 means that there is no GPU."""
    options = _parser().parse_args(arguments)
    try:
        about = describe_link()
        largest = min(options.largest, room_for_copies(about["memory"]))
        settings = {
            "smallest": options.smallest,
            "largest": largest,
            "seconds_per_point": options.seconds,
            "devices": options.devices,
        }
        with Progress(transient=True) as bars:
            rows = _measure_sizes(about, settings, bars)
            together = _measure_together(about, settings, bars)
    except LMSError as error:
        print(f"link_bandwidth: {error}", file=sys.stderr)
        return 3
    results = {**about, "rows": rows, "fits": _fits(rows), "together": together}
    write_result(options.output, "link_bandwidth", settings, results)
    for fit in results["fits"]:
        print(
            f"{fit['directions']:4} {fit['memory']:9} {fit['bandwidth'] / 1e9:.3g} "
            f"GB/s, {fit['latency'] * 1e6:.0f} us a copy"
        )
    print(f"written: {options.output}")
    return 0


def sizes_between(smallest: Bytes, largest: Bytes) -> list[Bytes]:
    """Powers of two, both ends included if they are some.

    Example:
        >>> sizes_between(4 * KIB, 20 * KIB)
        [4096, 8192, 16384]
    """
    sizes = [1 << i for i in range(largest.bit_length())]
    return [size for size in sizes if smallest <= size <= largest]


def summary(seconds: Sequence[Seconds]) -> dict[str, Any]:
    """Median and quartiles.

    Example:
        >>> summary([1.0, 2.0, 3.0, 4.0, 9.0])["median"]
        3.0
    """
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return {
        "median": median(seconds),
        "lower_quartile": low,
        "upper_quartile": high,
        "count": len(seconds),
    }


def _measure_sizes(
    about: dict[str, Any], settings: dict[str, Any], bars: Progress
) -> list[dict[str, Any]]:
    sizes = sizes_between(settings["smallest"], settings["largest"])
    cases = [
        (memory, directions, size)
        for memory in about["memories"]
        for directions in DIRECTIONS
        for size in sizes
    ]
    bar = bars.add_task("copies", total=len(cases))
    rows: list[dict[str, Any]] = []
    with open_link(0, settings["largest"]) as timer:
        for memory, directions, size in cases:
            taken = _time(
                timer,
                size,
                directions,
                memory == "pinned",
                settings["seconds_per_point"],
            )
            case = {"memory": memory, "directions": directions, "size": size}
            moved = size * (2 if directions == "both" else 1)
            rows.append(case | summary(taken) | {"bandwidth": moved / median(taken)})
            bars.advance(bar)
    return rows


def _time(
    timer: Timer,
    size: Bytes,
    directions: str,
    pinned: bool,  # noqa: FBT001 - the rest of a Timer's arguments
    enough: Seconds,
) -> list[Seconds]:
    timer(size, directions, pinned)
    taken: list[Seconds] = []
    while len(taken) < _LEAST or (sum(taken) < enough and len(taken) < _MOST):
        taken.append(timer(size, directions, pinned))
    return taken


def _fits(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One fit for each kind of memory and direction; "both" counts both's bytes."""
    fits: list[dict[str, Any]] = []
    for memory, directions in dict.fromkeys(
        (row["memory"], row["directions"]) for row in rows
    ):
        factor = 2 if directions == "both" else 1
        points = [
            (factor * row["size"], row["median"])
            for row in rows
            if (row["memory"], row["directions"]) == (memory, directions)
        ]
        fit = fit_link(points)
        fits.append(
            {
                "memory": memory,
                "directions": directions,
                "latency": fit.latency,
                "bandwidth": fit.bandwidth,
                "error": fit.error,
            }
        )
    return fits


def _measure_together(
    about: dict[str, Any], settings: dict[str, Any], bars: Progress
) -> list[dict[str, Any]]:
    """Bandwidth of each device when 1, 2, 4 ... of them copy at once."""
    counts = sizes_between(1, settings["devices"])
    bar = bars.add_task("several devices", total=len(counts) * len(DIRECTIONS))
    size = min(settings["largest"], 64 * MIB)
    found: list[dict[str, Any]] = []
    for count in counts if settings["devices"] > 1 else []:
        for directions in DIRECTIONS:
            pinned = about["memories"][0] == "pinned"
            seconds = 4 * settings["seconds_per_point"]
            case = (size, directions, pinned, seconds)
            found.append(
                {
                    "devices": count,
                    "directions": directions,
                    "size": size,
                    "bandwidths": _at_once(count, case),
                }
            )
            bars.advance(bar)
    return found


def _at_once(count: int, case: tuple[Any, ...]) -> list[float]:
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(count), context.Queue()
    workers = [
        context.Process(target=_copy_along, args=(i, case, barrier, answers))
        for i in range(count)
    ]
    for worker in workers:
        worker.start()
    bandwidths = sorted(answers.get(timeout=300) for _ in workers)
    for worker in workers:
        worker.join()
    return [bandwidth for _, bandwidth in bandwidths]


def _copy_along(index: int, case: tuple[Any, ...], barrier: Any, answers: Any) -> None:
    """One device of several: all begin together and copy for as long."""
    size, directions, pinned, seconds = case
    taken: list[Seconds] = []
    with open_link(index, size) as timer:
        timer(size, directions, pinned)
        barrier.wait(timeout=60)
        while sum(taken) < seconds:
            taken.append(timer(size, directions, pinned))
    moved = size * (2 if directions == "both" else 1)
    answers.put((index, moved * len(taken) / sum(taken)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m profiling.link_bandwidth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--smallest", type=_size, default=4 * KIB, metavar="SIZE")
    parser.add_argument("--largest", type=_size, default=GIB, metavar="SIZE")
    parser.add_argument(
        "--seconds", type=float, default=0.25, help="to spend on each size"
    )
    parser.add_argument(
        "--devices", type=int, default=1, help="up to so many copy at once"
    )
    return parser


def _size(text: str) -> Bytes:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
