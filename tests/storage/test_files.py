"""Files that are complete or absent."""

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from lms.storage.files import draft_of, write_file, write_text
from unet3d.files import read_json, remove_drafts, write_json


def fail(file: BinaryIO) -> None:
    file.write(b"half")
    raise RuntimeError("no more")


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    write_text(path, "old")
    with pytest.raises(RuntimeError, match="no more"):
        write_file(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_draft_lies_beside_its_file_with_the_same_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "figure.png"
    with draft_of(path) as draft:
        assert (draft.parent, draft.suffix) == (path.parent, ".png")
        assert str(os.getpid()) in draft.name  # two processes do not share one
        draft.write_bytes(b"drawn")
        assert not path.exists()
    assert path.read_bytes() == b"drawn"
    assert list(path.parent.iterdir()) == [path]


def test_a_draft_is_deleted_where_its_writer_fails(tmp_path: Path) -> None:
    def draw() -> None:
        with draft_of(tmp_path / "figure.png") as draft:
            draft.write_bytes(b"half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        draw()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "whole")
    (tmp_path / "partial-17-file").write_text("half")
    remove_drafts(tmp_path)
    remove_drafts(tmp_path / "not there")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_bytes_are_on_the_disk_before_they_take_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "file", list[bool]()
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(path.exists()))
    write_text(path, "all")
    assert synced == [False]
    assert path.read_text() == "all"


def test_json_comes_back_and_what_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "values.json"
    write_json(path, {"third": 1 / 3, "none": None})
    assert read_json(path) == {"third": 1 / 3, "none": None}
    write_text(path, "{")
    with pytest.raises(ValueError, match=r"values.json` must be JSON, got a file"):
        read_json(path)
