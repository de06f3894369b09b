"""Examine one subject of a gallery: apply the rules to its faces, and make findings of the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.choices import FindingKind
from app.features.review import rules
from app.features.review.records import Draft, Evidence
from app.features.review.rules import Cosines, Mask, Points, Within
from app.features.review.separation import ErrorCounts, count
from app.search.types import FaceBlock, Keys, Match
from app.types import Vectors

LEAST_GROUP = 2
"""Minimum number of good faces in a group that counts as another person, since a single face may just be unusual. Poor
faces don't count, since a person's profiles resemble each other but not the person's front view."""
MOST_FACES = 256
"""Maximum faces of a subject to compare with another subject's: those of the highest quality."""


@dataclass(frozen=True, slots=True)
class Nearest:
    """For each of N faces, the most similar face of each of the K most similar other subjects, most similar first.

    Arrays are (N, K). Missing scores are -inf, missing keys -1.
    """

    scores: Cosines
    faces: Keys
    subjects: Keys


def nearest_of(rows: Sequence[Sequence[Match]], width: int) -> Nearest:
    """Return the first `width` matches of each row as arrays."""
    scores = np.full((len(rows), width), -np.inf)
    faces, subjects = np.full((len(rows), width), -1, np.int64), np.full((len(rows), width), -1, np.int64)
    for row, matches in enumerate(rows):
        for place, match in enumerate(matches[:width]):
            scores[row, place], faces[row, place], subjects[row, place] = match.score, match.face, match.subject
    return Nearest(scores, faces, subjects)


