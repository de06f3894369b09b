"""Measure exact search among many vectors: concurrent queries in one pass and single ones, against FAISS."""

from __future__ import annotations

import numpy as np

from app.machine import cores
from bench import galleries
from bench.contenders import searching
from bench.figures import Figure, Goal, compared
from bench.parts import device
from bench.run import Run
from training.evaluation.speed import Spread

PART = "search"
BLAS, ALONE = "FAISS alone, the batch by BLAS on all cores", "one query at a time"
INT8 = "int8"
ALL_CORES = 0.75
"""Share of the ideal speed-up from which on all cores count as used."""


def measure(run: Run) -> None:
    if run.device == "cuda":
        device.search(run)
        return
    effort, dimension = run.effort, 128
    run.say(f"{effort.faces:,} generated people")
    vectors = galleries.people(effort.faces, dimension)
    queries = galleries.probes(vectors, searching.QUERIES)
    index, single = searching.ours(vectors, cores()), searching.ours(vectors, 1)
    quantised = searching.ours(vectors, cores(), "int8")
    flat, one_thread = searching.faiss_flat(vectors), "one query at a time, one thread"
    speeds = run.contest(
        {
            "ours": searching.together(index, queries),
            ALONE: searching.one_by_one(index, queries),
            one_thread: searching.one_by_one(single, queries),
            BLAS: searching.faiss_batched(flat, queries),
            INT8: searching.together(quantised, queries),
            f"{INT8}, {ALONE}": searching.one_by_one(quantised, queries),
        }
    )
    work = f"search, {effort.faces:,} × {dimension}, {len(queries)} at once"
    by_itself, unit = f"search, {effort.faces:,} × {dimension}, one query alone on {cores()} cores", "queries/s"
    run.add(
        compared(PART, work, speeds, "ours", BLAS, unit=unit, goal=Goal(0.9)),
        compared(PART, work, speeds, "ours", ALONE, unit=unit, goal=Goal(5)),
        compared(PART, f"{work}, {INT8}", speeds, INT8, "ours", unit=unit),
        compared(PART, f"{work}, {INT8}, alone", speeds, f"{INT8}, {ALONE}", ALONE, unit=unit, goal=Goal(2)),
        compared(PART, by_itself, speeds, ALONE, one_thread, unit=unit, goal=Goal(ALL_CORES * cores())),
    )
    found = searching.rows_of(index, queries)[:, 0]
    agreement = float(np.mean(found == searching.exact(vectors, queries)[:, 0]))
    run.add(Figure(PART, f"{work}: the same first one as in float64", agreement, "of all", "", None))
    extra = index.size / vectors.nbytes - 1
    memory, ratio = "memory of an index beyond the vectors, as it counts itself", Spread(extra, extra, extra)
    run.add(Figure(PART, memory, 100 * extra, "%", "the vectors", ratio, Goal(0.25, at_most=True)))
