"""Measure acknowledged enrollments of sixteen clients, compared with the bare stages plus SQLite."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from app.machine import cores
from bench import galleries
from bench.callers import Reel
from bench.contenders import embedding
from bench.contenders.storing import Rows, raw_enrolling
from bench.figures import PEER, PEER_ENROLL, Goal, compared
from bench.load import Target, closed_loop
from bench.run import CLIENTS, Run

PART, GALLERY = "enroll", "bench"
RAW = "the stages and SQLite alone (raw limit)"
ONE = "one client, one at a time"


def measure(run: Run) -> None:
    stages, effort = run.stages, run.effort
    batch = embedding.best_batch(run)
    group = max(1, CLIENTS // cores())
    with run.server() as server, tempfile.TemporaryDirectory() as folder:
        with server.client() as client:
            galleries.create(client, GALLERY, store="crop")
            galleries.enroll_photos(client, GALLERY, stages.photos[:1])
        rows = Rows(server.database, Path(folder) / "raw.db")
        photos, number = Reel(stages.photos), count()
        many = enrolling(server.target, photos, number, CLIENTS, effort.seconds)
        try:
            speeds = run.contest(
                {
                    "ours": many,
                    ONE: enrolling(server.target, photos, number, 1, effort.seconds),
                    RAW: raw_enrolling(stages, rows, batch, group, effort.seconds),
                },
                effort.seconds,
            )
        finally:
            rows.close()
    work, unit = f"enroll, {CLIENTS} clients, SQLite, acknowledged", "photos/s"
    details = {"batch": batch, "faces_a_commit": group}
    run.add(
        compared(PART, work, speeds, "ours", RAW, unit=unit, goal=Goal(0.8), details=details),
        compared(PART, work, speeds, "ours", ONE, unit=unit),
        compared(PART, work, speeds, "ours", PEER, published=PEER_ENROLL, unit=unit),
    )


def enrollment(target: Target, gallery: str, number: int, photo: bytes) -> bytes:
    """Return the request that enrolls a photo's first face as a new subject, with any quality."""
    path = f"/v1/galleries/{gallery}/subjects/new-{number}/faces?quality=none&face=0"
    return target.request("POST", path, photo)


def enrolling(
    target: Target, photos: Reel[bytes], number: Iterator[int], clients: int, seconds: float
) -> Callable[[], int]:
    """Return a turn of clients who enroll one face per request as a new subject."""

    def requests() -> Iterator[bytes]:
        for person in number:
            yield enrollment(target, GALLERY, person, photos.take())

    def turn() -> int:
        return len(closed_loop(target, lambda _client: requests(), clients, seconds).checked().seconds)

    return turn
