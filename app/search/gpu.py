"""A copy of an index's vectors in a GPU's memory, where FAISS finds near rows; the CPU does the rest.

The copy isn't changed row by row. `app.search.index` scores rows that changed since on the CPU, as after every pass,
and updates the copy when there are too many of them or it is too old.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import faiss
import numpy as np
from numpy.typing import NDArray

from app.search.quantised import LENGTH, NO_ROW, ExactScan, Near
from app.types import Vector, Vectors

MAX_FETCH = 2_048
"""Most rows that FAISS's GPU kernels can select for a probe."""
R = TypeVar("R")
_log = logging.getLogger(__name__)


class GpuFailed(Exception):
    """The GPU's memory is full, or the GPU failed; with FAISS's message."""


class Gpu:
    """The first GPU. One thread does everything: FAISS's resources aren't safe to share."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "gpu search")
        self._resources: Any = None

    def flat(self, dimension: int, *, half: bool) -> Any:
        """Return an empty FAISS index by inner product, of float32 or, with `half`, float16. Call it on that thread."""
        library: Any = faiss
        if self._resources is None:  # made late: it reserves memory, which only large galleries need
            self._resources = library.StandardGpuResources()
        config = library.GpuIndexFlatConfig()
        config.useFloat16 = half
        return library.GpuIndexFlatIP(self._resources, dimension, config)

    def run(self, work: Callable[[], R]) -> R:
        """Run `work` on that thread and return its result."""
        return self._thread.submit(work).result()

    def close(self) -> None:
        self._thread.shutdown()


def find_gpu() -> Gpu | None:
    """Return the GPU; None, with a line in the log, if FAISS was built without GPU support or finds no GPU."""
    if hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus():
        return Gpu()
    _log.info("Galleries are searched on the CPU: the installed FAISS finds no GPU.")
    return None


class GpuIndex:
    """A `Scan` of rows copied to the GPU. Use it on the GPU's thread, `rough` and `errors` on any."""

    def __init__(self, gpu: Gpu, dimension: int, *, half: bool) -> None:
        self.half = half
        self._index = _translated(lambda: gpu.flat(dimension, half=half))
        self._exact = ExactScan(np.empty((0, dimension), np.float32))

    def extend(self, vectors: Vectors) -> None:
        """Add the rows of `vectors` that it lacks. Raises GpuFailed."""
        self._exact = ExactScan(vectors)
        _translated(lambda: self._index.add(vectors[self._index.ntotal :]))

    def nearest(self, start: int, end: int, probes: Vectors, fetch: int) -> Near:
        """Score all rows: `start` must be 0 and `end` their number. Raises GpuFailed."""
        width = min(fetch, end - start, MAX_FETCH)
        scores, rows = _translated(lambda: self._index.search(probes, width))
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
    """Bound the distance between a vector and its float16 copy: 2^-11 of each number, 2^-25 of tiny ones."""
    return LENGTH * 2.0**-11 + float(dimension**0.5) * 2.0**-25


def _translated(work: Callable[[], R]) -> R:
    try:
        return work()
    except RuntimeError as error:  # of FAISS, whatever the cause
        raise GpuFailed(str(error)) from error
