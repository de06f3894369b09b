"""The server itself: its health, version, metrics, model packages and public key."""

from __future__ import annotations

import asyncio

from fastapi import Request, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from app.api import endpoints, schemas
from app.api.dependencies import Service, ServiceDep
from app.api.metrics import Metrics
from app.api.router import Router
from app.db import signing

router = Router("server")

NAME = "likeness"


@router.handles(endpoints.LIVE, response_model_exclude_defaults=True)
async def livez() -> schemas.Health:
    """Is the process alive?

    Answers as long as the process can. Restart the process if it doesn't.
    """
    return schemas.Health(status="ok")


@router.handles(
    endpoints.READY,
    response_model_exclude_defaults=True,
    responses={
        503: {"model": schemas.Health, "description": "Starting, draining, without Milvus, or unable to write."}
    },
)
async def readyz(request: Request, response: Response) -> schemas.Health:
    """Does the server take requests?

    200 when models are warm and galleries can be searched; 503 before that, and while the server stops. If vectors are
    searched in Milvus, also 503 while Milvus can't be reached; this is checked every 2 seconds. Also 503 after a write
    to the database has failed, as on a full disk, until one succeeds; that is tried every 2 seconds. `warnings` tell of
    what does not keep it from answering, and are renewed every minute.
    """
    service: Service | None = getattr(request.app.state, "service", None)
    health = schemas.Health(status=service.status if service else "starting")
    if service and health.status == "ok" and not service.galleries.indexes.available:
        health = schemas.Health(status="index_unavailable")
    if service and health.status == "ok" and not service.galleries.store.database.writable:
        health = schemas.Health(status="storage_unavailable")
    if service and service.clock.ahead:
        health = health.model_copy(update={"warnings": ["clock_ahead"]})
    if health.status != "ok":
        response.status_code = 503
    return health


@router.handles(endpoints.VERSION)
async def version(request: Request) -> schemas.Version:
    """Show the server's version.

    The name of the program and its version.
    """
    return schemas.Version(name=NAME, version=request.app.version)


@router.handles(endpoints.METRICS)
async def metrics(request: Request) -> Response:
    """Read the metrics, for Prometheus.

    Requests, latencies, batches, queues, numbers of enrolled faces, models, the process. Names no gallery and no
    person.
    """
    found: Metrics = request.app.state.metrics
    return Response(await asyncio.to_thread(found.text), media_type=CONTENT_TYPE_LATEST)


@router.handles(endpoints.LIST_MODELS)
def list_models(service: ServiceDep) -> schemas.ModelList:
    """List the model packages.

    Every package in the models folder: its licence, SHA-256, measured operating points, and whether it is running.
    Folders whose manifest can't be used are in `skipped`.
    """
    operations = service.operations
    defaults = schemas.Defaults(fmr=operations.fmr, fpir=operations.fpir, embedder=operations.package)
    return schemas.ModelList(defaults=defaults, models=list(service.models()), skipped=list(service.skipped_models()))


@router.handles(endpoints.SHOW_SERVER_KEY)
async def show_server_key(service: ServiceDep) -> schemas.ServerKey:
    """Show the server's public key.

    Keep it to check anywhere what this server has signed. All servers of one database have the same key.
    """
    signer = service.signer
    return schemas.ServerKey(
        key_id=signer.key_id,
        algorithm=signing.ALGORITHM,
        public_key=signing.encode(signer.public_key),
        pem=signer.pem,
    )
