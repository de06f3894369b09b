"""Build the service from its settings: storage, inference, recognition and background work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

import cv2
import numpy as np
from fastapi import FastAPI

from app import logs
from app.access.keys import AdminKey, ApiKeys, Guard
from app.access.rates import RequestRate, parse_rate
from app.api import metrics, middleware, openapi, page, route, schemas, wire
from app.api.body import PARSED_COPIES, BodyLimits
from app.api.components import Components
from app.api.feature import Feature
from app.api.operation import Operation
from app.api.routes import ROUTERS
from app.api.routes.server import model_answer
from app.concurrency.admission import CALLER_SHARE, Admission, WorkerPool
from app.concurrency.scheduler import Scheduler
from app.concurrency.threads import Lanes
from app.config import PREFIX, Settings
from app.db import usage
from app.db.clock import ClockGuard
from app.db.encryption import ADMIN_KEY_FILE
from app.errors import InvalidInput, InvalidSetting, Unusable
from app.face.detect import Detector
from app.features.audit.routes import FEATURE as AUDIT
from app.features.bulk.routes import FEATURE as BULK
from app.features.calibration.routes import FEATURE as CALIBRATION
from app.features.challenges.routes import FEATURE as CHALLENGES
from app.features.checks.routes import FEATURE as CHECKS
from app.features.compreface.routes import FEATURE as COMPREFACE
from app.features.corrections.routes import FEATURE as CORRECTIONS
from app.features.deepstack import FEATURE as DEEPSTACK
from app.features.erasure.routes import FEATURE as ERASURE
from app.features.gpu_search.feature import FEATURE as GPU_SEARCH
from app.features.immich import FEATURE as IMMICH
from app.features.keys.routes import FEATURE as KEYS
from app.features.keys_file.feature import FEATURE as KEYS_FILE
from app.features.liveness.gate import FEATURE as LIVENESS
from app.features.milvus.indexes import FEATURE as MILVUS
from app.features.models.routes import FEATURE as MODELS
from app.features.monitoring.routes import FEATURE as MONITORING
from app.features.moving.routes import FEATURE as MOVING
from app.features.reembedding.routes import FEATURE as REEMBEDDING
from app.features.rekognition import FEATURE as REKOGNITION
from app.features.review.routes import FEATURE as REVIEW
from app.features.server_key.routes import FEATURE as SERVER_KEY
from app.features.sign_in.routes import FEATURE as SIGN_IN
from app.features.vault.feature import FEATURE as VAULT
from app.features.watching.feature import FEATURE as WATCHING
from app.features.webhook_form import FEATURE as WEBHOOK_FORM
from app.gallery.service import SNAPSHOT_S, Galleries
from app.gallery.store import bind_package
from app.inference.embedders import Embedder, Embedders
from app.inference.session import PROVIDERS
from app.jobs.runner import Runner, Work
from app.machine import cores, gather_pages, memory_in_use, memory_limit, release_memory
from app.package.folders import Package, find_packages, scan_packages
from app.package.manifest import CROP_SIDE
from app.pipeline import PhotoThreads
from app.recognition.gate import Gates
from app.recognition.operations import Operations
from app.server import data_folder
from app.server.http import HEAD_BYTES
from app.server.models import Models, image_limits, open_models
from app.server.storage import Storage, open_storage
from app.types import Pixels
from app.version import VERSION
from app.workers.queue import PhotoWorkers

JSON_OVERHEAD = 64 * 1024
"""Maximum bytes of a JSON body besides its metadata, of which an escape may write one byte as six."""
CROPS_WAITING = 4096
"""Maximum faces that may wait for the embedder, more than one photo can have; requests are limited separately."""
GREY: Pixels = np.full((CROP_SIDE, CROP_SIDE, 3), 128, np.uint8)
"""A crop for warming up the models, so that no caller waits for their setup."""
NOT_RUNNING: tuple[None, list[str]] = (None, [])
JOBS = 2
"""Jobs that run at the same time: a long import should not delay an export."""
PRUNE_AUDIT_S = 3600.0
PRUNE_JOBS_S = 600.0
PRUNE_CHANGES_S = 300.0
"""Seconds between deletions of old rows."""
WRITE_RETRY_S = 2.0
"""Seconds between attempts to write to the database after a write has failed."""
MIB = 1024**2
MEMORY_RESERVE = 0.2
"""Share of all memory that is reserved for everything that isn't counted for requests: models' arenas, answers,
connections, fragments."""
LEAST_BUDGET = 64 * MIB
PHOTOS_SHARE, BODIES_SHARE, PARSING_SHARE = 0.55, 0.2, 0.25
"""Shares of the memory for requests: for photos in work, for data that lives as long as its request, and for bodies
being parsed, one of the largest at a time."""
PHOTO_SHARE = 0.5
"""Maximum processor time of one photo, as a share of a request's time."""
MAINTENANCE_S = 1.0
"""Seconds between checks for photo workers that have ended."""
MEMORY_S = 60.0
"""Seconds between releases of unused memory, which may be a gigabyte after large photos from sixteen clients."""
FEATURES: tuple[Feature, ...] = (
    KEYS,
    SERVER_KEY,
    SIGN_IN,
    KEYS_FILE,
    AUDIT,
    ERASURE,
    CORRECTIONS,
    MOVING,
    CHECKS,
    CALIBRATION,
    CHALLENGES,
    REVIEW,
    REEMBEDDING,
    BULK,
    LIVENESS,
    GPU_SEARCH,
    MILVUS,
    VAULT,
    MONITORING,
    MODELS,
    COMPREFACE,
    REKOGNITION,
    DEEPSTACK,
    IMMICH,
    WATCHING,
    WEBHOOK_FORM,
    *(point.load() for point in entry_points(group="likeness.features")),
)
"""The features. Each is one folder, named only in its import and its line here. Installed distributions add theirs by
an entry point that names a `Feature`."""
_log = logging.getLogger(logs.LOGGER)


