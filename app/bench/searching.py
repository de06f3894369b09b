"""Search in one gallery's index against FAISS alone, against one query at a time, and against what else there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import faiss
import numpy as np

from app.bench.machine import cores
from app.gallery.index import Index
from app.gallery.records import FaceBlock
from app.types import Vectors

LIMIT = 10
QUERIES = 64


def people(count: int, dimension: int, seed: int = 1) -> Vectors:
    """(count, dimension) random unit vectors."""
    generator = np.random.default_rng(seed)
    made: Vectors = generator.standard_normal((count, dimension), dtype=np.float32)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    return made


def ours(vectors: Vectors) -> Index:
    """A subject a face."""
    index = Index(vectors.shape[1], threads=cores())
    keys = np.arange(1, len(vectors) + 1)
    index.add(FaceBlock(keys, keys, np.full(len(keys), 50, np.float32), vectors))
    return index


def together(index: Index, queries: Vectors) -> Callable[[], int]:
    """All queries in one pass, as concurrent requests are."""

    def run() -> int:
        index.search(queries, LIMIT)
        return len(queries)

    return run


def one_by_one(index: Index, queries: Vectors) -> Callable[[], int]:
    def run() -> int:
        for query in queries[:4]:
            index.search(query[None], LIMIT)
        return 4

    return run


def faiss_batched(vectors: Vectors, queries: Vectors) -> Callable[[], int]:
    """The raw limit: FAISS's flat index, the whole batch by BLAS on all cores."""
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)

    def run() -> int:
        before = faiss.cvar.distance_compute_blas_threshold
        faiss.cvar.distance_compute_blas_threshold = 1
        faiss.omp_set_num_threads(cores())
        flat.search(queries, LIMIT)
        faiss.cvar.distance_compute_blas_threshold = before
        return len(queries)

    return run


def hnswlib(vectors: Vectors, queries: Vectors) -> tuple[Callable[[], int], float] | None:
    """hnswlib's approximate index, all cores, with its recall of the exact first ten; None where it isn't installed."""
    try:
        import hnswlib as library  # type: ignore[import-untyped]  # noqa: PLC0415 - an optional rival, without types
    except ImportError:
        return None
    index: Any = library.Index(space="ip", dim=vectors.shape[1])
    index.init_index(max_elements=len(vectors), ef_construction=100, M=16)
    index.add_items(vectors)
    index.set_ef(100)
    exact = np.argsort(-(queries @ vectors.T), axis=1)[:, :LIMIT]
    found, _ = index.knn_query(queries, k=LIMIT)
    recall = float(np.mean([len(set(a) & set(b)) / LIMIT for a, b in zip(found.tolist(), exact.tolist(), strict=True)]))

    def run() -> int:
        index.knn_query(queries, k=LIMIT)
        return len(queries)

    return run, recall
