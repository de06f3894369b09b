"""What the routes work with; made by `main` when the server starts, and found through the application."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from fastapi import Depends, Request
from starlette.datastructures import State

from app.access.audit import AuditLog
from app.access.keys import Keys
from app.access.records import AuditEntry, Grant
from app.api import body, schemas
from app.api.auth import OPEN_PATHS, Guard
from app.bulk.service import Desk
from app.concurrency.worker_pool import Workers
from app.db.signing import Signer
from app.errors import LikenessError
from app.gallery.erasure import Erasures
from app.gallery.service import Galleries
from app.inference.embedders import Embedders
from app.jobs.runner import Runner
from app.jobs.store import JobStore
from app.operations import Operations
from app.reembedding.job import Reembedder

T = TypeVar("T")
Params = TypeVar("Params", bound=schemas.Params)


@dataclass(slots=True)
class Service:
    """All the state there is; ``status`` is the one thing that changes."""

    operations: Operations
    embedders: Embedders
    galleries: Galleries
    reembedder: Reembedder
    workers: Workers
    limits: body.BodyLimits
    guard: Guard
    keys: Keys
    audit: AuditLog
    signer: Signer
    erasures: Erasures
    jobs: JobStore
    runner: Runner
    desk: Desk
    models: Callable[[], Sequence[schemas.Model]]
    """The model packages that are installed now."""
    open_paths: frozenset[str] = OPEN_PATHS
    """What answers without a key."""
    status: Literal["ok", "starting", "draining"] = "starting"

    async def read(
        self, request: Request, wanted: body.ImageFields, query: Params
    ) -> tuple[dict[str, list[bytes]], Params]:
        """The images of a request by field name, and its parameters from the query and the body as one."""
        limits = self.limits
        raw = await body.read_body(request, limits.body_bytes(wanted.count(limits)), limits.seconds, self.workers.take)

        def parse() -> tuple[dict[str, list[bytes]], Params]:
            parts = body.parse_images(raw, wanted, limits, type(query).model_fields)
            return parts.images, body.merge(type(query), query, parts)

        return parse() if body.is_quick(raw) else await self.workers.run(parse)

    async def read_json(self, request: Request, model: type[Params]) -> Params:
        raw = await body.read_body(request, self.limits.json_bytes, self.limits.seconds, self.workers.take)
        if body.is_quick(raw):
            return body.parse_json(raw, model)
        return await self.workers.run(lambda: body.parse_json(raw, model))

    async def run(self, work: Callable[[], T]) -> T:
        return await self.workers.run(work)


def find_service(state: State) -> Service:
    """Raises LikenessError (``not_ready``) before the start and after the end."""
    service: Service | None = getattr(state, "service", None)
    if service is None:
        raise LikenessError("the server is starting or stopping", code="not_ready")
    return service


async def service_of(request: Request) -> Service:
    """A coroutine, as all dependencies here: FastAPI would call a plain function in a thread of its own."""
    return find_service(request.app.state)


ServiceDep = Annotated[Service, Depends(service_of)]


def grant_of(request: Request) -> Grant:
    """What the request's key allows; `app.api.middleware` has put it there."""
    grant: Grant = request.scope["grant"]
    return grant


def entry_of(request: Request) -> AuditEntry:
    """The request's entry in the audit log, for ids that come in the body."""
    entry: AuditEntry = request.scope["audit"]
    return entry


async def _granted(request: Request) -> Grant:
    return grant_of(request)


GrantDep = Annotated[Grant, Depends(_granted)]
