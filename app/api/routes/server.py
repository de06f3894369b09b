"""The server itself: its health, version and model packages."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import Request, Response

from app.api import schemas
from app.api.components import Components
from app.api.route import Router, respond
from app.package.folders import Package

router = Router("server")

NAME = "likeness"


@router.operation("GET", "/livez", scope=None, name="live", monitoring=True, public=True)
async def livez() -> schemas.Health:
    """Is the process alive?

    Answers as long as the process works. Restart the process if it doesn't answer.
    """
    return schemas.Health(status="ok")


@router.operation(
    "GET",
    "/readyz",
    scope=None,
    name="ready",
    answer=schemas.Health,
    monitoring=True,
    public=True,
    responses={
        503: {"model": schemas.Health, "description": "Starting, draining, without Milvus, or unable to write."}
    },
)
async def readyz(request: Request) -> Response:
    """Does the server take requests?

    200 when models are warm and galleries can be searched; 503 before that, and while the server stops. If vectors are
    searched in Milvus, also 503 while Milvus can't be reached; this is checked every 2 seconds. Also 503 after a failed
    write to the database or to `LIKENESS_AUDIT_SINK`, as on a full disk, until one succeeds; this is tried every 2
    seconds. `warnings` lists problems that do not keep it from answering, and is renewed every minute.
    """
    components: Components | None = request.app.state.components
    status = request.app.state.status
    if components and status == "ok" and not components.galleries.indexes.backend.available:
        status = "index_unavailable"
    if components and status == "ok" and not components.store.database.writable:
        status = "storage_unavailable"
    if components and status == "ok" and not components.audit.sink_available:
        status = "audit_unavailable"
    health = schemas.Health(status=status, warnings=["clock_ahead"] if components and components.clock.ahead else [])
    return respond(health, 200 if status == "ok" else 503)


@router.operation("GET", "/version", scope=None, monitoring=True, public=True)
async def version(request: Request) -> schemas.Version:
    """Show the server's version.

    Answers the name of the program and its version.
    """
    return schemas.Version(name=NAME, version=request.app.version)


@router.operation("GET", "/v1/models", scope=None)
def list_models(components: Components) -> schemas.ModelList:
    """List the model packages.

    Lists every package in the models folder: its licence, SHA-256, measured operating points, and whether it is
    running. Folders whose manifest can't be used are in `skipped`.
    """
    operations = components.operations
    defaults = schemas.Defaults.of(operations.defaults, embedder=operations.package)
    installed, skipped = list(components.models()), list(components.skipped_models())
    return schemas.ModelList(defaults=defaults, models=installed, skipped=skipped)


def model_answer(package: Package, device: str | None = None, providers: Iterable[str] = ()) -> schemas.Model:
    """Return a package's answer; ``device``: where it is running, or None."""
    manifest = package.manifest
    contract = manifest.liveness
    return schemas.Model.of(
        manifest,
        id=package.id,
        loaded=device is not None,
        added=package.added,
        source=manifest.source.kind,
        licence=schemas.Licence.of(manifest.licence, url=manifest.licence.url or None),
        liveness=contract
        and schemas.LivenessModel.of(
            contract,
            scale=contract.cut.scale,
            side=int(manifest.input.shape[1]),
            calibrations=manifest.liveness_calibrations,
        ),
        device=device,
        providers=list(providers),
        provenance=manifest.provenance.model_dump(mode="json"),
        warnings=list(package.warnings),
    )
