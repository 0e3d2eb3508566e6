"""The emulated device: its variables, and a limit that TensorFlow really keeps."""

import os
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from lms.errors import LMSError
from lms.machine import emulate
from lms.units import GIB, MIB

ON = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}

# The last tensor shows that the device can still be used after running out.
FILL = """
import tensorflow as tf

for mebibytes in (8, 40, 8):
    try:
        tensor = tf.fill((mebibytes, 1024, 256), 1.0)
        print(mebibytes, "fits", int(tensor[0, 0, 0]))
        del tensor
    except tf.errors.ResourceExhaustedError:
        print(mebibytes, "ResourceExhaustedError")
"""


@pytest.mark.parametrize(
    ("memory", "limit"),
    [
        ("96MiB", "96"),
        ("1.5GiB", "1536"),
        ("3.999MiB", "3"),
        ("100MB", "95"),
        (MIB, "1"),
        (np.int64(2 * GIB), "2048"),
    ],
)
def test_the_limit_is_in_whole_mebibytes_rounded_down(
    memory: str | int, limit: str
) -> None:
    assert emulate.environment(memory) == {
        "TF_CPU_ALLOCATOR_USE_BFC": "true",
        "TF_CPU_BFC_MEM_LIMIT_IN_MB": limit,
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
    }


@pytest.mark.parametrize("memory", [MIB - 1, "1023KiB", 1])
def test_less_than_a_mebibyte_is_refused(memory: str | int) -> None:
    with pytest.raises(ValueError, match="`memory` must be at least 1 MiB, got"):
        emulate.environment(memory)


@pytest.mark.parametrize("memory", ["lots", "-1GiB", 0])
def test_what_is_no_size_is_refused(memory: str | int) -> None:
    with pytest.raises(ValueError, match="`memory` must be"):
        emulate.environment(memory)


@pytest.mark.parametrize("word", ["1", "true", "True"])
def test_the_limit_of_the_device_is_read_back_in_bytes(word: str) -> None:
    environ = {"TF_CPU_ALLOCATOR_USE_BFC": word, "TF_CPU_BFC_MEM_LIMIT_IN_MB": "96"}
    assert emulate.device_limit(environ) == 96 * MIB


@pytest.mark.parametrize(
    "environ",
    [
        {},
        ON,
        {"TF_CPU_BFC_MEM_LIMIT_IN_MB": "96"},
        {"TF_CPU_ALLOCATOR_USE_BFC": "0", "TF_CPU_BFC_MEM_LIMIT_IN_MB": "96"},
        {"TF_CPU_ALLOCATOR_USE_BFC": "False", "TF_CPU_BFC_MEM_LIMIT_IN_MB": "none"},
    ],
)
def test_without_allocator_or_limit_there_is_no_emulated_device(
    environ: dict[str, str],
) -> None:
    assert emulate.device_limit(environ) is None


@pytest.mark.parametrize("limit", ["", "many", "0", "-1", "96MiB", "1.5", "9" * 30])
def test_a_broken_limit_is_an_error_that_names_the_variable(limit: str) -> None:
    with pytest.raises(ValueError, match="`TF_CPU_BFC_MEM_LIMIT_IN_MB` must be a "):
        emulate.device_limit(ON | {"TF_CPU_BFC_MEM_LIMIT_IN_MB": limit})


@pytest.mark.parametrize("word", ["", "yes", "2"])
def test_a_broken_switch_is_an_error_that_names_the_variable(word: str) -> None:
    with pytest.raises(ValueError, match="`TF_CPU_ALLOCATOR_USE_BFC` must be true"):
        emulate.device_limit({"TF_CPU_ALLOCATOR_USE_BFC": word})


def test_ops_at_a_time_are_tensorflows_choice_unless_they_are_given() -> None:
    name = "TF_NUM_INTEROP_THREADS"
    assert name not in emulate.environment("1MiB")
    assert emulate.environment("1MiB", threads=3)[name] == "3"
    with pytest.raises(ValueError, match=r"`threads` must be at least 1, got 0"):
        emulate.environment("1MiB", threads=0)


def test_the_limit_of_this_process_is_set_before_tensorflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.delitem(sys.modules, "tensorflow.python.eager.context", raising=False)
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(sys, "meta_path", [])
    emulate.limit_memory("96MiB")
    assert os.environ == emulate.environment("96MiB")
    assert len(sys.meta_path) == 1, "nothing waits to take the memory in one piece"


def test_the_limit_of_this_process_comes_too_late_after_tensorflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", ModuleType("tensorflow"))
    monkeypatch.setattr(os, "environ", {})
    with pytest.raises(LMSError, match="must be called before TensorFlow is imported"):
        emulate.limit_memory("96MiB")
    assert os.environ == {}


def test_a_command_gets_the_variables_besides_its_own_environment() -> None:
    code = "import os; print(os.environ['X'], os.environ['TF_CPU_BFC_MEM_LIMIT_IN_MB'])"
    ended = emulate.run(
        [sys.executable, "-c", code],
        memory="96MiB",
        env={"X": "kept"},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (0, "kept 96\n")


def test_a_failed_command_is_an_error_only_if_that_is_asked_for() -> None:
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    assert emulate.run(command, memory="1MiB").returncode == 3
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        emulate.run(command, memory="1MiB", check=True)


@pytest.mark.tf
@pytest.mark.slow
def test_tensorflow_keeps_the_limit() -> None:
    ended = emulate.run(
        [sys.executable, "-c", FILL], memory="32MiB", capture_output=True, text=True
    )
    assert ended.stdout.splitlines() == [
        "8 fits 1",
        "40 ResourceExhaustedError",
        "8 fits 1",
    ], ended.stderr
