"""Builds the server from its settings, and runs it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shlex
import shutil
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path

import cv2
import numpy as np
import uvloop
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

from app import instance
from app.access.audit import AuditLog
from app.access.keys import Keys
from app.access.records import Rate, parse_rate
from app.access.store import AuditStore, KeyStore
from app.api import (
    answers,
    audit,
    auth,
    bulk,
    docs,
    faces,
    galleries,
    headers,
    health,
    jobs,
    keys,
    logs,
    metrics,
    models,
    own_key,
    page,
    receipts,
    recognition,
    reembedding,
    schemas,
    serving,
    subjects,
)
from app.api.body import BodyLimits
from app.api.dialects import Dialect
from app.api.door import Door, answer_error
from app.api.service import Service
from app.api.work import Workers
from app.bulk.desk import Desk
from app.bulk.writing import Tools
from app.config import PREFIX, Settings
from app.doors.compreface.dialect import ROUTERS as COMPREFACE_ROUTERS
from app.doors.compreface.dialect import CompreFace
from app.doors.rekognition.dialect import Rekognition
from app.doors.rekognition.dialect import router as rekognition_router
from app.embedders import Embedders
from app.errors import InvalidInput, Unusable
from app.face.embed import Embedder
from app.face.image import Limits
from app.gallery.background import Repeating
from app.gallery.blobs import Blobs
from app.gallery.erasure import Erasures
from app.gallery.expiry import Expiry
from app.gallery.gallery import SNAPSHOT_S, Galleries
from app.gallery.milvus import Milvus, parse_address
from app.gallery.mirror import find_gpu
from app.gallery.reembedding import Reembeddings
from app.gallery.remote import RemoteIndexes
from app.gallery.secrets import SIGNING_KEY, SecretStore
from app.gallery.snapshots import Snapshots
from app.gallery.store import Store
from app.jobs.files import JobFiles
from app.jobs.runner import Runner
from app.jobs.store import JobStore
from app.loading import Models, open_models
from app.machine import cores
from app.memory import give_back
from app.operations import Operations
from app.pipeline import Pipeline
from app.reembedding import KIND as REEMBED
from app.reembedding import Reembedder
from app.runtime.package import CROP_SIDE, Package, find_packages
from app.runtime.prepare import Target
from app.runtime.turns import Turns
from app.types import Pixels
from app.vault.keyfile import VAULT_FILE, Rings, load_rings
from app.vault.signing import Signer

DISTRIBUTION = "likeness"
ROUTERS = (
    recognition.router,
    galleries.router,
    reembedding.router,
    subjects.router,
    faces.router,
    keys.router,
    own_key.router,
    audit.router,
    jobs.router,
    bulk.router,
    models.router,
    receipts.router,
    health.router,
    metrics.router,
)
JSON_OVERHEAD = 64 * 1024
"""Bytes of a JSON body beside the metadata; escapes make six bytes of one."""
CROPS_WAITING = 4096
"""Faces that may wait for the embedder: more than one photo can hold; requests are bounded by themselves."""
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (the address is looked up here, not listened on)
PROVIDERS = {"cpu": ["CPUExecutionProvider"], "cuda": ["CUDAExecutionProvider", "CPUExecutionProvider"]}
NOT_RUNNING: tuple[None, list[str]] = (None, [])
SAMPLE_PHOTO = Path("docs/samples/collins.jpg")
"""What the line to paste uses, where the server was started in the project's own folder."""
SNAPSHOT_FOLDER = "snapshots"
JOBS_FOLDER = "jobs"
JOBS = 2
"""At once in one process: a long import should not keep an export waiting."""
IMPORT_THREADS = 4
"""For photos of imports: the others are for those who wait for an answer."""
SWITCH_S = 0.0005
"""How long a thread may go on with Python while others want to; Python's own 5 ms. Threads that come back from the
models, or the one that answers HTTP, would wait so long with a core idle; with much less they push each other off the
cores too often (docs/explanation/performance.md)."""
REEMBEDDINGS_S = 60.0
"""Between looks for re-embeddings whose time to roll back is over."""
MEMORY_S = 60.0
"""Between the times that freed memory goes back to the system: a gigabyte after large photos by sixteen clients."""
_log = logging.getLogger(logs.LOGGER)


