"""Check a face before enrolling it: is it there already, does it match another subject, is it unlike its own subject?

Faces are compared with the gallery's index in one search, and with earlier faces of the same request or batch. Two
simultaneous enrollments may miss each other, since neither is in the index yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidInput, SubjectNotFound
from app.gallery.records import Candidate
from app.gallery.service import GallerySearch
from app.gallery.text import clean_id, is_unnamed
from app.package.thresholds import Thresholds, fuse_templates
from app.recognition.decisions import LINKED_FMR, AnsweredScores, DefaultRates, identify_point, verify_point
from app.types import Template

DUPLICATE_SCORE = 0.9
"""Two templates with this cosine or more are of the same photo, perhaps saved again
(docs/how-to/keep-a-gallery-right.md). The photos' bytes can't be compared instead: each saving changes them."""
CONFLICT_FPIR = 0.001
"""How often a new person may be taken for an enrolled one. It is lower than the FPIR of `identify`, since somebody has
to look at each conflict."""
AT_ONCE = 64
"""Maximum faces in one search, so that other requests' searches can run in between."""
BESIDE_FMR = 1e-4
"""The FMR at which a turned head must match the good photos that it is enrolled beside."""
LEAST_OWN = 2
"""Minimum faces of a subject to compare a new one with, since a single one may itself be enrolled wrongly."""
NEAREST = 2
"""Number of subjects to find for each face: its own and the nearest other."""


@dataclass(frozen=True, slots=True)
class Resemblance:
    """An enrolled face that a new one resembles, and its subject's id and name. Fields that the caller may not know are
    None."""

    subject: str | None = None
    name: str | None = None
    face_id: str | None = None
    score: float | None = None
    place: int | None = None
    """The place in the same batch, or among the request's images, for a face that is only being enrolled."""
    exact: float = field(default=-1.0, repr=False)
    """The score that decides; it never leaves the service."""

    def answered(self, scores: AnsweredScores | None) -> Resemblance:
        """Return the face with its score for the answer; without scores if no points were measured."""
        return replace(self, score=scores.answered(self.exact) if scores else None)

    def as_details(self) -> dict[str, object]:
        fields = ("subject", "name", "face_id", "score")
        return {name: getattr(self, name) for name in fields} | {"index": self.place}


@dataclass(frozen=True, slots=True)
class Objections:
    """Reasons against enrolling a new face.

    ``duplicate`` is an enrolled face of the same photo, ``conflict`` a matching face of another subject, ``unlike`` the
    nearest of its own subject's faces if it looks like none of them.
    """

    duplicate: Resemblance | None = None
    conflict: Resemblance | None = None
    refused: bool = False
    unlike: Resemblance | None = None

    @property
    def error(self) -> InvalidInput | None:
        """Return the error that rejects the face, or would; None if there are no objections."""
        resembled = self.conflict or self.duplicate
        if resembled is None:
            return None
        code, message = "duplicate_face", "The face is enrolled already."
        if self.conflict is not None:
            code, message = "face_conflict", "The face matches another subject."
        details = {"subject": resembled.subject, "face_id": resembled.face_id, "score": resembled.score}
        return InvalidInput(message, code=code, **{name: value for name, value in details.items() if value is not None})

    def named(self, ids: Mapping[int, tuple[int, str | None]]) -> Objections:
        """Return the objections with the image's index, and the face's id if it has one, for each place."""
        three = {"duplicate": self.duplicate, "conflict": self.conflict, "unlike": self.unlike}
        named: dict[str, Any] = {}
        for name, resembled in three.items():
            if resembled is not None and resembled.place is not None:
                index, face_id = ids[resembled.place]
                named[name] = replace(resembled, place=index, face_id=face_id)
        return replace(self, **named)

    def as_details(self) -> dict[str, object]:
        """Return the objections as an error's details, in the fields of an answer."""
        both = {"duplicate": self.duplicate, "conflict": self.conflict}
        return {name: resembled.as_details() for name, resembled in both.items() if resembled is not None}


NOTHING = Objections()
UNTOLD = Resemblance()
"""A face of which the caller may know nothing."""


def find_objections(
    searched: GallerySearch,
    faces: Sequence[tuple[str, Template]],
    measured: Thresholds,
    fmr: float,
    *,
    refuse: bool,
    tell: bool = True,
    track: bool = False,
) -> list[Objections]:
    """Return the objections to each face, which is given with its subject's id.

    ``fmr`` is the rate of wrong conflicts with one subject. With `refuse`, faces with an objection are rejected; with
    `tell`, objections name the person. With ``track`` the faces are one person's, and share the conflict of their mean
    template. A package without measured operating points has no conflicts.
    Raises what `GallerySearch.search` raises, InvalidInput ``invalid_id``.
    """
    templates = [template for _, template in faces]
    mean, length = fuse_templates(np.stack([template.vector for template in templates])) if track else (None, 1.0)
    conflict_at = None
    if measured.calibration is not None:
        rates, sizes = DefaultRates(fmr, CONFLICT_FPIR), searched.sizes
        conflict_at = identify_point(measured, None, None, rates, sizes, length=length).threshold
    least = DUPLICATE_SCORE if conflict_at is None else min(DUPLICATE_SCORE, conflict_at)
    rankings = [
        ranking
        for start in range(0, len(faces), AT_ONCE)
        for ranking in searched.search(templates[start : start + AT_ONCE], NEAREST, least, enrolling=True)
    ]
    subjects = [clean_id(subject, "subject") for subject, _ in faces]
    objections = compare(subjects, templates, rankings, None if track else conflict_at, refuse=refuse)
    if mean is not None and conflict_at is not None:
        probe = [Template(mean, templates[0].package)]
        ranking = searched.search(probe, NEAREST, conflict_at, enrolling=True)
        (whole,) = compare(subjects[:1], probe, ranking, conflict_at, refuse=refuse)
        refused = refuse and whole.conflict is not None
        objections = [
            replace(objection, conflict=whole.conflict, refused=objection.refused or refused)
            for objection in objections
        ]
    scores = AnsweredScores.of(measured, DUPLICATE_SCORE, conflict_at) if tell and conflict_at is not None else None
    return [
        replace(
            objection,
            duplicate=objection.duplicate and (objection.duplicate.answered(scores) if tell else UNTOLD),
            conflict=objection.conflict and (objection.conflict.answered(scores) if tell else UNTOLD),
        )
        for objection in objections
    ]


