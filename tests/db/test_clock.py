"""A clock that leaps or creeps ahead destroys nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from app.access.grants import Scope
from app.access.keys import ApiKeys, KeyTerms
from app.db.clock import CLOCK, ClockGuard
from app.db.encryption import Sealer
from app.db.secrets import SecretStore
from app.errors import InvalidInput
from app.features.issued_keys import create_key
from app.gallery.store import Store
from app.jobs.store import JobStore
from app.machine import uptime
from app.types import utc_now, utc_text
from tests.support.service import running

KEY = bytes(range(32))
YEARS = timedelta(days=3 * 365)


DAY = timedelta(days=1)


@dataclass
class Machine:
    """A machine's clock, and what it counts since its start."""

    ahead: timedelta = timedelta()
    on: timedelta = timedelta()
    boot: str = "first"

    def guard(self, store: Store) -> ClockGuard:
        secrets = SecretStore(store.database, Sealer([KEY]))
        return ClockGuard(store.database, secrets, lambda: time.time() + (self.on + self.ahead).total_seconds())

    def run(self, store: Store, days: int) -> bool:
        """Whether the clock is trusted after so many days, each looked at."""
        for _ in range(days):
            self.on += DAY
            trusted = self.guard(store).trusted()
        return trusted


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr("app.db.clock.uptime", lambda: (made.boot, made.on.total_seconds()))
    return made


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with closing(Store(database_url)) as made:
        yield made


def guard(store: Store, ahead: timedelta) -> ClockGuard:
    return Machine(ahead).guard(store)


def test_a_leap_stops_what_deletes_until_the_clock_is_right_again(store: Store, machine: Machine) -> None:
    done: list[int] = []
    assert machine.guard(store).trusted(), "a new database has no time to compare with"
    machine.ahead = YEARS
    leapt = machine.guard(store)
    leapt.guarded(lambda: done.append(1))()
    assert leapt.ahead
    assert not leapt.trusted(), "looking at it is no confirmation"
    assert not machine.run(store, 6)
    assert not done
    machine.ahead = timedelta()
    machine.guard(store).guarded(lambda: done.append(1))()
    assert done == [1], "the right clock goes on"


def test_a_clock_that_creeps_is_not_trusted(store: Store, machine: Machine) -> None:
    assert machine.guard(store).trusted()
    found = []
    for _ in range(30):
        machine.ahead += timedelta(hours=9)
        found.append(machine.run(store, 1))
    assert found == [True] * 2 + [False] * 28, "a day is allowed, in however many steps"


def test_a_leap_is_trusted_after_a_week_of_going_on_steadily(store: Store, machine: Machine) -> None:
    assert machine.guard(store).trusted()
    machine.boot, machine.ahead = "second", timedelta(days=90)  # off for so long
    assert not machine.guard(store).trusted()
    assert not machine.run(store, 6)
    assert machine.run(store, 1)
    machine.ahead += YEARS
    assert not machine.run(store, 6)
    machine.ahead += timedelta(days=30)
    assert not machine.run(store, 6), "another leap begins anew"


@pytest.mark.long
def test_a_machine_may_be_off_for_a_week(store: Store, machine: Machine) -> None:
    assert machine.run(store, 300)
    machine.boot, machine.ahead = "second", timedelta(days=6)
    assert machine.guard(store).trusted()
    machine.ahead += timedelta(days=6)
    assert not machine.guard(store).trusted(), "once for each time that it is started"


def test_a_key_that_expired_stays_so_when_the_clock_is_set_back(store: Store, machine: Machine) -> None:
    guard = machine.guard(store)
    assert guard.trusted()
    keys = ApiKeys(store.database, clock=guard.now)
    made = create_key(keys, KeyTerms("door", frozenset({Scope.READ}), expires_at=utc_text(time.time() + 20 * 3600)))
    assert keys.check(made.token)
    assert machine.run(store, 1), "a day later"
    machine.ahead = -2 * DAY

    def is_refused(now: Callable[[], float]) -> None:
        with pytest.raises(InvalidInput) as caught:
            ApiKeys(store.database, clock=now).check(made.token)
        assert caught.value.code == "expired_key"

    is_refused(guard.now)
    machine.boot = "second"
    restarted = machine.guard(store)
    assert restarted.trusted(), "it is not ahead"
    is_refused(restarted.now)


def test_a_database_of_an_earlier_version_is_compared_by_its_rows(store: Store) -> None:
    store.create_gallery("staff", "sface@1", 128)
    assert not guard(store, YEARS).trusted()
    assert guard(store, timedelta()).trusted()


def test_the_time_that_earlier_versions_stored_is_read(store: Store) -> None:
    with store.database.write() as connection:
        SecretStore(store.database, Sealer([KEY])).put(connection, CLOCK, utc_now().encode())
    assert guard(store, timedelta(days=6)).trusted()
    assert not guard(store, timedelta(days=14)).trusted()


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
    monkeypatch.setattr("app.main.ClockGuard", partial(ClockGuard, now=lambda: time.time() + YEARS.total_seconds()))
    with running(tmp_path / "data") as client:
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok", "warnings": ["clock_ahead"]})
        assert client.get("/livez").json() == {"status": "ok"}
