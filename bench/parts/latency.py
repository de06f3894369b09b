"""The latency of identifications that arrive at a fixed rate, at shares of the server's capacity."""

from __future__ import annotations

from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from bench import galleries
from bench.figures import Figure, Goal
from bench.load import Load, Target, closed_loop, open_loop
from bench.parts.serve import GALLERY, identification
from bench.run import CLIENTS, Run
from training.evaluation.speed import Spread

PART = "latency"
SHARES = 0.5, 0.8, 0.95
GOALS = {0.8: Goal(3, at_most=True)}
LONGER = 4
"""How many times as long as other loads the open loop takes, so that there are some requests in the slowest
hundredth."""
MOST_ROUNDS = 3


def measure(run: Run) -> None:
    stages, effort = run.stages, run.effort
    generated = galleries.people(effort.gallery, stages.dimension)
    unloaded: list[float] = []
    capacity: list[float] = []
    loads: dict[float, list[Load]] = {share: [] for share in SHARES}
    with run.server() as server:
        galleries.filled(server, GALLERY, stages.package.id, stages.photos, generated)
        requests = [identification(server.target, GALLERY, photo) for photo in stages.photos]
        _answers(server.target, requests, CLIENTS, effort.seconds)  # warms up
        for number in range(min(effort.rounds, MOST_ROUNDS)):
            run.say(f"unloaded and full, round {number + 1}")
            unloaded.append(float(np.median(_answers(server.target, requests, 1, effort.seconds).seconds)))
            capacity.append(_answers(server.target, requests, CLIENTS, 2 * effort.seconds).rate)
            for share in SHARES:
                run.say(f"{share:.0%} of {capacity[-1]:.0f}/s, round {number + 1}")
                rate = share * capacity[-1]
                loads[share].append(open_loop(server.target, requests, rate, LONGER * effort.seconds, seed=number))
    for share, load in loads.items():
        run.add(figure(share, np.array(unloaded), np.array(capacity), load))


def figure(share: float, unloaded: NDArray[np.float64], capacity: NDArray[np.float64], loads: list[Load]) -> Figure:
    """Return p99 at a share of the capacity, relative to the median answer of the idle server in the same round."""
    p99 = np.array([load.percentile(99) for load in loads])
    details = {
        "p50_ms": 1000 * float(np.median([load.percentile(50) for load in loads])),
        "p50_ratio": float(np.median([load.percentile(50) for load in loads] / unloaded)),
        "unloaded_ms": 1000 * float(np.median(unloaded)),
        "requests": sum(len(load.seconds) for load in loads),
        "refused": sum(load.failed for load in loads),
    }
    work, against = f"identify, p99 at {share:.0%} of {np.median(capacity):.0f}/s", "the unloaded server's median"
    ratio = Spread.of(p99 / unloaded)
    return Figure(PART, work, 1000 * float(np.median(p99)), "ms", against, ratio, GOALS.get(share), details)


def _answers(target: Target, requests: list[bytes], clients: int, seconds: float) -> Load:
    endless = cycle(requests)
    return closed_loop(target, lambda _client: endless, clients, seconds).checked()
