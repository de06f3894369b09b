"""What is measured, part by part; each answers its figures."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path

import numpy as np

from app.bench import searching
from app.bench import stages as ways
from app.bench.contest import Figure, Speeds, Spread, contest
from app.bench.load import Load, Target, closed_loop, open_loop
from app.bench.server import Server, serving
from app.bench.stages import Stages
from app.errors import Unusable

CLIENTS = 16
GALLERY = "bench"
SHARES = (0.5, 0.8, 0.95)
"""Of the capacity, at which latency is measured."""
GROWTH = 1_000, 10_000, 100_000
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: rounds of each contest, seconds of each load, faces in the largest index."""

    rounds: int
    seconds: float
    faces: int


def embed(stages: Stages, effort: Effort, progress: Progress) -> list[Figure]:
    """Faces a second of the embedder as requests meet it."""
    batches = {f"ONNX Runtime alone, batches of {n}": ways.runtime_alone(stages, n) for n in (1, 4)}
    shipped = "the file as shipped, a caller a core"
    speeds = contest(
        {
            "ours": ways.embedder_batched(stages, 32),
            **batches,
            shipped: ways.graph_as_shipped(stages),
            "the file as shipped, alone": ways.graph_as_shipped_alone(stages),
        },
        effort.rounds,
        progress=progress,
    )
    best = _best(speeds, batches)
    work = f"embed, {stages.package.id}"
    return [
        _figure("embed", work, speeds, name="ours", against=best, unit="faces/s"),
        _figure("embed", work, speeds, name="ours", against=shipped, unit="faces/s"),
        _figure("embed", f"{work}, the graph alone", speeds, name=best, against=shipped, unit="faces/s", goal=4.0),
        _figure("embed", work, speeds, name="ours", against="the file as shipped, alone", unit="faces/s"),
    ]


def search(_stages: Stages, effort: Effort, progress: Progress) -> list[Figure]:
    """Exact search among many, and what approximate ones would give for it."""
    vectors = searching.people(effort.faces, 128)
    queries = searching.people(searching.QUERIES, 128, seed=2)
    index = searching.ours(vectors)
    contenders = {
        "ours": searching.together(index, queries),
        "one query at a time": searching.one_by_one(index, queries),
        "FAISS alone, one batch by BLAS": searching.faiss_batched(vectors, queries),
    }
    work = f"search, {effort.faces:,} × 128, {len(queries)} queries"
    rival = searching.hnswlib(vectors, queries)
    if rival is not None:
        contenders[f"hnswlib (recall {rival[1]:.3f})"] = rival[0]
    speeds = contest(contenders, effort.rounds, progress=progress)
    figures = [
        _figure(
            "search", work, speeds, name="ours", against="FAISS alone, one batch by BLAS", unit="queries/s", goal=0.9
        ),
        _figure("search", work, speeds, name="ours", against="one query at a time", unit="queries/s", goal=5.0),
    ]
    figures += [
        _figure("search", work, speeds, name="ours", against=name, unit="queries/s")
        for name in speeds.rounds
        if "hnsw" in name
    ]
    extra = index.size / vectors.nbytes
    return [*figures, Figure("search", "memory of an index", extra, "× the vectors", "", None)]


def serve(stages: Stages, effort: Effort, progress: Progress) -> list[Figure]:
    """Identify, verify and enroll by sixteen clients over HTTP, in turns with the stages alone."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server:
        _fill(server, stages)
        photos = list(stages.photos)
        pairs = [stages.photos[i : i + 1] * 2 for i in range(len(photos))]
        asked = {
            "identify": [server.target.request("POST", f"/v1/galleries/{GALLERY}/identify", photo) for photo in photos],
            "verify": [_verify(server.target, *pair) for pair in pairs],
        }
        limit, plain, sample = (way(stages, photos) for way in (ways.raw_limit, ways.naive, ways.opencv_sample))
        contenders = {
            "identify": lambda: _sent(server.target, asked["identify"], effort.seconds),
            "verify": lambda: 2 * _sent(server.target, asked["verify"], effort.seconds),
            "the stages alone": limit,
            "one photo at a time": plain,
            "OpenCV's sample": sample,
        }
        speeds = contest(contenders, effort.rounds, shortest_s=effort.seconds, progress=progress)
        enrolling = _enrolling(server, stages, effort)
    return [
        _figure(
            "serve",
            "identify, 16 clients",
            speeds,
            name="identify",
            against="the stages alone",
            unit="photos/s",
            goal=0.85,
        ),
        _figure(
            "serve",
            "identify, 16 clients",
            speeds,
            name="identify",
            against="one photo at a time",
            unit="photos/s",
            goal=2.0,
        ),
        _figure("serve", "identify, 16 clients", speeds, name="identify", against="OpenCV's sample", unit="photos/s"),
        _figure(
            "serve", "verify, 16 clients", speeds, name="verify", against="the stages alone", unit="photos/s", goal=0.85
        ),
        Figure("serve", "enroll, 16 clients, SQLite", enrolling, "photos/s", "", None),
    ]


def latency(stages: Stages, effort: Effort, progress: Progress) -> list[Figure]:
    """Identify at a fixed rate of arrivals, at shares of what the server can do, beside an idle server's answer."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server:
        _fill(server, stages)
        path = f"/v1/galleries/{GALLERY}/identify"
        requests = [server.target.request("POST", path, photo) for photo in stages.photos]
        closed_loop(server.target, lambda _client: cycle(requests), CLIENTS, effort.seconds)
        idle = _checked(closed_loop(server.target, lambda _client: cycle(requests), 1, effort.seconds))
        full = _checked(closed_loop(server.target, lambda _client: cycle(requests), CLIENTS, 2 * effort.seconds))
        capacity = len(full.seconds) / (2 * effort.seconds)
        progress(1)
        figures = []
        for share in SHARES:
            load = open_loop(server.target, requests, share * capacity, 4 * effort.seconds)
            progress(1)
            p99 = load.percentile(99)
            ratio = 3 * idle.percentile(50) / p99
            figures.append(
                Figure(
                    "latency",
                    f"identify, p99 at {share:.0%} of {capacity:.0f}/s",
                    1000 * p99,
                    "ms",
                    "3 × the idle answer",
                    Spread(ratio, ratio, ratio),
                    goal=1.0 if share == SHARES[1] else None,
                    details={
                        "p50_ms": 1000 * load.percentile(50),
                        "idle_ms": 1000 * idle.percentile(50),
                        "failed": load.failed,
                        "requests": len(load.seconds),
                    },
                )
            )
    return figures


