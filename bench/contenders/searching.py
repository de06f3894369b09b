"""Ways to search many vectors: our index, plain FAISS, and the recall of each."""

from __future__ import annotations

from collections.abc import Callable

import faiss
import numpy as np
from numpy.typing import NDArray

from app.choices import IndexKind
from app.machine import cores
from app.search.index import FoundGpu, Index
from app.search.types import FaceBlock
from app.types import Vectors

LIMIT = 10
QUERIES = 64
ONE_BY_ONE = 4
"""Number of queries in a turn that sends one at a time: more would only take longer."""


def ours(vectors: Vectors, threads: int, kind: IndexKind = "fp32", gpu: FoundGpu | None = None) -> Index:
    """Return a gallery's own index with one face per subject."""
    index = Index(vectors.shape[1], threads=threads, kind=kind, gpu=gpu)
    keys = np.arange(1, len(vectors) + 1)
    index.add(FaceBlock(keys, keys, np.full(len(keys), 50, np.float32), vectors))
    return index


def together(index: Index, queries: Vectors) -> Callable[[], int]:
    """Search all queries in one pass, as concurrent requests do."""

    def run() -> int:
        index.search(queries, LIMIT)
        return len(queries)

    return run


def one_by_one(index: Index, queries: Vectors) -> Callable[[], int]:
    def run() -> int:
        for query in queries[:ONE_BY_ONE]:
            index.search(query[None], LIMIT)
        return ONE_BY_ONE

    return run


def faiss_flat(vectors: Vectors) -> faiss.IndexFlatIP:
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    return flat


def faiss_batched(flat: faiss.IndexFlatIP, queries: Vectors) -> Callable[[], int]:
    """Search by FAISS's flat index: the whole batch at once, by BLAS on all cores. This is the raw limit."""

    def run() -> int:
        before = faiss.cvar.distance_compute_blas_threshold, faiss.omp_get_max_threads()
        faiss.cvar.distance_compute_blas_threshold = 1
        faiss.omp_set_num_threads(cores())
        flat.search(queries, LIMIT)
        faiss.cvar.distance_compute_blas_threshold = before[0]
        faiss.omp_set_num_threads(before[1])
        return len(queries)

    return run


def exact(vectors: Vectors, queries: Vectors) -> NDArray[np.int64]:
    """Return the (Q, LIMIT) rows with the highest inner products, highest first. FAISS finds more than that many, which
    are compared in float64."""
    _, rows = faiss_flat(vectors).search(queries, 4 * LIMIT)
    scores = np.einsum("qkd,qd->qk", vectors[rows].astype(np.float64), queries.astype(np.float64))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :LIMIT]
    best: NDArray[np.int64] = np.take_along_axis(rows, order, axis=1)
    return best


def recall(found: NDArray[np.int64], true: NDArray[np.int64]) -> float:
    """Return the share of the true rows (Q, K) that are among the found rows (Q, any)."""
    hits = [len(set(a) & set(b)) for a, b in zip(found.tolist(), true.tolist(), strict=True)]
    return sum(hits) / true.size


def rows_of(index: Index, queries: Vectors, limit: int = LIMIT) -> NDArray[np.int64]:
    """Return the (Q, limit) rows that our index finds, -1 if it has fewer."""
    found = np.full((len(queries), limit), -1, np.int64)
    for place, matches in enumerate(index.search(queries, limit)):
        found[place, : len(matches)] = [match.face - 1 for match in matches]
    return found
