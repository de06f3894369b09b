"""Snapshots of indexes: the same answers after a start, and never a wrong one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from app.concurrency.scheduler import Scheduler
from app.features.checks.comparing import check_index
from app.features.erasure.erasing import erase_subject
from app.gallery.service import Galleries
from app.gallery.store import ChangeReader, Store
from app.gallery.subjects import delete_face, delete_subject
from app.search.follower import LocalBackend
from app.search.snapshots import HEADER_BYTES, Snapshots
from app.search.types import IndexSpec
from tests.conftest import PROJECT
from tests.support.changing import changed
from tests.support.following import NEVER_S, found, quiet
from tests.support.galleries import DIMENSION, PACKAGE, enroll, template
from tests.support.logged import logged, messages

FACES = 30
PATIENCE_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what `save` leaves."""
    root = tmp_path_factory.mktemp("saved")
    save(f"sqlite:///{root / 'likeness.db'}", root / "snapshots")
    return root


@pytest.fixture
def saved(original: Path, tmp_path: Path) -> str:
    """The URL of a database whose one gallery has a snapshot, and changes after it."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return f"sqlite:///{tmp_path / 'likeness.db'}"


def save(url: str, folder: Path) -> None:
    galleries = start(url, folder)
    galleries.create_gallery("staff", PACKAGE, DIMENSION)
    for seed in range(FACES):
        enroll(galleries, f"s{seed % 9}", seed)
    galleries.close()
    later = quiet(url)
    enroll(later, "late", FACES)
    changed(later, "staff", delete_subject, "s8")
    later.close()


def start(url: str, folder: Path, min_faces: int = 1) -> Galleries:
    return quiet(url, Snapshots(folder, min_faces=min_faces))


def snapshot_of(folder: Path) -> Path:
    (path,) = folder.glob("*.snapshot")
    return path


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each time that an index is made from SQL (a check reads it too)."""
    seen: list[str] = []
    real = ChangeReader.read_all

    def read_all(self: ChangeReader, spec: IndexSpec) -> object:
        seen.append(spec.gallery_id)
        return real(self, spec)

    monkeypatch.setattr(ChangeReader, "read_all", read_all)
    return seen


def test_a_start_reads_the_snapshot_and_the_log_and_nothing_else(
    database_url: str, folder: Path, moments: list[str]
) -> None:
    save(database_url, folder)
    del moments[:]
    galleries = start(database_url, folder)
    galleries.indexes.load()
    answers = [
        galleries.open_search(galleries.store.gallery("staff")).search([template(seed)], 5) for seed in range(100, 110)
    ]
    assert [found(galleries, seed) for seed in (FACES, 0, 8)] == [["late"], ["s0"], []]
    assert moments == []
    report = check_index(galleries, galleries.store.gallery("staff"))
    assert (report.ok, report.indexed) == (True, FACES + 1 - 3)
    without = quiet(database_url)
    plain = without.open_search(without.store.gallery("staff"))
    assert [plain.search([template(seed)], 5) for seed in range(100, 110)] == answers
    without.close()
    made = enroll(galleries, "ann", 500, 501)
    changed(galleries, "staff", delete_subject, "s1")
    changed(galleries, "staff", delete_face, "ann", made.faces[0].face_id)
    assert [found(galleries, seed) for seed in (500, 501, 1)] == [[], ["ann"], []]
    assert check_index(galleries, galleries.store.gallery("staff")).ok, "an index from a snapshot takes every change"
    galleries.close()


def flip(place: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]


