"""Remember what may be used only once, such as a request's signature, for all servers of a database."""

from __future__ import annotations

import time
from collections.abc import Callable

import sqlalchemy as sa

from app.db.engine import Database
from app.db.schema import SEEN_SIGNATURES as SEEN

KEPT_S = 600.0
"""Seconds for which a used signature is remembered: as long as it can be valid. A SigV4 signature's time may be 300 s
ahead of our clock, and the signature is valid for 300 s after that time."""


class SeenSignatures:
    """Remembers valid signatures, so that none is used twice. Safe to share between threads.

    Every call is one transaction, and may raise what `Database` raises.

    A signature is stored for KEPT_S seconds; then it is too old to be valid. Only valid signatures are stored, so the
    keys' rate limits bound their number. ``clock`` returns seconds since 1970.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def use(self, signature: str, attempt: str, repeat_s: float) -> bool:
        """Store the use of a signature and return True; return False if it was used before.

        For ``repeat_s`` seconds after its first use, a signature may be used again with another ``attempt``.
        """
        now = self._clock()
        first = sa.select(sa.func.min(SEEN.c.seen_at)).where(SEEN.c.signature == signature)
        values = {"signature": signature, "attempt": attempt, "seen_at": now}
        with self._database.write() as connection:
            connection.execute(sa.delete(SEEN).where(SEEN.c.seen_at < now - KEPT_S))
            used_at = connection.execute(first).scalar()
            if used_at is not None and abs(now - used_at) > repeat_s:
                return False
            insert = self._database.insert(SEEN).values(values).on_conflict_do_nothing().returning(SEEN.c.signature)
            # PostgreSQL's driver doesn't return the number of rows
            return connection.execute(insert).first() is not None

    def release(self, signature: str) -> None:
        with self._database.write() as connection:
            connection.execute(sa.delete(SEEN).where(SEEN.c.signature == signature))
