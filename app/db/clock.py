"""Watches this machine's clock: nothing is expired or deleted by its age while the clock may be wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

import sqlalchemy as sa

from app.db.engine import Database
from app.db.schema import AUDIT, CHANGES, GALLERIES, JOBS
from app.db.secrets import SecretStore
from app.timestamps import utc_now

CLOCK = "clock"
"""Name of the newest trusted time among the server's secrets."""
MAX_AHEAD = timedelta(days=7)
"""How far the clock may be from the newest trusted time: a server may be off for a week's holiday."""
STEP = timedelta(hours=1)
"""How far the clock goes on before the newest trusted time is written again."""
_log = logging.getLogger(__name__)


class ClockGuard:
    """Compares the clock with the newest trusted time in the database, which all servers share.

    Safe to share between threads. Calls raise what `Database` and `SecretStore` raise.
    """

    def __init__(self, database: Database, secrets: SecretStore, now: Callable[[], str] = utc_now) -> None:
        self._database = database
        self._secrets = secrets
        self._now = now
        self.ahead = False
        """What `trusted` found last."""

    def trusted(self) -> bool:
        """Return whether the clock is at most MAX_AHEAD ahead, and write its time if it is."""
        now, newest = self._now(), self._newest()
        self.ahead = is_ahead(now, newest)
        if self.ahead:
            _log.error(
                "The clock is too far ahead of the newest stored time: nothing is expired or deleted by its age. "
                "Correct it, or confirm it with: likeness clock --confirm",
                extra={"fields": {"clock": now, "newest": newest}},
            )
            return False
        if newest is None or _time(now) - _time(newest) > STEP:
            self._secrets.put(CLOCK, now.encode())
        return True

    def confirm(self) -> None:
        """Trust the clock as it is now."""
        self._secrets.put(CLOCK, self._now().encode())

    def guarded(self, work: Callable[[], object]) -> Callable[[], object]:
        """Return `work` as a task that does nothing while the clock isn't trusted."""
        return lambda: work() if self.trusted() else None

    def _newest(self) -> str | None:
        """Return the newest trusted time; in a database that has none yet, the newest time of its rows."""
        stored = self._secrets.get(CLOCK)
        if stored is not None:
            return stored.decode()
        columns = (AUDIT.c.at, CHANGES.c.created_at, GALLERIES.c.created_at, JOBS.c.created_at)
        with self._database.read() as connection:
            found = [connection.execute(sa.select(sa.func.max(column))).scalar() for column in columns]
        return max((str(one) for one in found if one is not None), default=None)


def is_ahead(now: str, newest: str | None) -> bool:
    """Return whether `now` is more than MAX_AHEAD after the newest trusted time."""
    return newest is not None and _time(now) - _time(newest) > MAX_AHEAD


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
