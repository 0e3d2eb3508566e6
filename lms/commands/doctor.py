"""Checks this machine for training: versions, driver, devices, memory, variables.

Facts in, findings with advice out. Version ranges follow `pyproject.toml`.
"""

import json
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from rich.console import Console
from rich.text import Text

from lms.machine.hardware import BUILT_FOR
from lms.machine.host import PINNED_VARIABLE, is_number, pinned_limit
from lms.machine.inventory import Facts, installed_version, read_driver
from lms.units import format_bytes

__all__ = ["Finding", "Verdict", "doctor", "gather", "judge"]

# Supported versions: at least the first, below the second.
_NEEDED = {
    "python": ((3, 11), (3, 14)),
    "tensorflow": ((2, 21), (2, 22)),
    "keras": ((3, 12), (4,)),
    "numpy": ((1, 26), (99,)),
}

# A GPU is free while at most 1/32 of its memory is in use: desktops take that.
_FREE = 32

_INSTALL = 'Run `pip install "tflms[gpu]"`.'

_EMULATE = "Emulate a GPU: python -m lms emulate --memory 96MiB -- python train.py"

_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_GPU_ALLOCATOR",
    "TF_GPU_HOST_MEM_LIMIT_IN_MB",
    "TF_XLA_FLAGS",
)


