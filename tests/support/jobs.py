"""Write and read jobs directly in SQL, beside a service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from app.db.schema import JOBS
from app.gallery.store import Store
from app.jobs.records import Job
from app.jobs.store import JobStore

NOBODYS = "nobodys"
"""A kind that no server runs, so that such a job stays queued."""


@contextmanager
def job_store(data_dir: Path) -> Iterator[tuple[Store, JobStore]]:
    """Return the jobs of the service with this SQLite database."""
    store = Store(f"sqlite:///{data_dir / 'likeness.db'}")
    try:
        yield store, JobStore(store.database)
    finally:
        store.close()


def waiting_job(data_dir: Path, gallery: str | None = None) -> Job:
    with job_store(data_dir) as (store, jobs):
        return jobs.create(NOBODYS, None if gallery is None else store.gallery(gallery))


def end_leases(data_dir: Path) -> None:
    """End the leases of all jobs, so that another process continues what a killed one began."""
    with job_store(data_dir) as (store, _jobs), store.database.write() as connection:
        connection.execute(sa.update(JOBS).where(JOBS.c.lease_until.is_not(None)).values(lease_until="2000-01-01"))
