"""Keep copies of indexes' vectors in a GPU's memory, where FAISS or ONNX Runtime searches them.

FAISS's objects for a GPU belong to one thread: only the thread of their lane makes, uses and frees them; other threads
refer to them by keys. Tests use the same indexes on the CPU in place of the GPU. The part with FAISS was run on an
H200; of `product`, only the graph was.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count, cycle
from typing import Any, TypeVar

import faiss
import numpy as np

from app.api.feature import Feature
from app.choices import GpuSearch
from app.features.gpu_search.product import ProductIndex
from app.inference.session import resolve_device
from app.search.index import Rows, View
from app.search.quantised import MAX_LENGTH, NO_ROW, Near, rounding
from app.types import Vectors

LANES = 2
"""Number of threads: with two, a large gallery's search doesn't make all other galleries wait. Not measured yet."""
TEMPORARY_BYTES = 256 * 1024 * 1024
"""GPU memory that FAISS reserves for each lane's intermediate results; its default is 1.5 GB."""
MAX_FETCH = 2_048
"""Maximum number of rows that FAISS's GPU kernels can select per probe."""
EXTEND_FROM = 8_192
"""Minimum number of new rows to copy them to the GPU; fewer are searched by the CPU."""
KEEPS_REMOVED_S = 60.0
"""Seconds for which removed faces may stay on a GPU. After that, the copy is replaced in the background by one without
them."""
RETRY_S = 30.0
"""Seconds for which the CPU searches after the GPU has failed; then the GPU is tried again, since its memory may be
free."""
R = TypeVar("R")
_log = logging.getLogger(__name__)
_keys = count()


class GpuFailed(Exception):
    """The GPU's memory is full, or the GPU has failed. The message is FAISS's or ONNX Runtime's."""


class Gpu:
    """The first GPU, with its lanes."""

    def __init__(self, search: GpuSearch = "faiss") -> None:
        self._search = search
        lanes = [Lane(self) for _ in range(LANES)]
        self._lanes, self._next = lanes, cycle(lanes)

    def copy(self, dimension: int) -> GpuCopy:
        """Return a new copy of an index's rows, which is empty at first."""
        return GpuCopy(self.lane(), dimension)

    def lane(self) -> Lane:
        """Return the lane of the next index."""
        return next(self._next)

    def resources(self) -> Any:
        """Return FAISS's resources for one lane; None if FAISS is not used. Call it on that lane."""
        if self._search == "product":
            return None
        library: Any = faiss
        made = library.StandardGpuResources()
        made.setTempMemory(TEMPORARY_BYTES)
        return made

    def flat(self, resources: Any, dimension: int, *, half: bool) -> Any:
        """Return an empty index that compares by inner product, of float32 or, with `half`, float16. Call it on its
        lane."""
        if self._search == "product":
            return ProductIndex(dimension, half=half)
        library: Any = faiss
        config = library.GpuIndexFlatConfig()
        config.useFloat16 = half
        return library.GpuIndexFlatIP(resources, dimension, config)

    def tidy(self) -> None:
        """Free the GPU memory of deleted indexes. To be called often."""
        for lane in self._lanes:
            if lane.unused:
                lane.run(lane.free_unused)

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()


class Lane:
    """One thread with FAISS's resources and indexes."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._thread = ThreadPoolExecutor(1, "gpu search")
        self._resources: Any = None  # made at the first use, since they reserve memory that only large galleries need
        self._indexes: dict[int, Any] = {}
        self.unused: deque[int] = deque()
        """Keys of indexes that are no longer used."""

    def run(self, work: Callable[[], R]) -> R:
        """Run `work` on this lane's thread and return its result. Raises GpuFailed."""
        outcome = self._thread.submit(self._outcome, work).result()
        if isinstance(outcome, GpuFailed):
            raise outcome
        return outcome

    def index(self, key: int, dimension: int, *, half: bool) -> Any:
        """Return the FAISS index of this key, empty at first. Call it on this thread, and don't keep the result."""
        if key not in self._indexes:
            self._resources = self._resources or self._gpu.resources()
            self._indexes[key] = self._gpu.flat(self._resources, dimension, half=half)
        return self._indexes[key]

    def drop(self, key: int) -> None:
        """Let this lane's thread free the index of this key later. Takes no lock, since garbage collection may call
        this at any moment."""
        self.unused.append(key)

    def free_unused(self) -> None:
        """Free the dropped indexes. Call it on this thread."""
        while self.unused:
            self._indexes.pop(self.unused.popleft(), None)

    def close(self) -> None:
        self._thread.submit(self._clear).result()
        self._thread.shutdown()

    def _outcome(self, work: Callable[[], R]) -> R | GpuFailed:
        """Return the result of `work`, or its error without raising it, since the traceback would carry FAISS's objects
        to another thread."""
        try:
            return work()
        except RuntimeError as error:  # FAISS raises RuntimeError for every failure
            return GpuFailed(str(error))
        finally:
            self.free_unused()

    def _clear(self) -> None:
        self._indexes.clear()
        self._resources = None


