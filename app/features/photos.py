"""Steps with one photo that imports and other services' interfaces share, built on `Operations`."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from app.face.quality import QualityLevel
from app.gallery.records import Candidate, Gallery, Origin, StoredFace
from app.gallery.text import is_unnamed
from app.pipeline import timed
from app.recognition.decisions import AnsweredCandidate, AnsweredScores, Chosen, template_of
from app.recognition.operations import Operations, origin_of, ranked
from app.types import Face, Photo, Template


def embed_for(operations: Operations, gallery: Gallery, image: bytes) -> Photo:
    """Return a photo with all its faces; those that could be aligned have templates by the gallery's package.

    Raises NotLive if the gallery requires liveness and a face is not live.
    """
    gate = operations.open_gate("off", gallery.liveness)
    with operations.use_in(gallery) as opened:
        photo = operations.embed_all(image, opened, gate)
    for face in photo.faces:
        gate.check(face)
    return photo


def examine(operations: Operations, gallery: Gallery, image: bytes, quality: QualityLevel) -> Chosen:
    """Return the embedded face that `enroll` would add, without adding it. It would add a ``poor`` one only if it
    `matches_good`.

    Raises InvalidInput if `enroll` would reject the photo for another reason.
    """
    gate = operations.open_gate(None, gallery.liveness)
    with operations.use_in(gallery) as opened:
        chosen = operations.choose_enrollable(image, quality, gate)
        (chosen,) = operations.embed_live({"image": chosen}, opened, gate)
        return chosen


def enroll_face(
    operations: Operations,
    gallery: Gallery,
    subject: str,
    photo: Photo,
    face: Face,
    *,
    origin: Origin | None = None,
) -> StoredFace:
    """Add an embedded face of a photo to the subject, which is created if it is missing. Every quality is accepted.

    Raises NotFound, Conflict (``package_mismatch``); InvalidInput (``duplicate_face``, ``face_conflict``) if the
    gallery rejects such faces of named subjects. Objections that would only be warnings are not checked, since the
    callers' answers have no field for warnings.
    """
    if gallery.on_conflict == "reject" and not is_unnamed(subject):
        (objections,) = operations.find_objections(gallery, [(subject, template_of(face))], tell=False)
        if objections.error is not None:
            raise objections.error
    stages: dict[str, float] = {}
    with timed(stages, "store"):
        made = operations.add_faces(gallery, subject, [(face, origin or origin_of(photo, face))])
    operations.observe(stages)
    return made.faces[0]


def rank(
    operations: Operations,
    gallery: Gallery,
    templates: Sequence[Template],
    limit: int,
    scores: AnsweredScores,
    *,
    one_photo: bool = False,
) -> list[list[AnsweredCandidate]]:
    """Return each template's ``limit`` best candidates, without a decision and without those that must not be answered.

    ``one_photo``: whether the templates are of the faces in one photo (`of_photo`). Raises what `ranked` raises.
    """
    stages: dict[str, float] = {}
    with timed(stages, "search"):
        searched = operations.galleries.open_search(gallery, templates[0].package if templates else None)
        rankings = ranked(searched, templates, limit, operations.thresholds_in(gallery, searched.package))
    operations.observe(stages)
    return of_photo(scores, rankings) if one_photo else [scores.candidates(ranking) for ranking in rankings]


def of_photo(scores: AnsweredScores, rankings: Sequence[Sequence[Candidate]]) -> list[list[AnsweredCandidate]]:
    """Return the rankings to answer for the faces of one photo, with one score for each subject.

    Only the face most similar to a subject gets its score. For other faces, the highest threshold that they reach is
    answered, so that a photo that shows a person many times doesn't reveal more of the template. The order within
    rankings stays.
    """
    answered = [scores.candidates(ranking) for ranking in rankings]
    if not scores.thresholds:
        return answered
    best: dict[str, tuple[float, int]] = {}
    for face, ranking in enumerate(answered):
        for candidate in ranking:
            best[candidate.subject] = max(best.get(candidate.subject, (-math.inf, 0)), (candidate.exact, -face))
    for face, ranking in enumerate(answered):
        least = math.inf
        for place, candidate in enumerate(ranking):
            is_best = best[candidate.subject] == (candidate.exact, -face)
            score = candidate.score if is_best else None
            below = scores.thresholds[bisect_right(scores.thresholds, candidate.exact) - 1]
            least = min(least, below if score is None else score)
            ranking[place] = replace(candidate, score=least, template_score=None)
    return answered