def create_app(settings: Settings, models: Future[Models] | None = None) -> FastAPI:
    """The application; everything it needs is built when its lifespan begins, which raises Unusable where it can't.

    ``models`` are those of the settings, where somebody opens them already.
    """
    app: FastAPI = FastAPIOffline(
        docs_url=None,
        redoc_url=None,
        static_url=docs.ASSETS_PATH,
        title="Likeness",
        version=version(DISTRIBUTION),
        lifespan=partial(_lifespan, settings, models),
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # whose being off is looked up at each request
        openapi_tags=[
            {"name": "recognition", "description": "From photos to answers."},
            {"name": "galleries", "description": "Sets of enrolled people."},
            {"name": "subjects", "description": "The people of a gallery."},
            {"name": "faces", "description": "Their enrolled images."},
            {"name": "jobs", "description": "Work that outlasts a request."},
            {"name": "access", "description": "Keys, and who did what."},
            {"name": "server", "description": "The server itself."},
        ],
    )
    app.state.metrics = metrics.Metrics()
    app.add_middleware(Door)
    headers.install(app, settings.cors_origins)
    for error in (HTTPException, RequestValidationError):
        app.add_exception_handler(error, answer_error)
    _add_routes(app, ROUTERS)
    _open_doors(app, settings)
    docs.install(app)
    page.install(app)
    return app


def _open_doors(app: FastAPI, settings: Settings) -> None:
    """Other services' wire formats, those that are switched on."""
    dialects: list[Dialect] = []
    if settings.compreface == "on":
        dialects.append(CompreFace())
        _add_routes(app, COMPREFACE_ROUTERS)
    if settings.rekognition == "on":
        dialects.append(Rekognition())
        _add_routes(app, [rekognition_router])
    app.state.dialects = tuple(dialects)


def _add_routes(app: FastAPI, routers: Iterable[APIRouter]) -> None:
    """As they are: FastAPI would look a route of an included router up twice at each request, for 0.1 ms."""
    for router in routers:
        app.router.routes.extend(router.routes)


def serve(settings: Settings, models: Future[Models]) -> None:
    """Runs the server on its data folder, which is there, until it is told to stop (SIGINT, SIGTERM), which ends
    requests in work first.

    Raises Unusable with one clear sentence where settings, models, the data folder or the port are.
    """
    sys.setswitchinterval(SWITCH_S)
    tls = settings.tls_cert and settings.tls_key and serving.tls_context(settings.tls_cert, settings.tls_key)
    with _listen(settings) as listener:
        url = _url(listener, "https" if tls else "http")
        loops = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        with instance.announce(settings.data_dir, url), loops as runner:
            runner.run(_serve(settings, models, listener, url, tls or None))


def admin_key(data_dir: Path) -> str:
    """The key in the data folder, made if it is missing."""
    instance.prepare_data_dir(data_dir)
    return auth.load_key(data_dir)[0]


def rotate_admin_key(data_dir: Path) -> str:
    """A new key in place of the old one, which a running server keeps until its next start."""
    instance.prepare_data_dir(data_dir)
    return auth.replace_key(data_dir)


async def _serve(
    settings: Settings, models: Future[Models], listener: socket.socket, url: str, tls: ssl.SSLContext | None
) -> None:
    """Answers from the first moment on, `not_ready` until everything is built."""
    key, made = auth.load_key(settings.data_dir)
    app = create_app(settings, models)
    waits = serving.Waits(
        head_s=settings.header_timeout,
        idle_s=settings.keep_alive,
        answer_s=settings.request_timeout,
        drain_s=settings.drain_seconds,
    )
    config = serving.server_config(app, waits, trusted_proxies=settings.trusted_proxies, tls=tls)
    server = serving.Server(config, app, settings.drain_seconds)
    serving.ignore_signals()
    answering = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with app.router.lifespan_context(app):
            gc.freeze()  # what is there now stays: every full collection would go through all of it, for 0.1 s and more
            gc.enable()
            if not server.should_exit:
                told_key = key if sys.stdout.isatty() else None
                sys.stdout.write(_greeting(settings, url, key=told_key, new=made))
                sys.stdout.flush()
            await answering
    finally:
        server.should_exit = True
        await answering


@asynccontextmanager
async def _lifespan(settings: Settings, models: Future[Models] | None, app: FastAPI) -> AsyncIterator[None]:
    stack = ExitStack()
    try:
        service = await asyncio.to_thread(_build, settings, models, stack, app.state.metrics)
        app.state.metrics.watch(service)
        app.state.service = service
        service.status = "ok"
        yield
        service.status = "draining"
    finally:
        await asyncio.to_thread(stack.close)
        app.state.service = None


