"""Jobs in SQL. Every public call is one transaction unless it takes a connection, and may raise what `Database` raises.

A process that runs a job holds its lease. Leases expire, so that other processes claim the jobs of a killed one.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.choices import JobStateName
from app.db.engine import Database
from app.db.pagination import Page, read_page
from app.db.schema import GALLERIES, JOB_REFUSALS, JOBS
from app.db.sealed_columns import Blobs
from app.errors import NotFound
from app.gallery.records import Gallery, lock_gallery
from app.jobs.records import FINISHED, Job, Refusal, Result
from app.machine import uptime
from app.types import utc_now, utc_text

REPORT_ROWS = 1_000
"""Maximum rejected items read at once."""
CLAIM_LOCK = 0x4C494B47
"""PostgreSQL advisory lock, the number after `app.db.usage.ADVISORY_LOCK`."""
BOOT_ID = 8
"""Number of characters of a boot's id in leases."""
_JOB_ID = re.compile("[0-9a-f]{32}")


class JobLost(Exception):
    """Another process has claimed the job, or it was deleted with its gallery: nothing more may be written for it."""


class JobStore:
    """The jobs of one database. Safe to share between threads and processes."""

    def __init__(self, database: Database, blobs: Blobs | None = None) -> None:
        """`blobs` encrypts the keys of jobs' files; without it they are stored plain."""
        self._database = database
        self._blobs = blobs or Blobs()
        self.on_created: Callable[[], None] = lambda: None
        """Called after a job is created, so that this process's runner looks for it at once."""

    def create(
        self,
        kind: str,
        gallery: Gallery | None = None,
        params: Mapping[str, Any] | None = None,
        *,
        who: str | None = None,
        place: str | None = None,
        secret: bytes | None = None,
        job_id: str | None = None,
        also: Callable[[Connection], None] = lambda _: None,
    ) -> Job:
        """Create a job. Only processes of its `place`, where its files are, run it; `secret` encrypts the files.

        `also` writes in the same transaction. Raises NotFound ``gallery_not_found``, and what `also` raises.
        """
        job_id = job_id or new_job_id()
        values = {
            "id": job_id,
            "kind": kind,
            "gallery_key": None if gallery is None else gallery.key,
            "state": "queued",
            "params": _dump(params or {}),
            "who": who,
            "place": place,
            "secret": None if secret is None else self._blobs.pack("job", job_id, secret),
            "created_at": utc_now(),
        }
        with self._database.write() as connection:
            if gallery is not None:
                lock_gallery(connection, gallery)
            if secret is not None:
                self._blobs.mark(connection)
            also(connection)
            connection.execute(sa.insert(JOBS).values(values))
            made = _find(connection, job_id)
        self.on_created()
        return made

    def find(self, job_id: str | None) -> Job | None:
        """Return a job; None without an id, or if it finished long ago and was pruned."""
        try:
            return None if job_id is None else self.job(job_id)
        except NotFound:
            return None

    def job(self, job_id: str) -> Job:
        """Return a job. Raises NotFound ``job_not_found``."""
        with self._database.read() as connection:
            return _find(connection, job_id)

    def jobs(
        self,
        cursor: str | None = None,
        limit: int = 100,
        *,
        only: Collection[str] | None = None,
        gallery: str | None = None,
        state: str | None = None,
    ) -> Page[Job]:
        """Return a page of jobs, newest first, `only` of these galleries. Raises InvalidInput ``invalid_cursor``."""
        query = _JOBS
        if only is not None:
            query = query.where(GALLERIES.c.id.in_(only))
        for column, wanted in ((GALLERIES.c.id, gallery), (JOBS.c.state, state)):
            if wanted is not None:
                query = query.where(column == wanted)
        return read_page(
            self._database, query, JOBS.c.key, _job, listing="jobs", cursor=cursor, limit=limit, newest_first=True
        )

    def cancel(self, job_id: str) -> Job:
        """Cancel a job: at once if no live process holds it, else soon. A finished one stays as it is. Raises NotFound
        ``job_not_found``."""
        with self._database.write() as connection:
            job = _find(connection, job_id, lock=True)
            now, mine = _lease_time(connection), (JOBS.c.key == job.key) & JOBS.c.state.not_in(FINISHED)
            unheld = mine & _is_past(JOBS.c.lease_until, boots=now[BOOT_ID] == " ")
            at = {"now": now, "boot": now[:BOOT_ID]}
            connection.execute(sa.update(JOBS).where(unheld).values(_end("cancelled")), at)
            connection.execute(sa.update(JOBS).where(mine).values(cancel_asked=True))
            return _find(connection, job_id)

    def refusals(self, job: Job, after: int = -1, limit: int = REPORT_ROWS) -> Sequence[Refusal]:
        """Return the items rejected so far, in order, starting after the item `after`."""
        c = JOB_REFUSALS.c
        query = sa.select(c.item, c.name, c.code, c.message, c.reasons, c.enrolled)
        query = query.where((c.job_key == job.key) & (c.item > after)).order_by(c.item).limit(limit)
        rows = self._database.rows(query)
        return [Refusal(*row[:4], tuple(json.loads(row.reasons)), row.enrolled) for row in rows]

    def secret(self, job: Job) -> bytes | None:
        """Return the key of the job's files; None if they are no longer needed.

        Raises Unusable ``sealed_unreadable``.
        """
        with self._database.read() as connection:
            sealed: bytes | None = connection.execute(sa.select(JOBS.c.secret).where(JOBS.c.key == job.key)).scalar()
        return None if sealed is None else self._blobs.unpack("job", job.id, bytes(sealed))

    def unfinished(self, kind: str, who: str) -> Sequence[str]:
        """Return the ids of the jobs of this kind that the key `who` began and that have not ended."""
        query = sa.select(JOBS.c.id).where(
            JOBS.c.kind == kind, JOBS.c.who == who, JOBS.c.state.in_(["queued", "running"])
        )
        return self._database.column(query)

    # The methods below are for the runner.

    def claim(
        self,
        owner: str,
        kinds: Collection[str],
        lease: timedelta,
        place: str | None = None,
        skip: Collection[str] = (),
    ) -> Job | None:
        """Lease the oldest job of these kinds that may run now to `owner`; None if there is none.

        A job may not run while a process runs it, another job of its gallery, or another job of these kinds by the same
        key, which with many jobs would otherwise occupy every worker.

        `skip` are the ids of the jobs that this process runs, even if a leap of the clock ended their leases.
        """
        # `skip` is never empty ("" is not an id), since SQLAlchemy would render an empty list for `not_in` only.
        asked = {"kinds": list(kinds), "place": place, "skip": ["", *skip]}
        with self._database.read() as connection:  # most looks find nothing, so first look without the write lock
            now = _lease_time(connection)
            query, asked = _free(boots=now[BOOT_ID] == " "), asked | {"now": now, "boot": now[:BOOT_ID]}
            if connection.execute(query, asked).one_or_none() is None:
                return None
        with self._database.write() as connection:
            if not self._database.is_sqlite:  # else two processes could claim two jobs of one gallery
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(CLAIM_LOCK)))
            key = connection.execute(query.with_for_update(skip_locked=True), asked).scalar()
            if key is None:
                return None
            values = {
                "state": "running",
                "lease_owner": owner,
                "lease_until": _lease_time(connection, lease),
                "attempts": JOBS.c.attempts + 1,
                "started_at": sa.func.coalesce(JOBS.c.started_at, utc_now()),
            }
            connection.execute(sa.update(JOBS).where(JOBS.c.key == key).values(values))
            return _job(connection.execute(_JOBS.where(JOBS.c.key == key)).one())

    def renew(self, job: Job, lease: timedelta, done: int, total: int | None) -> bool:
        """Extend the lease; return whether the job must be cancelled. Raises JobLost."""
        with self._database.write() as connection:
            return _write(connection, job, lease_until=_lease_time(connection, lease), done=done, total=total)

    def save(
        self,
        job: Job,
        *,
        saved: Mapping[str, Any],
        counts: Mapping[str, int],
        done: int,
        total: int | None,
        refusals: Sequence[Refusal],
        connection: Connection | None = None,
    ) -> None:
        """Write a checkpoint, in the transaction of `connection` if given, so that the work and its checkpoint are
        written together. Raises JobLost, which must undo that transaction."""
        rows = [
            asdict(refusal)
            | {
                "job_key": job.key,
                "name": _storable(refusal.name),
                "message": _storable(refusal.message),
                "reasons": _dump(refusal.reasons),
            }
            for refusal in refusals
        ]
        with nullcontext(connection) if connection is not None else self._database.write() as writing:
            _write(writing, job, saved=_dump(saved), counts=_dump(counts), done=done, total=total, attempts=0)
            if rows:
                writing.execute(self._database.insert(JOB_REFUSALS).on_conflict_do_nothing(), rows)

    def finish(
        self,
        job: Job,
        state: JobStateName,
        *,
        done: int,
        total: int | None,
        error: tuple[str, str] | None = None,
        result: Result | None = None,
    ) -> None:
        """End a job; `error` is a code and a sentence. Deletes the secret unless a result needs it. Raises JobLost."""
        code, message = error or (None, None)
        values = _end(state) | {"error_code": code, "error_message": message}
        values |= {"done": done, "total": total}  # a renewal may have written smaller ones after the last checkpoint
        if result is not None:
            values |= {"result": _dump(asdict(result)), "secret": JOBS.c.secret}
        with self._database.write() as connection:
            _write(connection, job, **values)
        self._database.request_scrub()

    def release(self, job: Job, *, again_in: timedelta = timedelta()) -> None:
        """Hand the job back, so that any process can claim it; its start is not counted."""
        values: dict[str, Any] = {
            "state": "queued",
            "lease_owner": None,
            "lease_until": None,
            "attempts": sa.case((JOBS.c.attempts > 0, JOBS.c.attempts - 1), else_=0),
        }
        with self._database.write() as connection:
            values["not_before"] = _lease_time(connection, again_in)
            connection.execute(sa.update(JOBS).where(*_owned(job)).values(values))

    def prune(self, older_than: timedelta) -> int:
        """Delete jobs that finished longer ago than `older_than`; return how many."""
        old = (JOBS.c.state.in_(FINISHED)) & (JOBS.c.finished_at < utc_now(-older_than))
        with self._database.write() as connection:
            removed = connection.execute(sa.delete(JOBS).where(old)).rowcount
        if removed:
            self._database.request_scrub()
        return removed

    def with_files(self) -> tuple[set[str], set[str]]:
        """Return the ids of unfinished jobs, and of jobs with a result."""
        rows = self._database.rows(sa.select(JOBS.c.id, JOBS.c.state, JOBS.c.result))
        open_ones = {row.id for row in rows if row.state not in FINISHED}
        return open_ones, {row.id for row in rows if row.result is not None}


