"""The operation `/metrics`, for Prometheus."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fastapi import Response
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from app.access.grants import Scope
from app.api.body import File
from app.api.components import Components
from app.api.feature import Feature, Part
from app.api.metrics import Metrics
from app.api.route import Router
from app.features.monitoring.collector import ComponentsCollector

router = Router("server")


@router.operation(
    "GET",
    "/metrics",
    scope=Scope.METRICS,
    file=File(("text/plain",), "Prometheus' text format."),
    codes=("missing_scope",),
    monitoring=True,
)
async def metrics(metrics: Metrics) -> Response:
    """Read the metrics, for Prometheus.

    Answers metrics of requests, latencies, batches, queues, numbers of enrolled faces, models and the process, without
    names of galleries or people.
    """
    return Response(await asyncio.to_thread(generate_latest, metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _start(core: Components, data_dir: Path) -> Part:
    registry, collector = core.metrics.registry, ComponentsCollector(core, data_dir)
    registry.register(collector)

    def close() -> None:
        registry.unregister(collector)
        collector.close()

    return Part(close=close)


FEATURE = Feature([router], _start, settings=("data_dir",))
