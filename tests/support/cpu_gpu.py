"""Stands in for a GPU: FAISS's indexes of the CPU, used as `app.search.gpu` uses those of a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import faiss

from app.search.gpu import Gpu
from app.types import Vectors


class CpuGpu(Gpu):
    """Holds at most `room` rows; calls `meanwhile` while it adds or searches."""

    def __init__(self, room: int = 1_000_000) -> None:
        super().__init__()
        self.room = room
        self.made: list[Any] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def flat(self, dimension: int, *, half: bool) -> Any:
        assert threading.current_thread().name.startswith("gpu search")
        kind = faiss.ScalarQuantizer.QT_fp16
        metric = faiss.METRIC_INNER_PRODUCT
        made = faiss.IndexScalarQuantizer(dimension, kind, metric) if half else faiss.IndexFlatIP(dimension)
        self.made.append(_Watched(self, made))
        return self.made[-1]


class _Watched:
    def __init__(self, gpu: CpuGpu, index: Any) -> None:
        self._gpu, self._index = gpu, index

    @property
    def ntotal(self) -> int:
        return int(self._index.ntotal)

    def add(self, vectors: Vectors) -> None:
        if self.ntotal + len(vectors) > self._gpu.room:
            raise RuntimeError("Error: 'err == cudaSuccess' failed: out of memory")
        self._gpu.meanwhile()
        self._index.add(vectors)

    def search(self, probes: Vectors, fetch: int) -> Any:
        found = self._index.search(probes, fetch)
        self._gpu.meanwhile()
        return found
