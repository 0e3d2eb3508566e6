"""A trial in a process of its own, on an emulated card.

`LMS_TEST_CARD` is the folder of the card's libraries; without it these tests skip.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

__all__ = ["on_card"]


def on_card(trial: str, *args: Any, mib: int = 256, **environ: object) -> Any:
    """What a function returns there.

    Args:
        trial: `module:function`; what it returns becomes JSON.
        args: What it is called with: numbers, text, lists of them.
        mib: The card's memory.
        environ: Other variables.
    """
    if "LMS_TEST_CARD" not in os.environ:
        pytest.skip("no emulated card: LMS_TEST_CARD is not set")
    folder = Path(os.environ["LMS_TEST_CARD"])
    variables = {
        "LD_LIBRARY_PATH": folder,
        "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": folder / "libfake_gpu.so",
        "FAKE_GPU_MEMORY_MIB": mib,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_ENABLE_ONEDNN_OPTS": "1",
        **environ,
    }
    ended = subprocess.run(
        [sys.executable, "-m", __name__, trial, json.dumps(args)],
        env=os.environ | {name: str(value) for name, value in variables.items()},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    return json.loads(ended.stdout.splitlines()[-1])


if __name__ == "__main__":
    module, _, function = sys.argv[1].partition(":")
    found = getattr(importlib.import_module(module), function)(*json.loads(sys.argv[2]))
    sys.stdout.write(f"\n{json.dumps(found)}\n")
