"""Other vector search libraries on PyPI, each with its recall. Those that aren't installed are skipped."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.machine import cores
from app.types import Vectors
from bench.contenders.searching import LIMIT

HNSW_LINKS, HNSW_BUILD, HNSW_SEARCH = 16, 200, 200
"""M, ef_construction and ef: what their documentations call usual; the recall says what that gives."""
Found = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rival:
    """Another library: ``search(queries)`` returns (Q, LIMIT) rows; ``settings`` describes how it is set up."""

    settings: str
    search: Callable[[Vectors], Found]


def installed(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def hnswlib(vectors: Vectors) -> Rival | None:
    library: Any = installed("hnswlib")
    if library is None:
        return None
    index = library.Index(space="ip", dim=vectors.shape[1])
    index.init_index(max_elements=len(vectors), ef_construction=HNSW_BUILD, M=HNSW_LINKS)
    index.set_num_threads(cores())
    index.add_items(vectors)
    index.set_ef(HNSW_SEARCH)

    def search(queries: Vectors) -> Found:
        return np.asarray(index.knn_query(queries, k=LIMIT)[0], np.int64)

    return Rival(f"HNSW, M {HNSW_LINKS}, ef {HNSW_SEARCH}, fp32", search)


def usearch(vectors: Vectors) -> Rival | None:
    library: Any = installed("usearch.index")
    if library is None:
        return None
    index = library.Index(
        ndim=vectors.shape[1],
        metric="ip",
        dtype="f32",
        connectivity=HNSW_LINKS,
        expansion_add=HNSW_BUILD,
        expansion_search=HNSW_SEARCH,
    )
    index.add(np.arange(len(vectors)), vectors, threads=cores())

    def search(queries: Vectors) -> Found:
        return np.asarray(index.search(queries, LIMIT, threads=cores()).keys, np.int64).reshape(len(queries), LIMIT)

    return Rival(f"HNSW, connectivity {HNSW_LINKS}, expansion {HNSW_SEARCH}, fp32", search)


def milvus_lite(vectors: Vectors, folder: Path) -> Rival | None:
    """Milvus's embedded form, exact: one insert and search at a time over its own socket."""
    library: Any = installed("pymilvus")
    if library is None or installed("milvus_lite") is None:
        return None
    client = library.MilvusClient(str(folder / "milvus.db"))
    client.create_collection("bench", dimension=vectors.shape[1], metric_type="IP", consistency_level="Strong")
    for start in range(0, len(vectors), 5_000):
        part = vectors[start : start + 5_000]
        client.insert("bench", [{"id": start + n, "vector": row} for n, row in enumerate(part)])

    def search(queries: Vectors) -> Found:
        answers = client.search("bench", data=list(queries), limit=LIMIT)
        return np.array([[hit["id"] for hit in answer] for answer in answers], np.int64)

    return Rival("its default index", search)


def scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)
