"""Help features whose jobs do one piece of work each: no two at the same time, and answers show the last one."""

from __future__ import annotations

import json

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.api import schemas
from app.api.routes.jobs import job_answer
from app.db.schema import JOBS
from app.jobs.records import FINISHED
from app.jobs.store import JobStore


class UnderWay(Exception):
    """Another job is already doing this work; ``job`` is its id."""

    def __init__(self, job: str) -> None:
        super().__init__(job)
        self.job = job


def check_not_running(connection: Connection, job_id: str | None, **params: str) -> None:
    """Raise UnderWay if the job exists, has these parameters and has not finished."""
    row = connection.execute(sa.select(JOBS.c.state, JOBS.c.params).where(JOBS.c.id == job_id)).one_or_none()
    if job_id is None or row is None or row.state in FINISHED:
        return
    if params.items() <= json.loads(row.params).items():
        raise UnderWay(job_id)


def last_job(jobs: JobStore, job_id: str | None) -> schemas.Job | None:
    """Return the job with this id, as answers show it; None if there is none, or it was deleted."""
    job = jobs.find(job_id)
    return None if job is None else job_answer(job)
