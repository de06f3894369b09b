"""Exports the audit log from a running server, one signed part after another, each chained to the one before."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict

from sqlalchemy.engine import Connection

from app.access.audit import DAY_S
from app.access.audit_chain import LAST, Chain, Document, digest, read_checkpoint
from app.access.audit_store import AuditEntry, AuditStore, read_after, read_rows
from app.db.signing import Signer
from app.errors import Conflict
from app.timestamps import utc_text

ENTRIES_AT_ONCE = 5_000
MAX_OPEN = 1_000
"""Open rows that a checkpoint names; older ones are given up as lost."""
OPEN_S = DAY_S
"""The age at which an entry gets no outcome any more: no call takes so long."""


class AuditExports:
    """Writes signed exports of the audit log. Safe to share between threads. ``days``: the age at which entries are
    pruned; 0: never."""

    def __init__(
        self, store: AuditStore, signer: Signer, *, days: float = 0, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._signer = signer
        self._days = days
        self._clock = clock

    def after(self, checkpoint: str | None) -> bytes:
        """Return the next lines of an export, of ENTRIES_AT_ONCE entries at most; the last line is a checkpoint.

        The server signs nothing but what it has read itself, after a checkpoint that it has signed itself.
        Raises InvalidInput ``invalid_checkpoint``, Conflict ``audit_log_differs``.
        """
        begun = Document() if checkpoint is None else read_checkpoint(checkpoint, self._signer)
        last: Document | None = begun.get("last")
        until = self._store.last_settled()
        with self._store.database.read(one_moment=True) as connection:
            if last is not None:
                self._check_same(last, read_rows(connection, [last["row"]]))
            chain = Chain(begun["number"], digest(checkpoint.encode())) if checkpoint else Chain()
            still_open = self._add_outcomes(chain, begun.get("open", []), connection)
            entries = read_after(connection, last["row"] if last else 0, until, ENTRIES_AT_ONCE)
        for entry in entries:
            chain.add("entry", asdict(entry))
        still_open += [entry.row for entry in entries if entry.status is None and entry.row is not None]
        for row in still_open[:-MAX_OPEN]:
            chain.add("lost", {"row": row})
        if entries:
            newest = asdict(entries[-1])
            last = {name: newest[name] for name in LAST}
        complete = len(entries) < ENTRIES_AT_ONCE
        now = utc_text(self._clock())
        fields = {"at": now, "last": last, "open": still_open[-MAX_OPEN:], "complete": complete}
        chain.sign(fields, self._signer)
        return b"".join(line + b"\n" for line in chain.lines)

    def _check_same(self, last: Document, found: list[AuditEntry]) -> None:
        """Raise Conflict ``audit_log_differs`` unless the last exported entry is in the log or has been pruned."""
        kept = not self._days or last["at"] >= utc_text(self._clock() - self._days * DAY_S)
        same = all(getattr(entry, name) == last[name] for entry in found for name in LAST)
        if not same or (kept and not found):
            message = (
                "The audit log no longer has the last entry of this export, or another one in its place: a backup was "
                "restored, or the log was altered. Keep the file, and begin a new one."
            )
            raise Conflict(message, code="audit_log_differs", row=last["row"])

    def _add_outcomes(self, chain: Chain, rows: list[int], connection: Connection) -> list[int]:
        """Add what became of the open rows; return those that are still open."""
        found = {entry.row: entry for entry in read_rows(connection, rows)}
        too_old = utc_text(self._clock() - OPEN_S)
        still_open: list[int] = []
        for row in rows:
            entry = found.get(row)
            if entry is not None and entry.status is not None:
                chain.add("outcome", asdict(entry))
            elif entry is None or entry.at < too_old:
                chain.add("lost", {"row": row})
            else:
                still_open.append(row)
        return still_open
