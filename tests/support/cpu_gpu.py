"""Stand in for an index's GPU with the CPU: count what it holds, and assert that only one thread touches it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import faiss

from app.choices import GpuSearch
from app.features.gpu_search.feature import Gpu
from app.features.gpu_search.product import ProductIndex
from app.inference.session import CPU
from app.types import Vectors


class CpuGpu(Gpu):
    """A GPU that holds at most `room` rows and calls `meanwhile` while it adds or searches.

    Only the thread that made an object for it may touch and free the object; `close` asserts that.
    """

    def __init__(self, room: int = 1_000_000, search: GpuSearch = "faiss") -> None:
        super().__init__(search)
        self.room = room
        self.used = 0
        """Number of rows that it holds."""
        self.added: list[int] = []
        """Number of rows of each upload."""
        self.made = 0
        self.meanwhile: Callable[[], None] = lambda: None
        self.misused: list[str] = []

    def resources(self) -> Any:
        return _OfOneThread(self)

    def flat(self, resources: Any, dimension: int, *, half: bool) -> Any:
        resources.touch("resources")
        kind = faiss.ScalarQuantizer.QT_fp16
        metric = faiss.METRIC_INNER_PRODUCT
        self.made += 1
        if self._search == "product":
            return _Flat(self, ProductIndex(dimension, half=half, provider=CPU))
        return _Flat(
            self, faiss.IndexScalarQuantizer(dimension, kind, metric) if half else faiss.IndexFlatIP(dimension)
        )

    def close(self) -> None:
        super().close()
        assert self.misused == []
        assert self.used == 0, "all of it was freed"


class _OfOneThread:
    def __init__(self, gpu: CpuGpu) -> None:
        self.gpu = gpu
        self._thread = threading.get_ident()
        self.touch("making")

    def touch(self, what: str) -> None:
        here = threading.current_thread()
        if here.ident != self._thread or not here.name.startswith("gpu search"):
            self.gpu.misused.append(f"{what} on {here.name}")

    def __del__(self) -> None:
        self.touch("freeing")


class _Flat(_OfOneThread):
    def __init__(self, gpu: CpuGpu, index: Any) -> None:
        super().__init__(gpu)
        self._index = index

    def __del__(self) -> None:
        self.gpu.used -= self._index.ntotal
        super().__del__()

    def add(self, vectors: Vectors) -> None:
        self.touch("add")
        if self.gpu.used + len(vectors) > self.gpu.room:
            raise RuntimeError("Error: 'err == cudaSuccess' failed: out of memory")
        self.gpu.meanwhile()
        self.gpu.used += len(vectors)
        self.gpu.added.append(len(vectors))
        self._index.add(vectors)

    def search(self, probes: Vectors, fetch: int) -> Any:
        self.touch("search")
        found = self._index.search(probes, fetch)
        self.gpu.meanwhile()
        return found
