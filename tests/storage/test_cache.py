"""The cache keeps values from one run to the next, and rejects damaged ones."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from lms.storage import cache
from lms.storage.cache import cache_folder, digest, read_entry, write_entry


@dataclass(frozen=True, slots=True)
class Entry:
    sizes: tuple[int, ...]
    name: str = ""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


def test_an_entry_is_found_again() -> None:
    entry = Entry(sizes=(1, 2), name="conv")
    assert read_entry("things", "one", Entry) is None
    write_entry("things", "one", entry)
    assert read_entry("things", "one", Entry) == entry
    assert read_entry("others", "one", Entry) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b'{"sizes": ["many"]}', b'{"name": "x"}', b"[]"]
)
def test_what_is_damaged_is_left_out_aloud(
    content: bytes, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_entry("things", "one", Entry(sizes=()))
    (folder / "things" / "one.json").write_bytes(content)
    with caplog.at_level(logging.WARNING, "lms"):
        assert read_entry("things", "one", Entry) is None
    assert "one.json" in caplog.text
    assert "It is made anew" in caplog.text


def test_what_cannot_be_written_is_said_and_no_error(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING, "lms"):
        write_entry("things", "one", Entry(sizes=()))
    assert f"Set {cache.VARIABLE} to a folder that can be written" in caplog.text


def test_one_word_turns_it_off(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv(cache.VARIABLE, "Off")
    assert cache_folder() is None
    write_entry("things", "one", Entry(sizes=()))
    assert read_entry("things", "one", Entry) is None
    assert not folder.exists()


def test_it_is_in_the_user_s_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.VARIABLE)
    found = cache_folder()
    assert found is not None
    assert found.name == "lms"


def test_the_oldest_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOST", 2)
    for i in range(4):
        write_entry("things", str(i), Entry(sizes=(i,)))
        os.utime(folder / "things" / f"{i}.json", (1e9 + i, 1e9 + i))
    write_entry("things", "4", Entry(sizes=()))
    assert sorted(path.name for path in (folder / "things").iterdir()) == [
        "3.json",
        "4.json",
    ]


def test_what_is_old_is_made_anew(folder: Path) -> None:
    write_entry("things", "one", Entry(sizes=()))
    os.utime(folder / "things" / "one.json", (1e9, 1e9))
    assert read_entry("things", "one", Entry) is None


def test_another_version_of_the_library_keeps_apart() -> None:
    assert cache.sources() == cache.sources()
    assert digest(cache.sources(), 1) != digest(cache.sources(), 2)