class GpuRows:
    """A copy of rows on a GPU, in which removed rows stay. To be used on its lane only."""

    def __init__(self, lane: Lane, rows: Rows, dimension: int, *, half: bool) -> None:
        self.rows, self.half = rows, half
        self.count = 0
        self.removed = rows.removed
        """Number of removed rows when the copy was made."""
        self.made_at = time.monotonic()
        self._lane, self._dimension = lane, dimension
        self._key = next(_keys)
        weakref.finalize(self, lane.drop, self._key)

    def extend(self, view: View) -> None:
        """Add the rows of ``view`` that the copy lacks."""
        self._index().add(view.vectors[self.count :])
        self.count = view.count

    def nearest(self, probes: Vectors, fetch: int) -> Near:
        """Return the `fetch` highest scores of each probe, as `Scan.nearest` does. `probes`: (Q, D) float32; with
        float16 they are rounded too."""
        width = min(fetch, self.count, MAX_FETCH)
        scores, rows = self._index().search(probes, width)
        scores = np.where(rows == NO_ROW, -np.inf, scores).astype(np.float32)
        floors = np.full(len(probes), -np.inf, np.float32) if width == self.count else scores[:, -1]
        errors = np.full(len(probes), rounding(self._dimension))
        if self.half:
            lengths = np.linalg.norm(probes.astype(np.float64), axis=1)
            # The rounding errors of the probe and of the row, each doubled, since the score may be rounded too.
            errors += (2 * np.maximum(lengths, MAX_LENGTH) + 2) * half_error(self._dimension)
        return Near(scores, rows, floors, errors)

    def _index(self) -> Any:
        return self._lane.index(self._key, self._dimension, half=self.half)


class GpuCopy:
    """A copy of an index's rows on a GPU. It is made at the first search, extended by new rows, and made again to get
    rid of removed rows. Rows are float16 with `half`, else float32."""

    def __init__(self, lane: Lane, dimension: int) -> None:
        self._lane, self._dimension = lane, dimension
        self._rows: GpuRows | None = None  # made and replaced only on the lane's thread
        self._again_at = 0.0

    def search(
        self, read: Callable[[], View], probes: Vectors, fetch: int, *, half: bool
    ) -> tuple[View, int, Near] | None:
        """Search for the `fetch` nearest rows of each probe, (Q, D) float32. Return the view that `read` returns, how
        many of its rows were searched, and the nearest of these rows; None if the CPU has to search instead."""
        if time.monotonic() < self._again_at:
            return None
        try:
            return self._lane.run(lambda: self._pass(read(), probes, fetch, half=half))
        except GpuFailed as error:
            self._rows, self._again_at = None, time.monotonic() + RETRY_S
            _log.warning("An index of %d faces is searched on the CPU for a while: %s", read().count, error)
            return None

    def maintain(self, read: Callable[[], View], *, half: bool) -> None:
        """Make the copy again if removed faces have been on the GPU for KEEPS_REMOVED_S, or if the index's rows were
        replaced. Searches on the same lane wait meanwhile."""
        copy = self._rows
        if copy is None:
            return
        old = time.monotonic() - copy.made_at >= KEEPS_REMOVED_S and copy.rows.removed > copy.removed
        if old or copy.rows is not read().rows:
            with suppress(GpuFailed):  # the next search reports the failure
                self._lane.run(lambda: self._current(read(), half=half, anew=True))

    # On the lane's thread

    def _pass(self, view: View, probes: Vectors, fetch: int, *, half: bool) -> tuple[View, int, Near]:
        copy = self._current(view, half=half)
        return view, copy.count, copy.nearest(probes, fetch)

    def _current(self, view: View, *, half: bool, anew: bool = False) -> GpuRows:
        """Return the current copy of the rows. Make it or extend it by new rows if needed."""
        copy = self._rows
        if anew or copy is None or copy.rows is not view.rows or copy.half != half:
            self._rows = copy = None
            self._lane.free_unused()  # frees the old copy first, since the GPU may not have room for both
            copy = GpuRows(self._lane, view.rows, self._dimension, half=half)
        if not copy.count or view.count - copy.count >= EXTEND_FROM:
            copy.extend(view)
        self._rows = copy
        return copy


def find_gpu(search: GpuSearch) -> Gpu | None:
    """Return the GPU; None, after logging why, if FAISS (or ONNX Runtime, for ``product``) can't use one."""
    if search == "product":
        if resolve_device("auto") == "cuda":
            return Gpu(search)
        _log.info("Galleries are searched on the CPU: the installed ONNX Runtime has no CUDA.")
        return None
    if hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus():
        return Gpu()
    _log.info("Galleries are searched on the CPU: the installed FAISS finds no GPU.")
    return None


def half_error(dimension: int) -> float:
    """Return the maximum distance between a unit vector and its float16 copy. Rounding changes each number by at most
    2^-11 of itself, or by 2^-25."""
    return MAX_LENGTH * 2.0**-11 + float(dimension**0.5) * 2.0**-25


FEATURE = Feature(find_gpu=find_gpu)