def create_app(settings: Settings, models: Future[Models] | None = None) -> FastAPI:
    """Return the application; its lifespan builds the service, and raises Unusable if that fails.

    ``models`` are the settings' models, if they are being opened already.
    """
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        title="Likeness",
        version=VERSION,
        lifespan=partial(_lifespan, settings, models),
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # FastAPI looks this up at each request
        openapi_tags=openapi.TAGS,
    )
    app.state.metrics = metrics.Metrics()
    app.state.metrics.is_ready = lambda: app.state.status == "ok"
    app.state.hosts = settings.hosts
    features = _wanted(settings)
    app.state.webhooks = tuple(model for feature in features for model in feature.webhooks)
    app.state.wires = tuple(feature.wire for feature in features if feature.wire)
    app.state.components, app.state.status = None, "starting"
    middleware.add_middleware(app, settings.cors_origins, app.state.wires)
    wire.add_error_handlers(app)
    route.add_operations(app, [*ROUTERS, *(router for feature in features for router in feature.routers)])
    page.add_page(app, [feature.page for feature in features if feature.page])
    return app


def own_operations() -> list[Operation]:
    """Return the operations of the service's own interface, including those of every feature, on or off."""
    features = [feature.load() if feature.load else feature for feature in FEATURES]
    routers = [*ROUTERS, *(router for feature in features if feature.wire is None for router in feature.routers)]
    return [operation for router in routers for operation in router.operations]


def _wanted(settings: Settings) -> list[Feature]:
    """Return the features to start. Raises InvalidSetting for one that is switched on, but was taken out."""
    here = {feature.setting for feature in FEATURES if feature.routers or feature.start}
    if missing := [name for name in settings.model_fields_set - here if getattr(settings, name) == "on"]:
        raise InvalidSetting(f"{PREFIX}{missing[0].upper()} is on, and this installation does without it.")
    off = [feature for feature in FEATURES if feature.setting and getattr(settings, feature.setting) != "on"]
    kept = [feature for feature in FEATURES if feature.load or feature not in off]
    return [feature.load() if feature.load and feature not in off else feature for feature in kept]


@asynccontextmanager
async def _lifespan(settings: Settings, models: Future[Models] | None, app: FastAPI) -> AsyncIterator[None]:
    stack = ExitStack()
    try:
        components = await asyncio.to_thread(_build, settings, models, stack, app.state.metrics)
        app.state.components, app.state.status = components, "ok"
        yield
        app.state.status = "draining"
    finally:
        await asyncio.to_thread(stack.close)
        app.state.components, app.state.status = None, "starting"


