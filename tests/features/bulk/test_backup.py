"""Backups: the database as one moment saw it, taken while others write; restored whole, or not at all."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from app.db import usage
from app.db.encryption import Sealer, encode_key, new_key
from app.db.opening import open_engine
from app.db.schema import FACES, JOBS, METADATA, SIGN_INS
from app.db.secrets import FoundRings
from app.errors import Conflict, InvalidInput, LikenessError
from app.features.bulk import backup
from app.features.bulk.backup import OWN, PURPOSE, BackupSummary, restore, unpack, write_backup
from app.features.bulk.copying import copy_database
from app.features.bulk.rows import BulkSubject, write_many
from app.features.checks.comparing import check_index
from app.features.sign_in.codes import SignInCodes
from app.features.signatures import Signer, canonical, new_private_key, signed
from app.gallery.records import StoredFace
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.gallery.subjects import delete_subject
from app.jobs.records import Job
from app.jobs.store import JobStore
from app.models.packages import added, write_own
from app.package.folders import OwnCalibrations, own_path
from app.types import Quality, Template
from tests.conftest import PROJECT
from tests.support import packages
from tests.support.changing import changed
from tests.support.commands import run
from tests.support.live import environment, serving
from tests.support.postgres import new_database
from tests.support.ready import give_database, give_models
from tests.support.refusals import refused
from tests.support.service import HOPPER, running
from tests.support.tarred import tar_of, units

PACKAGE = "p@1"
NO_RINGS = FoundRings(None, True, None)
Files = dict[str, bytes]


def sqlite_in(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    return f"sqlite:///{folder / 'likeness.db'}"


def trusted(path: Path, folder: Path, *, replace: bool = False) -> BackupSummary:
    """Restore a backup that nobody signed."""
    return restore(path, sqlite_in(folder), folder, find_rings=lambda: NO_RINGS, replace=replace, trust=True)


def put(galleries: Galleries, subject: str, vector: Any, crop: bytes | None = None) -> None:
    face = StoredFace(subject, Template(vector.astype("f4"), PACKAGE), Quality(50.0, ()), crop=crop)
    changed(galleries, "g", write_many, PACKAGE, [], [face])


def galleries_at(folder: Path) -> Galleries:
    url = sqlite_in(folder)
    give_database(folder)
    made = Galleries(Store(url))
    made.create_gallery("g", PACKAGE, 128)
    return made


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The folder of `galleries`."""
    return tmp_path / "here"


@pytest.fixture
def galleries(here: Path) -> Iterator[Galleries]:
    with closing(galleries_at(here)) as made:
        yield made


def backed_up(folder: Path, to: Path) -> BackupSummary:
    return write_backup(sqlite_in(folder), folder, to, "1")


def rows(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """Everything but the keys of jobs' files."""
    with store.database.read() as connection:
        return {
            table.name: sorted(
                map(tuple, connection.execute(sa.select(*[c for c in table.c if c is not JOBS.c.secret]))), key=repr
            )
            for table in METADATA.sorted_tables
        }


def fill(galleries: Galleries) -> Job:
    """Put in something of many kinds; return a job with a secret."""
    vectors = units(60)
    faces = [
        StoredFace(f"s{n}", Template(vectors[n], PACKAGE), Quality(50.0, ()), crop=b"\xff\xd8" + bytes([n]))
        for n in range(60)
    ]
    subjects = [BulkSubject("s0", "Ren\u00e9e \u96ea", {"a": [1, None, "\u2603"]})]
    changed(galleries, "g", write_many, PACKAGE, subjects, faces)
    changed(galleries, "g", delete_subject, "s59")
    store = galleries.store
    return JobStore(store.database).create("none", store.gallery("g"), {"a": 1}, secret=b"k" * 32, place="here")


def assert_usable(store: Store) -> None:
    other = Galleries(store)
    assert check_index(other, other.store.gallery("g")).ok
    put(other, "new", units(1, seed=9)[0])
    with store.database.read() as connection:
        assert connection.execute(sa.select(sa.func.max(FACES.c.key))).scalar_one() > 60, "keys are not used again"
    other.close()


def test_what_is_restored_is_what_there_was(galleries: Galleries, here: Path, tmp_path: Path) -> None:
    job = fill(galleries)
    SignInCodes(galleries.store.database, Sealer([new_key()])).make("lk_key")
    summary = backed_up(here, tmp_path / "backup")
    assert summary.rows == {"galleries": 1, "subjects": 59, "faces": 59}
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0
    assert b"k" * 32 not in (tmp_path / "backup").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"here", "backup"}
    expected = rows(galleries.store) | {SIGN_INS.name: []}
    assert trusted(tmp_path / "backup", tmp_path / "there").rows == summary.rows
    again = Store(sqlite_in(tmp_path / "there"))
    assert rows(again) == expected
    assert JobStore(again.database).secret(job) is None
    assert_usable(again)


