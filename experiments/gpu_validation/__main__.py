"""The words of the command: run, or draw."""

import argparse
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.gpu_validation.catalogue import FULL, PARTS, TINY, Trial, catalogue
from experiments.gpu_validation.claims import failed_parts, judge_rows
from experiments.gpu_validation.running import Runner
from experiments.ledger import read_lines
from profiling.record import circumstances, write_json

__all__ = ["main"]

_SHORT = 7.8  # minutes of the short form


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or draw.

    Args:
        arguments: The words after `python -m experiments.gpu_validation`.

    Returns:
        The exit status: 1 if a part failed, 2 if there is nothing to draw, 3 if there
        is no GPU.
    """
    options = _parser().parse_args(arguments)
    if options.command == "draw":
        results = options.output / "results.jsonl"
        if not results.exists():
            print(
                f"gpu_validation: `--output` must hold results.jsonl, got "
                f"{str(options.output)!r}. Measure first, with `run`.",
                file=sys.stderr,
            )
            return 2
        from experiments.gpu_validation.drawing import draw

        return draw(results, options.figure)
    return _run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.gpu_validation",
        description="Is the library's picture of TensorFlow on a GPU right?",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure, or go on measuring")
    draw = commands.add_parser("draw", help="print and draw what was measured")
    for command in (run, draw):
        command.add_argument("--output", type=Path, required=True, metavar="DIR")
    run.add_argument("--short", action="store_true", help="at most eight minutes")
    run.add_argument("--minutes", type=float, help="ends after so many")
    run.add_argument("--parts", nargs="+", choices=PARTS, help="only these (all)")
    run.add_argument(
        "--trials", nargs="+", metavar="NAME", help="only these, and the machine"
    )
    run.add_argument(
        "--again", action="store_true", help="repeat what did not end well"
    )
    run.add_argument(
        "--copy-to",
        type=Path,
        metavar="DIR",
        help="a folder that gets a copy after each trial",
    )
    run.add_argument(
        "--device",
        choices=("gpu", "cpu"),
        default="gpu",
        help="cpu rehearses at a tiny size, emulated",
    )
    draw.add_argument("--figure", type=Path, help="to draw (DIR/figure.png)")
    return parser


def _run(options: argparse.Namespace) -> int:
    console = Console(soft_wrap=True, highlight=False)
    scale = FULL if options.device == "gpu" else TINY
    settings = {"device": options.device, "short": options.short}
    minutes = options.minutes or (_SHORT if options.short else 24 * 60)
    runner = Runner(
        folder=options.output,
        device=options.device,
        settings=settings | {"scale": asdict(scale)},
        deadline=time.monotonic() + 60 * minutes,
        rows=_finished(options.output / "results.jsonl", settings, options),
        say=partial(_say, console=console),
        copy_to=options.copy_to,
    )
    is_new = not options.output.exists()
    options.output.mkdir(parents=True, exist_ok=True)
    trials = catalogue(scale, short=options.short)
    chosen = [trial for trial in trials if _is_wanted(trial, options)]
    left = runner.run(chosen[:1])
    machine = runner.rows[0] if runner.rows else {"error": "no time for it"}
    if "NoGpuError" in str(machine["error"]):
        (options.output / "results.jsonl").unlink()
        if is_new:
            shutil.rmtree(options.output)
        reason = machine["error"].partition(": ")[2]
        print(f"gpu_validation: {reason}", file=sys.stderr)
        return 3
    left += runner.run(chosen[1:])
    return _conclude(runner, left, options.output, console)


def _finished(
    path: Path, settings: Mapping[str, Any], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Rows of the call before; what it asked for otherwise is put aside."""
    if not path.exists():
        return []
    head, rows = read_lines(path)
    before = {name: head["settings"].get(name) for name in settings}
    if before != settings:
        path.replace(path.with_name(f"results-{int(path.stat().st_mtime)}.jsonl"))
        return []
    if options.again:
        return [row for row in rows if row["outcome"] in ("done", "out of memory")]
    return rows


def _is_wanted(trial: Trial, options: argparse.Namespace) -> bool:
    if trial.part == 0:
        return True
    if options.trials is not None:
        return trial.name in options.trials
    return options.parts is None or PARTS[trial.part] in options.parts


def _say(row: Mapping[str, Any], console: Console) -> None:
    if "NoGpuError" in str(row["error"]):
        return  # is said once, at the end
    colour = {"done": "green", "skipped": "yellow", "out of memory": "yellow"}
    known = [f"{row['seconds']:.0f} s"]
    if row.get("median_seconds"):
        known.append(f"{row['median_seconds']:.3g} s a step")
    if row["error"]:
        known.append(row["error"])
    style = colour.get(row["outcome"], "red")
    console.print(f"[{style}]{row['outcome']:13}[/] ", end="")
    console.print(f"{row['name']}: {', '.join(known)}", markup=False)


def _conclude(
    runner: Runner, left: Sequence[str], folder: Path, console: Console
) -> int:
    claims = judge_rows(runner.rows)
    failures = failed_parts(runner.rows, claims)
    head = circumstances() | {"settings": runner.settings}
    found = {"claims": [asdict(c) for c in claims], "failed_parts": failures}
    rows = {"left": list(left), "trials": runner.rows}
    write_json(folder / "summary.json", head | found | rows)
    runner.copy_out()
    words = {True: "holds", False: "FAILS", None: "open"}
    for claim in claims:
        line = f"{words[claim.holds]:6}{PARTS[claim.part]}: {claim.text}: {claim.found}"
        console.print(line, markup=False)
    for part, reasons in failures.items():
        console.print(f"part {part} failed: {'; '.join(reasons)}", style="red")
    if left:
        console.print(f"no time for {len(left)} trials: run the same command again")
    console.print(f"written: {folder / 'summary.json'}, {folder / 'log.txt'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
