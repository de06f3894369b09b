"""A gallery's vectors in a GPU's memory, as they were a moment ago: FAISS finds rows there, all else is the CPU's.

What is mirrored isn't changed row by row. Rows that come, go and move meanwhile are looked at on the CPU, as for every
pass of `app.search.index`, until there are so many of them, or a minute is over, and the mirror is brought up to date.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import faiss
import numpy as np
from numpy.typing import NDArray

from app.search.quantised import LENGTH, NO_ROW, ExactScan, Near
from app.types import Vector, Vectors

MOST = 2_048
"""FAISS's GPU kernels select no more for a probe."""
R = TypeVar("R")
_log = logging.getLogger(__name__)


class GpuFailed(Exception):
    """FAISS's own words: its memory is full, or it is gone."""


class Gpu(Protocol):
    """What makes indexes, and the thread that they are used on."""

    def flat(self, dimension: int, *, half: bool) -> Any:
        """An empty FAISS index by inner product, of float32 or, with `half`, float16. Called on that thread."""
        ...

    def run(self, work: Callable[[], R]) -> R:
        """On that thread, waited for."""
        ...

    def close(self) -> None: ...


class FaissGpu:
    """The first GPU. FAISS's resources aren't for several threads, so one does everything."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "gpu search")
        self._resources: Any = None

    def flat(self, dimension: int, *, half: bool) -> Any:
        library: Any = faiss
        if self._resources is None:  # reserves memory, which a server without large galleries has no use for
            self._resources = library.StandardGpuResources()
        config = library.GpuIndexFlatConfig()
        config.useFloat16 = half
        return library.GpuIndexFlatIP(self._resources, dimension, config)

    def run(self, work: Callable[[], R]) -> R:
        return self._thread.submit(work).result()

    def close(self) -> None:
        self._thread.shutdown()


def find_gpu() -> FaissGpu | None:
    """None, with a line in the log, where this FAISS was built without, or sees none."""
    if hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus():
        return FaissGpu()
    _log.info("galleries are searched on the CPU: the FAISS that is installed finds no GPU")
    return None


class Mirror:
    """A `Scan` of the first `count` rows. To be used on the GPU's thread, `rough` and `errors` anywhere."""

    def __init__(self, gpu: Gpu, dimension: int, *, half: bool) -> None:
        self.half = half
        self._index = _said(lambda: gpu.flat(dimension, half=half))
        self._exact = ExactScan(np.empty((0, dimension), np.float32))

    def extend(self, vectors: Vectors) -> None:
        """Takes what comes after the rows it has; `vectors` are all. Raises GpuFailed."""
        self._exact = ExactScan(vectors)
        _said(lambda: self._index.add(vectors[self._index.ntotal :]))

    def nearest(self, start: int, end: int, probes: Vectors, fetch: int) -> Near:
        """Raises GpuFailed. `start` is 0 and `end` all rows: there are no parts here."""
        width = min(fetch, end - start, MOST)
        scores, rows = _said(lambda: self._index.search(probes, width))
        scores = np.where(rows == NO_ROW, -np.inf, scores).astype(np.float32)
        floors = np.full(len(probes), -np.inf, np.float32) if width == end - start else scores[:, -1]
        return Near(scores, rows, floors)

    def rough(self, start: int, end: int, probe: Vector) -> NDArray[np.float32]:
        return self._exact.rough(start, end, probe)

    def errors(self, probes: Vectors) -> NDArray[np.float64]:
        """With float16 the probes are rounded too; sums are of float32."""
        exact = self._exact.errors(probes)
        if not self.half:
            return exact
        lengths = np.linalg.norm(probes.astype(np.float64), axis=1)
        return np.asarray(exact + (2 * np.maximum(lengths, LENGTH) + 1) * _half_error(probes.shape[1]))


def _half_error(dimension: int) -> float:
    """How far, in length, a vector is from its float16 copy at most: 2^-11 of each number, 2^-25 where it is tiny."""
    return LENGTH * 2.0**-11 + float(dimension**0.5) * 2.0**-25


def _said(work: Callable[[], R]) -> R:
    try:
        return work()
    except RuntimeError as error:  # FAISS's exceptions, whatever they are of
        raise GpuFailed(str(error)) from error
