"""Measure photos per second and their cost by photo workers, on the CPU and, with `--device cuda`, on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.machine import cores
from bench import galleries
from bench.callers import Reel
from bench.figures import Figure
from bench.load import closed_loop
from bench.parts.serve import identification
from bench.run import Run

PART, GALLERY = "card", "bench"
WORKERS = 1, 8, 16
CLIENTS_EACH = 4
"""Clients for each worker, enough that no worker waits."""
MIB = 2**20


def measure(run: Run) -> None:
    """Measure each server only once, since a GPU is often available only for minutes."""
    for name, workers, settings in ways(run.device, cores()):
        run.say(name)
        with run.server(**settings) as server:
            with server.client() as client:
                galleries.create(client, GALLERY)
                galleries.enroll_photos(client, GALLERY, run.stages.photos[: galleries.KNOWN])
            reel = Reel([identification(server.target, GALLERY, photo) for photo in run.stages.photos])
            clients, seconds = workers * CLIENTS_EACH, run.effort.seconds
            closed_loop(server.target, lambda _: reel.endless(), clients, seconds / 2)  # noqa: B023 - ends at once
            before = server.processor_s()
            load = closed_loop(server.target, lambda _: reel.endless(), clients, seconds).checked()  # noqa: B023
            spent = server.processor_s() - before
            details = {
                "clients": clients,
                "p50_ms": 1000 * load.percentile(50),
                "p99_ms": 1000 * load.percentile(99),
                "processor_ms_a_photo": 1000 * spent / len(load.seconds),
                "cores_busy": spent / load.elapsed_s,
                "memory_mib": server.memory() / MIB,
            }
            run.add(Figure(PART, f"identify, {name}", load.rate, "photos/s", details=details))


def ways(device: str, most: int) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield the servers to measure on up to ``most`` cores: name, number of photo workers, and settings of each."""
    for workers in [count for count in WORKERS if count <= most]:
        yield f"CPU, {workers} workers", workers, {"PHOTO_WORKERS": workers}
        if device == "cuda":
            given = {"DEVICE": "cuda", "PHOTO_WORKERS": workers}
            yield f"templates on the card, {workers} workers", workers, given
            if workers == WORKERS[-1]:
                for math in ("nhwc", "fp16"):
                    yield f"the same by {math}", workers, given | {"GPU_MATH": math}
    if device == "cuda":
        there = {"DEVICE": "cuda", "DETECT_DEVICE": "cuda", "PHOTO_WORKERS": 0}
        yield "faces found there too, in threads", most, there
