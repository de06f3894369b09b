"""Aligned crops to templates, joined with what other requests embed at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import numpy as np

from app.machine import cores
from app.runtime.batcher import Batcher
from app.runtime.session import EmbedderSession
from app.types import Pixels, Template, Vector, Vectors

CPU_MAX_BATCH = 8
"""Chosen under load, where whole photos compete for the caches: with 8 a server of two cores identifies 5 to 9 % more
than with 4 (docs/explanation/performance.md). Alone on its core the prepared SFace gains little: 9.3, 8.2, 7.9, 7.8 ms
a face at 1, 2, 4, 8 crops on AVX-512."""
CUDA_MAX_BATCH = 64
CUDA_WAIT_S = 0.002
"""Two values not measured yet: a GPU needs large batches, and a wait far below the time that one photo takes."""
QUEUE_LIMIT = 256
"""Crops that may wait: some seconds' work for two cores."""


class Embedder:
    """Templates of aligned crops by one embedding package; `embed` may be called from many threads at once.

    By default a CPU gets as many workers as this process may use cores, each running small batches on a session of one
    thread, and a GPU one worker with large ones. ``flip`` averages each crop's vector with its mirror image's, at twice
    the cost.
    """

    def __init__(
        self,
        session: EmbedderSession,
        *,
        flip: bool = False,
        max_batch: int | None = None,
        max_wait_s: float | None = None,
        queue_limit: int = QUEUE_LIMIT,
        workers: int | None = None,
        spare: Callable[[int], bool] = lambda _busy: True,
    ) -> None:
        """``spare`` says, told how many workers are busy, whether there is a core for one more with less than a full
        batch; by default there is."""
        gpu = session.device == "cuda"
        self.package_id, self.dimension, self.device = session.package_id, session.dimension, session.device
        self._session, self._flip = session, flip
        self._batcher = Batcher[Pixels, Vector](
            self._embed_batch,
            max_batch=max_batch or (CUDA_MAX_BATCH if gpu else CPU_MAX_BATCH),
            max_wait_s=(CUDA_WAIT_S if gpu else 0.0) if max_wait_s is None else max_wait_s,
            queue_limit=queue_limit,
            workers=workers or (1 if gpu else cores()),
            spare=spare,
            name="embed",
        )

    def embed(self, crops: Sequence[Pixels]) -> tuple[list[Template], int]:
        """Templates of (112, 112, 3) uint8 RGB aligned crops in their order, and the size of the largest batch that
        one of them was part of (0 without crops).

        Raises Overloaded when too much is waiting already.
        """
        results = self._batcher.run_counted(crops)
        templates = [Template(vector, self.package_id) for vector, _batch in results]
        return templates, max((batch for _vector, batch in results), default=0)

    @property
    def waiting(self) -> int:
        """How many crops wait now."""
        return self._batcher.waiting

    @property
    def batch_sizes(self) -> dict[int, int]:
        """How many batches of each size there were."""
        return self._batcher.batch_sizes

    def close(self) -> None:
        """Finishes what waits and takes nothing more."""
        self._batcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _embed_batch(self, crops: list[Pixels]) -> list[Vector]:
        stacked = np.stack(crops)
        vectors = self._run(stacked)
        if self._flip:
            vectors = unit(vectors + self._run(stacked[:, :, ::-1]))
        return [vector.copy() for vector in vectors]  # a row alone would keep its whole batch in memory

    def _run(self, crops: Pixels) -> Vectors:
        """(N, 112, 112, 3) -> (N, D). On a GPU in sizes from a fixed set: memory is planned and kept for every size."""
        if self.device == "cpu":
            return self._session.run(np.ascontiguousarray(crops))
        padded = np.zeros((bucket(len(crops)), *crops.shape[1:]), np.uint8)
        padded[: len(crops)] = crops
        return self._session.run(padded)[: len(crops)]


def unit(vectors: Vectors) -> Vectors:
    """(N, D) rows scaled to length 1; a zero row (a vector and its opposite were added) stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Vectors = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return scaled


def bucket(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()
