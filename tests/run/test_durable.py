"""Files that are replaced whole, or stay as they were."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forge_run import durable


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "état.json"
    durable.write_text(path, "first")
    durable.write_text(path, "zweitens: ß")
    assert path.read_text(encoding="utf-8") == "zweitens: ß"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    durable.write_text(path, "first")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        durable.write_text(path, "second")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_moved_with_what_is_in_it(tmp_path: Path) -> None:
    draft = tmp_path / ".draft"
    (draft / "inner").mkdir(parents=True)
    (draft / "inner" / "file").write_text("content")
    durable.move(draft, tmp_path / "place")
    assert (tmp_path / "place" / "inner" / "file").read_text() == "content"
    assert not draft.exists()