class Verdict(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """The result of one check.

    Args:
        topic: The checked item, in a word.
        advice: The next step; "" where there is nothing to do.
    """

    verdict: Verdict
    topic: str
    text: str
    advice: str = ""


def judge(facts: Facts, *, needs_gpu: bool = False) -> tuple[Finding, ...]:
    """Return all findings, topic by topic; `needs_gpu` as in `doctor`."""
    rules = (_versions, _tensorflow, _cuda, _device, _others, _pinned, _xla, _allocator)
    found = (Finding(*each) for rule in rules for each in rule(facts))
    worse = {(Verdict.NOTE, "device"): Verdict.PROBLEM} if needs_gpu else {}
    return tuple(
        each._replace(verdict=worse.get(each[:2], each.verdict)) for each in found
    )


_Found: TypeAlias = tuple[Verdict, str, str, str]  # the fields of a finding


def _versions(facts: Facts) -> Iterator[_Found]:
    for name, found in (("python", facts.python), *facts.packages):
        least, below = _NEEDED[name]
        range_ = f"at least {_dotted(least)} and below {_dotted(below)}"
        if found is None:
            yield Verdict.PROBLEM, name, "not installed", "Run `pip install tflms`."
        elif not least <= _numbers(found) < below:
            advice = f"tflms needs {range_}: install such a version."
            yield Verdict.PROBLEM, name, found, advice
        else:
            yield Verdict.OK, name, found, ""


def _tensorflow(facts: Facts) -> Iterator[_Found]:
    if facts.installation is None:
        advice = "Run `python -c 'import tensorflow'` to see the whole error."
        yield Verdict.PROBLEM, "loading", facts.failure or "TensorFlow fails", advice
    elif facts.installation.backend != "tensorflow":
        text = f"Keras uses the backend '{facts.installation.backend}'"
        yield Verdict.PROBLEM, "backend", text, "Set KERAS_BACKEND=tensorflow."


def _cuda(facts: Facts) -> Iterator[_Found]:
    driver, there = facts.driver, facts.installation
    if there is None:
        return
    text = f"TensorFlow is built with CUDA {there.cuda}, cuDNN {there.cudnn}"
    if driver.version is None:
        yield Verdict.OK, "CUDA", f"{text}; there is no NVIDIA driver", ""
        return
    newest = "" if driver.cuda is None else f" for CUDA {driver.cuda}"
    text = f"driver {driver.version}{newest}; {text}"
    if there.cuda is None:
        yield Verdict.PROBLEM, "CUDA", "TensorFlow is built without CUDA", _INSTALL
    elif driver.cuda and _numbers(driver.cuda)[0] < _numbers(there.cuda)[0]:
        # Within one major version CUDA runs on older drivers.
        yield Verdict.PROBLEM, "CUDA", text, "Install a newer NVIDIA driver."
    else:
        yield Verdict.OK, "CUDA", text, ""


def _device(facts: Facts) -> Iterator[_Found]:
    there = facts.installation
    if there is None:
        return
    if there.gpus:
        limit = "" if there.limit is None else f", {format_bytes(there.limit)} of it"
        text = f"{there.device}{limit} for TensorFlow"
        if there.capability and there.capability[0] > BUILT_FOR:
            number = _dotted(there.capability)
            advice = "The first run compiles all kernels for tens of minutes, or fails."
            text += f", which has no code for its compute capability {number}"
            yield Verdict.NOTE, "device", text, advice
        else:
            yield Verdict.OK, "device", text, ""
    elif facts.driver.gpus:
        hidden = facts.variable("CUDA_VISIBLE_DEVICES")
        if hidden is None:
            text = f"{len(facts.driver.gpus)} GPUs are here, TensorFlow sees none"
            yield Verdict.PROBLEM, "device", text, _INSTALL
        else:
            text = f"CUDA_VISIBLE_DEVICES={hidden} hides the GPUs from TensorFlow"
            yield Verdict.NOTE, "device", text, "Unset it to train on a GPU."
    else:
        why = f" (NVML: {facts.driver.reason})" if facts.driver.reason else ""
        text = f"no GPU{why}: nothing is planned, Keras trains as ever"
        yield Verdict.NOTE, "device", text, _EMULATE


def _others(facts: Facts) -> Iterator[_Found]:
    for number, gpu in enumerate(facts.driver.gpus):
        if gpu.memory is None or gpu.used is None:
            continue
        text = f"{format_bytes(gpu.used)} of {format_bytes(gpu.memory)} are in use"
        if gpu.used > gpu.memory // _FREE:
            advice = "End other programs (`nvidia-smi` lists them), or set a budget."
            yield Verdict.NOTE, f"GPU {number}", f"{gpu.name}: {text}", advice
        else:
            yield Verdict.OK, f"GPU {number}", f"{gpu.name}: {text}", ""


def _pinned(facts: Facts) -> Iterator[_Found]:
    """Check free RAM and the limit of pinned memory, where offloaded tensors lie."""
    free, there = facts.host_free, facts.installation
    written = facts.variable(PINNED_VARIABLE) if there and there.gpus else None
    limit = pinned_limit(dict(facts.variables))
    text = f"{format_bytes(free or 0)} of RAM are free"
    if free is None:
        advice = "Swapped tensors need RAM: see `python -m lms plan`."
        yield Verdict.NOTE, "host", "free RAM is unknown", advice
    elif written is not None and not is_number(written):
        text = f"{PINNED_VARIABLE}={written} is not a number"
        advice = f"Write {PINNED_VARIABLE} as a whole number of MiB."
        yield Verdict.PROBLEM, "host", text, advice
    elif written is not None and limit < free:
        text = f"{text}, {format_bytes(limit)} may be pinned for swapped tensors"
        advice = f"Unset {PINNED_VARIABLE} where plans need more."
        yield Verdict.NOTE, "host", text, advice
    else:
        yield Verdict.OK, "host", f"{text} for swapped tensors", ""


def _xla(facts: Facts) -> Iterator[_Found]:
    flags = facts.variable("TF_XLA_FLAGS") or ""
    clustered = re.search(r"tf_xla_auto_jit=([12]|fusible)", flags)
    if clustered or "tf_xla_cpu_global_jit" in flags:
        text = f"TF_XLA_FLAGS={flags} clusters ops: tensors inside cannot be swapped"
        yield Verdict.PROBLEM, "XLA", text, "Unset it."
    elif facts.installation is not None and facts.installation.gpus:
        text = 'on by jit_compile="auto"; LMSCallback plans without what does not fit'
        advice = "To compare step times, compile models with jit_compile=False."
        yield Verdict.NOTE, "XLA", text, advice
    else:
        yield Verdict.OK, "XLA", "off: Keras turns it on only where there is a GPU", ""


def _allocator(facts: Facts) -> Iterator[_Found]:
    there = facts.installation
    if there is None or not there.gpus:
        return
    name = facts.variable("TF_GPU_ALLOCATOR")
    if name:
        text = f"TF_GPU_ALLOCATOR={name}: peaks are predicted for the default allocator"
        yield Verdict.NOTE, "allocator", text, "Unset it, so that predictions hold."
    elif there.growth:
        text = "GPU memory grows on demand; a planned step takes its budget at once"
        advice = "Turn memory growth off (TF_FORCE_GPU_ALLOW_GROWTH, set_memory_growth)"
        yield Verdict.NOTE, "allocator", text, f"{advice} for the largest models."
    else:
        yield Verdict.OK, "allocator", "best fit, all memory taken at once", ""


def _numbers(version: str) -> tuple[int, ...]:
    """Return major and minor version.

    Example:
        >>> _numbers("2.21.0rc1"), _numbers("9")
        ((2, 21), (9,))
    """
    return tuple(int(number) for number in re.findall(r"[0-9]+", version)[:2])


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


_STYLE = {Verdict.OK: "green", Verdict.NOTE: "yellow", Verdict.PROBLEM: "bold red"}


def doctor(*, as_json: bool, needs_gpu: bool = False) -> int:
    """Print findings, or facts and findings as JSON.

    Args:
        as_json: Whether to print JSON.
        needs_gpu: Whether a GPU that TensorFlow lacks or has no code for is a problem.

    Returns:
        The exit code: 1 if there is a problem.
    """
    facts = gather()
    findings = judge(facts, needs_gpu=needs_gpu)
    if as_json:
        shown = {"findings": [f._asdict() for f in findings], "facts": asdict(facts)}
        print(json.dumps(shown, indent=1))
    else:
        _show(findings)
    return int(any(finding.verdict is Verdict.PROBLEM for finding in findings))


def gather() -> Facts:
    """Ask the system, the driver, then TensorFlow, which takes memory when asked."""
    driver = read_driver()
    installation, failure, free = None, None, None
    try:
        from lms.tf.measure.devices import read_installation
        from lms.tf.measure.free_memory import available_host_bytes

        free = available_host_bytes()
        installation = read_installation()
    except Exception as error:  # any error of TensorFlow is a finding
        failure = f"{type(error).__name__}: {error}"
    return Facts(
        python=platform.python_version(),
        packages=tuple((p, installed_version(p)) for p in _NEEDED if p != "python"),
        driver=driver,
        installation=installation,
        failure=failure,
        host_free=free,
        variables=tuple((v, os.environ[v]) for v in _VARIABLES if v in os.environ),
    )


def _show(findings: tuple[Finding, ...]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        line = Text(f"{finding.verdict:<8}", style=_STYLE[finding.verdict])
        line.append(f"{finding.topic:<12}", style="default")
        line.append(finding.text, style="default not bold")
        console.print(line)
        if finding.advice:
            console.print(Text(f"{'':20}{finding.advice}"))
