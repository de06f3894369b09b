"""What handlers take as parameters: the running service, the request's grant, and ids from the path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar
from urllib.parse import unquote

from fastapi import Depends, Path, Request
from pydantic import BaseModel, BeforeValidator
from starlette.datastructures import State

from app.access.audit import AuditLog
from app.access.audit_store import AuditEntry
from app.access.challenges import Challenges
from app.access.grants import Grant
from app.access.keys import Keys
from app.access.seen_signatures import SeenSignatures
from app.access.sign_in_codes import SignInCodes
from app.api import body, schemas
from app.api.auth import Guard
from app.api.operation import ImageFields
from app.bulk.service import BulkService
from app.calibration.job import Calibrator
from app.concurrency.admission import Admission
from app.concurrency.worker_pool import WorkerPool
from app.db.clock import ClockGuard
from app.db.signing import Signer
from app.errors import LikenessError
from app.face.liveness import LivenessPackages
from app.gallery.erasure import Erasures
from app.gallery.service import Galleries
from app.inference.embedders import Embedders
from app.jobs.runner import Runner
from app.jobs.store import JobStore
from app.recognition.challenge import ChallengeJudge
from app.recognition.corrections import Corrections
from app.recognition.operations import Operations
from app.reembedding.job import Reembedder
from app.review.job import Reviewer

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
Params = TypeVar("Params", bound=schemas.Params)


@dataclass(slots=True)
class Service:
    """The parts of the running server; `main` builds them. Only ``status`` changes."""

    operations: Operations
    embedders: Embedders
    liveness: LivenessPackages
    galleries: Galleries
    reembedder: Reembedder
    calibrator: Calibrator
    reviewer: Reviewer
    admission: Admission
    workers: WorkerPool
    limits: body.BodyLimits
    guard: Guard
    keys: Keys
    codes: SignInCodes
    challenges: Challenges
    challenge_judge: ChallengeJudge
    audit: AuditLog
    signatures: SeenSignatures
    signer: Signer
    erasures: Erasures
    corrections: Corrections
    jobs: JobStore
    runner: Runner
    bulk: BulkService
    clock: ClockGuard
    models: Callable[[], Sequence[schemas.Model]]
    """Returns the installed model packages."""
    skipped_models: Callable[[], Sequence[schemas.SkippedModel]]
    """The folders of the models folder whose package can't be used now."""
    """Paths that need no key."""
    status: Literal["ok", "starting", "draining"] = "starting"

    async def read(self, request: Request, wanted: ImageFields, query: Params) -> tuple[dict[str, list[bytes]], Params]:
        """Read a request's images, by field name, and its parameters, from the query and the body together."""
        raw = await self.read_body(request, self.limits.body_bytes(self.limits.count(wanted)))

        def parse() -> tuple[dict[str, list[bytes]], Params]:
            parts = body.parse_images(raw, wanted, self.limits, type(query).model_fields)
            return parts.images, body.merge(type(query), query, parts)

        return await self.parse(raw, parse)

    async def read_json(self, request: Request, model: type[Model], limit: int | None = None) -> Model:
        """Read a JSON body as ``model``; ``limit``: its bytes, if it may be longer than the metadata of a subject."""
        raw = await self.read_body(request, limit or self.limits.json_bytes)
        return await self.parse(raw, lambda: body.parse_json(raw, model))

    async def parse(self, raw: body.Body, parser: Callable[[], T]) -> T:
        """Run the parser of a body, in a worker thread unless it is quick, when there is memory for its copies."""
        if body.is_quick(raw):
            return parser()

        def run() -> T:
            with self.admission.budget.hold(body.PARSED_COPIES * len(raw.data), threads=0):
                return parser()

        return await self.workers.run(run)

    async def read_body(self, request: Request, limit: int) -> body.Body:
        """Read a body of at most ``limit`` bytes."""
        return await body.read_body(request, limit, self.limits.seconds, self.admission.take)

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a worker thread."""
        return await self.workers.run(work)


def find_service(state: State) -> Service:
    """Return the running service. Raises LikenessError (``not_ready``) before the start and after the end."""
    service: Service | None = getattr(state, "service", None)
    if service is None:
        raise LikenessError("The server is starting or stopping.", code="not_ready")
    return service


def grant_of(request: Request) -> Grant:
    """Return what the request's key allows, as the middleware found it."""
    grant: Grant = request.scope["grant"]
    return grant


def entry_of(request: Request) -> AuditEntry:
    """Return the request's entry in the audit log, so that a handler can add ids from the body."""
    entry: AuditEntry = request.scope["audit"]
    return entry


# Coroutines, since FastAPI would call plain functions in a thread of their own.
async def _service(request: Request) -> Service:
    return find_service(request.app.state)


async def _grant(request: Request) -> Grant:
    return grant_of(request)


def _path_id(description: str, example: str) -> Any:
    return Path(min_length=1, max_length=schemas.MAX_ID_LENGTH, description=description, examples=[example])


ServiceDep = Annotated[Service, Depends(_service)]
GrantDep = Annotated[Grant, Depends(_grant)]

_DECODED = BeforeValidator(unquote)
"""Paths are matched as they were sent, percent-encoded, so that an id may hold slashes and anything else."""
_HOW = "percent-encoded (`/` as `%2F`)"
GalleryId: TypeAlias = Annotated[str, _path_id(f"The gallery's id, {_HOW}.", "staff"), _DECODED]
SubjectId: TypeAlias = Annotated[str, _path_id(f"The subject's id, {_HOW}.", "collins"), _DECODED]
FaceId: TypeAlias = Annotated[
    str, _path_id("The face's id, as enrollment gave it.", "6f1f2d5f0f0c4c3a9a3e0c6d7b8a9f10"), _DECODED
]
CorrectionId: TypeAlias = Annotated[
    str, _path_id("The correction's id, as its creation gave it.", "4c3a9a3e0c6d7b8a9f106f1f2d5f0f0c"), _DECODED
]
ReceiptId: TypeAlias = Annotated[
    str, _path_id("The receipt's id, as the erasure gave it.", "0f5c1c2bb2dd4d0aa6a1e9b0c7c3de51"), _DECODED
]
KeyId: TypeAlias = Annotated[str, _path_id("The key's id.", "door")]
FindingId: TypeAlias = Annotated[str, _path_id("The finding's id.", "5f0f0c4c3a9a3e0c6d7b8a9f106f1f2d")]
JobId: TypeAlias = Annotated[str, _path_id("The job's id.", "0c9d7f0e4b8f4f0f9a3e0c6d7b8a9f10")]
