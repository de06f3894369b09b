"""Watch this machine's clock, so that nothing expires or is deleted by age while the clock may be wrong.

The trusted time is in the database, which all servers share. It advances by the machine's uptime, which can't be set,
so that neither a leap of the clock nor many small steps move it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import sqlalchemy as sa

from app.db.engine import Database
from app.db.schema import AUDIT, CHANGES, GALLERIES, JOBS
from app.db.secrets import SecretStore
from app.machine import uptime
from app.types import utc_seconds, utc_text

CLOCK = "clock"
"""Name of the trusted time among the server's secrets."""
DAY_S = 86_400.0
MAX_AHEAD_S = DAY_S
"""Maximum seconds that the clock may be ahead of the trusted time while the machine is on (it may be paused)."""
MAX_OFF_S = 7 * DAY_S
"""Maximum seconds that it may be ahead after a restart, since a server may be off for a week."""
SETTLED_DAYS = 7
"""A clock that was further ahead is trusted after running steadily for this time while a server watched it."""
STEP_S = 3600.0
"""Seconds between writes of the trusted time, and maximum seconds that a steady clock may stray."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reading:
    """A time ``at``, in seconds since 1970, and when it was read: the id of the machine's start, and the seconds of
    ``uptime`` since then. ``followed`` is for how many seconds of uptime the clock has been watched.
    """

    at: float
    boot: str
    uptime: float
    followed: float = 0.0

    def passed(self, now: Reading) -> float | None:
        """Return the seconds that the machine counted since this reading; None if it was restarted."""
        return now.uptime - self.uptime if self.boot and self.boot == now.boot else None

    def reaches(self, now: Reading) -> bool:
        """Return whether the time from this reading to `now` can have passed."""
        passed = self.passed(now)
        return now.at - self.at <= (MAX_OFF_S if passed is None else passed + MAX_AHEAD_S)

    def is_steady(self, now: Reading) -> bool:
        """Return whether `now` is about what the clock of this reading should show now."""
        passed = self.passed(now)
        if passed is None:
            return self.reaches(now) and now.at >= self.at
        return abs(now.at - self.at - passed) <= STEP_S

    def moved(self, now: Reading) -> Reading:
        """Return this reading advanced by the seconds that the machine counted, or set to `now` if it was off."""
        passed = self.passed(now)
        if passed is None:
            return replace(max(self, now, key=lambda reading: reading.at), followed=self.followed)
        return Reading(self.at + passed, now.boot, now.uptime, self.followed + passed)


@dataclass(frozen=True, slots=True)
class Watched:
    """The stored state: the trusted time, and a clock that is ahead of it, if there is one."""

    trusted: Reading
    ahead: Reading | None = None

    def encode(self) -> bytes:
        readings = [reading for reading in (self.trusted, self.ahead) if reading]
        return json.dumps([(utc_text(at.at), at.boot, at.uptime, at.followed) for at in readings]).encode()

    @classmethod
    def decode(cls, stored: bytes) -> Watched:
        """Decode what `encode` made; earlier versions stored only a time."""
        text = stored.decode()
        readings = json.loads(text) if text.startswith("[") else [(text, "", 0)]
        return cls(*(Reading(utc_seconds(at), *rest) for at, *rest in readings))

    def after(self, now: Reading) -> Watched:
        """Return the state to store at the time `now`; a leap stays `ahead` until it was steady for long enough."""
        if self.trusted.reaches(now):
            return Watched(self.trusted.moved(now))
        if self.ahead is None or not self.ahead.is_steady(now):
            return Watched(self.trusted, now)
        ahead = self.ahead.moved(now)
        return Watched(now) if ahead.followed >= SETTLED_DAYS * DAY_S else Watched(self.trusted, ahead)


class ClockGuard:
    """Compares the clock with the trusted time in the database, which all servers share.

    Safe to share between threads. Calls raise what `Database` and `SecretStore` raise.
    """

    def __init__(self, database: Database, secrets: SecretStore, now: Callable[[], float] = time.time) -> None:
        self._database = database
        self._secrets = secrets
        self._now = now
        self.ahead = False
        """The last result of `trusted`."""
        self._last: Reading | None = None

    def trusted(self) -> bool:
        """Store the state; return False if the clock is further ahead than is possible."""
        now = read_clock(self._now)
        stored = self._secrets.get(CLOCK)
        before = self._read_rows(now) if stored is None else Watched.decode(stored)
        after = before.after(now)
        self.ahead, self._last = after.ahead is not None, after.trusted
        pairs = (before.trusted, after.trusted), (before.ahead, after.ahead)
        moved = any(old and new and abs(new.at - old.at) > STEP_S for old, new in pairs)
        if stored is None or moved or (before.ahead is None) == self.ahead:
            with self._database.write() as connection:
                self._secrets.put(connection, CLOCK, after.encode())
        if self.ahead:
            _log.error(
                "The clock is too far ahead of the newest stored time: nothing is expired or deleted by its age until "
                "it is corrected, or has gone on steadily for %s days",
                SETTLED_DAYS,
                extra={"fields": {"clock": utc_text(now.at), "newest": utc_text(after.trusted.at)}},
            )
        return not self.ahead

    def now(self) -> float:
        """Return the seconds since 1970 by the clock, or by the trusted time if the clock is behind it."""
        now, last = read_clock(self._now), self._last
        return now.at if last is None else max(now.at, last.at + (last.passed(now) or 0))

    def guarded(self, work: Callable[[], object]) -> Callable[[], object]:
        """Return `work` as a task that does nothing while the clock isn't trusted."""
        return lambda: work() if self.trusted() else None

    def _read_rows(self, now: Reading) -> Watched:
        """Return the newest time in the database's rows; without rows, the clock's."""
        columns = (AUDIT.c.at, CHANGES.c.created_at, GALLERIES.c.created_at, JOBS.c.created_at)
        with self._database.read() as connection:
            newest_of = [connection.execute(sa.select(sa.func.max(column))).scalar() for column in columns]
        newest = max(filter(None, newest_of), default=None)
        return Watched(now if newest is None else Reading(utc_seconds(newest), "", 0))


def read_clock(now: Callable[[], float] = time.time) -> Reading:
    """Return the time by this machine's clock."""
    return Reading(now(), *(uptime() or ("", 0.0)))
