"""The link, and one step over time: the profilers of `profiling`, one process each."""

import gzip
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tensorflow as tf

from experiments.gpu_validation.ways import make_model
from lms.commands.model_file import Subject
from lms.tf.measure.devices import Device
from lms.tf.measure.measuring import measure_hardware
from profiling import link_bandwidth
from profiling.record import read_json, write_result
from profiling.sampler import read_samples, sampling
from profiling.sessions import record_steps
from profiling.step_timeline import results_of, warm_up
from profiling.steps import analyse, fit_step
from profiling.timelines import timeline_from_json
from profiling.utilisation import summarise

__all__ = ["time_link", "time_step"]


def time_link(
    settings: Mapping[str, Any],
    find: Callable[[], Device],
    note: Callable[..., None],
    trace: Path,
) -> None:
    """Time copies by the driver, then as TensorFlow makes them.

    Args:
        settings: "largest" copy in bytes, "seconds" for each size.
        find: Makes the device, after the driver's turn: TensorFlow takes its memory.
        note: Takes results by name.
        trace: Name of the profilers' own file, without an ending.

    Raises:
        RuntimeError: If the driver could not be asked; TensorFlow's turn comes first.
    """
    output = trace.parent / "link.json"
    words = [f"--output={output}", f"--largest={settings['largest']}"]
    code = link_bandwidth.main([*words, f"--seconds={settings['seconds']}"])
    if code == 0:
        found = read_json(output)
        note(**{key: found[key] for key in ("fits", "stated", "rows", "device")})
    note(hardware=asdict(measure_hardware(find())))
    if code != 0:
        raise RuntimeError(f"profiling.link_bandwidth ended with {code}: see the log")


def time_step(
    settings: Mapping[str, Any],
    device: Device,
    note: Callable[..., None],
    trace: Path,
) -> None:
    """Record steps, with utilisation, and play the same plan.

    Args:
        settings: As for a training, with "budget" in bytes.
        device: Where.
        note: Takes results by name.
        trace: Name of trace files, without an ending.
    """
    size = settings["size"]
    cube = (1, size, size, size)
    specs = (tf.TensorSpec((*cube, 4)), tf.TensorSpec((*cube, 3), tf.uint8))
    model = make_model({**settings, "way": "lms"})
    subject = Subject(name=f"unet {size}", model=model, batch=specs)
    note(limit_bytes=device.limit)
    step = fit_step(subject, settings.get("budget"))
    known = analyse(subject, step.report.plan)
    warm_up(step, 3, lambda: None)
    samples = trace.with_suffix(".samples")
    with sampling(os.getpid(), 0.1, samples):
        for _ in range(settings["steps"]):
            step.run()
    note(utilisation=_without_curve(samples))
    samples.unlink()
    kept = trace.with_suffix(".xplane.pb.gz")
    session = record_steps(step.run, settings["steps"], advance=lambda: None, keep=kept)
    results = results_of(step, known, session)
    write_result(
        trace.parent / f"{trace.name}.json",
        "step_timeline",
        {key: str(value) for key, value in settings.items()},
        results,
    )
    for label in ("measured", "predicted"):
        timeline = timeline_from_json(results[f"{label}_timeline"])
        text = timeline.to_chrome_trace(name=f"{trace.name}, {label}")
        file = trace.with_suffix(f".{label}.trace.json.gz")
        file.write_bytes(gzip.compress(text.encode()))
    names = ("report", "hardware", "median", "predicted", "step_seconds")
    note(**{name: results[name] for name in names})


def _without_curve(samples: Path) -> dict[str, Any]:
    summary = summarise(*read_samples(samples))
    del summary["curve"]
    return summary