def with_header(**changes: object) -> Callable[[bytes], bytes]:
    """A header that is in order but says something else."""

    def change(data: bytes) -> bytes:
        fields = json.loads(data[: HEADER_BYTES - 4]) | changes
        text = json.dumps(fields).encode().ljust(HEADER_BYTES - 4)
        return text + zlib.crc32(text).to_bytes(4, "little") + data[HEADER_BYTES:]

    return change


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut in the header": lambda data: data[:100],
    "cut in the rows": lambda data: data[: len(data) // 2],
    "cut by a byte": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "a bit of the header": flip(20),
    "a bit of the header's check sum": flip(HEADER_BYTES - 1),
    "a bit of the keys": flip(HEADER_BYTES + 3),
    "a bit of the vectors": flip(HEADER_BYTES + FACES * 16 + 100),
    "the last bit": flip(-1 + HEADER_BYTES + FACES * (20 + 4 * DIMENSION) + 4),
    "something else": lambda data: b"something else entirely" * (len(data) // 20),
    "another format": with_header(format=2),
    "another package": with_header(package="tiny@2"),
    "another generation": with_header(generation=1),
    "another dimension": with_header(dimension=DIMENSION // 2),
    "another gallery": with_header(gallery=99),
    "another count": with_header(count=FACES - 1),
    "no count": with_header(count=None),
    "no number": with_header(number="1"),
    "newer than the log": with_header(number=1000),
    "of another history": with_header(stamp=1),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_whatever_is_odd_about_a_snapshot_the_index_is_made_from_sql_with_a_warning(
    saved: str,
    folder: Path,
    damage: Callable[[bytes], bytes],
    caplog: pytest.LogCaptureFixture,
    moments: list[str],
) -> None:
    path = snapshot_of(folder)
    path.write_bytes(damage(path.read_bytes()))
    galleries = start(saved, folder)
    galleries.indexes.load()
    assert moments == ["staff"]
    assert [record.levelname for record in logged(caplog) if "snapshot" in record.message] == ["WARNING"]
    assert check_index(galleries, galleries.store.gallery("staff")).ok
    assert (found(galleries, FACES), found(galleries, 8)) == (["late"], [])
    galleries.indexes.save()  # the next one is in order again
    galleries.close()
    caplog.clear()
    del moments[:]
    again = start(saved, folder)
    assert found(again, FACES) == ["late"]
    assert (moments, logged(caplog)) == ([], [])
    again.close()


def test_a_snapshot_that_the_pruned_log_does_not_reach_is_not_used(
    saved: str, folder: Path, moments: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(saved)
    store.prune_changes(timedelta(hours=-1))
    store.close()
    galleries = start(saved, folder)
    assert found(galleries, FACES) == ["late"]
    assert moments == ["staff"]
    assert "doesn't continue the snapshot" in caplog.text
    galleries.close()


def test_deleted_templates_leave_the_folder_with_the_next_round(saved: str, folder: Path) -> None:
    def holds(seed: int) -> bool:
        return any(template(seed).vector.tobytes() in path.read_bytes() for path in folder.iterdir())

    assert holds(0)
    assert holds(8)  # deleted while no server ran
    galleries = start(saved, folder)
    galleries.indexes.load()
    changed(galleries, "staff", delete_subject, "s0")
    galleries.indexes.save()
    assert not holds(0)
    assert not holds(8)
    assert holds(1)
    galleries.delete_gallery(galleries.store.gallery("staff"))  # at once
    assert not holds(1)
    galleries.close()


@pytest.mark.parametrize("runs", [True, False])
def test_a_gallery_that_another_process_deleted_leaves_no_snapshot(saved: str, folder: Path, runs: bool) -> None:
    galleries, other = start(saved, folder), quiet(saved)
    if runs:
        galleries.indexes.load()
    other.delete_gallery(other.store.gallery("staff"))
    if runs:
        galleries.indexes.follow()
    else:
        galleries.indexes.save()
    assert list(folder.glob("*.snapshot")) == []
    galleries.close()
    other.close()


def test_a_snapshot_ages_only_while_it_lacks_something(saved: str, folder: Path) -> None:
    kept = Snapshots(folder)
    galleries = start(saved, folder)
    found(galleries, 1)
    for seed in (FACES + 1, FACES + 2):
        galleries.indexes.save()
        (path,) = folder.glob("*.snapshot")
        os.utime(path, (0, 0))
        galleries.indexes.save()
        assert (kept.measure().oldest_s or 0) < PATIENCE_S, "nothing has changed since it was written"
        os.utime(path, (0, 0))
        enroll(galleries, "more", seed)
        assert (kept.measure().oldest_s or 0) > PATIENCE_S
    galleries.close()


@pytest.mark.parametrize("in_its_place", [b"", None], ids=["a file", "nothing"])
def test_a_subject_is_erased_where_the_folder_of_snapshots_is_gone(
    saved: str, folder: Path, in_its_place: bytes | None
) -> None:
    galleries = start(saved, folder)
    found(galleries, 1)
    shutil.rmtree(folder)
    if in_its_place is not None:
        folder.write_bytes(in_its_place)
    changed(galleries, "staff", lambda change: erase_subject(change, "s1"))
    with galleries.indexes.inspecting(galleries.store.gallery("staff").index_specs) as index:
        assert index.scrub()
    assert found(galleries, 1) == found(quiet(saved), 1)


def test_small_galleries_are_not_written_and_shrunken_ones_removed(saved: str, folder: Path) -> None:
    galleries = start(saved, folder, min_faces=FACES)
    galleries.indexes.load()
    galleries.indexes.save()
    assert list(folder.glob("*.snapshot")) == []
    enroll(galleries, "many", *range(200, 200 + FACES))
    galleries.indexes.save()
    assert snapshot_of(folder).stat().st_mode & 0o077 == 0
    galleries.close()


def test_one_process_writes_what_has_changed_and_when_it_ends_another_does(saved: str, folder: Path) -> None:
    def written() -> bytes:
        return snapshot_of(folder).read_bytes()

    writer, other = start(saved, folder), start(saved, folder)
    for galleries in (writer, other):
        galleries.indexes.load()
        galleries.indexes.save()
    first = written()
    writer.indexes.save()
    enroll(other, "ann", 900)
    other.indexes.save()
    assert written() == first
    writer.indexes.follow()
    writer.indexes.save()
    second = written()
    assert second != first
    writer.close()
    enroll(other, "ann", 901)
    other.indexes.save()
    assert written() != second
    other.close()


def test_a_full_disk_costs_the_snapshot_and_nothing_else(
    saved: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    galleries = start(saved, folder)
    galleries.indexes.load()
    galleries.indexes.save()
    before = snapshot_of(folder).read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    enroll(galleries, "ann", 900)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            galleries.indexes.save()
    assert snapshot_of(folder).read_bytes() == before
    enroll(galleries, "ann", 901)
    assert (found(galleries, 900), found(galleries, 901)) == (["ann"], ["ann"])
    galleries.close()
    assert snapshot_of(folder).read_bytes() != before


WRITER = """
import sys
from pathlib import Path
from app.search.snapshots import Snapshots
from tests.support.following import quiet
from tests.support.galleries import enroll
galleries = quiet(sys.argv[1], Snapshots(Path(sys.argv[2]), min_faces=1))
seed = 1000
while True:
    enroll(galleries, "w", seed)
    seed += 1
    galleries.indexes.save()
    print(seed, flush=True)
"""


@pytest.mark.long
def test_killed_while_it_writes_snapshots(saved: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is left on the disk is a whole snapshot; half ones go with the next start."""
    for turn in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, saved, str(folder)], cwd=PROJECT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(3 + 2 * turn):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        galleries = start(saved, folder)
        galleries.indexes.load()
        assert check_index(galleries, galleries.store.gallery("staff")).ok
        galleries.indexes.save()
        assert {path.suffix for path in folder.iterdir()} == {".snapshot", ".lock"}
        galleries.close()
    assert not [message for message in messages(caplog) if "snapshot" in message]


def test_galleries_write_by_themselves_in_the_background(saved: str, folder: Path) -> None:
    store = Store(saved)
    galleries = Galleries(store, LocalBackend(store.change_reader, Snapshots(folder, min_faces=1)))
    galleries.indexes.load()
    before = snapshot_of(folder).read_bytes()
    end = time.monotonic() + PATIENCE_S
    enroll(galleries, "ann", 900)
    with Scheduler() as scheduler:
        galleries.start(scheduler, follow_s=NEVER_S, snapshot_s=0.02)
        while snapshot_of(folder).read_bytes() == before:
            assert time.monotonic() < end
            assert found(galleries, 900) == ["ann"]
            time.sleep(0.01)
    galleries.close()
