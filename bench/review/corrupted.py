"""A gallery whose labels are wrong in known places, and which findings about it are right."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.review.records import Finding, FoundFace, Kind
from app.types import Vectors

GIVEN_AWAY, SPLIT, DEGRADED = 0.05, 0.05, 0.05
"""Shares of the faces given to others, of the people split in two, and of the faces replaced by poor copies."""


@dataclass(frozen=True, slots=True)
class Faces:
    """Faces of people whose names are known: (N, D) vectors, (N,) qualities, and the same of poor copies of them."""

    people: Sequence[str]
    vectors: Vectors
    qualities: NDArray[np.float32]
    poor_vectors: Vectors
    """(N, D); rows of zeros where there is no copy with a face."""
    poor_qualities: NDArray[np.float32]

    def only(self, names: set[str]) -> Faces:
        rows = np.array([row for row, name in enumerate(self.people) if name in names])
        return Faces(
            [self.people[row] for row in rows],
            self.vectors[rows],
            self.qualities[rows],
            self.poor_vectors[rows],
            self.poor_qualities[rows],
        )


@dataclass(frozen=True, slots=True)
class Corrupted:
    """The faces as they are enrolled: `subjects` are the labels, `faces.people` the truth."""

    faces: Faces
    subjects: Sequence[str]
    given_away: NDArray[np.bool_]
    degraded: NDArray[np.bool_]


def corrupt(faces: Faces, seed: int) -> Corrupted:
    """Split people in two, give faces to others, and replace faces by poor copies, each at random."""
    rng = np.random.default_rng(seed)
    subjects = list(faces.people)
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(faces.people):
        rows_of[name].append(row)
    several = sorted(name for name, rows in rows_of.items() if len(rows) > 1)
    for name in rng.choice(several, round(SPLIT * len(rows_of)), replace=False).tolist():
        rows = rng.permutation(rows_of[name])
        for row in rows[: rng.integers(1, len(rows))].tolist():
            subjects[row] = f"{name} (2)"
    names = sorted(set(subjects))
    given_away = np.zeros(len(subjects), bool)
    for row in rng.choice(len(subjects), round(GIVEN_AWAY * len(subjects)), replace=False).tolist():
        others = [name for name in rng.choice(names, 8).tolist() if name.removesuffix(" (2)") != faces.people[row]]
        subjects[row], given_away[row] = others[0], True
    degraded = np.zeros(len(subjects), bool)
    able = np.flatnonzero(np.any(faces.poor_vectors != 0, axis=1))
    degraded[rng.choice(able, min(len(able), round(DEGRADED * len(subjects))), replace=False)] = True
    enrolled = Faces(
        faces.people,
        np.where(degraded[:, None], faces.poor_vectors, faces.vectors),
        np.where(degraded, faces.poor_qualities, faces.qualities),
        faces.poor_vectors,
        faces.poor_qualities,
    )
    return Corrupted(enrolled, subjects, given_away, degraded)


@dataclass(frozen=True, slots=True)
class Judged:
    """Findings of one kind that are right and wrong, and what there was to find, each with the person it counts for."""

    right: Sequence[str]
    wrong: Sequence[str]
    found: Sequence[str]
    missed: Sequence[str]


def judge(gallery: Corrupted, findings: Sequence[Finding]) -> Mapping[str, Judged]:
    """Compare the findings with the truth, by kind.

    A subject is the person that most of its faces show. Two subjects of one person are to be found as `same_person`; a
    face of another person than its subject as `misplaced_face` if that person is there, else as `outlier` if its
    subject has another face. `foreign_face` is both together: such a face is named by either kind.
    """
    truth = _Truth.of(gallery)
    named: dict[Kind, list[Finding]] = defaultdict(list)
    for finding in findings:
        named[finding.kind].append(finding)
    moved = [{_row(one.face)} for one in named[Kind.MISPLACED]]
    # Of a subject's only two faces, either may be the wrong one.
    outliers = [
        {_row(one.face), _row(one.other)} if one.other and one.face.faces == 2 else {_row(one.face)}
        for one in named[Kind.OUTLIER]
    ]
    degraded = set(np.flatnonzero(gallery.degraded).tolist())
    return {
        "same_person": _judge_pairs(truth, named[Kind.SAME_PERSON]),
        "misplaced_face": _judge_faces(gallery, moved, truth.foreign, truth.to_move),
        "outlier": _judge_faces(gallery, outliers, truth.foreign, truth.to_drop),
        "foreign_face": _judge_faces(gallery, moved + outliers, truth.foreign, truth.to_move | truth.to_drop),
        "poor_face": _judge_faces(gallery, [{_row(one.face)} for one in named[Kind.HARMFUL]], degraded, degraded),
        "no_good_face": _judge_subjects(truth, named[Kind.NO_GOOD_FACE]),
    }


@dataclass(frozen=True, slots=True)
class _Truth:
    """Who each subject is, and which rows are wrong; `poor` subjects have degraded faces alone."""

    identity: Mapping[str, str]
    foreign: set[int]
    to_move: set[int]
    to_drop: set[int]
    poor: set[str]

    @classmethod
    def of(cls, gallery: Corrupted) -> _Truth:
        people, subjects = gallery.faces.people, gallery.subjects
        rows_of: dict[str, list[int]] = defaultdict(list)
        for row in np.argsort(gallery.given_away, kind="stable").tolist():  # so that ties go to a face's own person
            rows_of[subjects[row]].append(row)
        identity = {name: Counter(people[row] for row in rows).most_common(1)[0][0] for name, rows in rows_of.items()}
        there = set(identity.values())
        foreign = {row for row, subject in enumerate(subjects) if people[row] != identity[subject]}
        to_move = {row for row in foreign if people[row] in there}
        poor = {subject for subject, rows in rows_of.items() if gallery.degraded[rows].all()}
        return cls(identity, foreign, to_move, foreign - to_move, poor)


def _row(face: FoundFace) -> int:
    return int(face.face_id, 16)


def _judge_pairs(truth: _Truth, findings: Sequence[Finding]) -> Judged:
    pairs = [(truth.identity[one.face.subject], truth.identity[one.other.subject]) for one in findings if one.other]
    right = [one for one, other in pairs if one == other]
    twice = {name for name, count in Counter(truth.identity.values()).items() if count > 1}
    wrong = [one for one, other in pairs if one != other]
    return Judged(right, wrong, sorted(twice & set(right)), sorted(twice - set(right)))


def _judge_faces(gallery: Corrupted, named: Sequence[set[int]], right: set[int], wanted: set[int]) -> Judged:
    """`named` has the rows of each finding."""
    people = gallery.faces.people
    found = wanted & set().union(*named)
    return Judged(
        [people[min(rows)] for rows in named if rows & right],
        [people[min(rows)] for rows in named if not rows & right],
        [people[row] for row in sorted(found)],
        [people[row] for row in sorted(wanted - found)],
    )


def _judge_subjects(truth: _Truth, findings: Sequence[Finding]) -> Judged:
    named = {one.face.subject for one in findings}
    return Judged(
        *([truth.identity[one] for one in sorted(some)] for some in (named & truth.poor, named - truth.poor)),
        *([truth.identity[one] for one in sorted(some)] for some in (named & truth.poor, truth.poor - named)),
    )