def _build(settings: Settings, opening: Future[Models] | None, stack: ExitStack, counted: metrics.Metrics) -> Service:
    """Everything, from the data folder to the warm models; ``stack`` closes it in the opposite order."""
    cv2.setNumThreads(1)  # requests run side by side already: OpenCV's own threads would only fight theirs
    instance.prepare_data_dir(settings.data_dir)
    key, _ = auth.load_key(settings.data_dir)
    rings = load_rings(
        settings.data_dir, settings.encryption_key_file, settings.encryption_keys, seals=settings.encryption == "seal"
    )
    sql = Store(
        settings.database,
        max_metadata_bytes=settings.max_metadata_bytes,
        blobs=Blobs(rings.faces, seals=rings.seals),
    )
    store = _open_galleries(settings, sql, rings)
    stack.callback(store.close)
    secrets = SecretStore(sql.database, rings.secrets)
    signer = _signer(settings, secrets)
    erasures = Erasures(store, sql.database, signer)
    log = AuditLog(AuditStore(sql.database), days=settings.audit_days)
    stack.callback(log.close)
    expiry = Expiry(store, erasures, partial(log.recorded, "expire_subject"), every_s=settings.expiry_seconds)
    stack.callback(expiry.close)
    api_keys = _keys(settings, KeyStore(sql.database), secrets)
    loading = stack.enter_context(ThreadPoolExecutor(1)).submit(store.load)  # while the models load
    models = opening.result() if opening else open_models(settings)
    settings, detector = models.settings, models.detector
    stack.callback(detector.close)
    turns = Turns(cores())
    embedders = _embedders(models, turns)
    stack.callback(embedders.close)
    limits = Limits(settings.max_image_bytes, settings.max_image_pixels, settings.max_image_side)
    workers = Workers(
        settings.threads, settings.queue_limit, settings.request_timeout, bytes_limit=settings.max_bodies_bytes
    )
    stack.callback(workers.close)
    operations = Operations(
        Pipeline(detector, limits, turn=turns),
        embedders,
        store,
        fmr=settings.fmr,
        fpir=settings.fpir,
        observe=counted.stages,
    )
    job_store = JobStore(sql.database)
    runner: Runner

    def wake() -> None:
        runner.wake()

    reembedder = Reembedder(store, Reembeddings(sql), embedders, job_store, wake)
    files = JobFiles(settings.data_dir / JOBS_FOLDER)
    tools = Tools(
        operations=operations,
        galleries=store,
        files=files,
        max_image_bytes=settings.max_image_bytes,
        max_bytes=settings.max_import_bytes,
        threads=min(settings.threads, IMPORT_THREADS),
        package_sha256=partial(_package_sha256, embedders),
        signer=signer,
    )
    desk = Desk(tools, job_store)
    works = {**desk.works(), REEMBED: reembedder.work}
    runner = Runner(job_store, works, files=files, workers=JOBS, kept=timedelta(days=settings.job_days))
    detector.detect(_grey())
    _open_embedders(embedders, store, settings.max_embedders)
    loading.result()
    stack.callback(runner.close)
    runner.start()
    stack.callback(Repeating("reembeddings", REEMBEDDINGS_S, reembedder.look).close)
    stack.callback(Repeating("memory", MEMORY_S, give_back).close)
    return Service(
        operations=operations,
        embedders=embedders,
        galleries=store,
        reembedder=reembedder,
        workers=workers,
        limits=BodyLimits(
            image_bytes=settings.max_image_bytes,
            request_bytes=settings.max_request_bytes,
            images=settings.max_images,
            seconds=settings.request_timeout,
            json_bytes=settings.max_metadata_bytes * 6 + JSON_OVERHEAD,
        ),
        guard=auth.Guard.of(key, api_keys, _failures(settings)),
        keys=api_keys,
        audit=log,
        signer=signer,
        erasures=erasures,
        jobs=job_store,
        runner=runner,
        desk=desk,
        open_paths=auth.OPEN_PATHS | ({metrics.PATH} if settings.metrics == "open" else frozenset()),
        models=partial(_models, models.detector_package, detector.device, embedders),
    )


def _open_galleries(settings: Settings, store: Store, rings: Rings) -> Galleries:
    folder = settings.data_dir / SNAPSHOT_FOLDER
    try:
        remote = None if settings.index == "faiss" else RemoteIndexes(store, _open_milvus(settings))
    except Unusable:
        store.close()
        raise
    if not settings.snapshot_seconds or remote:
        shutil.rmtree(folder, ignore_errors=True)  # switched off: no copy of anybody's template stays
    sealer = rings.faces if rings.seals else None
    snapshots = Snapshots(folder, sealer=sealer) if settings.snapshot_seconds and not remote else None
    return Galleries(
        store,
        indexes=remote,
        search_threads=os.cpu_count() or 1,
        search_gpu=find_gpu() if settings.device != "cpu" and remote is None else None,
        snapshots=snapshots,
        snapshot_s=settings.snapshot_seconds or SNAPSHOT_S,
    )


def _package_sha256(embedders: Embedders, package_id: str) -> str | None:
    package = embedders.packages().get(package_id)
    return None if package is None else package.manifest.sha256


def _open_milvus(settings: Settings) -> Milvus:
    """Raises Unusable (``invalid_setting``, ``index_driver_missing``, ``index_unavailable``)."""
    try:
        address = parse_address(settings.index)
    except ValueError as error:
        raise Unusable(f"{PREFIX}INDEX: {error}", code="invalid_setting") from None
    return Milvus(address, settings.index_token.get_secret_value() if settings.index_token else None)


