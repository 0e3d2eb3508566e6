"""How it is told that a device has run out of memory, whoever says it."""

import pytest
import tensorflow as tf

from lms.errors import BudgetError, OutOfMemoryError
from lms.tf.failures import first_words, ran_out, ran_out_on_host, refused_in_words

pytestmark = pytest.mark.tf

_NO_SCRATCH = (
    "CUDNN failed to allocate the scratch space for the runner or to find a working "
    "no-scratch runner."
)

SAID = (
    (tf.errors.ResourceExhaustedError, "OOM when allocating tensor with shape[4,4]"),
    (tf.errors.NotFoundError, "No algorithm worked!  Error messages:\n  Profiling"),
    (tf.errors.UnknownError, _NO_SCRATCH),
    (tf.errors.UnknownError, "[_Derived_]  CUDNN_STATUS_ALLOC_FAILED in tensorflow"),
    (tf.errors.InternalError, "Failed to create handle: CUBLAS_STATUS_ALLOC_FAILED"),
    (tf.errors.InternalError, "failed to create cublas handle: not enough"),
    (tf.errors.InternalError, "Dst tensor is not initialized."),
    (tf.errors.InternalError, "failed: CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    (tf.errors.InternalError, "Failed to call DoRnnBackward with model config: [rnn_"),
    (tf.errors.CancelledError, "Collective ops is aborted by: group is cancelled\nThe"),
)


@pytest.mark.parametrize(("kind", "text"), SAID)
def test_it_is_told_by_class_or_by_text(kind: type, text: str) -> None:
    assert ran_out(kind(None, None, text))
    assert not ran_out_on_host(kind(None, None, text))


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.InternalError(None, None, "cuDNN launch failure"),
        tf.errors.NotFoundError(None, None, "no such file"),
        ValueError("No algorithm worked!"),
    ],
)
def test_what_says_something_else_is_something_else(error: Exception) -> None:
    assert not ran_out(error)


def _receive(source: str, target: str) -> str:
    key = f"/task:0/device:{source};c8ec;/task:0/device:{target};edge_2_t;0:0"
    return f"SameWorkerRecvDone unable to allocate output tensor. Key: {key}"


@pytest.mark.parametrize(
    ("text", "on_host"),
    [
        ("OOM when allocating tensor on device:GPU:0 by allocator gpu_host_bfc", True),
        ("OOM when allocating tensor on device:GPU:0 by allocator GPU_0_bfc", False),
        (_receive("GPU:0", "CPU:0"), True),
        (_receive("CPU:0", "GPU:0"), False),
    ],
)
def test_the_host_s_pinned_memory_is_told_apart(text: str, *, on_host: bool) -> None:
    error = tf.errors.ResourceExhaustedError(None, None, text)
    assert ran_out_on_host(error) == on_host


def test_the_first_words_are_those_of_the_refusal() -> None:
    text = f"2 root error(s) found.\n  (0) UNKNOWN: {_NO_SCRATCH}\n\t [[node conv]]"
    assert first_words(tf.errors.UnknownError(None, None, text)) == _NO_SCRATCH


def test_advice_is_nothing_that_is_refused_on_a_gpu() -> None:
    error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")
    with pytest.raises(OutOfMemoryError) as raised, refused_in_words("plan"):
        raise error
    assert "state" not in str(raised.value)


def test_a_refusal_passes_before_its_text_is_made() -> None:
    def said(least: int) -> str:
        raise AssertionError(f"nobody has read the least budget of {least}")

    with pytest.raises(BudgetError) as no, refused_in_words("plan a step"):
        raise BudgetError(said, least_bytes=4096)
    assert no.value.least_bytes == 4096
