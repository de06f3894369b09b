"""Imports and exports as a feature of the service."""

from __future__ import annotations

from app.api.components import Components
from app.api.feature import Feature, Part
from app.bulk.routes import galleries, jobs
from app.bulk.service import BulkService


def _start(core: Components) -> Part:
    bulk = BulkService(core)
    return Part(bulk, bulk.works())


FEATURE = Feature([galleries, jobs], _start)
