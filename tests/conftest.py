"""Fixtures that several folders share."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from lms.emulation import emulate
from lms.emulation.build import built
from lms.errors import UnsupportedError
from tests.tf.worker import Worker

# `tests.strategies.examples` scales by these; `make test-all` asks for `full`.
settings.register_profile("full", max_examples=100, deadline=None)
settings.register_profile("quick", max_examples=33, deadline=None)
settings.load_profile("quick")

# Measurements of a card are shared by all tests, as by all runs of a user. The compiled
# card stays for the next session.
os.environ["LMS_CACHE"] = "off"
_IS_FIRST = "LMS_TESTS" not in os.environ  # xdist's others have it from this one
_KEPT = Path(os.environ.get("LMS_TESTS") or tempfile.mkdtemp(prefix="lms-tests-"))
os.environ["LMS_TESTS"] = str(_KEPT)
# `make test &` and nohup ignore Ctrl-C; programs that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Bytecode is kept: else each program of a test compiles its imports anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests of this process run on an emulated card.
try:
    _CARD = emulate.environment("4GiB", inherited={})
    emulate.load()
except UnsupportedError as error:
    _CARD, _NO_CARD = {}, str(error)
else:
    _NO_CARD = None
    with suppress(FileExistsError):
        (_KEPT / "emulation").symlink_to(built().parent)
    os.environ["LMS_CACHE"] = str(_KEPT)
os.environ.update(_CARD)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make the card; programs that tests start then have none, or one of their own."""
    if _CARD and any(item.get_closest_marker("tf") for item in session.items):
        import tensorflow as tf

        tf.config.list_logical_devices()
    for name in _CARD:
        os.environ.pop(name, None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Once TensorFlow is there, the garbage collector goes past it."""
    if _NO_CARD and item.get_closest_marker("tf"):
        pytest.skip(_NO_CARD)
    if "keras" in sys.modules:
        _set_apart()


@cache
def _set_apart() -> None:
    """Leave what was imported out of collections: to go through it takes long."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Remove the folder, in the process that made it."""
    if _IS_FIRST:
        shutil.rmtree(_KEPT, ignore_errors=True)


@pytest.fixture(scope="session")
def card() -> None:
    """Skips where no card can be emulated."""
    if _NO_CARD:
        pytest.skip(_NO_CARD)


@pytest.fixture(scope="session")
def worker(card: None) -> Iterator[Worker]:
    """Runs functions in fresh processes, each with a card of its own."""
    server = Worker()
    yield server
    server.close()
