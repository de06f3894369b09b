"""Measure the cost of size: memory, start, identify, enroll and delete at growing gallery sizes, in one server."""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from itertools import count
from pathlib import Path

import httpx
import numpy as np

from app.types import Vectors
from bench import galleries
from bench.callers import Reel
from bench.figures import PEER, PEER_IMPORT, Figure, Goal, compared
from bench.run import Run
from bench.server import Server, serving
from training.evaluation.speed import Speeds, Spread

PART, SNAPSHOTS = "growth", "snapshots"
OPERATIONS = "identify", "enroll", "delete"
AT_A_TIME = 8
"""Number of calls of each operation in a turn."""
FLAT = Goal(1.25, at_most=True)
GOALS = {"enroll": FLAT, "delete": FLAT}
BEYOND = Goal(0.25, at_most=True)
Costs = dict[str, dict[int, list[float]]]
"""Milliseconds by operation and size, one per round."""


def measure(run: Run) -> None:
    with run.data_folder() as data:
        people = galleries.people(sum(run.effort.growth), run.stages.dimension)
        with serving(data, MODELS_DIR=run.stages.models) as server, server.client() as client:
            galleries.create(client, "empty")
            _clocked(client, "/v1/galleries/empty/identify", run.stages.photos[0])
            empty = server.memory()
            _fill(run, client, people)
            imported = _beyond(run, server, empty, people)
            costs = _costs(run, client)
            worked = _beyond(run, server, empty, people)
        _tell_costs(run, costs)
        run.add(_memory(run, people, empty, [imported], "right after the imports", after_work_beyond=worked))
        _starts(run, data, people, empty)


def _fill(run: Run, client: httpx.Client, people: Vectors) -> None:
    begin, spent = 0, 0.0
    for size in run.effort.growth:
        run.say(f"a gallery of {size:,}")
        galleries.create(client, f"of-{size}")
        added = people[begin : begin + size]
        spent += galleries.enroll_strangers(client, f"of-{size}", run.stages.package.id, added)
        begin += size
    speeds = Speeds({"ours": np.array([len(people) / spent])})
    work, told = f"import of {len(people):,} templates made elsewhere, searchable", {"seconds": spent}
    run.add(compared(PART, work, speeds, "ours", PEER, published=PEER_IMPORT, unit="faces/s", details=told))


def _costs(run: Run, client: httpx.Client) -> Costs:
    """Measure each operation at all sizes in turn, with one client that waits for each answer."""
    costs: Costs = {operation: defaultdict(list) for operation in OPERATIONS}
    photos, number = Reel(run.stages.photos), count()
    for turn in range(run.effort.rounds + 1):
        run.say(f"round {turn}" if turn else "warming up")
        for size in run.effort.growth:
            gallery = f"/v1/galleries/of-{size}"
            new = [f"{gallery}/subjects/new-{next(number)}" for _ in range(AT_A_TIME)]
            spent: dict[str, list[float]] = {
                "identify": [_clocked(client, f"{gallery}/identify", photos.take()) for _ in new],
                "enroll": [_clocked(client, f"{path}/faces?quality=none", photos.take()) for path in new],
                "delete": [_clocked(client, path) for path in new],
            }
            for operation, seconds in spent.items() if turn else ():
                costs[operation][size].append(1000 * float(np.median(seconds)))
    return costs


def _clocked(client: httpx.Client, path: str, photo: bytes | None = None) -> float:
    """Send the photo, or delete if there is none; return the seconds until the answer."""
    begin = time.perf_counter()
    headers = {"content-type": "image/jpeg"} if photo else {}
    client.request("POST" if photo else "DELETE", path, content=photo, headers=headers).raise_for_status()
    return time.perf_counter() - begin


def _tell_costs(run: Run, costs: Costs) -> None:
    for operation, by_size in costs.items():
        sizes = list(by_size)
        smallest, largest = np.array(by_size[sizes[0]]), np.array(by_size[sizes[-1]])
        medians = [float(np.median(by_size[size])) for size in sizes]
        work, against = f"{operation} at {sizes[-1]:,} faces, one client", f"the same at {sizes[0]:,}"
        ratio, details = Spread.of(largest / smallest), {f"ms_at_{s}": ms for s, ms in zip(sizes, medians, strict=True)}
        run.add(Figure(PART, work, medians[-1], "ms", against, ratio, GOALS.get(operation), details))


def _starts(run: Run, data: Path, people: Vectors, empty: int) -> None:
    """Measure starts from the server's snapshots and from SQL alone, and the memory used after each."""
    mapped, rebuilt, beyond = [], [], []
    for number in range(min(run.effort.starts, max(2, run.effort.starts // 2))):
        run.say(f"start {number + 1} from snapshots")
        with serving(data, MODELS_DIR=run.stages.models) as server:
            mapped.append(server.seconds_to_ready)
            beyond.append(_beyond(run, server, empty, people))
        run.say(f"start {number + 1} from SQL alone")
        shutil.rmtree(data / SNAPSHOTS)
        with serving(data, MODELS_DIR=run.stages.models) as server:
            rebuilt.append(server.seconds_to_ready)
    work, against = f"start to ready, {_work(run, people)}, from snapshots", "made anew from SQL"
    ratio, details = Spread.of(np.array(mapped) / np.array(rebuilt)), {"theirs": float(np.median(rebuilt))}
    run.add(Figure(PART, work, float(np.median(mapped)), "s", against, ratio, details=details))
    run.add(_memory(run, people, empty, beyond, "started from snapshots"))


def _memory(run: Run, people: Vectors, empty: int, beyond: list[float], when: str, **more: float) -> Figure:
    """Return the server's resident memory beyond an empty one's and the vectors, as a share of the vectors."""
    details = {"vectors_mb": people.nbytes / 1e6, "empty_server_mb": empty / 1e6, **more}
    work, ratio = f"memory of a server beyond the vectors, {_work(run, people)}, {when}", Spread.of(np.array(beyond))
    return Figure(PART, work, 100 * float(np.median(beyond)), "%", "the vectors", ratio, BEYOND, details)


def _work(run: Run, people: Vectors) -> str:
    return f"{len(people):,} faces in {len(run.effort.growth)} galleries"


def _beyond(run: Run, server: Server, empty: int, people: Vectors) -> float:
    """Return the server's memory beyond an empty one's and its vectors', as a share of the vectors."""
    with server.client() as client:
        for size in run.effort.growth:
            _clocked(client, f"/v1/galleries/of-{size}/identify", run.stages.photos[0])
    return (server.memory() - empty) / people.nbytes - 1
