"""The number of cores that the host lets a process use."""

import psutil
import pytest

from lms.machine.host import usable_cores


def test_cores_are_those_that_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: [3])
    assert usable_cores() == 1
