"""Faces of collections: indexed, listed, deleted. Each is an unnamed subject's until it is associated with a user."""

from __future__ import annotations

import hashlib

from app.compat.rekognition import asked
from app.compat.rekognition.call import LEVELS, Call, good_enough
from app.compat.rekognition.shapes import (
    Shape,
    face_detail,
    face_id_from,
    face_id_to,
    largest_first,
    reasons_of,
    stored_face,
)
from app.errors import FaceNotFound
from app.face.quality import QualityLevel
from app.gallery.records import Gallery, Origin, PlacedFace
from app.gallery.text import is_unnamed, unnamed_id
from app.operations import Chosen
from app.pipeline import Choice
from app.types import Box, Face, Photo

MOST_INDEXED = 100
PAGE = 1000
SAME_BOX = 0.5
"""Pixels by which a face may be elsewhere in the same photo and still be the same."""


def index(call: Call, wanted: asked.IndexFaces) -> Shape:
    """A face of the same photo, under the same external id, is not stored twice."""
    gallery = call.gallery(wanted.CollectionId)
    image = call.image(wanted.Image)
    photo = call.service.operations.embed_for(gallery.id, image)
    good = good_enough(photo, wanted.QualityFilter)
    chosen = good[: min(wanted.MaxFaces or MOST_INDEXED, MOST_INDEXED)]
    image_id = _image_id(gallery, image, wanted.ExternalImageId)
    known = call.service.galleries.faces.of_image(gallery, image_id)
    records = []
    for face in chosen:
        stored = _same(known, face.detection.box)
        if stored is None:
            origin = Origin(image_id, photo.width, photo.height, face.detection.score, wanted.ExternalImageId)
            stored = _store(call, gallery, photo, face, origin)
        records.append({"Face": stored_face(stored, gallery), "FaceDetail": face_detail(face, photo)})
    left_out = [face for face in largest_first(photo.faces) if not any(face is one for one in chosen)]
    return {
        "FaceRecords": records,
        "FaceModelVersion": gallery.embedder,
        "UnindexedFaces": [
            {"Reasons": _reasons(face, wanted.QualityFilter), "FaceDetail": face_detail(face, photo)}
            for face in left_out
        ],
    }


def list_all(call: Call, wanted: asked.ListFaces) -> Shape:
    gallery = call.gallery(wanted.CollectionId)
    if wanted.UserId is not None:
        call.service.galleries.store.subject(gallery, wanted.UserId)
    only = None if wanted.FaceIds is None else [face_id_from(face) for face in wanted.FaceIds]
    page = call.service.galleries.faces.faces(
        gallery, wanted.NextToken, wanted.MaxResults or PAGE, subject=wanted.UserId, only=only
    )
    listed: Shape = {
        "Faces": [stored_face(face, gallery) for face in page.items],
        "FaceModelVersion": gallery.embedder,
    }
    return listed | ({} if page.next_cursor is None else {"NextToken": page.next_cursor})


def delete(call: Call, wanted: asked.DeleteFaces) -> Shape:
    """Faces that are associated with a user stay, as Rekognition has it."""
    gallery = call.gallery(wanted.CollectionId)
    ids = list(dict.fromkeys(face_id_from(face) for face in wanted.FaceIds))
    found = call.service.galleries.faces.find(gallery, ids)
    free = [face for face in ids if face in found and is_unnamed(found[face].subject)]
    deleted = set(call.service.galleries.delete_faces(gallery.id, free))
    refused: list[Shape] = []
    for face in ids:
        if face in found and not is_unnamed(found[face].subject):
            reason = "ASSOCIATED_TO_AN_EXISTING_USER"
            refused.append({"FaceId": face_id_to(face), "UserId": found[face].subject, "Reasons": [reason]})
        elif face not in deleted:
            refused.append({"FaceId": face_id_to(face), "Reasons": ["FACE_NOT_FOUND"]})
    return {
        "DeletedFaces": [face_id_to(face) for face in ids if face in deleted],
        "UnsuccessfulFaceDeletions": refused,
    }


def _store(call: Call, gallery: Gallery, photo: Photo, face: Face, origin: Origin) -> PlacedFace:
    place = next(index for index, one in enumerate(photo.faces) if one is face)
    picked = Chosen(photo, Choice(place, "one of all that are indexed", 0.0))
    row = call.service.operations.enroll_face(gallery.id, unnamed_id(), picked, QualityLevel.NONE, origin)
    found = call.service.galleries.faces.find(gallery, [row.face_id])
    if row.face_id not in found:
        raise FaceNotFound("The face was deleted meanwhile.", face_id=row.face_id)
    return found[row.face_id]


def _same(known: list[PlacedFace], box: Box) -> PlacedFace | None:
    for face in known:
        sides = ((face.box.x, box.x), (face.box.y, box.y), (face.box.width, box.width), (face.box.height, box.height))
        if all(abs(one - other) < SAME_BOX for one, other in sides):
            return face
    return None


def _image_id(gallery: Gallery, image: bytes, external_id: str | None) -> str:
    """The same for the same photo under the same name, in this gallery only."""
    digest = hashlib.sha256(f"{gallery.key}/{gallery.created_at}/{external_id or ''}\0".encode())
    digest.update(image)
    return digest.hexdigest()[:32]


def _reasons(face: Face, quality: str) -> list[str]:
    return reasons_of(face) if face.quality.score < LEVELS[quality].minimum else ["EXCEEDS_MAX_FACES"]
