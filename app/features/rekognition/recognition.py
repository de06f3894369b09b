"""Detect faces, compare them, and search for faces and users in a collection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.errors import NotFound
from app.features.listing import count_people, faces_by_id
from app.features.photos import embed_for, rank
from app.features.rekognition import requests
from app.features.rekognition.answers import (
    Shape,
    face_detail,
    face_id_from,
    largest_first,
    percent,
    searched_face,
    stored_face,
    user_of,
)
from app.features.rekognition.call import Call, good_enough, no_faces
from app.features.similarity import AnsweredSimilarity, Similarity
from app.gallery.records import Candidate, Gallery
from app.gallery.service import widened
from app.recognition.decisions import AnsweredCandidate, cosine, template_of
from app.types import Sizes, Template

MOST_FACES = 100


def detect(call: Call, wanted: requests.DetectFaces) -> Shape:
    photo = call.operations.detect(call.image(wanted.Image))
    return {"FaceDetails": [face_detail(face, photo) for face in largest_first(photo.faces)[:MOST_FACES]]}


def compare(call: Call, wanted: requests.CompareFaces) -> Shape:
    """Compare the largest face of the first photo with each face of the second photo."""
    images = [call.image(source) for source in (wanted.SourceImage, wanted.TargetImage)]
    source, package = call.operations.embed(images[0])
    sources = good_enough(source, wanted.QualityFilter)
    if not sources:
        raise no_faces()
    target, _ = call.operations.embed(images[1], package)
    scale = Similarity.of(call.operations.thresholds(package))
    floor = scale.cosine_of(call.similarity_asked(wanted.SimilarityThreshold))
    probe = template_of(sources[0])
    scored = [
        (cosine(probe, template_of(face)), face) for face in good_enough(target, wanted.QualityFilter)[:MOST_FACES]
    ]
    matches = sorted((pair for pair in scored if pair[0] >= floor), key=lambda pair: -pair[0])
    box, confidence = searched_face(sources[0], source)
    return {
        "SourceImageFace": {"BoundingBox": box, "Confidence": confidence},
        "FaceMatches": [
            {"Similarity": percent(scale.of_cosine(score)), "Face": face_detail(face, target)}
            for score, face in matches
        ],
        "UnmatchedFaces": [face_detail(face, target) for score, face in scored if score < floor],
    }


def search(call: Call, wanted: requests.SearchFaces) -> Shape:
    gallery = call.gallery(wanted.CollectionId)
    row = call.stored(gallery, face_id_from(wanted.FaceId))
    matches = match_faces(
        call, gallery, row.template, wanted.FaceMatchThreshold, wanted.MaxFaces, leave_out=row.face_id
    )
    return {"SearchedFaceId": wanted.FaceId, "FaceMatches": matches, "FaceModelVersion": gallery.embedder}


def search_by_image(call: Call, wanted: requests.SearchFacesByImage) -> Shape:
    gallery = call.gallery(wanted.CollectionId)
    photo = embed_for(call.operations, gallery, call.image(wanted.Image))
    faces = good_enough(photo, wanted.QualityFilter)
    if not faces:
        raise no_faces()
    box, confidence = searched_face(faces[0], photo)
    matches = match_faces(call, gallery, template_of(faces[0]), wanted.FaceMatchThreshold, wanted.MaxFaces)
    return {
        "SearchedFaceBoundingBox": box,
        "SearchedFaceConfidence": confidence,
        "FaceMatches": matches,
        "FaceModelVersion": gallery.embedder,
    }


FIRST_LOOK = 32
PAGE = 1000


def match_faces(
    call: Call, gallery: Gallery, probe: Template, threshold: float | None, limit: int, *, leave_out: str | None = None
) -> list[Shape]:
    """Return the `limit` faces that are most similar to the probe, without the face `leave_out`. The result is exact.

    The index ranks subjects by their most similar face. The best `limit` faces belong to the best `limit` subjects, so
    only these subjects' faces are compared.
    """
    similarity = call.answered(gallery, threshold)
    (ranking,) = call.galleries.open_search(gallery, probe.package).search([probe], limit + 1)
    near = [candidate for candidate in ranking if candidate.score >= similarity.threshold]
    scored = [pair for candidate in near for pair in _faces_of(call, gallery, probe, candidate)]
    passing = [(-score, face) for score, face in scored if score >= similarity.threshold and face != leave_out]
    best = sorted(passing)[:limit]
    stored = faces_by_id(call.store, gallery, [face for _, face in best])
    return [
        {"Similarity": percent(answered), "Face": stored_face(stored[face], gallery)}
        for score, face in best
        if face in stored and (answered := similarity.answered(-score)) is not None
    ]


def match_users(
    call: Call,
    gallery: Gallery,
    probes: Sequence[Template],
    threshold: float | None,
    limit: int,
    *,
    leave_out: str | None = None,
) -> list[Shape]:
    """Return the `limit` users who are most similar to any of the probes, without the user `leave_out`."""
    similarity = call.answered(gallery, threshold, _sizes_of_users(call, gallery))
    best: dict[str, float] = {}
    for probe in probes:
        for candidate in _users(call, gallery, probe, limit + 1, similarity):
            best[candidate.subject] = max(best.get(candidate.subject, -1.0), candidate.exact)
    best.pop(leave_out or "", None)
    ordered = sorted(best.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]
    return [
        {"Similarity": percent(answered), "User": {"UserId": user, "UserStatus": "ACTIVE"}}
        for user, score in ordered
        if (answered := similarity.answered(score)) is not None
    ]


def _sizes_of_users(call: Call, gallery: Gallery) -> Sizes:
    """Return how many users have how many faces. Users are all subjects except the unnamed ones, which have one face
    each."""
    sizes = dict(call.galleries.open_search(gallery).sizes)
    unnamed = sum(sizes.values()) - count_people(call.store, gallery)
    return sizes | {1: max(0, sizes.get(1, 0) - max(0, unnamed))}


def _users(
    call: Call, gallery: Gallery, probe: Template, limit: int, similarity: AnsweredSimilarity
) -> list[AnsweredCandidate]:
    def search(_places: Sequence[int], wanted: int) -> list[list[AnsweredCandidate] | None]:
        (ranking,) = rank(call.operations, gallery, [probe], wanted, similarity.scores)
        near = (candidate for candidate in ranking if candidate.exact >= similarity.threshold)
        users = [candidate for candidate in near if user_of(candidate.subject)]
        full = len(ranking) == wanted and ranking[-1].exact >= similarity.threshold
        return [None if full and len(users) < limit else users]

    (users,) = widened(search, 1, max(FIRST_LOOK, limit))
    return users[:limit]


def _faces_of(call: Call, gallery: Gallery, probe: Template, candidate: Candidate) -> Iterator[tuple[float, str]]:
    """Yield the score and the id of each of a subject's faces."""
    if user_of(candidate.subject) is None:
        yield candidate.score, candidate.face_id
        return
    cursor = None
    while True:
        try:
            page = call.store.faces(gallery, candidate.subject, cursor, PAGE)
        except NotFound:  # deleted meanwhile
            return
        for row in page.items:
            if row.template.package == probe.package:
                yield cosine(probe, row.template), row.face_id
        if (cursor := page.next_cursor) is None:
            return
