"""Approximate search: which rows of an index lie in which cell of space, and what looking at a few cells misses.

Cells hold numbers of rows, not vectors: what they are asked for is scored exactly, as everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from app.gallery.records import Approximation
from app.search.quantised import NO_ROW, ExactScan, Near
from app.search.rows import grown
from app.types import Vectors

RECALL = 0.99
"""How often the nearest face is to be found; as few cells are looked at as that takes."""
NEAREST = 10
PROBES = 500
NOISE = 4 / 3
"""Length of what is added to a face of the gallery to make a probe of it: their cosine is then about 0.6, that of two
photos of a person. Among 21,024 templates of SFace, 4,714 other photos of their people needed as many cells as probes
made so; with a noise of 0.7, cosine 0.8, it looked as if a fifth of those were enough."""
CELLS_PER_ROOT = 2
"""Cells are so many times the root of the number of faces: finding the cells and looking through a few cost alike."""
SAMPLE_PER_CELL = 64
ROUNDS = 10
ASSIGN_ROWS = 8_192
PASS_SHARE, PASS_SHARE_PER_PROBE = 0.22, 0.008
"""Of all rows: when probes together have more to look at in cells, a pass over all 8-bit codes is the faster. Measured
at 128 numbers on one core: 57 ns a row in a cell, 37 ns a row in a pass over the vectors for one query, of which the
codes take a third; 64 queries make that three times as much."""
BELOW_ANY = np.float32(-2)
"""No cosine is so low."""
SEED = 1


class Cells:
    """Which rows lie in which cell. A row comes, goes and moves at the same cost whatever the size, finding its cell
    among all apart. Not safe to share between threads."""

    def __init__(self, centroids: Vectors) -> None:
        """`centroids`: (C, D) unit float32, C >= 1."""
        self._centroids = centroids
        self._lists = [np.empty(0, np.int32) for _ in centroids]
        self._counts = np.zeros(len(centroids), np.int64)
        self._cell_of = np.empty(0, np.int32)
        self._place_of = np.empty(0, np.int32)
        self.count = 0
        self.added = 0
        """Rows that have come since it was trained."""
        self.approximation = Approximation(1.0, 1.0, len(centroids), len(centroids), 0)

    @property
    def size(self) -> int:
        """Bytes, of the rows that there are."""
        of_rows = (self._cell_of[: self.count], self._place_of[: self.count])
        return self._centroids.nbytes + 4 * self.count + sum(array.nbytes for array in of_rows)

    @property
    def pays(self) -> bool:
        """Whether looking at so many cells costs less than at all rows, for one probe."""
        return self.approximation.probes < PASS_SHARE * self.approximation.cells

    def append(self, vectors: Vectors) -> None:
        """New rows, (N, D)."""
        if not len(vectors):
            return
        start, end = self.count, self.count + len(vectors)
        self._cell_of, self._place_of = grown(self._cell_of, start, end), grown(self._place_of, start, end)
        cells = self._cells(vectors)
        self._cell_of[start:end] = cells
        order = np.argsort(cells, kind="stable")
        found, begins = np.unique(cells[order], return_index=True)
        for cell, rows in zip(
            found.tolist(), np.split(order.astype(np.int32) + np.int32(start), begins[1:]), strict=True
        ):
            self._put(cell, rows)
        self.count = end
        self.added += len(vectors)

    def remove(self, row: int) -> None:
        """The last row takes its place."""
        self._take(row)
        last = self.count - 1
        if row != last:
            cell, place = int(self._cell_of[last]), int(self._place_of[last])
            self._lists[cell][place] = row
            self._cell_of[row], self._place_of[row] = cell, place
        self.count = last

    def replace(self, row: int, vectors: Vectors) -> None:
        """The row holds another vector, (1, D), now."""
        self._take(row)
        cell = int(self._cells(vectors)[0])
        self._cell_of[row] = cell
        self._put(cell, np.array([row], np.int32))

    def cut(self, count: int) -> None:
        """Only the first `count` rows are left."""
        for row in range(self.count - 1, count - 1, -1):
            self.remove(row)

    def candidates(self, probes: Vectors) -> list[NDArray[np.int64]] | None:
        """For each probe, (Q, D), the rows in the cells nearest to it; None where looking at all rows costs less."""
        some = _nearest(probes, self._centroids, self.approximation.probes)
        if self._counts[some].sum() > self.count * (PASS_SHARE + PASS_SHARE_PER_PROBE * len(probes)):
            return None
        return [
            np.concatenate([self._lists[cell][: self._counts[cell]] for cell in mine]).astype(np.int64)
            for mine in some.tolist()
        ]

    def measure(self, vectors: Vectors) -> None:
        """Chooses how many cells are looked at, for probes made of some of these, all the rows' vectors, (N, D)."""
        generator = np.random.default_rng(SEED)
        chosen = generator.choice(len(vectors), min(len(vectors), PROBES), replace=False)
        noise = generator.standard_normal((len(chosen), vectors.shape[1])) * (NOISE / vectors.shape[1] ** 0.5)
        noisy = vectors[chosen] + noise
        probes = (noisy / np.maximum(np.linalg.norm(noisy, axis=1, keepdims=True), 1e-9)).astype(np.float32)
        nearest = ExactScan(vectors).nearest(0, len(vectors), probes, NEAREST).rows  # (Q, <= 10)
        order = _nearest(probes, self._centroids, len(self._centroids))
        rank_of = np.empty_like(order)
        np.put_along_axis(rank_of, order, np.arange(order.shape[1])[None], 1)
        ranks = np.take_along_axis(rank_of, self._cell_of[nearest].astype(np.int64), 1)
        looked = int(np.sort(ranks[:, 0])[int(np.ceil(RECALL * len(ranks))) - 1]) + 1
        self.approximation = Approximation(
            recall_at_1=float((ranks[:, 0] < looked).mean()),
            recall_at_10=float((ranks < looked).mean()),
            probes=looked,
            cells=len(self._centroids),
            faces=len(vectors),
        )

    def _cells(self, vectors: Vectors) -> NDArray[np.int32]:
        """(N,) the cell that each vector belongs in."""
        cells = np.empty(len(vectors), np.int32)
        for start in range(0, len(vectors), ASSIGN_ROWS):
            some = np.ascontiguousarray(vectors[start : start + ASSIGN_ROWS])
            cells[start : start + len(some)] = _nearest(some, self._centroids, 1)[:, 0]
        return cells

    def _put(self, cell: int, rows: NDArray[np.int32]) -> None:
        start, end = int(self._counts[cell]), int(self._counts[cell]) + len(rows)
        self._lists[cell] = grown(self._lists[cell], start, end)
        self._lists[cell][start:end] = rows
        self._place_of[rows] = np.arange(start, end)
        self._counts[cell] = end

    def _take(self, row: int) -> None:
        """Out of its list, whose last entry takes its place."""
        cell, place = int(self._cell_of[row]), int(self._place_of[row])
        last = int(self._counts[cell]) - 1
        moved = int(self._lists[cell][last])
        self._lists[cell][place] = moved
        self._place_of[moved] = place
        self._counts[cell] = last