def find_unlike(
    searched: GallerySearch,
    faces: Sequence[tuple[str, Template]],
    measured: Thresholds,
    before: Sequence[Objections],
) -> list[Objections]:
    """Return the objections to one subject's new faces, with ``unlike`` set for those unlike its others.

    The others are the enrolled faces and the new ones before it. A face is unlike them if there are LEAST_OWN or more,
    and its score with each of them is below the threshold of single linkage (`LINKED_FMR`).
    """
    subject, templates = faces[0][0], [template for _, template in faces]
    try:
        enrolled = searched.compare(subject, templates)
    except SubjectNotFound:
        enrolled = [None] * len(templates)
    most = len(before) - 1 + max((old.faces for old in enrolled if old), default=0)
    if measured.calibration is None or most < LEAST_OWN:
        return list(before)
    threshold = verify_point(measured, None, LINKED_FMR).threshold
    vectors = np.stack([template.vector for template in templates])  # (N, D)
    within = vectors @ vectors.T  # (N, N)
    taken: list[int] = []
    answered = []
    for place, (objections, old) in enumerate(zip(before, enrolled, strict=True)):
        near = [] if old is None else [Resemblance(old.subject, old.name, old.face_id, exact=old.score)]
        near += _nearest_within([subject] * len(before), taken, within[place], subject)
        others = len(taken) + (0 if old is None else old.faces)
        if others >= LEAST_OWN and (best := max(near, key=attrgetter("exact"))).exact < threshold:
            answered.append(replace(objections, unlike=best.answered(AnsweredScores.of(measured, threshold))))
        else:
            answered.append(objections)
        if not objections.refused:
            taken.append(place)
    return answered


def matches_good(
    searched: GallerySearch,
    subject: str | None,
    turned: Sequence[Template],
    good: Sequence[Template],
    *,
    measured: Thresholds,
) -> list[bool]:
    """Return which faces of turned heads match a ``good`` face, or an enrolled face of the ``subject``, at BESIDE_FMR.

    With a ``subject`` of None they are compared only with the good faces. None of them match if the package has no
    operating points.
    """
    if measured.calibration is None:
        return [False] * len(turned)
    threshold = verify_point(measured, None, BESIDE_FMR).threshold
    matched = [any(probe.vector @ other.vector >= threshold for other in good) for probe in turned]
    try:
        enrolled = [None] * len(turned) if subject is None else searched.compare(subject, turned)
    except SubjectNotFound:
        return matched
    return [
        already or (old is not None and old.score >= verify_point(measured, None, BESIDE_FMR, old.faces).threshold)
        for already, old in zip(matched, enrolled, strict=True)
    ]


def compare(
    subjects: Sequence[str],
    templates: Sequence[Template],
    rankings: Sequence[Sequence[Candidate]],
    conflict_at: float | None,
    *,
    refuse: bool,
) -> list[Objections]:
    """Return the objections of faces, given their subjects and the nearest subjects of each, in their order.

    With `refuse`, a face with an objection is not enrolled, so later ones are not compared with it.
    """
    vectors = np.stack([template.vector for template in templates])  # (N, D)
    within = vectors @ vectors.T  # (N, N)
    taken: list[int] = []
    objections: list[Objections] = []
    for place, (subject, ranking) in enumerate(zip(subjects, rankings, strict=True)):
        near = [Resemblance(found.subject, found.name, found.face_id, exact=found.score) for found in ranking]
        near += _nearest_within(subjects, taken, within[place], subject)
        duplicate = max((face for face in near if face.exact >= DUPLICATE_SCORE), key=attrgetter("exact"), default=None)
        others = [face for face in near if face.subject != subject and not is_unnamed(face.subject or "")]
        conflict = max(others, key=attrgetter("exact"), default=None)
        if is_unnamed(subject) or conflict_at is None or (conflict and conflict.exact < conflict_at):
            conflict = None
        refused = refuse and (duplicate is not None or conflict is not None)
        objections.append(Objections(duplicate, conflict, refused))
        if not refused:
            taken.append(place)
    return objections


def _nearest_within(
    subjects: Sequence[str], taken: Sequence[int], scores: NDArray[np.float32], subject: str
) -> list[Resemblance]:
    """Return the nearest faces among those at the places `taken`: of the same subject, and of any other."""
    nearest: list[Resemblance] = []
    for mine in (True, False):
        places = [place for place in taken if (subjects[place] == subject) is mine]
        if places:
            best = places[int(np.argmax(scores[places]))]
            nearest.append(Resemblance(subjects[best], place=best, exact=float(scores[best])))
    return nearest
