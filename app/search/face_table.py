"""The faces of one index in memory, and exact scores between them and probes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.search.quantised import NO_ROW
from app.search.rows import Rows, SubjectRows, grown
from app.search.types import FaceBlock, IndexKind, Keys, Match
from app.types import Vector, Vectors

MIN_WEIGHT = 1.0
"""Weight of a face of quality 0 in its subject's mean template."""
EXACT_ROWS = 1_024
"""Rows scored at once in float64: 1 MiB at 128 numbers, which stays in a core's cache."""
WIDEN = 8
"""Factor by which the search for enough subjects looks at more rows each time."""


class FaceTable:
    """One row a face, without gaps: its key, weight, subject and vector. Not safe to share between threads.

    Scores are computed in float64 from the stored float32 vectors, row by row, so they depend on nothing but the two
    vectors: not on how many probes were scored together, on where the row lies, nor on the kind of search.
    """

    def __init__(self, dimension: int, kind: IndexKind) -> None:
        self.rows = Rows(dimension, kind)
        self.subject_rows = SubjectRows()
        self._faces = np.empty(0, np.int64)
        self._weights = np.empty(0, np.float32)

    @property
    def count(self) -> int:
        return self.rows.count

    @property
    def faces(self) -> Keys:
        return self._faces[: self.count]

    @property
    def weights(self) -> NDArray[np.float32]:
        return self._weights[: self.count]

    @property
    def subjects(self) -> Keys:
        return self.subject_rows.subjects

    @property
    def size(self) -> int:
        """Bytes in use."""
        return self.rows.size + self.subject_rows.size + self.faces.nbytes + self.weights.nbytes

    def append(self, block: FaceBlock, vectors: Vectors) -> None:
        """Add faces; `vectors` are the block's, contiguous."""
        start, end = self.count, self.count + len(block.faces)
        self._faces, self._weights = grown(self._faces, start, end), grown(self._weights, start, end)
        self._faces[start:end] = block.faces
        self._weights[start:end] = np.maximum(block.qualities, MIN_WEIGHT)
        self.subject_rows.append(block.subjects)
        self.rows.append(vectors)

    def remove(self, row: int) -> None:
        """Remove a row; the last row takes its place."""
        last = self.count - 1
        for column in (self._faces, self._weights):
            column[row] = column[last]
        self.subject_rows.remove(row)
        self.rows.remove(row)

    def equal(self, block: FaceBlock, which: NDArray[np.bool_], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the faces `which` of `block` equal `rows`, bit by bit."""
        return np.asarray(
            (self.rows.vectors[rows] == block.vectors[which]).all(axis=1)
            & (self.subjects[rows] == block.subjects[which])
            & (self._weights[rows] == np.maximum(block.qualities[which], MIN_WEIGHT))
        )

    def scores(self, probes: Vectors, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the (Q, R) exact cosines of each probe with its `rows`, (Q, R); -inf for NO_ROW.

        A BLAS product would sum in an order that depends on the number of rows.
        """
        vectors, wide = self.rows.vectors, probes.astype(np.float64)
        scores = np.full(rows.shape, -np.inf)
        for start in range(0, rows.shape[1], EXACT_ROWS):
            some = slice(start, start + EXACT_ROWS)
            for probe, mine, found in zip(wide, rows[:, some], scores[:, some], strict=True):
                there = mine != NO_ROW
                found[there] = (vectors[mine[there]] * probe).sum(axis=1)  # (EXACT_ROWS, D) float64
        return scores

    def best(self, probes: Vectors, rows: NDArray[np.int64], limit: int) -> list[list[tuple[int, float]]]:
        """Return for each probe the best row and its score of each of the `limit` best subjects among its `rows`.

        `rows` is (Q, R), padded with NO_ROW.
        """
        scores = self.scores(probes, rows)
        order = np.lexsort((self._faces[rows], -scores), axis=-1)
        rows, scores = np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)
        counts = np.count_nonzero(rows != NO_ROW, axis=1).tolist()
        ranked = zip(self.subjects[rows].tolist(), rows.tolist(), scores.tolist(), counts, strict=True)
        return [
            _firsts(subjects[:count], found[:count], values[:count], limit) for subjects, found, values, count in ranked
        ]

    def best_of_all(
        self, probe: Vector, rough: NDArray[np.float32], error: float, limit: int, width: int
    ) -> list[tuple[int, float]]:
        """Return the `best` of all rows, given their `rough` scores, (N,), which may be wrong by `error`.

        Looks at the `width` best rows first, and at WIDEN times as many until they hold enough subjects.
        """
        width = min(len(rough), width)
        while True:
            near = np.argpartition(rough, -width)[-width:] if width < len(rough) else np.arange(len(rough))
            best = self._best_rough(rough, near, limit)
            if len(best) == limit:
                near = np.flatnonzero(rough >= best[-1] - 2 * error)
            if len(best) == limit or width == len(rough):
                return self.best(probe[None], near[None], limit)[0]
            width = min(len(rough), WIDEN * width)

    def matches(self, probe: Vector, best: Sequence[tuple[int, float]]) -> list[Match]:
        """Return rows and scores as matches, with the scores of the subjects' mean templates."""
        matches = []
        for row, score in best:
            subject = int(self.subjects[row])
            faces = self.subject_rows.faces_of(subject)
            mean_score = score if faces == 1 else float((self.mean(subject) * probe.astype(np.float64)).sum())
            matches.append(Match(subject, int(self._faces[row]), _cosine(score), _cosine(mean_score), faces))
        return matches

    def mean(self, subject: int) -> NDArray[np.float64]:
        """Return the (D,) mean of the subject's vectors, weighted by quality, of length 1; zeros if they cancel out.

        The subject must have a face.
        """
        rows = list(self.subject_rows.rows_of(subject))
        ordered = np.array(rows)[np.argsort(self._faces[rows])]  # so that the sum doesn't depend on the rows' places
        total = (self.rows.vectors[ordered] * self._weights[ordered, None].astype(np.float64)).sum(axis=0)  # (D,)
        length = float(np.linalg.norm(total))
        unit: NDArray[np.float64] = total / length if length > 0 else total
        return unit

    def _best_rough(self, rough: NDArray[np.float32], rows: NDArray[np.int64], limit: int) -> list[float]:
        order = rows[np.argsort(-rough[rows])]
        _, firsts = np.unique(self.subjects[order], return_index=True)
        return [float(score) for score in rough[order[np.sort(firsts)[:limit]]]]


def _firsts(subjects: list[int], rows: list[int], scores: list[float], limit: int) -> list[tuple[int, float]]:
    """Return row and score of the first appearance of each of the first `limit` subjects."""
    found: dict[int, tuple[int, float]] = {}
    for subject, row, score in zip(subjects, rows, scores, strict=True):
        if subject not in found:
            found[subject] = (row, score)
            if len(found) == limit:
                break
    return list(found.values())


def _cosine(score: float) -> float:
    """Clip to -1…1: vectors have length 1 only within float32's rounding."""
    return min(1.0, max(-1.0, score))
