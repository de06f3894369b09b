"""The cost of size: memory, start, identify, enroll and delete at gallery sizes from small to large in one server."""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path

import httpx
import numpy as np

from app.types import Vectors
from bench import galleries
from bench.callers import Reel
from bench.contenders import peer
from bench.figures import Curve, Figure, Goal, beside
from bench.run import Run
from bench.server import Server, serving
from training.evaluation.speed import Speeds, Spread

PART, SNAPSHOTS = "growth", "snapshots"
OPERATIONS = "identify", "enroll", "delete"
AT_A_TIME = 8
"""Calls of each operation in a turn."""
FLAT = Goal(1.25, at_most=True)
GOALS = {"enroll": FLAT, "delete": FLAT}
BEYOND = Goal(0.25, at_most=True)
Costs = dict[str, dict[int, list[float]]]
"""Milliseconds by operation and size, one a round."""


def measure(run: Run) -> None:
    with run.data_folder() as data:
        people = galleries.people(sum(run.effort.growth), run.stages.dimension)
        with _server(run, data) as server, server.client() as client:
            galleries.create(client, "empty")
            _identify(client, "empty", run.stages.photos[0])
            empty = server.memory()
            _fill(run, client, people)
            imported = _beyond(run, server, empty, people)
            costs = _costs(run, client)
            worked = _beyond(run, server, empty, people)
        _tell_costs(run, costs)
        run.add(_memory(run, people, empty, [imported], "right after the imports", after_work_beyond=worked))
        _starts(run, data, people, empty)


def _server(run: Run, data: Path) -> AbstractContextManager[Server]:
    return serving(data, MODELS_DIR=run.stages.models)


def _name(size: int) -> str:
    return f"of-{size}"


def _fill(run: Run, client: httpx.Client, people: Vectors) -> None:
    begin, spent = 0, 0.0
    for size in run.effort.growth:
        run.say(f"a gallery of {size:,}")
        galleries.create(client, _name(size))
        some = people[begin : begin + size]
        spent += galleries.enroll_strangers(client, _name(size), run.stages.package.id, some)
        begin += size
    speeds = Speeds({"ours": np.array([len(people) / spent])})
    work, told = f"import of {len(people):,} templates made elsewhere, searchable", {"seconds": spent}
    run.add(beside(PART, work, speeds, "ours", peer.NAME, theirs=peer.TEMPLATES_IN, unit="faces/s", details=told))


def _costs(run: Run, client: httpx.Client) -> Costs:
    """Measure each operation at all sizes in turn, with one client that waits for each answer."""
    costs: Costs = {operation: defaultdict(list) for operation in OPERATIONS}
    photos, number = Reel(run.stages.photos), count()
    for turn in range(run.effort.rounds + 1):
        run.say(f"round {turn}" if turn else "warming up")
        for size in run.effort.growth:
            gallery = _name(size)
            new = [f"/v1/galleries/{gallery}/subjects/new-{next(number)}" for _ in range(AT_A_TIME)]
            work: dict[str, Iterator[Callable[[], object]]] = {
                "identify": (lambda: _identify(client, gallery, photos.take()) for _ in new),  # noqa: B023 (used up in this turn)
                "enroll": (lambda: _enroll(client, path, photos.take()) for path in new),  # noqa: B023 (the same)
                "delete": (lambda: client.delete(path).raise_for_status() for path in new),  # noqa: B023 (the same)
            }
            for operation, calls in work.items():
                spent = _median_ms(calls)
                if turn:
                    costs[operation][size].append(spent)
    return costs


def _median_ms(calls: Iterator[Callable[[], object]]) -> float:
    spent = []
    for call in calls:
        begin = time.perf_counter()
        call()
        spent.append(1000 * (time.perf_counter() - begin))
    return float(np.median(spent))


def _identify(client: httpx.Client, gallery: str, photo: bytes) -> None:
    _send(client, f"/v1/galleries/{gallery}/identify", photo)


def _enroll(client: httpx.Client, subject: str, photo: bytes) -> None:
    _send(client, f"{subject}/faces?quality=none", photo)


def _send(client: httpx.Client, path: str, photo: bytes) -> None:
    client.post(path, content=photo, headers={"content-type": "image/jpeg"}).raise_for_status()


def _tell_costs(run: Run, costs: Costs) -> None:
    for operation, by_size in costs.items():
        sizes = list(by_size)
        smallest, largest = np.array(by_size[sizes[0]]), np.array(by_size[sizes[-1]])
        medians = [float(np.median(by_size[size])) for size in sizes]
        run.add(
            Figure(
                PART,
                f"{operation} at {sizes[-1]:,} faces, one client",
                medians[-1],
                "ms",
                f"the same at {sizes[0]:,}",
                Spread.of(largest / smallest),
                GOALS.get(operation),
                {f"ms_at_{size}": median for size, median in zip(sizes, medians, strict=True)},
            )
        )
        run.draw(Curve(PART, operation, sizes, medians, "faces in the gallery", "ms"))


def _starts(run: Run, data: Path, people: Vectors, empty: int) -> None:
    """Measure starts from the server's snapshots and from SQL alone, and the memory used after each."""
    mapped, rebuilt, beyond = [], [], []
    for number in range(min(run.effort.starts, max(2, run.effort.starts // 2))):
        run.say(f"start {number + 1} from snapshots")
        with _server(run, data) as server:
            mapped.append(server.seconds_to_ready)
            beyond.append(_beyond(run, server, empty, people))
        run.say(f"start {number + 1} from SQL alone")
        shutil.rmtree(data / SNAPSHOTS)
        with _server(run, data) as server:
            rebuilt.append(server.seconds_to_ready)
    run.add(
        Figure(
            PART,
            f"start to ready, {_work(run, people)}, from snapshots",
            float(np.median(mapped)),
            "s",
            "made anew from SQL",
            Spread.of(np.array(mapped) / np.array(rebuilt)),
            details={"theirs": float(np.median(rebuilt))},
        ),
        _memory(run, people, empty, beyond, "started from snapshots"),
    )


def _memory(run: Run, people: Vectors, empty: int, beyond: list[float], when: str, **more: float) -> Figure:
    details = {"vectors_mb": people.nbytes / 1e6, "empty_server_mb": empty / 1e6, **more}
    return Figure(
        PART,
        f"memory of a server beyond the vectors, {_work(run, people)}, {when}",
        100 * float(np.median(beyond)),
        "%",
        "the vectors",
        Spread.of(np.array(beyond)),
        BEYOND,
        {**details, "ours_is": "resident memory less an empty server's"},
    )


def _work(run: Run, people: Vectors) -> str:
    return f"{len(people):,} faces in {len(run.effort.growth)} galleries"


def _beyond(run: Run, server: Server, empty: int, people: Vectors) -> float:
    """Return the server's memory beyond an empty one's and its vectors', as a share of the vectors."""
    with server.client() as client:
        for size in run.effort.growth:
            _identify(client, _name(size), run.stages.photos[0])
    return (server.memory() - empty) / people.nbytes - 1
