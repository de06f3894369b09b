"""Search by quantised copies with exact final scores, compared with searching the vectors themselves."""

from __future__ import annotations

from typing import get_args

import numpy as np

from app.machine import cores
from app.search.index import Index
from app.search.types import IndexKind
from app.types import Vectors
from bench import galleries
from bench.contenders import searching
from bench.figures import Figure, Goal, compared
from bench.run import Run
from training.evaluation.speed.contest import Spread

PART = "kinds"
PLAIN: IndexKind = "fp32"
TWICE = {"int8": Goal(2)}
SAME = Goal(0.9999)
ASKED = 100
"""One probe for so many vectors: 10,000 say whether 99.99 % agree."""


def measure(run: Run) -> None:
    faces, dimension = run.effort.faces, 128
    vectors = galleries.people(faces, dimension)
    queries = galleries.probes(vectors, searching.QUERIES)
    indexes: dict[IndexKind, Index] = {}
    for kind in get_args(IndexKind):
        run.say(f"{faces:,} vectors as {kind}")
        indexes[kind] = searching.ours(vectors, cores(), kind)
    batched = {f"{kind}, {len(queries)} at once": searching.together(one, queries) for kind, one in indexes.items()}
    alone = {f"{kind}, one alone": searching.one_by_one(one, queries) for kind, one in indexes.items()}
    speeds = run.contest(batched | alone)
    for kind, index in indexes.items():
        if kind == PLAIN:
            continue
        for how in (f"{len(queries)} at once", "one alone"):
            work = f"search, {faces:,} × {dimension}, {how}, {kind} re-ranked"
            name, against = f"{kind}, {how}", f"{PLAIN}, {how}"
            run.add(compared(PART, work, speeds, name, against, unit="queries/s", goal=TWICE.get(kind)))
        run.say(f"do {kind} and {PLAIN} agree?")
        asked = galleries.probes(vectors, max(ASKED, faces // ASKED), seed=3)
        share = agreement(index, indexes[PLAIN], asked)
        run.add(
            Figure(
                PART,
                f"the same first candidate by {kind} as by {PLAIN}",
                100 * share,
                f"% of {len(asked):,}",
                PLAIN,
                Spread(share, share, share),
                SAME,
                {"memory_beyond_the_vectors": index.size / vectors.nbytes - 1},
            )
        )


def agreement(one: Index, other: Index, queries: Vectors) -> float:
    """Return the share of probes for which both find the same first face."""
    same = 0
    for start in range(0, len(queries), searching.QUERIES):
        some = queries[start : start + searching.QUERIES]
        same += int(np.sum(searching.rows_of(one, some, 1) == searching.rows_of(other, some, 1)))
    return same / len(queries)
