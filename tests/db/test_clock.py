"""A clock that leaps ahead destroys nothing, until somebody confirms it."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from app.db.clock import MAX_AHEAD, ClockGuard
from app.db.encryption import Sealer
from app.db.secrets import SecretStore
from app.gallery.store import Store
from app.jobs.store import JobStore
from app.machine import uptime
from app.timestamps import utc_now
from tests.support.commands import run
from tests.support.service import running

KEY = bytes(range(32))
YEARS = timedelta(days=3 * 365)


def guard(store: Store, ahead: timedelta) -> ClockGuard:
    return ClockGuard(store.database, SecretStore(store.database, Sealer([KEY])), lambda: utc_now(ahead))


def test_a_leap_is_not_trusted_until_it_is_confirmed(database_url: str) -> None:
    store = Store(database_url)
    done: list[int] = []
    assert guard(store, timedelta()).trusted(), "a new database has no time to compare with"
    assert guard(store, MAX_AHEAD - timedelta(hours=2)).trusted()
    leapt = guard(store, YEARS)
    leapt.guarded(lambda: done.append(1))()
    assert not leapt.trusted()
    assert not leapt.trusted(), "looking at it is no confirmation"
    assert not done
    assert guard(store, timedelta()).trusted(), "the right clock goes on"
    leapt.confirm()
    leapt.guarded(lambda: done.append(1))()
    assert done == [1]
    store.close()


def test_a_database_of_an_earlier_version_is_compared_by_its_rows(database_url: str) -> None:
    store = Store(database_url)
    store.create_gallery("staff", "sface@1", 128)
    assert not guard(store, YEARS).trusted()
    assert guard(store, timedelta()).trusted()
    store.close()


def test_a_leaping_clock_takes_no_leases_of_this_process(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(database_url)
    jobs = JobStore(store.database)
    made = jobs.create("count")
    assert jobs.claim("me", {"count"}, timedelta(seconds=20)) is not None
    monkeypatch.setattr("app.jobs.store.utc_now", lambda offset=timedelta(): utc_now(YEARS + offset))
    assert jobs.claim("me too", {"count"}, timedelta(seconds=20), skip=[made.id]) is None
    if not store.database.is_sqlite or uptime():
        assert jobs.claim("you", {"count"}, timedelta(seconds=20)) is None, "that clock doesn't count"
    store.close()


def test_leases_of_sqlite_end_with_the_machines_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(f"sqlite:///{tmp_path / 'likeness.db'}")
    jobs, second = JobStore(store.database), timedelta(seconds=1)
    made = jobs.create("count")

    def boot(name: str, seconds: float) -> None:
        monkeypatch.setattr("app.jobs.store.uptime", lambda: (name, seconds))

    boot("aaaaaaaa-1", 99_999.5)
    first = jobs.claim("me", {"count"}, second)
    assert first is not None
    boot("aaaaaaaa-1", 100_000.4)
    assert jobs.claim("you", {"count"}, second) is None
    boot("aaaaaaaa-1", 100_000.6)
    again = jobs.claim("you", {"count"}, second)
    assert again is not None
    jobs.release(again, again_in=second)
    assert jobs.claim("you", {"count"}, second) is None
    boot("99999999-2", 3.0)
    assert jobs.claim("me", {"count"}, second) is not None, "its process ended with the boot"
    boot("ffffffff-3", 3.0)
    assert jobs.claim("you", {"count"}, second) is not None
    assert jobs.job(made.id).attempts == 3
    store.close()


def test_a_clock_that_is_ahead_is_a_warning_of_a_server_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "data") as client:
        assert client.get("/readyz").json() == {"status": "ok"}
        client.post("/v1/galleries", json={"id": "staff"}).raise_for_status()
    monkeypatch.setattr("app.main.ClockGuard", partial(ClockGuard, now=lambda: utc_now(YEARS)))
    with running(tmp_path / "data") as client:
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok", "warnings": ["clock_ahead"]})
        assert client.get("/livez").json() == {"status": "ok"}


def test_the_command_says_and_confirms(tmp_path: Path) -> None:
    Store(f"sqlite:///{tmp_path / 'likeness.db'}").close()
    assert run(tmp_path, "clock").stdout == "The clock is trusted.\n"
    assert run(tmp_path, "clock", "--confirm").returncode == 0
