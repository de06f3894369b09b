"""The parts of the benchmark, one per module; each adds its figures to the run's findings."""

from __future__ import annotations

from collections.abc import Callable

from bench.parts import (
    card,
    cores,
    cost,
    detect,
    device,
    embed,
    enroll,
    growth,
    latency,
    page,
    peers,
    search,
    serve,
    start,
    tails,
    watch,
)
from bench.run import Run

PARTS: dict[str, Callable[[Run], None]] = {
    part.PART: part.measure
    for part in (
        embed,
        detect,
        search,
        serve,
        peers,
        enroll,
        latency,
        start,
        growth,
        device,
        card,
        cost,
        cores,
        tails,
        watch,
        page,
    )
}
