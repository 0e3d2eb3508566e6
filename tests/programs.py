"""Programs that tests start and wait for."""

import subprocess
import sys
from typing import Any

__all__ = ["python"]


def python(
    *words: str, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run this Python with `words`; what is printed comes back as text."""
    command = [sys.executable, *words]
    return subprocess.run(
        command, check=check, capture_output=True, text=True, **options
    )
