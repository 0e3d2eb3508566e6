"""A preparation shows lines at once, and a bar when it takes long."""

import io
import time

import pytest
from rich.console import Console

from lms.report import progress
from lms.report.progress import displayed, tell, track


def text_of(*, terminal: bool, patience: float, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(progress, "_PATIENCE", patience)
    file = io.StringIO()
    with displayed(Console(file=file, force_terminal=terminal, width=100)):
        tell("LMS train step: 3 ops")
        for _ in track("measuring ops", ["a", "b", "c"]):
            time.sleep(0.15)
    return file.getvalue()


def test_a_bar_comes_on_a_terminal_when_it_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = text_of(terminal=True, patience=0.01, monkeypatch=monkeypatch)
    assert "LMS train step: 3 ops" in text
    assert "measuring ops" in text
    assert "/3" in text


@pytest.mark.parametrize(("terminal", "patience"), [(True, 60.0), (False, 0.01)])
def test_there_is_no_bar_otherwise(
    *, terminal: bool, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = text_of(terminal=terminal, patience=patience, monkeypatch=monkeypatch)
    assert text == "LMS train step: 3 ops\n"
