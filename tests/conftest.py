"""Fixtures that several folders share."""

from collections.abc import Iterator

import pytest

from tests.tf.worker import Worker


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    """Runs functions in fresh processes, each with its own device memory."""
    server = Worker()
    yield server
    server.close()
