"""What the host's processor says of itself."""

from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from lms.machine.host import stolen_seconds, usable_cores


@pytest.mark.parametrize(
    ("times", "seconds"),
    [(SimpleNamespace(user=5.0, steal=2.5), 2.5), (SimpleNamespace(user=5.0), 0.0)],
)
def test_what_a_hypervisor_took_is_read_where_it_is_counted(
    times: Any, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "cpu_times", lambda: times)
    assert stolen_seconds() == seconds


def test_where_the_system_hides_it_nothing_was_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hidden() -> Any:
        raise OSError("no /proc")

    monkeypatch.setattr(psutil, "cpu_times", hidden)
    assert stolen_seconds() == 0


def test_cores_are_those_that_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: [3])
    assert usable_cores() == 1