def trained(vectors: Vectors) -> Cells:
    """The cells of these rows, (N, D) unit float32, N >= 1, with what is missed measured. On this thread, for seconds
    where there are many; rows that change meanwhile may be in any cell."""
    count = min(len(vectors), round(CELLS_PER_ROOT * len(vectors) ** 0.5))
    generator = np.random.default_rng(SEED)
    chosen = generator.choice(len(vectors), min(len(vectors), SAMPLE_PER_CELL * count), replace=False)
    faiss.omp_set_num_threads(1)
    means = faiss.Kmeans(vectors.shape[1], count, niter=ROUNDS, spherical=True, seed=SEED, min_points_per_centroid=1)
    means.train(np.ascontiguousarray(vectors[np.sort(chosen)]))
    cells = Cells(np.ascontiguousarray(means.centroids, np.float32))
    cells.append(vectors)
    cells.measure(vectors)
    cells.added = 0
    return cells


def nearest_of(vectors: Vectors, candidates: Sequence[NDArray[np.int64]], probes: Vectors, fetch: int) -> Near:
    """For each probe, (Q, D), the `fetch` highest scores among its candidates, rows of `vectors`. Beyond them the floor
    is of its candidates alone. On this thread."""
    faiss.omp_set_num_threads(1)
    products: Any = getattr(faiss, "fvec_inner_products_by_idx")  # noqa: B009 - mypy doesn't see it
    width = min(fetch, max(len(rows) for rows in candidates))
    near = Near(
        np.full((len(probes), width), -np.inf, np.float32),
        np.full((len(probes), width), NO_ROW, np.int64),
        np.full(len(probes), BELOW_ANY),  # so that fewer subjects than are wanted are never taken for all
    )
    for place, (probe, rows) in enumerate(zip(probes, candidates, strict=True)):
        scores = np.empty(len(rows), np.float32)
        pointers = [faiss.swig_ptr(array) for array in (scores, probe, vectors, rows)]
        products(*pointers, len(probe), 1, len(rows))
        best = np.argpartition(scores, -width)[-width:] if len(rows) > width else np.arange(len(rows))
        best = best[np.argsort(-scores[best], kind="stable")]
        near.scores[place, : len(best)], near.rows[place, : len(best)] = scores[best], rows[best]
        if len(rows) > width:
            near.floors[place] = scores[best[-1]]
    return near


def _nearest(vectors: Vectors, centroids: Vectors, count: int) -> NDArray[np.int64]:
    """(N, count) the nearest cells of each vector, best first."""
    faiss.omp_set_num_threads(1)  # of this thread
    _, found = faiss.knn(np.ascontiguousarray(vectors), centroids, count, metric=faiss.METRIC_INNER_PRODUCT)
    return np.asarray(found, np.int64)