KILLED_BACKUP = """
import os, sys
from pathlib import Path
from app.features.bulk import backup

backup._belongings = lambda _: os.kill(os.getpid(), 9)  # when the database has been copied
url, folder, to = sys.argv[1:]
backup.write_backup(url, Path(folder), Path(to), "1")
"""


@pytest.mark.usefixtures("galleries")
def test_what_a_killed_backup_left_is_removed_by_the_next_which_leaves_a_running_one_alone(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    command = [sys.executable, "-c", KILLED_BACKUP, sqlite_in(here), str(here), str(folder / "killed.tar")]
    assert subprocess.run(command, cwd=PROJECT, check=False).returncode == -signal.SIGKILL
    (left,) = folder.iterdir()
    assert any(path.stat().st_size for path in left.iterdir()), "a copy of the database"
    belongings = backup._belongings

    def while_another_is_made(data_dir: Path) -> dict[str, Path]:
        monkeypatch.setattr(backup, "_belongings", belongings)
        write_backup(sqlite_in(here), here, folder / "inner.tar", "1")
        return belongings(data_dir)

    monkeypatch.setattr(backup, "_belongings", while_another_is_made)
    write_backup(sqlite_in(here), here, folder / "outer.tar", "1")
    assert {path.name for path in folder.iterdir()} == {"inner.tar", "outer.tar"}


def test_a_copy_is_what_there_was_there_and_back(galleries: Galleries, postgresql: Path, tmp_path: Path) -> None:
    fill(galleries)
    url, back = new_database(postgresql), sqlite_in(tmp_path / "back")
    expected = rows(galleries.store)
    galleries.close()
    copied = copy_database(sqlite_in(tmp_path / "here"), url)
    assert (copied["faces"], copied["crops"], copied["jobs"]) == (59, 59, 1)
    assert copy_database(url, back) == copied
    for place in (url, back):
        store = Store(place)
        assert rows(store) == expected
        assert_usable(store)
    with pytest.raises(Conflict, match="not empty"):
        copy_database(back, url)


def test_a_database_with_tables_of_another_program_is_left_alone(
    galleries: Galleries, here: Path, postgresql: Path, tmp_path: Path
) -> None:
    backed_up(here, tmp_path / "backup")
    galleries.close()
    url, there = new_database(postgresql), tmp_path / "there"
    for place in (url, sqlite_in(there)):
        engine = open_engine(place, 1000)
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE invoices (id integer)"))
        with pytest.raises(Conflict, match="invoices"):
            copy_database(sqlite_in(here), place)
        if place != url:
            with pytest.raises(Conflict, match="invoices"):
                trusted(tmp_path / "backup", there)
        assert sa.inspect(engine).get_table_names() == ["invoices"]
        engine.dispose()


@pytest.mark.usefixtures("galleries")
@pytest.mark.parametrize("table", ["audit", "receipts", "galleries"])
def test_a_database_that_is_not_empty_is_left_alone_unless_told(here: Path, tmp_path: Path, table: str) -> None:
    backed_up(here, tmp_path / "backup")
    there = Store(sqlite_in(tmp_path / "there"))
    columns = METADATA.tables[table].c
    with there.database.write() as connection:
        kinds = {sa.Integer: 1, sa.Boolean: True, sa.LargeBinary: b"x"}
        values = {c.name: kinds.get(type(c.type), "x") for c in columns if not c.nullable}
        values = {name: 1 if name == "key" else value for name, value in values.items()}
        connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
        connection.execute(sa.insert(METADATA.tables[table]).values(values))
    before = rows(there)
    there.close()
    with refused("database_not_empty", LikenessError):
        trusted(tmp_path / "backup", tmp_path / "there")
    again = Store(sqlite_in(tmp_path / "there"))
    assert rows(again) == before
    again.close()
    trusted(tmp_path / "backup", tmp_path / "there", replace=True)
    again = Store(sqlite_in(tmp_path / "there"))
    assert [one.id for one in again.galleries().items] == ["g"]
    again.close()


@pytest.mark.long
def test_a_backup_while_others_enroll_holds_all_that_was_acknowledged_before(
    galleries: Galleries, here: Path, tmp_path: Path
) -> None:
    done: list[str] = []
    stop = threading.Event()

    def enroll(thread: int) -> None:
        for number, vector in enumerate(units(2_000, seed=thread)):
            if stop.is_set():
                return
            put(galleries, f"{thread}-{number}", vector)
            done.append(f"{thread}-{number}")

    threads = [threading.Thread(target=enroll, args=[n]) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        while len(done) < 40:
            assert any(thread.is_alive() for thread in threads)
        before = set(done)
        backed_up(here, tmp_path / "backup")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    trusted(tmp_path / "backup", tmp_path / "there")
    other = Galleries(Store(sqlite_in(tmp_path / "there")))
    report = check_index(other, other.store.gallery("g"))
    found = {one.id for one in other.store.subjects(other.store.gallery("g"), limit=10_000).items}
    assert report.ok
    assert report.faces == report.subjects == len(found)
    assert before <= found <= set(done)
    other.close()


def read_tar(path: Path) -> Files:
    with tarfile.open(path) as tar:
        return {member.name: file.read() for member in tar if (file := tar.extractfile(member))}


def sums_of(files: Files) -> dict[str, str]:
    return {name: hashlib.sha256(one).hexdigest() for name, one in files.items() if name != "backup.json"}


def whole(files: Files, signer: Signer | None = None, **changed: object) -> bytes:
    """A backup of these files, with sums as they should be."""
    about = json.loads(files["backup.json"]) | changed
    about.pop("signature", None)
    about["sha256"] = sums_of(files)
    about = signed(about, signer, PURPOSE) if signer else about
    return tar_of({**files, "backup.json": canonical(about)})


def renumbered(database: bytes, tmp_path: Path, statement: str) -> bytes:
    path = tmp_path / "altered.db"
    path.write_bytes(database)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)
    return path.read_bytes()


LATER = "UPDATE alembic_version SET version_num = '9999'"
SPOILED: dict[str, tuple[Callable[[Files, Path], bytes], str]] = {
    "cut": (lambda files, _: tar_of(files)[:-20_000], "invalid_backup"),
    "without its head": (lambda files, _: tar_of({"likeness.db": files["likeness.db"]}), "invalid_backup"),
    "without its database": (lambda files, _: whole({"backup.json": files["backup.json"]}), "invalid_backup"),
    "altered": (lambda files, _: tar_of(files | {"likeness.db": files["likeness.db"] + b"x"}), "invalid_backup"),
    "with a file outside of its folders": (lambda files, _: whole(files | {"packages/../x": b"k"}), "invalid_backup"),
    "with another file": (lambda files, _: whole(files | {"../admin.key": b"k"}), "invalid_backup"),
    "no backup": (lambda *_: b"nonsense", "invalid_backup"),
    "of 0.1.0": (lambda *_: gzip.compress(b'{"format":"likeness-backup","version":1}\n'), "invalid_backup"),
    "no head": (lambda files, _: tar_of(files | {"backup.json": b"[]"}), "invalid_backup"),
    "of a later version": (lambda files, _: whole(files, version=3), "invalid_backup"),
    "of a later schema": (
        lambda files, path: whole(files | {"likeness.db": renumbered(files["likeness.db"], path, LATER)}),
        "database_too_new",
    ),
    "a damaged database": (
        lambda files, _: whole(files | {"likeness.db": files["likeness.db"][:5000] + bytes(90_000)}),
        "database_unavailable",
    ),
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_backup_that_was_spoiled_changes_nothing(what: str, tmp_path: Path) -> None:
    spoil, code = SPOILED[what]
    home = tmp_path / "home"
    galleries = galleries_at(home)
    put(galleries, "one", units(1)[0])
    before = rows(galleries.store)
    backed_up(home, tmp_path / "backup")
    galleries.close()
    (tmp_path / "spoiled").write_bytes(spoil(read_tar(tmp_path / "backup"), tmp_path))
    with refused(code, LikenessError):
        trusted(tmp_path / "spoiled", home, replace=True)
    again = Store(sqlite_in(home))
    assert rows(again) == before
    again.close()
    assert {path.name for path in home.iterdir()} <= {"likeness.db", "likeness.db-wal", "likeness.db-shm"}


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`home` and `backup`, to be copied only."""
    folder = tmp_path_factory.mktemp("once")
    data = folder / "home"
    give_models(data)
    assert run(data, "galleries", "create", "crew").returncode == 0
    assert run(data, "keys", "create", "--id", "aws", "--aws").returncode == 0
    assert run(data, "backup", folder / "backup").returncode == 0
    return folder


@pytest.fixture
def home(made_once: Path, tmp_path: Path) -> Path:
    """A data folder with a gallery, keys and a signed backup beside it."""
    shutil.copytree(made_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "home"


def galleries_of(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM galleries")]


@pytest.mark.parametrize("names", [["a", "a/b"], ["a/b", "a"], ["n" * 300]])
def test_names_that_are_no_files_are_refused(tmp_path: Path, names: list[str]) -> None:
    """One in the way of another, or too long: `restore` ended with a traceback."""
    archive = tmp_path / "backup"
    archive.write_bytes(tar_of({f"{OWN[0]}/{name}": b"" for name in names}))
    with pytest.raises(InvalidInput, match="a file that no backup has"):
        unpack(archive, tmp_path / "draft", tmp_path / "own")


def test_a_backup_is_taken_from_who_signed_it_and_an_altered_one_never(home: Path, tmp_path: Path) -> None:
    backup, other = tmp_path / "backup", tmp_path / "other"
    done = run(other, "restore", backup)
    assert done.returncode == 0, done
    for name in ("vault.key", "admin.key"):
        assert (other / name).read_bytes() == (home / name).read_bytes()
        assert (other / name).stat().st_mode & 0o777 == 0o600
    again = run(other, "restore", backup)
    assert (again.returncode, "With --replace the backup takes its place" in again.stderr) == (4, True), again
    before = (other / "likeness.db").read_bytes()

    files = read_tar(backup)
    altered = files | {
        "likeness.db": renumbered(files["likeness.db"], tmp_path, "UPDATE galleries SET id = 'intruder'")
    }
    own_keys = altered | {"vault.key": f"{encode_key(new_key())}\n".encode()}
    head = json.loads(files["backup.json"])
    forged = {
        "altered": (
            tar_of(altered | {"backup.json": canonical(head | {"sha256": sums_of(altered)})}),
            "signature_wrong",
            False,
        ),
        "unsigned": (whole(altered), "unknown_signer", True),
        "of another signer": (whole(altered, Signer(new_private_key())), "unknown_signer", True),
        "of another vault": (whole(own_keys, Signer(new_private_key())), "unknown_signer", True),
    }
    for name, (content, code, taken) in forged.items():
        (tmp_path / "forged").write_bytes(content)
        done = run(other, "restore", tmp_path / "forged", "--replace")
        assert done.returncode != 0, name
        assert code in done.stderr, (name, done)
        assert (other / "likeness.db").read_bytes() == before
        done = run(other, "restore", tmp_path / "forged", "--replace", "--trust")
        assert (done.returncode == 0) is taken, (name, done)
        before = (other / "likeness.db").read_bytes()


def test_a_missing_vault_key_is_not_replaced(home: Path) -> None:
    key = (home / "vault.key").read_bytes()
    (home / "vault.key").unlink()
    for words in (["galleries", "list"], ["vault", "seal"]):
        done = run(home, *words)
        assert (done.returncode, "vault_key_missing" in done.stderr) == (4, True), done.stderr
        assert not (home / "vault.key").exists()
    (home / "vault.key").write_bytes(key)
    assert run(home, "galleries", "list").returncode == 0


@pytest.mark.usefixtures("home")
def test_a_restore_with_a_wrong_vault_key_changes_nothing(tmp_path: Path) -> None:
    other = tmp_path / "other"
    give_models(other)
    assert run(other, "galleries", "create", "mine").returncode == 0
    before, key = (other / "likeness.db").read_bytes(), (other / "vault.key").read_bytes()
    empty = tmp_path / "empty"
    (tmp_path / "forged").write_bytes(whole(read_tar(tmp_path / "backup") | {"vault.key": key}))
    for options, code in (([], "unknown_signer"), (["--trust"], "sealed_unreadable")):
        done = run(other, "restore", tmp_path / "backup", "--replace", *options)
        assert done.returncode != 0, done
        assert code in done.stderr
        assert ((other / "likeness.db").read_bytes(), (other / "vault.key").read_bytes()) == (before, key)
        done = run(empty, "restore", tmp_path / "forged", *options)
        assert done.returncode != 0, done
        assert not (empty / "vault.key").exists(), "the right one may come next"
    assert run(other, "galleries", "list", "--json").rows[0]["id"] == "mine", "it starts as before"
    assert run(empty, "restore", tmp_path / "backup").returncode == 0


@pytest.mark.long
def test_pg_dump_and_pg_restore_bring_back_what_there_was(
    galleries: Galleries, here: Path, postgresql: Path, tmp_path: Path
) -> None:
    """As the tutorial says, over what was written since."""
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), default=Path("/usr/bin"))
    fill(galleries)
    expected = rows(galleries.store)
    galleries.close()
    url, dump = new_database(postgresql), tmp_path / "likeness.dump"
    copy_database(sqlite_in(here), url)
    subprocess.run([programs / "pg_dump", "--format=custom", f"--file={dump}", url], check=True)
    later = Galleries(Store(url))
    put(later, "later", units(1)[0])
    later.close()
    subprocess.run([programs / "pg_restore", "--clean", "--if-exists", f"--dbname={url}", dump], check=True)
    store = Store(url)
    assert rows(store) == expected
    assert_usable(store)


def test_postgresql_has_tools_of_its_own(postgresql: Path, tmp_path: Path) -> None:
    url = new_database(postgresql)
    Store(url).close()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "admin.key").write_text("k" * 40)
    for words in (["backup", tmp_path / "to"], ["restore", tmp_path / "to"]):
        done = run(tmp_path / "data", *words, DATABASE_URL=url)
        assert "pg_dump" in done.stderr, done


KILLED = """
import os, signal, sys
EVENTS = "open", "os.rename", "os.remove", "os.rmdir", "sqlite3.connect"
left = int(sys.argv.pop(1))
def watch(event, arguments):
    global left
    about = repr(arguments)
    if event in EVENTS and any(name in about for name in ("likeness.db", "/packages/", "/calibrations/")):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
from app.cli import main
main()
"""
"""`likeness`, killed before the Nth time that it opens, renames or deletes a file of the database or of a package."""


@pytest.mark.long
def test_a_restore_killed_at_any_step_leaves_the_old_database_or_the_new_one(home: Path, tmp_path: Path) -> None:
    assert run(home, "galleries", "delete", "crew", "--yes").returncode == 0
    assert run(home, "galleries", "create", "later").returncode == 0
    kills, drafts, found = 0, 0, []
    while True:
        data = tmp_path / f"data{kills}"
        shutil.copytree(home, data)
        command = [sys.executable, "-c", KILLED, str(kills + 1), "restore", str(tmp_path / "backup"), "--replace"]
        done = subprocess.run(command, env=environment(data), capture_output=True, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done
        kills += 1
        drafts += any(data.glob("*.restoring*"))
        with usage.lock_shared(data, f"sqlite:///{data / 'likeness.db'}"):
            assert not list(data.glob("*.restoring*"))
            store = Store(f"sqlite:///{data / 'likeness.db'}")
            with store.database.read() as connection:
                assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
            store.close()
        found.append(galleries_of(data / "likeness.db"))
    assert kills >= 8
    assert drafts >= 2, "some died beside a half-written database"
    assert found == sorted(found, key=lambda one: one == ["crew"]), "first the old one, from one step on the new one"
    assert {tuple(one) for one in found} == {("later",), ("crew",)}
    assert galleries_of(data / "likeness.db") == ["crew"]


def with_own_points(data_dir: Path, lowest: float) -> str:
    """Add a package of the folder's own, and points for it; return its id."""
    package = packages.install(data_dir / "packages", "mine")
    (shipped, *_) = package.manifest.calibrations
    measured = sorted(shipped.points, key=lambda point: -point.fmr)
    points = tuple(
        point.model_copy(update=dict.fromkeys(("threshold", "threshold_low", "threshold_high"), lowest + step / 100))
        for step, point in enumerate(measured)
    )
    own = package.manifest.bind(shipped.model_copy(update={"name": "own", "points": points}))
    write_own(own_path(data_dir, package.id), added(OwnCalibrations(), own, deciding=True))
    return package.id


@pytest.mark.long
def test_a_restore_killed_at_any_step_leaves_packages_and_points_that_agree_with_the_database(tmp_path: Path) -> None:
    """Also if another restore comes next, and fails."""
    old, backup = tmp_path / "old", tmp_path / "backup"

    def state(data: Path) -> tuple[list[str], Files]:
        files = [path for folder in OWN for path in (data / folder).rglob("*") if path.is_file()]
        return galleries_of(data / "likeness.db"), {str(file.relative_to(data)): file.read_bytes() for file in files}

    with_own_points(old, 0.7)
    packages.install(old / "packages", "kept")
    assert run(old, "galleries", "create", "crew").returncode == 0
    assert run(old, "backup", backup).returncode == 0
    saved = state(old)
    shutil.rmtree(old / "packages" / "kept-1")
    with_own_points(old, 0.8)
    (old / "packages" / "mine-1" / "later").write_text("later")
    assert run(old, "galleries", "delete", "crew", "--yes").returncode == 0
    assert run(old, "galleries", "create", "later").returncode == 0
    before, kills, found = state(old), 0, []
    while True:
        data = tmp_path / f"data{kills}"
        shutil.copytree(old, data)
        command = [sys.executable, "-c", KILLED, str(kills + 1), "restore", str(backup), "--replace"]
        done = subprocess.run(command, env=environment(data), capture_output=True, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done
        kills += 1
        if kills % 2:
            assert "invalid_backup" in run(data, "restore", __file__, "--replace").stderr
        with usage.lock_shared(data, f"sqlite:///{data / 'likeness.db'}"):
            assert not list(data.glob("*restoring*"))
        found.append(state(data))
        shutil.rmtree(data)
    assert kills >= 20
    assert found.index(saved) < len(found)
    assert [one for one in found if one not in (before, saved)] == []
    assert found == sorted(found, key=lambda one: one == saved), "first the old state, from one step on the new one"
    assert state(data) == saved


def deciding(api: httpx.Client) -> float:
    """Identify somebody of `crew` at an FMR of 1e-3; return the threshold that decided."""
    answer = api.post("/v1/galleries/crew/identify?fmr=1e-3", files={"image": HOPPER})
    (face,) = answer.raise_for_status().json()["faces"]
    assert face["candidates"][0]["subject"] == "grace"
    return float(face["threshold"])


@pytest.mark.long
def test_packages_and_points_of_the_folders_own_go_along(tmp_path: Path) -> None:
    data, other = tmp_path / "first", tmp_path / "other"
    package = with_own_points(data, 0.7)
    (data / "packages" / ".half.draft").mkdir()
    (data / "packages" / ".half.draft" / "weights.onnx").write_bytes(b"half")
    with running(data) as api:
        api.post("/v1/galleries", json={"id": "crew", "embedder": package}).raise_for_status()
        api.post("/v1/galleries/crew/subjects/grace/faces", files={"images": HOPPER}).raise_for_status()
        decided = deciding(api)
    assert 0.7 <= decided < 0.8
    done = run(data, "backup", tmp_path / "backup")
    assert done.returncode == 0, done
    files = read_tar(tmp_path / "backup")
    own = {"packages/mine-1/manifest.json", "packages/mine-1/model.onnx", f"calibrations/{package}.json"}
    assert set(files) == own | {"backup.json", "vault.key", "admin.key", "likeness.db"}
    for name in own:
        altered = files | {name: files[name].replace(b"7", b"8")}
        (tmp_path / "altered").write_bytes(tar_of(altered))
        done = run(other, "restore", tmp_path / "altered")
        assert "invalid_backup" in done.stderr, done
        assert not any((other / name.partition("/")[0]).exists() for name in own)

    assert run(other, "restore", tmp_path / "backup").returncode == 0
    with running(other) as api:
        assert deciding(api) == decided

    points = other / "calibrations" / f"{package}.json"
    with_own_points(other, 0.8)
    assert points.read_bytes() != files[f"calibrations/{package}.json"]
    assert run(other, "restore", tmp_path / "backup", "--replace").returncode == 0
    assert points.read_bytes() == files[f"calibrations/{package}.json"]
    assert [path.name for path in other.iterdir() if path.name.startswith(".")] == []


@pytest.mark.long
def test_the_command_line_beside_a_server(tmp_path: Path, full: bool) -> None:
    def likeness(data: str, *words: str | Path) -> tuple[int, str]:
        done = run(tmp_path / data, *words)
        return done.returncode, done.stdout + done.stderr

    with serving(tmp_path / "first"):
        assert likeness("first", "enroll", "crew", "grace", PROJECT / "docs/samples/hopper.jpg", "--create")[0] == 0
        code, said = likeness("first", "backup", tmp_path / "backup")
        assert (code, "1 galleries, 1 subjects, 1 faces" in said) == (0, True), said
        for words in (
            ["restore", tmp_path / "backup", "--replace"],
            ["database", "copy", f"sqlite:///{tmp_path}/x.db"],
        ):
            code, said = likeness("first", *words)
            assert (code, "data_dir_in_use" in said) == (4, True), said
    code, said = likeness("second", "restore", tmp_path / "backup")
    assert (code, "restored" in said) == (0, True), said
    code, said = likeness("second", "database", "copy", f"sqlite:///{tmp_path / 'third' / 'likeness.db'}")
    assert (code, "1 galleries, 1 subjects, 1 faces" in said) == (0, True), said
    (tmp_path / "third" / "vault.key").write_bytes((tmp_path / "first" / "vault.key").read_bytes())
    for data in ("second", "third") if full else ("third",):
        give_models(tmp_path / data)
        code, said = likeness(data, "identify", "crew", PROJECT / "docs/samples/hopper.jpg")
        assert (code, "known: grace" in said) == (0, True), said
