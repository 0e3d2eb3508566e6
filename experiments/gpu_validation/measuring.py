"""A trial's device, the machine, the link, and one step over time.

A logical device with a limit makes a large GPU a small one; it is made before
TensorFlow computes anything. In a rehearsal the limit was set by the variables that the
process was started with.

Sources: `BaseGPUDeviceFactory` in tensorflow/core/common_runtime/gpu/gpu_device.cc; a
GPU with a logical device takes all of that memory at once, whatever `allow_growth` is
in Python, but not if TF_FORCE_GPU_ALLOW_GROWTH says otherwise (gpu_process_state.cc).
"""

import gzip
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tensorflow as tf

from experiments.gpu_validation.training import make_model
from lms.commands.diagnosis import judge
from lms.commands.doctor import gather
from lms.commands.model_file import Subject
from lms.errors import LMSError
from lms.tf import compat
from lms.tf.measure.device_rates import measure_hardware
from lms.tf.measure.devices import Device, find_device
from lms.tf.measure.host_memory import available_host_bytes
from lms.units import MIB, Bytes
from profiling import link_bandwidth
from profiling.record import read_json, write_result
from profiling.sampler import read_samples, sampling
from profiling.sessions import record_steps
from profiling.step_timeline import results_of, warm_up
from profiling.steps import analyse, fit_step
from profiling.timelines import timeline_from_json
from profiling.utilisation import summarise

__all__ = ["NoGpuError", "describe", "make_device", "time_link", "time_step"]

_QUERY = "name,driver_version,memory.total,memory.used"


class NoGpuError(LMSError):
    """TensorFlow sees no GPU."""


def make_device(
    kind: str, memory: Bytes | None, options: Mapping[str, Any] | None = None
) -> Device:
    """Limit the device, and find it as the library does.

    Args:
        kind: "gpu" or "cpu".
        memory: Bytes of a GPU; None for all of it.
        options: GPU options without a public setter.

    Raises:
        NoGpuError: If there is none.
    """
    if options:
        compat.set_gpu_options(**options)
    if kind == "cpu":
        return find_device()
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        raise NoGpuError(
            "no GPU found by TensorFlow. Run this where `nvidia-smi` works and "
            "tensorflow[and-cuda] is installed, or rehearse with --device cpu."
        )
    tf.config.set_visible_devices(gpus[:1], "GPU")
    if memory is not None:
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=memory // MIB)
        tf.config.set_logical_device_configuration(gpus[0], [limit])
    return find_device()


def describe(device: Device, note: Callable[..., None]) -> None:
    """Note the machine, and where a convolution was computed.

    Args:
        device: Where.
        note: Takes results by name.
    """
    built = tf.sysconfig.get_build_info()
    note(
        device=device.name,
        limit_bytes=device.limit,
        host_free_bytes=available_host_bytes(),
        built={
            key: str(built[key])
            for key in ("cuda_version", "cudnn_version", "is_cuda_build")
            if key in built
        },
        gpus=[
            tf.config.experimental.get_device_details(gpu)
            for gpu in tf.config.list_physical_devices("GPU")
        ],
        nvidia_smi=_nvidia_smi(),
    )
    with tf.device(device.name):
        volume = tf.random.stateless_normal([1, 16, 16, 16, 4], (0, 1))
        kernel = tf.random.stateless_normal([3, 3, 3, 4, 8], (0, 2))
        made = tf.nn.conv3d(volume, kernel, [1] * 5, "SAME")
    note(computed_on=made.device, sum=float(tf.reduce_sum(made)))
    note(findings=[asdict(finding) for finding in judge(gather())])


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
    words = [f"--output={output}", f"--largest={settings['largest']}B"]
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


def _nvidia_smi() -> str | None:
    """The output of nvidia-smi, which needs no package; None without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    words = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=30
    )
    return (done.stdout or done.stderr).strip()


def _without_curve(samples: Path) -> dict[str, Any]:
    summary = summarise(*read_samples(samples))
    del summary["curve"]
    return summary