def _build(
    settings: Settings, opening: Future[Models] | None, stack: ExitStack, counted: metrics.Metrics
) -> Components:
    """Build the running server, from the data folder to the warm models; ``stack`` closes everything in reverse."""
    cv2.setNumThreads(1)  # requests run in parallel; OpenCV's own threads would only compete with them
    data_folder.prepare_data_dir(settings.data_dir)
    stack.enter_context(usage.lock_shared(settings.data_dir, settings.database))
    key, _ = data_folder.load_key(settings.data_dir)

    # Storage
    open_index = next((feature.open_index for feature in FEATURES if feature.open_index), None)
    find_gpu = next((feature.find_gpu for feature in FEATURES if feature.find_gpu), None)
    storage = open_storage(settings, stack, open_index, find_gpu)
    galleries, audit = storage.galleries, storage.audit
    clock = ClockGuard(storage.database, storage.secrets)
    clock.trusted()  # before the first request writes a later time
    # An expired key stays expired if the clock is set back.
    rate = _rate("rate_limit", settings.rate_limit)
    keys = ApiKeys(storage.database, secrets=storage.secrets, default_rate=rate, clock=clock.now)
    loading = stack.enter_context(ThreadPoolExecutor(1)).submit(galleries.indexes.load)  # while the models load

    # Inference: embedders other than the default are opened when they are used
    models = opening.result() if opening else open_models(settings)
    settings = models.settings
    stack.callback(models.detector.close)
    admission = Admission(settings.queue_limit)
    reader = _reader(models, admission.count_bytes, stack)
    embedders = _embedders(models, reader, partial(bind_package, storage.database))
    stack.callback(embedders.close)
    open_gates = next((feature.open_gates for feature in FEATURES if feature.open_gates), lambda *_: Gates())
    gates = open_gates(embedders.packages, models.open, settings.liveness, settings.apcer, settings.bpcer)
    stack.callback(gates.close)
    open_thresholds = next((feature.open_thresholds for feature in FEATURES if feature.open_thresholds), None)

    # Recognition
    operations = Operations(
        reader,
        embedders,
        galleries,
        gates=gates,
        fmr=settings.fmr,
        fpir=settings.fpir,
        own_thresholds=open_thresholds and open_thresholds(galleries.store),
        observers=counted.stages,
    )
    workers = WorkerPool(settings.threads, settings.request_timeout, admission)
    stack.callback(workers.close)
    _open_embedders(embedders, galleries, settings.max_embedders)
    loading.result()

    # Background work
    runner = Runner(storage.jobs, files=storage.files, workers=JOBS, kept=timedelta(days=settings.job_days))
    scheduler = stack.enter_context(Scheduler())
    galleries.start(scheduler, snapshot_s=settings.snapshot_seconds or SNAPSHOT_S)
    stack.callback(runner.close)

    size = _for_requests(settings.memory_bytes or memory_limit(), reader)
    reader.start(PHOTOS_SHARE * size)
    admission.byte_limit = BODIES_SHARE * size
    largest = int(min(CALLER_SHARE * admission.byte_limit, PARSING_SHARE * size / PARSED_COPIES))
    core = Components(
        operations=operations,
        embedders=embedders,
        gates=gates,
        store=galleries.store,
        galleries=galleries,
        admission=admission,
        workers=workers,
        parsing=Lanes(cores(), 1),
        limits=BodyLimits(
            image_bytes=settings.max_image_bytes,
            request_bytes=min(settings.max_request_bytes, largest),
            images=settings.max_images,
            seconds=settings.request_timeout,
            json_bytes=settings.max_metadata_bytes * 6 + JSON_OVERHEAD,
            upload_bytes=settings.max_import_bytes,
        ),
        metrics=counted,
        guard=_guard(settings, key, keys),
        keys=keys,
        reader=reader,
        audit=audit,
        sealer=storage.sealer,
        secrets=storage.secrets,
        jobs=storage.jobs,
        runner=runner,
        files=storage.files,
        clock=clock,
        models=partial(_models, models, embedders, gates),
        skipped_models=partial(_skipped_models, settings.models_dir, settings.data_dir),
    )
    _start_features(core, settings, scheduler, stack)
    _schedule(core, storage, scheduler)
    return core


def _schedule(core: Components, storage: Storage, scheduler: Scheduler) -> None:
    """Schedule the core's background work, after the features have started."""
    for seconds, name, work in (  # deletions by age
        (PRUNE_CHANGES_S, "change log", core.store.prune_changes),
        (PRUNE_JOBS_S, "old jobs", core.runner.prune),
    ):
        scheduler.every(seconds, name, core.clock.guarded(work))
    scheduler.every(PRUNE_AUDIT_S, "audit log", core.clock.guarded(core.audit.prune), at_once=True)
    scheduler.every(MEMORY_S, "memory", release_memory)
    scheduler.every(MEMORY_S, "pages", gather_pages, at_once=True)
    for name, retry in (("database", storage.database.retry_write), ("audit sink", core.audit.retry_sink)):
        scheduler.every(WRITE_RETRY_S, name, retry)


def _start_features(core: Components, settings: Settings, scheduler: Scheduler, stack: ExitStack) -> None:
    """Start the features, the care of the photo workers, and then the jobs."""
    if isinstance(core.reader, PhotoWorkers):
        scheduler.every(MAINTENANCE_S, "photo workers", core.reader.maintain)
    works, apart = dict[str, Work](), set[str]()
    for feature in _wanted(settings):
        if feature.start is None:
            continue
        part = feature.start(core, **{name: getattr(settings, name) for name in feature.settings})
        stack.callback(part.close)
        core.parts.update(part.components)
        works.update(part.works)
        apart.update(part.apart)
        core.gallery_changed.extend(part.gallery_changed)
        core.session_keys.extend(part.session_keys)
        core.erased_too.extend(part.erased_too)
        for task in part.tasks:
            scheduler.every(task.seconds, task.name, core.clock.guarded(task.call), at_once=task.at_once)
    core.runner.start(works, scheduler, apart)


