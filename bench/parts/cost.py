"""Measure the processor time of a request: in turn by this checkout's server, by those of other checkouts (`--beside`),
and by this checkout's with other model packages (`--package`).

Since photos differ more than versions do, every server gets the same requests in a round: as many as the slowest server
answered during its warm-up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count

import numpy as np

from bench import galleries
from bench.figures import Figure
from bench.load import Load, closed_loop
from bench.parts.enroll import enrollment
from bench.parts.serve import identification, verification
from bench.run import Run
from bench.server import Server
from training.evaluation.speed import Spread

PART, GALLERY, HERE = "cost", "bench", "this checkout"


def measure(run: Run) -> None:
    spent: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with ExitStack() as stack:
        servers = {HERE: stack.enter_context(run.server())}
        servers |= {label: stack.enter_context(run.server(code)) for label, code in run.beside.items()}
        servers |= {name: stack.enter_context(run.server(EMBEDDER=name)) for name in run.packages}
        sending = {label: _requests(run, server) for label, server in servers.items()}
        run.say("warming up")
        warm = {label: _answered(servers[label], requests, run) for label, requests in sending.items()}
        first = {operation: max(counts[operation] for counts in warm.values()) for operation in sending[HERE]}
        size = {operation: min(counts[operation] for counts in warm.values()) for operation in sending[HERE]}
        for number in range(run.effort.rounds):
            run.say(f"round {number + 1} of {run.effort.rounds}")
            for place in range(len(servers)):
                label = list(servers)[(place + number) % len(servers)]
                for operation, request in sending[label].items():
                    begin = first[operation] + number * size[operation]
                    numbers = range(begin, begin + size[operation])
                    spent[operation][label].append(_turn(servers[label], map(request, numbers), run.effort.clients))
    for operation, by_label in spent.items():
        ours = np.array(by_label[HERE])
        details = {"rounds": len(ours), "clients": run.effort.clients, "requests": size[operation]}
        if len(by_label) == 1:
            run.add(Figure(PART, operation, float(np.median(ours)), "ms", details=details))
        for label in [label for label in by_label if label != HERE]:
            theirs = np.array(by_label[label])
            told = {**details, "theirs": float(np.median(theirs))}
            run.add(
                Figure(PART, operation, float(np.median(ours)), "ms", label, Spread.of(ours / theirs), details=told)
            )


def _requests(run: Run, server: Server) -> dict[str, Callable[[int], bytes]]:
    """Return functions from a number to a request, with one photo or a pair; a gallery holds the first photos."""
    photos, target = run.stages.photos, server.target
    with server.client() as client:
        galleries.create(client, GALLERY)
        galleries.enroll_photos(client, GALLERY, photos[: galleries.KNOWN])

    def photo(number: int) -> bytes:
        return photos[number % len(photos)]

    return {
        "enroll": lambda number: enrollment(target, GALLERY, number, photo(number)),
        "identify": lambda number: identification(target, GALLERY, photo(number)),
        "verify": lambda number: verification(target, photo(number), photo(number + 1)),
    }


def _answered(server: Server, requests: dict[str, Callable[[int], bytes]], run: Run) -> dict[str, int]:
    """Return how many requests of each operation are answered in a turn's time."""
    clients, seconds = run.effort.clients, run.effort.seconds
    return {name: len(_sent(server, map(send, count()), clients, seconds).seconds) for name, send in requests.items()}


def _turn(server: Server, requests: Iterator[bytes], clients: int) -> float:
    """Return the processor milliseconds per request, of all the server's threads, while this many clients send."""
    before = server.processor_s()
    load = _sent(server, requests, clients, math.inf)
    return 1000 * (server.processor_s() - before) / len(load.seconds)


def _sent(server: Server, requests: Iterator[bytes], clients: int, seconds: float) -> Load:
    return closed_loop(server.target, lambda _client: requests, clients, seconds).checked()
