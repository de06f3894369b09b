"""Search by other libraries on PyPI, each with its recall, compared with our exact search."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from app.machine import cores
from app.types import Vectors
from bench import galleries
from bench.contenders import rivals, searching
from bench.contenders.rivals import Rival
from bench.figures import compared
from bench.run import Run

PART = "rivals"
SLOW_FACES = 20_000
"""In milvus-lite, which is a reimplementation in Python and slow."""


def measure(run: Run) -> None:
    vectors = galleries.people(run.effort.rival_faces, 128)
    makers: dict[str, Callable[[Vectors], Rival | None]] = {"hnswlib": rivals.hnswlib, "usearch": rivals.usearch}
    _compare(run, vectors, makers)
    with rivals.scratch() as folder:
        _compare(run, vectors[:SLOW_FACES], {"milvus-lite": lambda some: rivals.milvus_lite(some, Path(folder))})


def _compare(run: Run, vectors: Vectors, makers: dict[str, Callable[[Vectors], Rival | None]]) -> None:
    queries = galleries.probes(vectors, searching.QUERIES)
    mated = np.arange(len(queries)) % 2 == 0
    true = searching.exact(vectors, queries)
    index = searching.ours(vectors, cores())
    contenders = {"ours": searching.together(index, queries)}
    told: dict[str, dict[str, object]] = {}
    for name, make in makers.items():
        run.say(f"{name} takes {len(vectors):,} vectors")
        rival = make(vectors)
        if rival is None:
            run.note(f"{name}: not installed (pip install 'likeness-server[bench]')")
            continue
        found = rival.search(queries)
        share = searching.recall(found, true)
        shown = f"{name} ({rival.settings}): recall {share:.3f}"
        told[shown] = {
            "recall_at_10": share,
            "mated_found_first": float(np.mean(found[mated, 0] == true[mated, 0])),
        }
        contenders[shown] = _asked(rival, queries)
    if not told:
        return
    speeds = run.contest(contenders)
    work = f"search, {len(vectors):,} × 128, {len(queries)} at once, exact"
    for shown, details in told.items():
        run.add(compared(PART, work, speeds, "ours", shown, unit="queries/s", details=details))


def _asked(rival: Rival, queries: Vectors) -> Callable[[], int]:
    def run() -> int:
        rival.search(queries)
        return len(queries)

    return run