def start(_stages: Stages, effort: Effort, progress: Progress) -> list[Figure]:
    """From process start to ready, with an empty gallery and everything prepared."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        with serving(Path(folder)):
            pass  # the first start prepares the models
        for _ in range(effort.rounds):
            with serving(Path(folder)) as server:
                seconds.append(server.seconds_to_ready)
            progress(1)
    spread = Spread.of(1.5 / np.array(seconds))
    return [Figure("start", "start to ready, empty", float(np.median(seconds)), "s", "1.5 s", spread, goal=1.0)]


PARTS: dict[str, Callable[[Stages, Effort, Progress], list[Figure]]] = {
    "embed": embed,
    "search": search,
    "serve": serve,
    "latency": latency,
    "start": start,
}


def _best(speeds: Speeds, among: dict[str, Callable[[], int]]) -> str:
    return max(among, key=lambda name: speeds.of(name).median)


def _figure(
    part: str, work: str, speeds: Speeds, *, name: str, against: str, unit: str, goal: float | None = None
) -> Figure:
    details = {"theirs": speeds.of(against).median, "rounds": len(speeds.rounds[name])}
    return Figure(part, work, speeds.of(name).median, unit, against, speeds.ratio(name, against), goal, details)


def _fill(server: Server, stages: Stages) -> None:
    """A gallery of the photos' own people."""
    with server.client() as client:
        client.post("/v1/galleries", json={"id": GALLERY, "store": "none"}).raise_for_status()
        for number, photo in enumerate(stages.photos):
            path = f"/v1/galleries/{GALLERY}/subjects/person-{number}/faces"
            client.post(path, params={"quality": "none"}, files={"images": photo})


def _verify(target: Target, first: bytes, second: bytes) -> bytes:
    line = b"--likeness-bench\r\n"
    part = b'Content-Disposition: form-data; name="%s"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n%s\r\n'
    body = line + part % (b"image1", first) + line + part % (b"image2", second) + b"--likeness-bench--\r\n"
    return target.request("POST", "/v1/verify", body, "multipart/form-data; boundary=likeness-bench")


def _sent(target: Target, requests: list[bytes], seconds: float) -> int:
    return len(_checked(closed_loop(target, lambda client: _from(requests, client), CLIENTS, seconds)).seconds)


def _from(requests: list[bytes], client: int) -> Iterator[bytes]:
    return (requests[(client + number) % len(requests)] for number in count())


def _checked(load: Load) -> Load:
    """Raises Unusable ``bench_failed`` where the server refused anything: such a load measures nothing."""
    if load.failed:
        raise Unusable(f"the server refused {load.failed} requests: {load.statuses}", code="bench_failed")
    return load


def _enrolling(server: Server, stages: Stages, effort: Effort) -> float:
    """Acknowledged enrollments a second by sixteen clients, each its own people."""

    def requests(client: int) -> Iterator[bytes]:
        for number in count():
            path = f"/v1/galleries/{GALLERY}/subjects/{client}-{number}/faces?quality=none"
            yield server.target.request("POST", path, stages.photos[number % len(stages.photos)])

    begin = time.perf_counter()
    load = _checked(closed_loop(server.target, requests, CLIENTS, 2 * effort.seconds))
    return len(load.seconds) / (time.perf_counter() - begin)


def turns(name: str, effort: Effort) -> int:
    """How many steps of progress a part tells, about."""
    contenders = {"embed": 5, "search": 4, "serve": 5}
    if name in contenders:
        return contenders[name] * (effort.rounds + 1)
    return len(SHARES) + 1 if name == "latency" else effort.rounds
