"""Large model support for a training, and what is said and written of its memory."""

from pathlib import Path

import tensorflow as tf

from lms import LMSCallback, StepReport
from lms.report.step import headline
from lms.storage.files import write_json, write_text
from lms.units import format_bytes
from lms.workers.collectives import Workers
from unet3d.runs import Configuration

__all__ = ["memory_in_words", "memory_support", "plan_in_words", "write_memory"]


def memory_support(configuration: Configuration) -> LMSCallback | None:
    """Large model support as a run asks for it; it steps aside where a step fits."""
    if configuration.lms is False:
        return None
    return LMSCallback(budget=configuration.budget, verbose=0)


def plan_in_words(swapping: LMSCallback | None) -> str:
    """Say what large model support does with the training step, after the first one."""
    if swapping is None:
        return "LMS is off: a step takes what plain Keras takes."
    report = _training(swapping)
    return (
        "LMS: memory has no limit here, nothing is planned."
        if report is None
        else headline(report)
    )


def memory_in_words(swapping: LMSCallback | None) -> str:
    """Device memory that was measured, of what there is, and what moves; or ""."""
    report = None if swapping is None else _training(swapping)
    measured = None if report is None else report.measured_peak_bytes
    measured = measured or _peak()
    words = [f"memory {format_bytes(measured)}"] if measured else []
    if words and report is not None and report.budget_bytes is not None:
        words[0] += f" of {format_bytes(report.budget_bytes)}"
    if report is not None and report.swap_count:
        words.append(f"{format_bytes(report.swapped_out_bytes)} swapped in each step")
    return ", ".join(words)


def write_memory(run: Path, swapping: LMSCallback | None, workers: Workers) -> None:
    """Write what steps took: by the plan, and by the device's count if it keeps one."""
    own = "" if workers.is_chief else f".{workers.rank}"
    reports = [] if swapping is None else swapping.report
    steps = [report.numbers() for report in reports]  # the plan has a file of its own
    # Large model support counts anew for each kind of step.
    peaks = [_peak(), *(report.measured_peak_bytes for report in reports)]
    peak = max((peak for peak in peaks if peak is not None), default=None)
    told = {"worker": workers.rank, "workers": workers.size}
    told |= {"device peak bytes": peak, "steps": steps}
    write_json(run / f"memory{own}.json", told)
    if swapping is not None and swapping.plan is not None:
        write_text(run / f"plan{own}.json", swapping.plan.to_json())


def _training(swapping: LMSCallback) -> StepReport | None:
    return next((r for r in swapping.report if r.kind == "train"), None)


def _peak() -> int | None:
    """Most bytes in use at once on the device; None where it does not count."""
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices()
    try:
        name = ":".join(devices[0].name.split(":")[-2:])
        return int(tf.config.experimental.get_memory_info(name)["peak"])
    except ValueError:
        return None
