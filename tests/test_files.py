"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.files import PRIVATE, PUBLIC, replacing, write_new
from app.models.packages import new_folder


@pytest.mark.parametrize("mode", [PRIVATE, PUBLIC, 0o640])
def test_a_file_is_replaced_when_the_block_ends(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    mask = os.umask(0o077)
    try:
        with replacing(path, mode) as file:
            file.write(b"new")
            file.flush()
            assert path.read_bytes() == b"old"
    finally:
        os.umask(mask)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("draft", [None, "file.draft"])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, draft: str | None) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail() -> None:
        with replacing(path, draft=tmp_path / draft if draft else None) as file:
            file.write(b"new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_in_a_draft_is_overwritten(tmp_path: Path) -> None:
    draft = tmp_path / "file.draft"
    draft.write_bytes(b"x" * 100)
    draft.chmod(0o666)
    with replacing(tmp_path / "file", draft=draft) as file:
        assert stat.S_IMODE(draft.stat().st_mode) == PRIVATE
        file.write(b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert not draft.exists()


def test_one_of_many_writers_creates_the_file(tmp_path: Path) -> None:
    path, start = tmp_path / "file", threading.Barrier(8)

    def write(number: int) -> tuple[bool, bytes]:
        start.wait()
        return write_new(path, bytes([number]) * 1000), path.read_bytes()

    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(write, range(8)))
    assert sum(made for made, _ in written) == 1
    assert {content for _, content in written} == {bytes([[made for made, _ in written].index(True)]) * 1000}
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == PRIVATE


def test_a_new_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "new"

    def fail() -> None:
        with new_folder(folder) as draft:
            (draft / "file").write_text("x")
            assert not folder.exists()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(folder.parent.iterdir()) == []
    (folder.parent / ".killed.draft").mkdir()
    with new_folder(folder) as draft:
        (draft / "file").write_text("kept")
    with pytest.raises(FileExistsError), new_folder(folder):
        pass
    assert [path.name for path in folder.parent.iterdir()] == ["new"]
    assert (folder / "file").read_text() == "kept", "another's folder stays"