def new_job_id() -> str:
    return uuid.uuid4().hex


_JOBS = sa.select(JOBS, GALLERIES.c.id.label("gallery")).select_from(JOBS.outerjoin(GALLERIES))


def _find(connection: Connection, job_id: str, *, lock: bool = False) -> Job:
    row = None
    if _JOB_ID.fullmatch(job_id):
        query = _JOBS.where(JOBS.c.id == job_id)
        row = connection.execute(query.with_for_update(of=JOBS) if lock else query).one_or_none()
    if row is None:
        raise NotFound(
            f"There is no job {job_id!r}; `likeness jobs list` shows those that there are.",
            code="job_not_found",
            job=job_id,
        )
    return _job(row)


def _write(connection: Connection, job: Job, **values: Any) -> bool:
    """Change a job that this process still holds; return whether it must be cancelled. Raises JobLost."""
    update = sa.update(JOBS).where(*_owned(job)).values(values).returning(JOBS.c.cancel_asked)
    cancel_asked = connection.execute(update).scalar()
    if cancel_asked is None:
        raise JobLost(job.id)
    return bool(cancel_asked)


def _end(state: JobStateName) -> dict[str, Any]:
    return {"state": state, "finished_at": utc_now(), "lease_owner": None, "lease_until": None, "secret": None}


