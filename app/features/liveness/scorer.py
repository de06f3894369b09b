"""Compute a score of how likely a face is live rather than a picture, with one or several models.

A score is the models' mean probability of being live. `app.features.liveness.gate` decides, at measured thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import chain
from pathlib import Path

import numpy as np

from app.choices import Device
from app.concurrency.batcher import Batcher
from app.face.align import Cut
from app.inference.embedders import CPU_MAX_BATCH, GPU_WAIT_S
from app.inference.session import FIXED_BATCH, Session, contract_broken, run_two
from app.machine import cores
from app.models.opening import open_prepared
from app.package.folders import Package
from app.package.golden import check_crops
from app.types import UNIT_TOLERANCE, Pixels

QUEUE_LIMIT = 4096
"""Maximum number of cuts that may wait: enough for all faces of a photo. The number of requests is limited
elsewhere."""


class LivenessSession:
    """A loaded liveness package, which returns for each cut around a face the probability that the face is live.

    Raises Unusable ``package_contract_broken`` if the graph is not what its manifest says.
    """

    def __init__(self, package: Package, session: Session) -> None:
        contract = package.manifest.liveness
        if contract is None:
            raise contract_broken(package.id, f"its task is {package.manifest.task}, not liveness")
        self.package, self.device = package, session.device
        self.cut = Cut(int(package.manifest.input.shape[1]), contract.cut)
        """The size and the surroundings of the cuts around faces that the model takes."""
        self._session, self._live = session, contract.classes.index(contract.live)
        answers = run_two(package.id, session, check_crops(self.cut.side)[-2:])
        sums, count = answers.sum(axis=-1), len(contract.classes)
        if answers.shape != (2, count) or (answers < 0).any() or not np.allclose(sums, 1, atol=UNIT_TOLERANCE):
            raise contract_broken(package.id, f"it answers {answers.shape} with sums {sums}, not probabilities")

    def scores(self, cuts: Sequence[Pixels]) -> list[float]:
        """Return the probability, 0-1, that each face is live. ``cuts``: at least one, (S, S, 3) uint8 RGB."""
        return [float(row[self._live]) for row in self._session.run(np.stack(cuts))[0]]


def open_liveness(package: Package, cache_dir: Path, device: Device = "auto") -> LivenessSession:
    """Locate a liveness package, prepare it if it isn't yet, load it, and check its contract.

    Raises Unusable with the codes of `locate`, `prepared`, `Session` and `LivenessSession`.
    """
    return LivenessSession(package, open_prepared(package, cache_dir, device))


class Scorer:
    """Scores the liveness of faces with one or several open packages. Safe to share between threads."""

    def __init__(self, sessions: Sequence[LivenessSession]) -> None:
        self.packages = tuple(session.package for session in sessions)
        self.cuts = tuple(session.cut for session in sessions)
        self.devices = {session.package.id: session.device for session in sessions}
        self.batchers = [
            Batcher(
                session.scores,
                max_batch=FIXED_BATCH.get(session.device, CPU_MAX_BATCH),
                max_wait_s=GPU_WAIT_S if session.device in FIXED_BATCH else 0.0,
                queue_limit=QUEUE_LIMIT,
                workers=1 if session.device in FIXED_BATCH else cores(),
                name="liveness",
            )
            for session in sessions
        ]

    def score(self, faces: Sequence[Sequence[Pixels]]) -> list[float]:
        """Return the probability, 0-1, that each face is live: the mean over the packages. Each face comes with one
        picture, (S, S, 3) uint8 RGB, for each of ``cuts``.

        Raises Overloaded if a queue is full.
        """
        futures: list[list[Future[tuple[float, int]]]] = []
        try:
            for place, batcher in enumerate(self.batchers):
                futures.append(batcher.submit_all([pictures[place] for pictures in faces]))
            by_package = [[future.result()[0] for future in pending] for pending in futures]
        finally:
            for future in chain.from_iterable(futures):  # after an error, the other results are not needed
                future.cancel()
        return [math.fsum(scores) / len(scores) for scores in zip(*by_package, strict=True)]

    def close(self) -> None:
        """Finish the waiting requests; later ones raise Overloaded."""
        for batcher in self.batchers:
            batcher.close()
