"""Measure copies between host and device: python -m profiling.link_bandwidth.

Times each direction and both at once, per size, from each kind of host memory; then
several devices at once, each in a process of its own. Fits latency and bandwidth.

    python -m profiling.link_bandwidth --output link.json
"""

import argparse
import multiprocessing
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.progress import Progress

from lms.errors import LMSError
from lms.units import GIB, KIB, MIB, Bytes, Seconds, format_bytes, parse_size
from profiling.link_fit import fit_link
from profiling.links import DIRECTIONS, Timer, describe_link, open_link, room_for_copies
from profiling.record import write_result

__all__ = ["main", "sizes_between", "summary"]

_LEAST, _MOST = 5, 50  # least and most copies of one size

_USUAL = 10e9  # bytes per second of the link in the announcement


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write; return 3 if no GPU can be measured, 1 if several cannot."""
    options = _parser().parse_args(arguments)
    together: list[dict[str, Any]] = []
    code = 0
    with Progress(transient=True) as bars:
        try:
            about = describe_link()
            settings = _settings(options, about)
            print(_announced(about, settings), flush=True)
            rows = _measure_sizes(about, settings, bars)
        except (LMSError, ValueError) as error:
            print(f"link_bandwidth: {error}", file=sys.stderr)
            return 3 if isinstance(error, LMSError) else 2
        try:
            together.extend(_measure_together(about, settings, bars))
        except LMSError as error:  # earlier rows are written
            print(f"link_bandwidth: {error}", file=sys.stderr)
            code = 1
    results = {**about, "rows": rows, "fits": _fits(rows), "together": together}
    write_result(options.output, "link_bandwidth", settings, results)
    for fit in results["fits"]:
        print(
            f"{fit['directions']:4} {fit['memory']:9} {fit['bandwidth'] / 1e9:.3g} "
            f"GB/s, {fit['latency'] * 1e6:.0f} us a copy"
        )
    print(f"written: {options.output}")
    return code


def _announced(about: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Say what is measured, and how long that takes on a usual link."""
    sizes = sizes_between(settings["smallest"], settings["largest"])
    ways = len(about["memories"]) * len(DIRECTIONS)
    enough = settings["seconds_per_point"]
    each = (max(enough, (_LEAST + 1) * size / _USUAL) for size in sizes)
    memories, seconds = " and ".join(about["memories"]), ways * sum(each)
    return (
        f"link_bandwidth: copies of {len(sizes)} sizes to {format_bytes(sizes[-1])}, "
        f"{', '.join(DIRECTIONS)}, from {memories} memory: about {seconds:.0f} s "
        f"at {_USUAL / 1e9:.0f} GB/s, longer on a slower link."
    )


def _settings(options: argparse.Namespace, about: Mapping[str, Any]) -> dict[str, Any]:
    largest = min(options.largest, room_for_copies(about["memory"]))
    if len(sizes_between(options.smallest, largest)) < 2:
        raise ValueError(
            f"--smallest must leave two powers of two up to {largest} bytes, got "
            f"{options.smallest}. Use a smaller --smallest or a larger --largest."
        )
    if not 1 <= options.devices <= about["count"]:
        raise ValueError(
            f"--devices must be from 1 to the {about['count']} that CUDA shows, got "
            f"{options.devices}. Leave it out for 1."
        )
    return {
        "smallest": options.smallest,
        "largest": largest,
        "seconds_per_point": options.seconds,
        "devices": options.devices,
    }


def sizes_between(smallest: Bytes, largest: Bytes) -> list[Bytes]:
    """List powers of two from `smallest` to `largest`, both included.

    Example:
        >>> sizes_between(4 * KIB, 20 * KIB)
        [4096, 8192, 16384]
    """
    sizes = [1 << i for i in range(largest.bit_length())]
    return [size for size in sizes if smallest <= size <= largest]


def summary(seconds: Sequence[Seconds]) -> dict[str, Any]:
    """Compute median and quartiles.

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
    enough = settings["seconds_per_point"]
    bar = bars.add_task("copies", total=len(cases))
    rows: list[dict[str, Any]] = []
    with open_link(0, settings["largest"]) as timer:
        for memory, directions, size in cases:
            taken = _time(timer, size, directions, memory == "pinned", enough)
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
    """Fit a line for each kind of memory and direction; "both" counts bytes twice."""
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
        case = {"memory": memory, "directions": directions}
        fits.append(case | asdict(fit_link(points)))
    return fits


def _measure_together(
    about: dict[str, Any], settings: dict[str, Any], bars: Progress
) -> Iterator[dict[str, Any]]:
    """Measure each device's bandwidth while 1, 2, 4 ... and all devices copy."""
    most = settings["devices"]
    counts = sorted({*sizes_between(1, most), most}) if most > 1 else []
    bar = bars.add_task("several devices", total=len(counts) * len(DIRECTIONS))
    size = min(settings["largest"], 64 * MIB)
    for count in counts:
        for directions in DIRECTIONS:
            pinned = about["memories"][0] == "pinned"
            seconds = 4 * settings["seconds_per_point"]
            rates = _at_once(count, (size, directions, pinned, seconds))
            case = {"devices": count, "directions": directions, "size": size}
            yield case | {"bandwidths": rates}
            bars.advance(bar)


def _at_once(count: int, case: tuple[Any, ...]) -> list[float]:
    """Measure the bandwidth of each of `count` devices that copy at once.

    Raises:
        LMSError: If a device cannot copy, or its process ends.
    """
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(count, context) as pool:
        barrier = manager.Barrier(count, timeout=60)
        jobs = [pool.submit(_copy_along, i, case, barrier) for i in range(count)]
        wait(jobs)
        errors = [error for job in jobs if (error := job.exception())]
        if not errors:
            return [job.result() for job in jobs]
    # Other errors only say that a process was missing.
    error = max(errors, key=lambda error: isinstance(error, LMSError))
    raise LMSError(
        f"could not copy on {count} devices at once: {error!r}. Use fewer --devices."
    )


def _copy_along(index: int, case: tuple[Any, ...], barrier: Any) -> float:
    """Measure a device among several: all begin together and copy for equal times."""
    size, directions, pinned, seconds = case
    taken: list[Seconds] = []
    try:
        with open_link(index, size) as timer:
            timer(size, directions, pinned)
            barrier.wait()
            while sum(taken) < seconds:
                taken.append(timer(size, directions, pinned))
    except BaseException:
        barrier.abort()
        raise
    moved = size * (2 if directions == "both" else 1)
    return moved * len(taken) / sum(taken)


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
        "--seconds", type=float, default=0.25, help="seconds for each size (0.25)"
    )
    parser.add_argument(
        "--devices", type=int, default=1, help="most devices that copy at once (1)"
    )
    return parser


def _size(text: str) -> Bytes:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
