"""The doctor judges machines by plain facts."""

from dataclasses import replace
from typing import Any

import pytest

from lms.commands.doctor import Verdict, judge
from lms.machine.inventory import Driver, Facts, Gpu, Installation
from lms.units import GIB, MIB

TENSORFLOW = Installation(
    backend="tensorflow",
    cuda="12.5.1",
    cudnn="9",
    gpus=1,
    device="GPU:0",
    limit=14 * GIB,
    growth=False,
)
GPU = Gpu(name="V100", memory=16 * GIB, used=100 * MIB)
SERVER = Facts(
    python="3.11.7",
    packages=(("tensorflow", "2.21.0"), ("keras", "3.15.1"), ("numpy", "2.4.6")),
    driver=Driver(version="550.54.15", cuda="12.4", gpus=(GPU,)),
    installation=TENSORFLOW,
    host_free=60 * GIB,
)
LAPTOP = replace(
    SERVER,
    driver=Driver(reason="NVML Shared Library Not Found"),
    installation=replace(TENSORFLOW, gpus=0, device="CPU:0", limit=None),
)


def changed(**changes: Any) -> Facts:
    """The server with another GPU, installation or fact, and variables in capitals."""
    variables = {k: v for k, v in changes.items() if k.isupper()}
    gpu = {k: v for k, v in changes.items() if hasattr(GPU, k)}
    there = {k: v for k, v in changes.items() if hasattr(TENSORFLOW, k)}
    known = gpu | there | variables
    others = {k: v for k, v in changes.items() if k not in known}
    driver = replace(SERVER.driver, gpus=(replace(GPU, **gpu),))
    facts = replace(SERVER, installation=replace(TENSORFLOW, **there), driver=driver)
    return replace(facts, variables=tuple(variables.items()), **others)


def test_a_good_server_has_no_problem_and_only_xla_to_note() -> None:
    noted = [f.topic for f in judge(SERVER) if f.verdict is not Verdict.OK]
    assert noted == ["XLA"]


@pytest.mark.parametrize(
    ("facts", "topic", "verdict", "words"),
    [
        (replace(SERVER, python="3.10.4"), "python", "problem", "below 3.14"),
        (
            replace(SERVER, packages=(("tensorflow", "2.20.0"),)),
            *("tensorflow", "problem", "at least 2.21"),
        ),
        (replace(SERVER, packages=(("keras", None),)), "keras", "problem", "pip"),
        (
            replace(SERVER, installation=None, failure="ImportError: no"),
            *("loading", "problem", "import tensorflow"),
        ),
        (changed(backend="torch"), "backend", "problem", "KERAS_BACKEND=tensorflow"),
        (
            replace(SERVER, driver=replace(SERVER.driver, cuda="11.8")),
            *("CUDA", "problem", "newer NVIDIA driver"),
        ),
        (changed(cuda=None), "CUDA", "problem", "tflms[gpu]"),
        (changed(gpus=0), "device", "problem", "tflms[gpu]"),
        (changed(gpus=0, CUDA_VISIBLE_DEVICES="-1"), "device", "note", "Unset it"),
        (LAPTOP, "device", "note", "python -m lms emulate"),
        (changed(used=8 * GIB), "GPU 0", "note", "nvidia-smi"),
        (changed(host_free=None), "host", "note", "python -m lms plan"),
        (
            changed(TF_GPU_HOST_MEM_LIMIT_IN_MB="lots"),
            *("host", "problem", "whole number"),
        ),
        (changed(TF_XLA_FLAGS="--tf_xla_auto_jit=2"), "XLA", "problem", "Unset it"),
        (
            changed(TF_GPU_HOST_MEM_LIMIT_IN_MB="2048"),
            *("host", "note", "Unset TF_GPU_HOST_MEM_LIMIT_IN_MB"),
        ),
        (changed(capability=(12, 0)), "device", "note", "tens of minutes"),
        (
            changed(TF_GPU_ALLOCATOR="cuda_malloc_async"),
            *("allocator", "note", "Unset it"),
        ),
        (changed(growth=True), "allocator", "note", "memory growth"),
    ],
)
def test_what_is_wrong_is_found_with_what_to_do(
    facts: Facts, topic: str, verdict: str, words: str
) -> None:
    (found,) = (f for f in judge(facts) if f.topic == topic)
    assert found.verdict == verdict
    assert words in found.advice


@pytest.mark.parametrize(
    ("facts", "topic", "words"),
    [
        (SERVER, "device", "GPU:0, 14.00 GiB of it for TensorFlow"),
        (SERVER, "host", "60.00 GiB of RAM are free for swapped tensors"),
        (changed(capability=(9, 0)), "device", "14.00 GiB of it"),
        (
            replace(SERVER, driver=replace(SERVER.driver, cuda=None)),
            *("CUDA", "driver 550.54.15; TensorFlow is built with"),
        ),
        (SERVER, "CUDA", "driver 550.54.15 for CUDA 12.4; TensorFlow is built with"),
        (LAPTOP, "host", "60.00 GiB of RAM are free for swapped tensors"),
        (LAPTOP, "CUDA", "there is no NVIDIA driver"),
    ],
)
def test_what_is_right_is_said_too(facts: Facts, topic: str, words: str) -> None:
    (found,) = (f for f in judge(facts) if f.topic == topic)
    assert (found.verdict, found.advice) == (Verdict.OK, "")
    assert words in found.text


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        (SERVER, Verdict.OK),
        (LAPTOP, Verdict.PROBLEM),
        (changed(gpus=0, CUDA_VISIBLE_DEVICES="-1"), Verdict.PROBLEM),
        (changed(capability=(12, 0)), Verdict.PROBLEM),
    ],
)
def test_a_missing_gpu_is_a_problem_where_one_is_required(
    facts: Facts, verdict: Verdict
) -> None:
    (found,) = (f for f in judge(facts, needs_gpu=True) if f.topic == "device")
    assert found.verdict is verdict
