"""Jobs: work that outlasts a request."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal, TypeAlias

from pydantic import Field

from app.api.schemas.base import MAX_ID_LENGTH, TIME, Example, NextCursor, PageParams, Params, Wire

JobState: TypeAlias = Literal["queued", "running", "done", "failed", "cancelled"]


class JobPageParams(PageParams):
    gallery: str | None = Field(default=None, max_length=MAX_ID_LENGTH, description="Only jobs of this gallery.")
    state: JobState | None = Field(default=None, description="Only jobs in this state.")


class ReportParams(Params):
    format: Literal["jsonl", "csv"] = Field(default="jsonl", description="Lines of JSON, or CSV with a header.")


class JobError(Wire):
    code: str = Field(description="One of the error codes, or `job_crashed`.")
    message: str


class Job(Wire):
    """Work that outlasts a request."""

    example: ClassVar[Example] = {
        "id": "0c9d7f0e4b8f4f0f9a3e0c6d7b8a9f10",
        "kind": "import",
        "gallery": "staff",
        "state": "running",
        "done": 1200,
        "total": 5000,
        "counts": {"enrolled": 1187, "refused": 13},
        "error": None,
        "has_result": False,
        "key": "admin.key",
        "created_at": TIME,
        "started_at": TIME,
        "finished_at": None,
    }

    id: str
    kind: str = Field(description="The kind of work.")
    gallery: str | None = Field(description="The gallery that it works on; null: all, or none.")
    state: JobState
    done: int = Field(description="Number of items processed so far.")
    total: int | None = Field(description="Number of all items, if known.")
    counts: dict[str, int] = Field(description="Counters; `refused` and `warned` items are in its report.")
    error: JobError | None = Field(description="Why it failed.")
    has_result: bool = Field(description="Whether it has a result, a file to fetch.")
    key: str | None = Field(description="The id of the key that created it.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class JobPage(Wire):
    example: ClassVar[Example] = {"jobs": [Job.example], "next_cursor": None}
    jobs: list[Job]
    next_cursor: NextCursor
