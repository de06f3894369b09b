"""Searches as Rekognition means them: for faces, of which one person may have several, and for users."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.compat.rekognition.call import Call, stored_template
from app.compat.rekognition.shapes import Shape, percent, stored_face
from app.decisions import cosine
from app.errors import NotFound
from app.gallery.records import Candidate, Gallery
from app.gallery.text import is_unnamed
from app.types import Template

WIDEN = 4
"""How much further a search looks where unnamed faces stand in front of the users."""
FIRST_LOOK = 32
PAGE = 1000


def match_faces(
    call: Call, gallery: Gallery, probe: Template, threshold: float, limit: int, *, leave_out: str | None = None
) -> list[Shape]:
    """The `limit` faces most like the probe, exactly, without the face `leave_out`.

    A search finds subjects by their best face. The best so many faces are of as many subjects at most, and each of
    those is among the best subjects; so of those all faces are looked at.
    """
    scale = call.scale(gallery.embedder)
    floor = scale.cosine_of(threshold / 100)
    near = [one for one in _rank(call, gallery, probe, limit + 1) if one.score >= floor]
    scored = [pair for candidate in near for pair in _faces_of(call, gallery, probe, candidate)]
    best = sorted((-score, face) for score, face in scored if score >= floor and face != leave_out)[:limit]
    found = call.service.galleries.faces.find(gallery, [face for _, face in best])
    return [
        {"Similarity": percent(scale.of_cosine(-score)), "Face": stored_face(found[face], gallery)}
        for score, face in best
        if face in found
    ]


def match_users(
    call: Call,
    gallery: Gallery,
    probes: Sequence[Template],
    threshold: float,
    limit: int,
    *,
    leave_out: str | None = None,
) -> list[Shape]:
    """The `limit` users of whom any face is most like any of the probes, without the user `leave_out`."""
    scale = call.scale(gallery.embedder)
    floor = scale.cosine_of(threshold / 100)
    best: dict[str, float] = {}
    for probe in probes:
        for candidate in _users(call, gallery, probe, floor, limit + 1):
            best[candidate.subject] = max(best.get(candidate.subject, -1.0), candidate.score)
    best.pop(leave_out or "", None)
    ordered = sorted(best.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]
    return [
        {"Similarity": percent(scale.of_cosine(score)), "User": {"UserId": user, "UserStatus": "ACTIVE"}}
        for user, score in ordered
    ]


def _users(call: Call, gallery: Gallery, probe: Template, floor: float, limit: int) -> list[Candidate]:
    wanted = max(FIRST_LOOK, limit)
    while True:
        ranking = _rank(call, gallery, probe, wanted)
        near = [one for one in ranking if one.score >= floor]
        users = [one for one in near if not is_unnamed(one.subject)]
        if len(users) >= limit or len(near) < len(ranking) or len(ranking) < wanted:
            return users[:limit]
        wanted *= WIDEN


def _rank(call: Call, gallery: Gallery, probe: Template, limit: int) -> list[Candidate]:
    return call.service.operations.rank(gallery.id, [probe], limit)[0]


def _faces_of(call: Call, gallery: Gallery, probe: Template, candidate: Candidate) -> Iterator[tuple[float, str]]:
    """Score and id of each face of a subject; an unnamed one has only the face that was found."""
    if is_unnamed(candidate.subject):
        yield candidate.score, candidate.face_id
        return
    cursor = None
    while True:
        try:
            page = call.service.galleries.store.faces(gallery, candidate.subject, cursor, PAGE)
        except NotFound:  # deleted meanwhile
            return
        for row in page.items:
            if row.package == probe.package:
                yield cosine(probe, stored_template(row)), row.face_id
        if (cursor := page.next_cursor) is None:
            return