def _for_requests(memory: int, reader: PhotoWorkers | PhotoThreads) -> int:
    """Return the bytes of memory that are left for requests. Raises Unusable (``memory_too_small``)."""
    workers = reader.memory_at_rest() if isinstance(reader, PhotoWorkers) else 0
    rest = memory_in_use() + HEAD_BYTES + workers
    size = int(memory * (1 - MEMORY_RESERVE)) - rest
    if size < LEAST_BUDGET:
        message = (
            f"{memory // MIB} MiB of memory are too little: the server takes {rest // MIB} at rest. Give it "
            f"{int((rest + LEAST_BUDGET) / (1 - MEMORY_RESERVE)) // MIB + 1}, or set {PREFIX}MEMORY_BYTES."
        )
        raise Unusable(message, code="memory_too_small")
    return size


def _reader(models: Models, count_bytes: Callable[[int], None], stack: ExitStack) -> PhotoThreads | PhotoWorkers:
    """Return the reader of photos, which finds faces in this process or in photo workers."""
    settings = models.settings
    if isinstance(models.detector, Detector):
        models.detector.detect(GREY)
        return PhotoThreads(models.detector, image_limits(settings), cores(), count_bytes)
    seconds = PHOTO_SHARE * settings.request_timeout
    reader = PhotoWorkers(models.detector, settings.photo_workers or 0, seconds, count_bytes)
    stack.callback(reader.close)
    return reader


def _guard(settings: Settings, admin_key: str, keys: ApiKeys) -> Guard:
    failures = _rate("failed_keys", settings.failed_keys)
    if failures is None:
        raise InvalidSetting(f"{PREFIX}FAILED_KEYS: Give a rate such as 10/m; this one can't be `unlimited`")
    admin = AdminKey(admin_key, settings.data_dir / ADMIN_KEY_FILE)
    return Guard(admin, keys, failures, vector_rate=_rate("vector_rate", settings.vector_rate))


def _rate(name: str, text: str) -> RequestRate | None:
    try:
        return parse_rate(text)
    except InvalidInput as error:
        raise InvalidSetting(f"{PREFIX}{name.upper()}: {error.message}") from None


def _embedders(models: Models, reader: PhotoThreads | PhotoWorkers, bind: Callable[[Package], None]) -> Embedders:
    """Make the cache of embedders; none is open yet."""
    settings = models.settings

    def open_one(package: Package) -> Embedder:
        embedder = Embedder(
            models.session(package),
            max_batch=settings.max_batch,
            queue_limit=CROPS_WAITING,
            workers=settings.embed_workers,
            spare=lambda busy: busy < reader.free,  # other packages' embedders are not considered
        )
        embedder.embed([GREY])
        return embedder

    find = partial(find_packages, settings.models_dir, settings.data_dir)
    return Embedders(models.embedder_package, find, open_one, kept=settings.max_embedders, bind=bind)


def _open_embedders(embedders: Embedders, galleries: Galleries, count: int) -> None:
    """Open the default embedder, and those that galleries use, up to `count` in all; bind all to their models.

    A gallery's embedder that fails to open is logged, and only its gallery is unavailable. Raises Unusable if the
    default fails.
    """
    embedders.open_default()
    default = embedders.default.id
    for place, package_id in enumerate(sorted(galleries.store.packages(), key=lambda name: name != default)):
        try:
            embedders.thresholds(package_id)
            if place < count:
                with embedders.use(package_id):
                    pass
        except Unusable as error:
            _log.warning("galleries wait for their model package", extra={"fields": {"error": error.message}})


def _models(models: Models, embedders: Embedders, gates: Gates) -> list[schemas.Model]:
    """List the installed packages, and the device that each loaded one runs on."""
    devices = {models.detector_package.id: models.detector_device, **embedders.devices(), **gates.devices}
    running = {name: (device, PROVIDERS[device]) for name, device in devices.items()}
    return [model_answer(package, *running.get(package.id, NOT_RUNNING)) for package in embedders.packages().values()]


def _skipped_models(models_dir: Path, data_dir: Path) -> list[schemas.SkippedModel]:
    """Return the folders whose package can't be used, by name, without their paths."""
    try:
        skipped = scan_packages(models_dir, data_dir).skipped
    except Unusable:  # the folder is gone; packages found before stay in use
        return []
    return [
        schemas.SkippedModel(
            folder=package.folder.name,
            problem=package.problem.replace(f"{models_dir}/", "").replace(f"{data_dir}/", ""),
        )
        for package in skipped
    ]
