"""Measure the slowest hundredth of identifications that are sent at a fixed rate, regardless of answers.

Servers with and without photo workers, or those of other checkouts (`--beside`), are measured in turns, next to the
best that a first-come queue could do.
"""

from __future__ import annotations

import heapq
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from app.machine import cores
from bench import galleries
from bench.figures import Figure, Goal
from bench.load import Load, Target, arrivals, closed_loop, open_loop
from bench.parts.serve import identification
from bench.run import CLIENTS, Run
from training.evaluation.speed import Spread

PART, GALLERY = "tails", "bench"
HERE, WITHOUT = "photo workers", "no photo workers"
SHARES = 0.5, 0.8, 0.95
LONGER = 5
"""How many times as long as other loads the open loop takes."""
WORSE, IDEAL = Goal(1.0, at_most=True), Goal(1.3, at_most=True)


@dataclass
class Measured:
    """A server's loads by share of capacity, one per round, and its times for photos sent one by one, in seconds."""

    alone: NDArray[np.float64]
    loads: dict[float, list[Load]] = field(default_factory=lambda: {share: [] for share in SHARES})

    def p99(self, share: float) -> NDArray[np.float64]:
        """Return the 99th percentile of each round."""
        return np.array([load.percentile(99) for load in self.loads[share]])


def measure(run: Run) -> None:
    seconds, photos = run.effort.seconds, run.stages.photos
    found: dict[str, Measured] = {}
    ideal: dict[float, list[float]] = {share: [] for share in SHARES}
    with ExitStack() as stack:
        servers = {HERE: stack.enter_context(run.server())}
        if not run.beside:
            servers[WITHOUT] = stack.enter_context(run.server(PHOTO_WORKERS=0))
        servers |= {label: stack.enter_context(run.server(code)) for label, code in run.beside.items()}
        sent: dict[str, list[bytes]] = {}
        capacities = []
        for label, server in servers.items():
            run.say(f"one by one, and as fast as it can: {label}")
            with server.client() as client:
                galleries.create(client, GALLERY)
                galleries.enroll_photos(client, GALLERY, photos[: galleries.KNOWN])
            sent[label] = [identification(server.target, GALLERY, photo) for photo in photos]
            _answers(server.target, sent[label], CLIENTS, seconds)  # warms up
            capacities.append(_answers(server.target, sent[label], CLIENTS, 2 * seconds).rate)
            found[label] = Measured(np.array(_answers(server.target, sent[label], 1, 2 * seconds).seconds))
        capacity = min(capacities)  # no server has less
        for number in range(run.effort.rounds):
            for share in SHARES:
                for place in range(len(servers)):
                    label = list(servers)[(place + number) % len(servers)]
                    run.say(f"{share:.0%} of {capacity:.0f}/s, round {number + 1}: {label}")
                    rate, target = share * capacity, servers[label].target
                    load = open_loop(target, sent[label], rate, LONGER * seconds, seed=number)
                    found[label].loads[share].append(load)
                due = arrivals(share * capacity, LONGER * seconds, number)
                ideal[share].append(float(np.percentile(first_come(due, found[HERE].alone, cores()), 99)))
    for share in SHARES:
        run.add(*_figures(f"identify, p99 at {share:.0%} of {capacity:.0f}/s", found, share, np.array(ideal[share])))
    run.add(
        *(
            Figure(PART, f"identify, as fast as it can: {label}", rate, "photos/s")
            for label, rate in zip(servers, capacities, strict=True)
        )
    )


def first_come(due: NDArray[np.float64], work: NDArray[np.float64], places: int) -> NDArray[np.float64]:
    """Return the seconds from arrival to answer if ``places`` always serve the first in the queue.

    ``due``: the arrival times, in order; ``work``: the durations, repeated if there are fewer.
    """
    free = [0.0] * places
    took = []
    for at, needs in zip(due.tolist(), cycle(work.tolist())):
        done = max(at, heapq.heappop(free)) + needs
        heapq.heappush(free, done)
        took.append(done - at)
    return np.array(took)


def _figures(work: str, found: dict[str, Measured], share: float, ideal: NDArray[np.float64]) -> list[Figure]:
    ours = found[HERE].p99(share)
    rows: list[tuple[str, NDArray[np.float64], Goal, dict[str, float]]]
    rows = [("an ideal first-come queue", ideal, IDEAL, {})]
    rows += [
        (label, measured.p99(share), WORSE, _told(measured, share))
        for label, measured in found.items()
        if label != HERE
    ]
    ms = 1000 * float(np.median(ours))
    return [
        Figure(
            PART,
            work,
            ms,
            "ms",
            against,
            Spread.of(ours / theirs),
            goal,
            {
                "rounds_ms": (1000 * ours).round(1).tolist(),
                "theirs_ms": (1000 * theirs).round(1).tolist(),
                "ours": _told(found[HERE], share),
                "theirs": told,
            },
        )
        for against, theirs, goal, told in rows
    ]


def _told(measured: Measured, share: float) -> dict[str, float]:
    loads = measured.loads[share]
    return {
        "alone_ms": 1000 * float(np.median(measured.alone)),
        "p50_ms": 1000 * float(np.median([load.percentile(50) for load in loads])),
        "requests": sum(len(load.seconds) for load in loads),
        "refused": sum(load.failed for load in loads),
    }


def _answers(target: Target, requests: list[bytes], clients: int, seconds: float) -> Load:
    endless = cycle(requests)
    return closed_loop(target, lambda _client: endless, clients, seconds).checked()
