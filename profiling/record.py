"""The head of every result file: machine, versions, commit.

A result file is JSON, written under a temporary name and then renamed, so that it is
complete or absent. Sizes are bytes, times are seconds.
"""

import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from lms.machine.host import processor_name
from lms.machine.inventory import NoDriverError, installed_version, open_nvml
from lms.storage.files import write_text
from lms.units import KIB

__all__ = ["circumstances", "paced", "read_json", "read_result", "slow_motion"]
__all__ += ["write_json", "write_result"]

_PACKAGES = ("tensorflow", "keras", "numpy", "nvidia-ml-py")
_TIMES = ("latency", "launch", "predicted_seconds", "unplanned_seconds")
_RATES = ("flops", "float16_flops", "bfloat16_flops", "memory_bandwidth", "h2d", "d2h")
_RATES += ("h2d_bytes_per_second", "d2h_bytes_per_second")


def write_json(path: Path, value: Any) -> None:
    """Write `value`; the folder is made if missing.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "results" / "one.json"
        >>> write_json(path, {"peak": 3})
        >>> read_json(path)
        {'peak': 3}
    """
    write_text(path, "".join(_lines(value, "\n")) + "\n")


def _lines(value: Any, margin: str) -> Iterator[str]:
    """Yield JSON in which a list or object of mere numbers and texts takes one line."""
    parts = value.values() if isinstance(value, Mapping) else value
    nested = isinstance(value, Mapping | list | tuple) and any(
        isinstance(part, Mapping | list | tuple) for part in parts
    )
    if not nested:
        yield json.dumps(value)
        return
    named = isinstance(value, Mapping)
    yield "{" if named else "["
    for i, key in enumerate(value):
        yield ("," if i else "") + margin + " "
        yield f"{json.dumps(str(key))}: " if named else ""
        yield from _lines(value[key] if named else key, margin + " ")
    yield margin + ("}" if named else "]")


def read_json(path: Path) -> Any:
    """Read a file of `write_json`; floats keep their bits."""
    return json.loads(path.read_text())


def write_result(
    path: Path, kind: str, settings: Mapping[str, Any], results: Mapping[str, Any]
) -> None:
    """Write a profiler's results and their circumstances.

    Args:
        path: The file.
        kind: Name of the profiler, for the reporter.
        settings: Settings of the profiler.
        results: Measurements, and "device".

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "one.json"
        >>> write_result(path, "op_costs", {"runs": 3}, {"device": "CPU:0"})
        >>> read_result(path)["settings"]
        {'runs': 3}
    """
    head = {"kind": kind, "settings": dict(settings), "slow_motion": slow_motion()}
    write_json(path, head | circumstances() | dict(results))


def slow_motion() -> float:
    """Return the factor on an emulated card's times; 1 without a card."""
    return float(os.environ.get("LMS_CARD_TIME_SCALE", "1"))


def paced(values: Mapping[str, Any]) -> dict[str, Any]:
    """Divide the slow motion out of a device's times and rates, found by name."""
    slow = slow_motion()
    factors = dict.fromkeys(_TIMES, 1 / slow) | dict.fromkeys(_RATES, slow)
    return {
        key: value * factors[key] if value and key in factors else value
        for key, value in values.items()
    }


def read_result(path: Path) -> dict[str, Any]:
    """Read a file of `write_result`.

    Raises:
        ValueError: If the file is no result of a profiler.
    """
    try:
        value = read_json(path)
    except ValueError:
        value = None
    if not isinstance(value, dict) or "kind" not in value:
        raise ValueError(
            f"`{path}` must be a result of a profiler, got something else. "
            "Name files that a `--output` of `profiling` wrote."
        )
    return value


def circumstances() -> dict[str, Any]:
    """Describe machine, versions, day and commit; None for unknown facts."""
    return {
        "machine": {
            "processor": processor_name(),
            "cores": os.cpu_count(),
            "memory": _memory(),
            "system": f"{platform.system()} {platform.machine()}",
            "load_average": round(os.getloadavg()[0], 2),
        },
        "versions": {"python": platform.python_version()}
        | {name: installed_version(name) for name in _PACKAGES},
        "driver": _driver(),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "units": {"size": "byte", "time": "second"},
    }


def _memory() -> str | None:
    """Return the host's memory in Linux's format, as older results have it."""
    try:
        return f"{psutil.virtual_memory().total // KIB} kB"
    except (OSError, RuntimeError):
        return None


def _driver() -> str | None:
    """Return the version of NVIDIA's driver."""
    try:
        return str(open_nvml().nvmlSystemGetDriverVersion())
    except NoDriverError:
        return None


def _commit() -> str | None:
    """Return LMS_COMMIT, else this checkout's commit, marked if programs differ.

    Result files do not count: they differ as soon as a run writes its first row.
    """
    if said := os.environ.get("LMS_COMMIT"):
        return said
    commit = _git("rev-parse", "--short=12", "HEAD")
    if commit is None:
        return None
    changed = _git("diff", "--name-only", "HEAD", "--", "*.py", "*.toml")
    return f"{commit}-dirty" if changed else commit


def _git(*words: str) -> str | None:
    """Return git's answer about this checkout; None without a checkout."""
    command = ["git", *words]
    folder = Path(__file__).parent.parent
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
