"""The processor time of a request, in turns in this checkout's server, in those of other checkouts (`--beside`), and in
this one's with other model packages (`--package`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, cycle

import numpy as np

from bench import galleries
from bench.figures import Figure
from bench.load import closed_loop
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
        for number in range(run.effort.rounds + 1):
            run.say(f"round {number} of {run.effort.rounds}" if number else "warming up")
            for place in range(len(servers)):
                label = list(servers)[(place + number) % len(servers)]
                for operation, requests in sending[label].items():
                    cost = _turn(servers[label], requests, run.effort.clients, run.effort.seconds)
                    if number:
                        spent[operation][label].append(cost)
    for operation, by_label in spent.items():
        own = np.array(by_label[HERE])
        details = {"rounds": len(own), "clients": run.effort.clients}
        if len(by_label) == 1:
            run.add(Figure(PART, operation, float(np.median(own)), "ms", details=details))
        for label in [each for each in by_label if each != HERE]:
            theirs = np.array(by_label[label])
            told = {**details, "theirs": float(np.median(theirs))}
            run.add(Figure(PART, operation, float(np.median(own)), "ms", label, Spread.of(own / theirs), details=told))


def _requests(run: Run, server: Server) -> dict[str, Iterator[bytes]]:
    """Return endless requests of each operation, of one photo or a pair; a gallery holds the first photos."""
    photos, target, number = run.stages.photos, server.target, count()
    with server.client() as client:
        galleries.create(client, GALLERY)
        galleries.enroll_photos(client, GALLERY, photos[: galleries.KNOWN])
    pairs = zip(photos, [*photos[1:], photos[0]], strict=True)
    return {
        "enroll": (enrollment(target, GALLERY, next(number), photo) for photo in cycle(photos)),
        "identify": (identification(target, GALLERY, photo) for photo in cycle(photos)),
        "verify": (verification(target, *pair) for pair in cycle(pairs)),
    }


def _turn(server: Server, requests: Iterator[bytes], clients: int, seconds: float) -> float:
    """Return the processor milliseconds of a request, of all threads of the server, while so many clients send."""
    before = server.processor_s()
    load = closed_loop(server.target, lambda _client: requests, clients, seconds).checked()
    return 1000 * (server.processor_s() - before) / len(load.seconds)
