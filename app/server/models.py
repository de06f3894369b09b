"""Open the models that the settings name.

This module imports neither FastAPI nor SQL, so that `app.serve` can open the models while those are imported.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from app.choices import Used
from app.config import Settings
from app.errors import InvalidSetting, Unusable
from app.face.detect import Detector
from app.face.formats import Limits
from app.inference.session import EmbedderSession, OnGpu, Session
from app.models.opening import open_detector, open_prepared
from app.models.prepare import prepare_apart, prepared
from app.package.folders import Package, PackageScan, scan_packages, select
from app.workers.parent import PipelineSettings
from app.workers.start import Parent

FOLDER = "models"
"""Folder in the data folder for prepared graphs and fetched files."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Models:
    """The models that a server starts with."""

    settings: Settings
    detector_package: Package
    detector: Detector | Parent
    """The detector opened here, or the process that opened it and forks the photo workers."""
    embedder_package: Package
    _default: EmbedderSession

    @property
    def detector_device(self) -> Used:
        return self.detector.device if isinstance(self.detector, Detector) else "cpu"

    def session(self, package: Package) -> EmbedderSession:
        """Return the default embedder's session, or open another's. Raises what `open_embedder` raises."""
        if package.id == self._default.package_id:
            return self._default
        return EmbedderSession(package, _open(package, self.settings))

    def open(self, package: Package) -> Session:
        """Open a package of any task, as embedders are opened. Raises what `open_prepared` raises."""
        return _open(package, self.settings)


def open_models(settings: Settings) -> Models:
    """Open detector and default embedder. The data folder must exist.

    Raises Unusable if a package is missing, damaged or for another task, or the device can't be used.
    """
    scan = scan_packages(settings.models_dir, settings.data_dir)
    for skipped in scan.skipped:
        _log.warning("a model package is skipped", extra={"fields": {"problem": skipped.problem}})
    embedder = _select(scan, settings.embedder, "embed")
    detector = _select(scan, settings.detector, "detect")
    if settings.device == settings.detect_device == "cpu":
        prepare_apart([embedder, detector], _cache(settings), "cpu")
    with ExitStack() as opened:
        finds = _open_detector(detector, settings)
        opened.callback(finds.close)  # ends its threads or process if the embedder can't be opened
        session = EmbedderSession(embedder, _open(embedder, settings))
        opened.pop_all()
    return Models(
        settings=settings, detector_package=detector, detector=finds, embedder_package=embedder, _default=session
    )


def image_limits(settings: Settings) -> Limits:
    """Return the limits of the photos that requests send."""
    return Limits(settings.max_image_bytes, settings.max_image_pixels, settings.max_image_side)


def _open_detector(package: Package, settings: Settings) -> Detector | Parent:
    if settings.photo_workers:
        if settings.detect_device != "cpu" or settings.detect_threads != 1:
            message = "LIKENESS_PHOTO_WORKERS: workers find faces on the CPU, with one thread each; set it to 0"
            raise InvalidSetting(message, setting="LIKENESS_PHOTO_WORKERS")
        model = prepared(package, _cache(settings), "cpu")
        return Parent(PipelineSettings(model, settings.min_face, image_limits(settings)))
    return open_detector(
        package,
        _cache(settings),
        settings.detect_device,
        threads=settings.detect_threads,
        min_face=settings.min_face,
        gpu=_on_gpu(settings),
    )


def _select(scan: PackageScan, name: str, task: str) -> Package:
    try:
        package = select(scan.packages, name)
    except Unusable as error:
        problems = [skipped.problem for skipped in scan.skipped]
        if not problems:
            raise
        message = f"{error.message} Skipped: {'; '.join(problems)}"
        raise Unusable(message, code=error.code, **error.details) from None
    if package.manifest.task != task:
        raise Unusable(
            f"{package.id} is a package for `{package.manifest.task}`, not for `{task}`",
            code="package_wrong_task",
            package=package.id,
        )
    return package


def _open(package: Package, settings: Settings) -> Session:
    return open_prepared(package, _cache(settings), settings.device, settings.embed_threads, _on_gpu(settings))


def _on_gpu(settings: Settings) -> OnGpu:
    return OnGpu(settings.gpu_memory_mib, settings.gpu_math)


def _cache(settings: Settings) -> Path:
    return settings.data_dir / FOLDER
