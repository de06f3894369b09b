"""Imports and exports as a feature of the service."""

from __future__ import annotations

from app.api.components import Components
from app.api.feature import Feature, Part
from app.bulk.import_batch import BulkContext
from app.bulk.routes import galleries, jobs
from app.bulk.service import BulkService

THREADS = 4
"""Threads for the photos of an import; the other threads are for requests."""


def _start(core: Components) -> Part:
    def package_sha256(package_id: str) -> str | None:
        package = core.embedders.packages().get(package_id)
        return None if package is None else core.embedders.checked(package).manifest.sha256

    context = BulkContext(
        operations=core.operations,
        embedders=core.embedders,
        galleries=core.galleries,
        corrections=core.corrections,
        files=core.files,
        max_image_bytes=core.limits.image_bytes,
        max_bytes=core.limits.upload_bytes,
        threads=min(core.workers.share, THREADS),
        package_sha256=package_sha256,
        signer=core.signer,
    )
    bulk = BulkService(context, core.jobs)
    return Part(bulk, bulk.works())


FEATURE = Feature([galleries, jobs], _start)
