"""Compare one server with a photo worker per core and as many servers with one worker each, in turn on the same
cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from bench import galleries
from bench.callers import Reel
from bench.figures import Goal, compared
from bench.load import closed_loop
from bench.parts.serve import identification
from bench.run import Run
from bench.server import Server

PART, GALLERY = "cores", "bench"
ONE, SEVERAL = "one server", "as many servers as cores, each of one photo worker"
CLIENTS_EACH = 4
"""Clients for each core, enough that no worker waits."""
GOAL = Goal(0.8)


def measure(run: Run) -> None:
    if sys.platform != "linux":
        run.note("cores: only Linux binds processes to cores")
        return
    available = sorted(os.sched_getaffinity(0))
    for count in counts(len(available)):
        with ExitStack() as stack:
            with _bound_to(available[:count]):  # servers that start in this block inherit these cores
                server = stack.enter_context(run.server(PHOTO_WORKERS=count))
                several = [stack.enter_context(run.server(PHOTO_WORKERS=1)) for _ in range(count)]
            ways = {ONE: _sent(run, [server], count * CLIENTS_EACH), SEVERAL: _sent(run, several, CLIENTS_EACH)}
            speeds = run.contest(ways, run.effort.seconds)
        work = f"identify, {count} cores, {count * CLIENTS_EACH} clients"
        run.add(compared(PART, work, speeds, ONE, SEVERAL, unit="photos/s", goal=GOAL))


def counts(cores: int) -> list[int]:
    """Return 1, 2, 4 … and the number of cores."""
    return sorted({*(2**power for power in range(cores.bit_length()) if 2**power <= cores), cores})


@contextmanager
def _bound_to(cores: Sequence[int]) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _sent(run: Run, servers: Sequence[Server], clients: int) -> Callable[[], int]:
    """Return a turn in which this many clients of each server identify, all servers at the same time."""
    reels = []
    for server in servers:
        with server.client() as client:
            galleries.create(client, GALLERY)
            galleries.enroll_photos(client, GALLERY, run.stages.photos[: galleries.KNOWN])
        reels.append(Reel([identification(server.target, GALLERY, photo) for photo in run.stages.photos]))

    def load(place: int) -> int:
        loaded = closed_loop(servers[place].target, lambda _: reels[place].endless(), clients, run.effort.seconds)
        return len(loaded.checked().seconds)

    def turn() -> int:
        with ThreadPoolExecutor(len(servers)) as pool:
            return sum(pool.map(load, range(len(servers))))

    return turn
