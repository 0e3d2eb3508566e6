"""Fixtures that several folders share."""

import gc
import os
import sys
from collections.abc import Iterator
from functools import cache

import pytest

from tests.tf.worker import Worker

# TensorFlow turns oneDNN on by itself on some processors only, and oneDNN's allocator
# counts what all tests of this process hold. A worker's processes have it on.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

# Every test measures and plans anew.
os.environ["LMS_CACHE"] = "off"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Once TensorFlow is there, the garbage collector goes past it."""
    if "keras" in sys.modules:
        _set_apart()


@cache
def _set_apart() -> None:
    """Leave what was imported out of collections: to go through it takes long."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    """Runs functions in fresh processes, each with its own device memory."""
    server = Worker()
    yield server
    server.close()