def _signer(settings: Settings, secrets: SecretStore) -> Signer:
    """Raises Unusable (``sealed_unreadable``)."""
    path = settings.data_dir / VAULT_FILE
    try:
        return Signer(secrets.get_or_make(SIGNING_KEY, Signer.make))
    except Unusable as error:
        if error.code != "sealed_unreadable":
            raise
        message = f"{path} is not what the database's secrets were sealed with: put the one there that is. {error}"
        raise Unusable(message, code=error.code) from None


def _keys(settings: Settings, store: KeyStore, secrets: SecretStore) -> Keys:
    """Raises Unusable (``keys_file_invalid``, ``invalid_setting``)."""
    found = Keys(store, secrets=secrets, default_rate=_rate("rate_limit", settings.rate_limit))
    if settings.keys_file is not None:
        from app.access.bootstrap import read_keys  # noqa: PLC0415 - brings a YAML reader, which few starts need

        found.declare(read_keys(settings.keys_file, os.environ))
    return found


def _failures(settings: Settings) -> Rate:
    rate = _rate("failed_keys", settings.failed_keys)
    if rate is None:
        raise Unusable(f"{PREFIX}FAILED_KEYS: give a rate", code="invalid_setting")
    return rate


def _rate(name: str, text: str) -> Rate | None:
    try:
        return parse_rate(text)
    except InvalidInput as error:
        raise Unusable(f"{PREFIX}{name.upper()}: {error.message}", code="invalid_setting") from None


def _embedders(models: Models, turns: Turns) -> Embedders:
    """None of them taken into use yet."""
    settings = models.settings

    def open_one(package: Package) -> Embedder:
        embedder = Embedder(
            models.session(package),
            max_batch=settings.max_batch,
            queue_limit=CROPS_WAITING,
            workers=settings.embed_workers,
            spare=lambda busy: busy < turns.free,  # of other packages' embedders nothing is known here
        )
        embedder.embed([_grey()])  # so that no first caller waits for what that sets up
        return embedder

    find = partial(find_packages, settings.models_dir)
    return Embedders(models.embedder_package, find, open_one, kept=settings.max_embedders)


def _open_embedders(embedders: Embedders, galleries: Galleries, count: int) -> None:
    """The default, and those that galleries use, up to `count`. One of a gallery's that can't be opened is told of,
    and stops that gallery alone. Raises Unusable where the default can't."""
    embedders.open_default()
    for package_id in sorted(galleries.packages() - {embedders.default.id})[: count - 1]:
        try:
            with embedders.use(package_id):
                pass
        except Unusable as error:
            _log.warning("galleries wait for their model package", extra={"fields": {"error": error.message}})


def _models(detector: Package, device: Target, embedders: Embedders) -> list[schemas.Model]:
    """All that are installed, and where those run that do."""
    devices = embedders.devices()
    running = {name: (device, PROVIDERS[device]) for name, device in devices.items()}
    running[detector.id] = (device, PROVIDERS[device])
    return [answers.model(package, *running.get(package.id, NOT_RUNNING)) for package in embedders.packages().values()]


def _grey() -> Pixels:
    return np.full((CROP_SIDE, CROP_SIDE, 3), 128, np.uint8)


def _listen(settings: Settings) -> socket.socket:
    """A socket that listens already, so that its port is known. Raises Unusable (``port_unusable``)."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        message = f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}"
        raise Unusable(message, code="port_unusable") from None
    # Connections inherit it. asyncio, which would set it, does not know this socket as TCP; without it the body of an
    # answer waits for the acknowledgement of its head: 40 ms on a connection that is used again.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _url(listener: socket.socket, scheme: str) -> str:
    host, port = listener.getsockname()[:2]
    host = WILDCARDS.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _greeting(settings: Settings, url: str, *, key: str | None, new: bool) -> str:
    """Where it answers, a link to the page, where the key is, and one line to paste. ``key`` is told to a person only:
    in the link, where it stands behind the `#` that browsers keep to themselves, and by itself when it is new."""
    path = settings.data_dir / auth.KEY_FILE
    photo = SAMPLE_PHOTO if SAMPLE_PHOTO.exists() else Path("photo.jpg")
    told = f"The admin key was made: {key}\nIt is kept in {path}" if key and new else f"The admin key is in {path}"
    link = f"{url}/#key={key} (signed in as admin)" if key else f"{url}/"
    return (
        f"Likeness {version(DISTRIBUTION)} answers at {url}, described at {url}/docs (whose password is the key)\n"
        f"The page: {link}\n{told}\nTry it:\n"
        f'  curl -H "x-api-key: $(cat {shlex.quote(str(path))})" -F image=@{photo} {url}/v1/detect\n'
    )
