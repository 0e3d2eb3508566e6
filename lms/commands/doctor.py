"""Says what this machine has, what is wrong with it, and what to do."""

import json
import os
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from rich.console import Console
from rich.text import Text

from lms.commands.diagnosis import Finding, Verdict, judge
from lms.machine.inventory import Facts
from lms.machine.nvml import read_driver

__all__ = ["doctor", "gather"]

_PACKAGES = ("tensorflow", "keras", "numpy")
_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_GPU_ALLOCATOR",
    "TF_GPU_HOST_MEM_LIMIT_IN_MB",
    "TF_XLA_FLAGS",
)
_STYLE = {Verdict.OK: "green", Verdict.NOTE: "yellow", Verdict.PROBLEM: "bold red"}


def doctor(*, as_json: bool) -> int:
    """Print findings, or facts and findings as JSON.

    Returns:
        The exit code: 1 if there is a problem.
    """
    facts = gather()
    findings = judge(facts)
    if as_json:
        shown = {"findings": [asdict(f) for f in findings], "facts": asdict(facts)}
        print(json.dumps(shown, indent=1))
    else:
        _show(findings)
    return int(any(finding.verdict is Verdict.PROBLEM for finding in findings))


def gather() -> Facts:
    """Ask the system, the driver, then TensorFlow, which takes memory when asked."""
    driver = read_driver()
    installation, failure, free = None, None, None
    try:
        from lms.tf.measure.host_memory import available_host_bytes
        from lms.tf.measure.installation import read_installation

        free = available_host_bytes()
        installation = read_installation()
    except Exception as error:  # whatever it is, it is what the user needs to know
        failure = f"{type(error).__name__}: {error}"
    return Facts(
        python=platform.python_version(),
        packages=tuple((name, _version(name)) for name in _PACKAGES),
        driver=driver,
        installation=installation,
        failure=failure,
        host_free=free,
        variables=tuple((v, os.environ[v]) for v in _VARIABLES if v in os.environ),
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _show(findings: tuple[Finding, ...]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        line = Text(f"{finding.verdict:<8}", style=_STYLE[finding.verdict])
        line.append(f"{finding.topic:<12}", style="default")
        line.append(finding.text, style="default not bold")
        console.print(line)
        if finding.advice:
            console.print(Text(f"{'':20}{finding.advice}"))