class Examiner:
    """Examines subjects at one gallery's operating points.

    ``fmr_of`` returns the FMR of a score as threshold; ``read`` returns the faces of subjects, by the subjects' keys.
    """

    def __init__(
        self,
        points: Points,
        fmr_of: Callable[[float], float | None],
        read: Callable[[Sequence[int]], Mapping[int, FaceBlock]],
    ) -> None:
        self._points = points
        self._fmr_of = fmr_of
        self._read = read

    @property
    def least(self) -> float:
        """Return the lowest score with another subject that can lead to a finding."""
        return self._points.identify.uncertain

    def examine(
        self, block: FaceBlock, nearest: Nearest, wrong: Mapping[int, Vectors]
    ) -> tuple[list[Draft], ErrorCounts]:
        """Return the findings about a subject, and its row of counts for `app.features.review.separation`.

        ``block``: the subject's faces. ``nearest``: the other subjects that resemble each face most. ``wrong``: the
        recorded wrong probes of all these subjects, (M, D), by the subject's key.
        """
        uncertain, verify = self._points.identify.uncertain, self._points.verify.threshold
        within = rules.compare_within(block.vectors, np.ones(len(block.faces), bool))
        other = nearest.scores[:, 0]
        misplaced = self._find_misplaced(nearest, within)
        pairs = self._pairs(block, nearest, ~misplaced, wrong)
        wrong_scores = rules.nearest_wrong(block.vectors, wrong.get(int(block.subjects[0])))
        corrected = rules.find_corrected(within, wrong_scores, self._points)
        misplaced &= ~np.isin(nearest.subjects[:, 0], list(pairs))
        corrected &= ~misplaced
        drafts = list(pairs.values())
        for row in np.flatnonzero(misplaced).tolist():
            terms = {"score": other[row], "threshold": uncertain, "beyond": within.best[row]}
            drafts.append(self._draft("misplaced_face", block, within, row, **terms, other=nearest.faces[row, 0]))
        for row in np.flatnonzero(corrected).tolist():
            terms = {"score": wrong_scores[row], "threshold": verify, "beyond": max(within.best[row], verify)}
            drafts.append(self._draft("corrected_face", block, within, row, **terms))
        misplaced |= corrected
        drafts += self._two_people(block.only(~misplaced))
        rest = rules.compare_within(block.vectors, ~misplaced)
        strangers = self._points.strangers(max(1, int((~misplaced).sum()) - 1))
        outliers = rules.find_outliers(rest, block.qualities, strangers) & ~misplaced
        for row in _once(block, rest, outliers):
            score, face = float(rest.best[row]), int(block.faces[row])
            evidence = Evidence(own_score=score, threshold=strangers, fmr=self._fmr_of(score))
            drafts.append(Draft("outlier", strangers - score, face, int(block.faces[rest.at[row]]), evidence))
        harmful = rules.find_harmful(rest, other, block.qualities, self._points) & ~misplaced & ~outliers
        for row in np.flatnonzero(harmful).tolist():
            terms = {"score": other[row], "threshold": uncertain, "beyond": uncertain}
            drafts.append(self._draft("poor_face", block, rest, row, **terms, other=nearest.faces[row, 0]))
        if block.qualities.max() < rules.GOOD:
            best = int(block.qualities.argmax())
            strength = (rules.GOOD - float(block.qualities[best])) / 100
            drafts.append(Draft("no_good_face", strength, int(block.faces[best]), None, Evidence()))
        misses = (within.best < verify) | corrected
        return drafts, count(misses, other >= self._points.identify.threshold, mated=np.isfinite(within.best))

    def _find_misplaced(self, nearest: Nearest, within: Within) -> Mask:
        """Return which faces, (N,) bool, are misplaced. If the other face is itself misplaced, this one may be in the
        right place, so it is left out."""
        misplaced = rules.find_misplaced(within, nearest.scores[:, 0], self._points)
        if misplaced.any():
            others = self._read(np.unique(nearest.subjects[misplaced, 0]).tolist())
            for row in np.flatnonzero(misplaced).tolist():
                other = others.get(int(nearest.subjects[row, 0]))
                misplaced[row] = other is not None and self._is_at_home(other, int(nearest.faces[row, 0]))
        return misplaced

    def _is_at_home(self, block: FaceBlock, face: int) -> bool:
        """Return whether the face matches another face of its subject, or is the subject's only face."""
        row = block.faces == face
        scores = block.vectors[~row] @ block.vectors[row].T
        return bool(row.any()) and (not scores.size or bool(scores.max() >= self._points.verify.threshold))

    def _pairs(self, block: FaceBlock, nearest: Nearest, kept: Mask, wrong: Mapping[int, Vectors]) -> dict[int, Draft]:
        """Return the findings that another subject may be the same person, by that subject's key. Only `kept` faces are
        compared."""
        close = nearest.scores[kept] >= self._points.identify.threshold
        candidates = np.unique(nearest.subjects[kept][close]).tolist()
        if not candidates:
            return {}
        mine = _best(block, kept)
        others = self._read(candidates)
        drafts = ((key, self._pair(mine, others[key], wrong)) for key in candidates if key in others)
        return {key: draft for key, draft in drafts if draft is not None}

    def _pair(self, mine: FaceBlock, other: FaceBlock, wrong: Mapping[int, Vectors]) -> Draft | None:
        within = rules.compare_within(other.vectors, np.ones(len(other.faces), bool))
        with_mine = (other.vectors @ mine.vectors.T).max(axis=1).astype(np.float64)
        kept = ~rules.find_misplaced(within, with_mine, self._points)
        if not kept.any():
            return None
        first, second = sorted((mine, _best(other, kept)), key=lambda block: int(block.subjects[0]))
        not_first, not_second = (wrong.get(int(block.subjects[0])) for block in (first, second))
        alike = rules.compare_subjects(
            first.vectors, second.vectors, self._points, not_first=not_first, not_second=not_second
        )
        if not rules.may_be_one(alike, self._points):
            return None
        evidence = Evidence(
            score=alike.score,
            matching=alike.matching,
            threshold=self._points.identify.threshold,
            fmr=self._fmr_of(alike.score),
        )
        strength = alike.typical - self._points.verify.threshold
        faces = int(first.faces[alike.row]), int(second.faces[alike.other_row])
        return Draft("same_person", strength, *faces, evidence)

    def _two_people(self, block: FaceBlock) -> list[Draft]:
        """Return a finding for each group of faces that looks like another person than the subject's largest group."""
        good = block.qualities >= rules.GOOD
        groups = [rows for rows in rules.find_groups(block.vectors, self._points) if good[rows].sum() >= LEAST_GROUP]
        drafts = []
        for rows in groups[1:]:
            scores = (block.vectors[groups[0]] @ block.vectors[rows].T).astype(np.float64)
            best, threshold = float(scores.max()), self._points.linked
            evidence = Evidence(score=best, threshold=threshold, fmr=self._fmr_of(best))
            face, other = (
                int(block.faces[group_rows[np.argmax(block.qualities[group_rows])]]) for group_rows in (groups[0], rows)
            )
            group = tuple(block.faces[rows].tolist())
            drafts.append(Draft("two_people", threshold - best, face, other, evidence, group))
        return drafts

    def _draft(
        self,
        kind: FindingKind,
        block: FaceBlock,
        within: Within,
        row: int,
        *,
        score: float,
        threshold: float,
        beyond: float,
        other: int | None = None,
    ) -> Draft:
        """Return a finding about a face that looks like another person; its strength is the score minus `beyond`."""
        score, own_score = float(score), float(within.best[row])
        evidence = Evidence(
            score=score,
            own_score=own_score if np.isfinite(own_score) else None,
            threshold=threshold,
            fmr=self._fmr_of(score),
        )
        face = None if other is None else int(other)
        return Draft(kind, score - float(beyond), int(block.faces[row]), face, evidence)


def _once(block: FaceBlock, within: Within, outliers: Mask) -> list[int]:
    """Return the outliers' rows; of two outliers that are each other's most similar face, only the one of lower
    quality."""
    rows = np.flatnonzero(outliers)
    mutual = outliers[within.at[rows]] & (within.at[within.at[rows]] == rows)
    rank = np.lexsort((block.faces, block.qualities)).argsort()
    return [int(row) for row, both in zip(rows, mutual, strict=True) if not both or rank[row] < rank[within.at[row]]]


def _best(block: FaceBlock, kept: Mask) -> FaceBlock:
    """Return the `kept` faces, at most MOST_FACES of the highest quality."""
    rows = np.flatnonzero(kept)
    if len(rows) > MOST_FACES:
        order = np.lexsort((block.faces[rows], -block.qualities[rows]))
        rows = np.sort(rows[order[:MOST_FACES]])
    return block.only(rows)
