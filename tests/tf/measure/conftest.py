import pytest


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here measurements are made anew, in this process and in others."""
    monkeypatch.setenv("LMS_CACHE", "off")
