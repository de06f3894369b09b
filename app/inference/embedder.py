"""From aligned crops to templates, in batches joined across concurrent requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from app.concurrency.batcher import Batcher
from app.inference.session import EmbedderSession
from app.machine import cores
from app.types import Pixels, Template, Vector, Vectors

CPU_MAX_BATCH = 8
"""Chosen under load, where whole photos compete for the caches: with 8 a server of two cores identifies 5 to 9 % more
than with 4 (docs/explanation/performance.md). Alone on its core the prepared SFace gains little: 9.3, 8.2, 7.9, 7.8 ms
a face at 1, 2, 4, 8 crops on AVX-512."""
CUDA_MAX_BATCH = 64
CUDA_WAIT_S = 0.002
"""Neither value has been measured yet: a GPU needs large batches, and a wait far below the time of one photo."""
QUEUE_LIMIT = 256
"""Crops that may wait: a few seconds of work for two cores."""


class Embedder:
    """Embed aligned crops with one package; `embed` may be called from many threads at once.

    By default a CPU gets one worker a core, each running small batches in one thread; a GPU gets one worker with large
    batches. ``flip`` averages each crop's vector with that of its mirror image, at twice the cost.
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
        """``spare(busy)`` says whether another worker may start with a batch that is not full; by default always."""
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
        """Return the templates of (112, 112, 3) uint8 RGB aligned crops in order, and the size of the largest batch
        that one of them was part of (0 without crops).

        Raises Overloaded if the queue is full.
        """
        results = self._batcher.run_counted(crops)
        templates = [Template(vector, self.package_id) for vector, _batch in results]
        return templates, max((batch for _vector, batch in results), default=0)

    @property
    def waiting(self) -> int:
        """How many crops wait."""
        return self._batcher.waiting

    @property
    def batch_sizes(self) -> dict[int, int]:
        """How many batches of each size there were."""
        return self._batcher.batch_sizes

    def close(self) -> None:
        """Finish the waiting crops; later calls raise Overloaded."""
        self._batcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _embed_batch(self, crops: list[Pixels]) -> list[Vector]:
        stacked = np.stack(crops)
        vectors = self._run(stacked)
        if self._flip:
            vectors = unit(vectors + self._run(stacked[:, :, ::-1]))
        return [vector.copy() for vector in vectors]  # a row alone would keep its whole batch in memory

    def _run(self, crops: Pixels) -> Vectors:
        """Run the model: (N, 112, 112, 3) -> (N, D). On a GPU, batches are padded to a fixed set of sizes (one memory
        plan each)."""
        if self.device == "cpu":
            return self._session.run(np.ascontiguousarray(crops))
        padded = np.zeros((bucket(len(crops)), *crops.shape[1:]), np.uint8)
        padded[: len(crops)] = crops
        return self._session.run(padded)[: len(crops)]


def unit(vectors: Vectors) -> Vectors:
    """Scale (N, D) rows to length 1; a zero row stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Vectors = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return scaled


def bucket(count: int) -> int:
    """Return the smallest power of two that is at least ``count``."""
    return 1 << (count - 1).bit_length()
