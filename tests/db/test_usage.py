"""One lock on a database: shared by all who use it, exclusive for a restore; and an emptied database is noticed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.db import usage
from app.db.engine import Database
from app.db.opening import POOL_SIZE, open_engine
from app.errors import Conflict, DatabaseBusy, Unusable
from app.features.bulk.backup import write_backup
from app.gallery.store import Store
from tests.support.commands import run
from tests.support.live import serving
from tests.support.ready import give_models
from tests.support.waiting import until

HOLD = """
import sys, time
from pathlib import Path
from app.db import usage
from app.db.engine import Database
mode, folder, url = sys.argv[2:]
with getattr(usage, mode)(Path(folder), url):
    opened = Database(url) if mode == "lock_shared" else None
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def holding(mode: str, folder: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    """Another process, `likeness hold`, that holds the lock until it is killed."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", HOLD, "hold", mode, str(folder), url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def refused(mode: str, folder: Path, url: str) -> str:
    with pytest.raises(Conflict) as caught, getattr(usage, mode)(folder, url):
        Store(url).close()
    assert caught.value.code == "data_dir_in_use"
    return caught.value.message


@pytest.mark.long
def test_users_share_the_lock_and_a_restore_takes_it_alone(empty_database_url: str, tmp_path: Path) -> None:
    here, there = tmp_path, tmp_path / "other"  # two data folders, one database
    there.mkdir()
    with holding("lock_shared", there, empty_database_url) as other:
        with usage.lock_shared(here, empty_database_url), closing(Store(empty_database_url)):
            assert "likeness hold" in refused("lock_exclusively", there, empty_database_url)
        said = refused("lock_exclusively", here, empty_database_url)
        if not empty_database_url.startswith("sqlite"):  # SQLite's file is locked here, its user announced there
            assert f"likeness hold (process {other.pid}" in said
    with holding("lock_exclusively", there, empty_database_url) as other:
        assert f"likeness hold (process {other.pid}" in refused("lock_shared", there, empty_database_url)
        assert f"likeness hold (process {other.pid}" in refused("lock_shared", here, empty_database_url)
        other.send_signal(signal.SIGKILL)
        other.wait()
        with usage.lock_exclusively(there, empty_database_url):
            pass
        with usage.lock_to_read(tmp_path / "none", empty_database_url):
            pass
    assert not (tmp_path / "none").exists()


@pytest.mark.long
def test_the_longest_user_is_named_not_one_that_has_ended(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'likeness.db'}"
    with holding("lock_shared", tmp_path, url) as first, holding("lock_shared", tmp_path, url) as second:
        assert f"(process {first.pid} " in refused("lock_exclusively", tmp_path, url)
        first.kill()
        first.wait()
        assert "another process" in refused("lock_exclusively", tmp_path, url)
        with usage.lock_shared(tmp_path, url):
            assert f"(process {os.getpid()} " in refused("lock_exclusively", tmp_path, url)
        assert second.poll() is None


def test_a_lock_of_postgresql_is_taken_again_after_its_connection_is_lost(postgresql: Path, tmp_path: Path) -> None:
    from tests.support.postgres import new_database  # noqa: PLC0415 - beside its fixture

    url = new_database(postgresql)
    engine = open_engine(url, 1000)
    dropped = sa.text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = :lock")
    store = Store(url)
    assert f"(process {os.getpid()} " in refused("lock_exclusively", tmp_path, url)
    with engine.connect() as connection:
        assert connection.execute(dropped, {"lock": usage.ADVISORY_LOCK}).scalars().all()
        until(lambda: not connection.execute(dropped, {"lock": usage.ADVISORY_LOCK}).scalars().all())
    engine.dispose()
    with usage.lock_exclusively(tmp_path, url), pytest.raises(Conflict, match=r"in use by .*process"):
        store.galleries()
    assert store.galleries().items == ()
    refused("lock_exclusively", tmp_path, url)
    store.close()


@pytest.mark.long
def test_nothing_starts_while_a_restore_runs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    give_models(data)
    with holding("lock_exclusively", data, f"sqlite:///{data / 'likeness.db'}") as other:
        with serving(data, wait=False, models=False) as server:
            assert server.process.wait(120) == 4
        said = server.log.read_text()
        assert f"likeness hold (process {other.pid}" in said
        assert "Traceback" not in said
        for words in (["backup", tmp_path / "no"], ["galleries", "list"], ["vault", "status"], ["status"]):
            done = run(data, *words)
            # Without a database yet, a command that reads finds nothing; never does it make one.
            assert done.returncode == 4, (words, done)
        assert not (data / "likeness.db").exists()


def test_a_restore_refuses_while_a_command_works_in_process(tmp_path: Path) -> None:
    data = tmp_path / "data"
    url = f"sqlite:///{data / 'likeness.db'}"
    data.mkdir()
    Store(url).close()
    write_backup(url, data, tmp_path / "backup", "1")
    with holding("lock_shared", data, url) as other:
        done = run(data, "restore", tmp_path / "backup", "--replace", "--trust")
    assert (done.returncode, f"likeness hold (process {other.pid}" in done.stderr) == (4, True), done
    done = run(data, "restore", tmp_path / "backup", "--replace", "--trust")
    assert done.returncode == 0, done


def test_secrets_and_names_in_a_command_are_not_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'likeness.db'}"
    monkeypatch.setattr(sys, "argv", ["likeness", "enroll", "crew", "grace", "--key", "lk_secret"])
    with usage.lock_shared(tmp_path, url):
        said = refused("lock_exclusively", tmp_path, url)
    assert f"likeness enroll (process {os.getpid()}" in said
    assert "grace" not in said
    assert "lk_" not in said


def truncated(path: Path) -> None:
    path.write_bytes(b"")


def without_tables(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
        for (name,) in names.fetchall():
            connection.execute(f"DROP TABLE {name}")


@pytest.mark.parametrize("emptied", [truncated, without_tables, Path.unlink])
def test_an_emptied_database_is_not_taken_for_a_new_one(emptied: object, tmp_path: Path) -> None:
    data = tmp_path / "data"
    give_models(data)
    assert run(data, "galleries", "create", "crew").returncode == 0
    assert run(data, "backup", tmp_path / "good").returncode == 0
    good = (tmp_path / "good").read_bytes()
    assert callable(emptied)
    emptied(data / "likeness.db")
    for words in (["galleries", "create", "new"], ["galleries", "list"], ["backup", tmp_path / "good"]):
        done = run(data, *words)
        assert done.returncode != 0, (words, done)
    assert "database_emptied" in run(data, "galleries", "create", "new").stderr
    assert (tmp_path / "good").read_bytes() == good
    moved = data.rename(tmp_path / "moved")  # the folder's place doesn't matter
    done = run(moved, "galleries", "create", "new")
    assert "database_emptied" in done.stderr, done
    assert run(moved, "restore", tmp_path / "good").returncode == 0
    assert run(moved, "galleries", "list", "--json").rows[0]["id"] == "crew"


def test_a_new_database_may_be_wanted(database_url: str, tmp_path: Path) -> None:
    usage.note_tables(tmp_path, database_url)
    with usage.lock_shared(tmp_path, database_url):
        pass
    other = f"sqlite:///{tmp_path / 'another.db'}"
    with usage.lock_shared(tmp_path, other):
        pass
    if database_url.startswith("sqlite"):
        (tmp_path / "likeness.db").write_bytes(b"")
    else:
        engine = open_engine(database_url, 1000)
        with engine.begin() as connection:
            connection.execute(sa.text("DROP TABLE faces CASCADE"))
        engine.dispose()
    with pytest.raises(Unusable) as caught, usage.lock_shared(tmp_path, database_url):
        pass
    assert caught.value.code == "database_emptied"
    if database_url.startswith("sqlite"):
        assert (tmp_path / "likeness.db").stat().st_size == 0, "a look changes nothing"
    (tmp_path / usage.KNOWN_FILE).unlink()
    with usage.lock_shared(tmp_path, database_url):
        pass


def test_a_database_without_a_free_connection_is_busy(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Database(database_url)) as database, ExitStack() as stack:
        database.scrub()  # the start's, which takes a connection
        monkeypatch.setattr(database._engine.pool, "_timeout", 0.01)
        for _ in range(2 * POOL_SIZE):
            stack.enter_context(database.read())
        for transaction in (database.read, database.write):
            with pytest.raises(DatabaseBusy), transaction():
                pass
        if not database.is_sqlite:  # PostgreSQL alone is vacuumed
            with pytest.raises(DatabaseBusy):
                database.vacuum(["faces"])


FULL = """
import resource, signal, sys
from app.gallery.store import Store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
Store(sys.argv[1])
"""
"""No file can grow past 20 kB, as on a full disk."""


@pytest.mark.long
def test_a_full_disk_is_named_where_a_database_is_made(tmp_path: Path) -> None:
    # Without -B, Python would cut the compiled files it writes at 20 kB too, for all processes after this one.
    command = [sys.executable, "-B", "-c", FULL, f"sqlite:///{tmp_path / 'likeness.db'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "DatabaseUnavailable: The database can't be written to: its disk is full" in done.stderr
