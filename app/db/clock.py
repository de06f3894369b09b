"""Watches this machine's clock: nothing is expired or deleted by its age while the clock may be wrong.

The trusted time is in the database, which all servers share. It advances by the time since the machine's start, which
nobody can set, so that neither a leap of the clock nor many small steps move it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from datetime import datetime, timedelta

import sqlalchemy as sa

from app.db.engine import Database
from app.db.schema import AUDIT, CHANGES, GALLERIES, JOBS
from app.db.secrets import SecretStore
from app.machine import uptime
from app.timestamps import utc_now, utc_text

CLOCK = "clock"
"""Name of the trusted time among the server's secrets."""
MAX_AHEAD = timedelta(days=1)
"""How far the clock may run ahead of the trusted time while the machine is on: virtual machines are paused."""
MAX_OFF = timedelta(days=7)
"""How far it may be ahead after the machine was started again: a server may be off for a week's holiday."""
SETTLED = timedelta(days=7)
"""A clock that was further ahead is trusted after it has gone steadily for so long, under the eyes of a server."""
STEP = timedelta(hours=1)
"""How far the clock goes on before the trusted time is written again, and how far a steady one may stray."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reading:
    """A time, ISO 8601; when it was read: the id of the machine's start, and the seconds since; and how many seconds
    of `uptime` it has been followed for.
    """

    at: str
    boot: str
    uptime: float
    followed: float = 0.0

    def reaches(self, now: Reading) -> bool:
        """Return whether so much time can have passed since this reading."""
        allowed = self._passed(now) + MAX_AHEAD if self._same_boot(now) else MAX_OFF
        return _time(now.at) <= _time(self.at) + allowed

    def is_steady(self, now: Reading) -> bool:
        """Return whether `now` is about where a clock would be that this reading was taken from."""
        if not self._same_boot(now):
            return self.reaches(now) and _time(now.at) >= _time(self.at)
        return abs(_time(now.at) - _time(self.at) - self._passed(now)) <= STEP

    def moved(self, now: Reading) -> Reading:
        """Return this reading advanced by what the machine counted, or to the clock if the machine was off."""
        if not self._same_boot(now):
            return replace(max(self, now, key=lambda one: _time(one.at)), followed=self.followed)
        passed = self._passed(now)
        at = utc_text(_time(self.at) + passed)
        return Reading(at, now.boot, now.uptime, self.followed + passed.total_seconds())

    def _same_boot(self, now: Reading) -> bool:
        return bool(self.boot) and self.boot == now.boot

    def _passed(self, now: Reading) -> timedelta:
        return timedelta(seconds=now.uptime - self.uptime)


@dataclass(frozen=True, slots=True)
class Watched:
    """The stored state: the trusted time, and the clock that is ahead of it, if one is."""

    trusted: Reading
    ahead: Reading | None = None

    def encode(self) -> bytes:
        return json.dumps([astuple(one) for one in (self.trusted, self.ahead) if one]).encode()

    @classmethod
    def decode(cls, stored: bytes) -> Watched:
        """Return what `encode` made. Earlier versions stored a time alone."""
        text = stored.decode()
        return cls(*(Reading(*one) for one in json.loads(text))) if text.startswith("[") else cls(Reading(text, "", 0))

    def after(self, now: Reading) -> Watched:
        """Return what is to be stored at the time `now`; unless it is steady for long enough, a leap stays `ahead`."""
        if self.trusted.reaches(now):
            return Watched(self.trusted.moved(now))
        if self.ahead is None or not self.ahead.is_steady(now):
            return Watched(self.trusted, now)
        ahead = self.ahead.moved(now)
        return Watched(now) if ahead.followed >= SETTLED.total_seconds() else Watched(self.trusted, ahead)


class ClockGuard:
    """Compares the clock with the trusted time in the database, which all servers share.

    Safe to share between threads. Calls raise what `Database` and `SecretStore` raise.
    """

    def __init__(self, database: Database, secrets: SecretStore, now: Callable[[], str] = utc_now) -> None:
        self._database = database
        self._secrets = secrets
        self._now = now
        self.ahead = False
        """What `trusted` found last."""
        self._last: Reading | None = None

    def trusted(self) -> bool:
        """Return whether the clock is no further ahead than it can be, and write what was seen."""
        now = read_clock(self._now)
        stored = self._secrets.get(CLOCK)
        before = self._read_rows(now) if stored is None else Watched.decode(stored)
        after = before.after(now)
        self.ahead, self._last = after.ahead is not None, after.trusted
        if stored is None or _is_worth_writing(before, after):
            self._secrets.put(CLOCK, after.encode())
        if self.ahead:
            _log.error(
                "The clock is too far ahead of the newest stored time: nothing is expired or deleted by its age until "
                "it is corrected, or has gone on steadily for %s days",
                SETTLED.days,
                extra={"fields": {"clock": now.at, "newest": after.trusted.at}},
            )
        return not self.ahead

    def now(self) -> float:
        """Return the seconds since 1970 by the clock, or by the trusted time if the clock was set back behind that."""
        now, last = read_clock(self._now), self._last
        return max(_time(one.at) for one in ((now,) if last is None else (now, last.moved(now)))).timestamp()

    def guarded(self, work: Callable[[], object]) -> Callable[[], object]:
        """Return `work` as a task that does nothing while the clock isn't trusted."""
        return lambda: work() if self.trusted() else None

    def _read_rows(self, now: Reading) -> Watched:
        """Return the newest time of the database's rows; without any, the clock's."""
        columns = (AUDIT.c.at, CHANGES.c.created_at, GALLERIES.c.created_at, JOBS.c.created_at)
        with self._database.read() as connection:
            found = [connection.execute(sa.select(sa.func.max(column))).scalar() for column in columns]
        newest = max((str(one) for one in found if one is not None), default=None)
        return Watched(now if newest is None else Reading(newest, "", 0))


def read_clock(now: Callable[[], str] = utc_now) -> Reading:
    """Return the time by this machine's clock."""
    return Reading(now(), *(uptime() or ("", 0.0)))


def _is_worth_writing(before: Watched, after: Watched) -> bool:
    if (before.ahead is None) != (after.ahead is None):
        return True
    pairs = [(before.trusted, after.trusted), (before.ahead, after.ahead)]
    return any(old and new and abs(_time(new.at) - _time(old.at)) > STEP for old, new in pairs)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