def _owned(job: Job) -> tuple[sa.ColumnElement[bool], ...]:
    return (JOBS.c.key == job.key, JOBS.c.lease_owner == job.lease_owner, JOBS.c.state == "running")


def _lease_time(connection: Connection, offset: timedelta = timedelta()) -> str:
    """Return the time plus `offset` by a clock that does not leap, so that no lease is taken from a living process.

    It is PostgreSQL's own clock. Since only one machine uses a SQLite database, its text is the id of the machine's
    boot, whose end ended all processes, and the seconds since then.
    """
    if connection.dialect.name == "sqlite":
        machine_uptime = uptime()
        if machine_uptime is None:
            return utc_now(offset)
        boot, seconds = machine_uptime
        return f"{boot[:BOOT_ID]} {seconds + offset.total_seconds():017.3f}"
    now: datetime = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
    return utc_text(now + offset)


def _is_past(column: sa.ColumnElement[str], *, boots: bool) -> sa.ColumnElement[bool]:
    past = sa.or_(column.is_(None), column <= sa.bindparam("now", type_=sa.String))
    return sa.or_(past, sa.func.substr(column, 1, BOOT_ID) != sa.bindparam("boot")) if boots else past


@cache
def _free(*, boots: bool) -> sa.Select[int]:
    """Return the query for the oldest job that may run, with parameters from `JobStore.claim`. It is built once, since
    that takes longer than running it. ``boots``: whether leases name the machine's boot.
    """
    kinds = sa.bindparam("kinds", type_=sa.String, expanding=True)
    skip = sa.bindparam("skip", type_=sa.String, expanding=True)
    other = JOBS.alias()
    held = sa.not_(_is_past(other.c.lease_until, boots=boots))
    same_key = sa.and_(other.c.who == JOBS.c.who, other.c.kind.in_(kinds))
    same = sa.or_(other.c.gallery_key == JOBS.c.gallery_key, same_key)
    runs = sa.and_(other.c.state == "running", sa.or_(held, other.c.id.in_(skip)))
    return (
        sa.select(JOBS.c.key)
        .where(
            JOBS.c.id.not_in(skip),
            ~sa.exists().where(other.c.key != JOBS.c.key, same, runs),
            JOBS.c.state.in_(["queued", "running"]),
            JOBS.c.kind.in_(kinds),
            sa.or_(JOBS.c.place.is_(None), JOBS.c.place == sa.bindparam("place")),
            _is_past(JOBS.c.lease_until, boots=boots),
            _is_past(JOBS.c.not_before, boots=boots),
        )
        .order_by(JOBS.c.key)
        .limit(1)
    )


def _job(row: Row[Any]) -> Job:
    read = {name: json.loads(getattr(row, name)) for name in ("params", "saved", "counts")}
    read |= {"result": row.result and Result(**json.loads(row.result))}
    return Job(**{field.name: getattr(row, field.name) for field in fields(Job)} | read)


def _storable(text: str) -> str:
    """Replace characters that databases can't store: NUL, and halves of surrogate pairs."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
