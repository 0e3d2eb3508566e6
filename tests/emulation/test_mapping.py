"""Virtual memory management of an emulated card, as TensorFlow 2.22 uses it."""

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from lms.emulation import emulate
from tests.programs import python

pytestmark = pytest.mark.tf  # where no card can be compiled, these are skipped too

MIB = 1 << 20
INVALID_VALUE, OUT_OF_MEMORY, NOT_SUPPORTED = 1, 2, 801


def called(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program of `mapping_calls` on a card of 64 MiB."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("LMS_CARD_")}
    made = emulate.environment("64MiB", inherited=clean)
    return python("-m", "tests.emulation.mapping_calls", program, env=made)


def said(program: str) -> Any:
    ended = called(program)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_mapped_memory_keeps_bytes_and_counts_until_it_is_gone() -> None:
    found = said("life")
    assert found["codes"] == [0] * 7
    assert found["used"] == [4 * MIB, 4 * MIB, 0]  # released, and then unmapped
    assert found["same"]


def test_created_and_taken_memory_have_one_limit() -> None:
    found = said("limit")
    # The limit of TensorFlow's allocator, and 2 GiB for the runtime's own memory.
    assert found["taken"] == (64 * MIB + 2048 * MIB) // (64 * MIB)
    assert found["codes"] == [OUT_OF_MEMORY] * 2


def test_wrong_calls_are_refused() -> None:
    found = said("mistakes")
    assert found.pop("a second place") == NOT_SUPPORTED
    assert set(found.values()) == {INVALID_VALUE}


def test_access_without_leave_ends_the_program() -> None:
    assert called("no access").returncode == -signal.SIGSEGV
    ended = called("unmapped")
    assert (ended.returncode, ended.stdout) == (-signal.SIGSEGV, "unmapped\n")
