"""The operations on collections, which are galleries here, and on the faces indexed in them.

A face belongs to an unnamed subject until it is associated with a user.
"""

from __future__ import annotations

import hashlib

from app.errors import FaceNotFound
from app.features import transfers
from app.features.listing import count_people, faces_by_id, faces_of_image, placed_faces
from app.features.photos import embed_for, enroll_face
from app.features.rekognition import requests
from app.features.rekognition.answers import (
    Shape,
    arn,
    face_detail,
    face_id_from,
    face_id_to,
    largest_first,
    paged,
    quality_reasons,
    stored_face,
    user_of,
)
from app.features.rekognition.call import Call, good_enough
from app.gallery.records import Gallery, Origin, StoredFace
from app.gallery.text import unnamed_id
from app.types import Box, Face, Photo, utc_seconds

OK = 200
PAGE = 1000
"""Number of rows on a page if the request doesn't say it."""


def create(call: Call, wanted: requests.CreateCollection) -> Shape:
    """Create a gallery that stores no crops, since Rekognition stores no pictures of faces."""
    call.entry.gallery = wanted.CollectionId
    metadata = {"tags": wanted.Tags} if wanted.Tags else {}
    made = call.operations.create_gallery(wanted.CollectionId, None, store="none", metadata=metadata)
    return {"StatusCode": OK, "CollectionArn": arn(made.id, call.region), "FaceModelVersion": made.embedder}


def describe(call: Call, wanted: requests.CollectionRequest) -> Shape:
    gallery = call.gallery(wanted.CollectionId)
    return {
        "FaceCount": call.store.counts(gallery).faces,
        "UserCount": count_people(call.store, gallery),
        "FaceModelVersion": gallery.embedder,
        "CollectionARN": f"arn:{arn(gallery.id, call.region)}",
        "CreationTimestamp": round(utc_seconds(gallery.created_at), 3),
    }


def list_all(call: Call, wanted: requests.ListCollections) -> Shape:
    page = call.store.galleries(wanted.NextToken, wanted.MaxResults or PAGE, call.grant.galleries)
    ids, models = [gallery.id for gallery in page.items], [gallery.embedder for gallery in page.items]
    return paged({"CollectionIds": ids, "FaceModelVersions": models}, page)


def delete(call: Call, wanted: requests.CollectionRequest) -> Shape:
    gallery = call.gallery(wanted.CollectionId)
    call.galleries.delete_gallery(gallery)
    return {"StatusCode": OK}


MOST_INDEXED = 100
SAME_BOX = 0.5
"""Two boxes in the same photo show one face if position and size differ by less than this, in pixels."""


def index_faces(call: Call, wanted: requests.IndexFaces) -> Shape:
    """Store the faces of a photo. The same face of the same photo is not stored twice under one external id."""
    gallery = call.gallery(wanted.CollectionId)
    image = call.image(wanted.Image)
    photo = embed_for(call.operations, gallery, image)
    good = good_enough(photo, wanted.QualityFilter)
    chosen = good[: min(wanted.MaxFaces or MOST_INDEXED, MOST_INDEXED)]
    image_id = _image_id(gallery, image, wanted.ExternalImageId)
    known = faces_of_image(call.store, gallery, image_id)
    records = []
    for face in chosen:
        stored = _same(known, face.box)
        if stored is None:
            origin = Origin(image_id, photo.width, photo.height, face.score, wanted.ExternalImageId)
            stored = _store(call, gallery, photo, face, origin)
        records.append({"Face": stored_face(stored, gallery), "FaceDetail": face_detail(face, photo)})
    left_out = [face for face in largest_first(photo.faces) if not any(face is indexed for indexed in chosen)]
    return {
        "FaceRecords": records,
        "FaceModelVersion": gallery.embedder,
        "UnindexedFaces": [
            {
                "Reasons": ["EXCEEDS_MAX_FACES"] if any(face is other for other in good) else quality_reasons(face),
                "FaceDetail": face_detail(face, photo),
            }
            for face in left_out
        ],
    }


def list_faces(call: Call, wanted: requests.ListFaces) -> Shape:
    gallery = call.gallery(wanted.CollectionId)
    if wanted.UserId is not None:
        call.store.subject(gallery, wanted.UserId)
    only = None if wanted.FaceIds is None else [face_id_from(face) for face in wanted.FaceIds]
    page = placed_faces(
        call.store, gallery, wanted.NextToken, wanted.MaxResults or PAGE, subject=wanted.UserId, only=only
    )
    faces = [stored_face(face, gallery) for face in page.items]
    return paged({"Faces": faces, "FaceModelVersion": gallery.embedder}, page)


def delete_faces(call: Call, wanted: requests.DeleteFaces) -> Shape:
    """Delete faces, except those associated with a user, as in Rekognition."""
    gallery = call.gallery(wanted.CollectionId)
    ids = list(dict.fromkeys(face_id_from(face) for face in wanted.FaceIds))
    stored = faces_by_id(call.store, gallery, ids)
    free = [face for face in ids if face in stored and user_of(stored[face].subject) is None]
    with call.galleries.change(gallery) as change:
        deleted = set(transfers.delete_faces(change, free))
    refused: list[Shape] = []
    for face in ids:
        if face in stored and (user := user_of(stored[face].subject)):
            reason = "ASSOCIATED_TO_AN_EXISTING_USER"
            refused.append({"FaceId": face_id_to(face), "UserId": user, "Reasons": [reason]})
        elif face not in deleted:
            refused.append({"FaceId": face_id_to(face), "Reasons": ["FACE_NOT_FOUND"]})
    return {
        "DeletedFaces": [face_id_to(face) for face in ids if face in deleted],
        "UnsuccessfulFaceDeletions": refused,
    }


def _store(call: Call, gallery: Gallery, photo: Photo, face: Face, origin: Origin) -> StoredFace:
    row = enroll_face(call.operations, gallery, unnamed_id(), photo, face, origin=origin)
    stored = faces_by_id(call.store, gallery, [row.face_id])
    if row.face_id not in stored:
        raise FaceNotFound("The face was deleted meanwhile.", face_id=row.face_id)
    return stored[row.face_id]


def _same(known: list[StoredFace], box: Box) -> StoredFace | None:
    for face in known:
        sides = ((face.box.x, box.x), (face.box.y, box.y), (face.box.width, box.width), (face.box.height, box.height))
        if all(abs(first - second) < SAME_BOX for first, second in sides):
            return face
    return None


def _image_id(gallery: Gallery, image: bytes, external_id: str | None) -> str:
    """Return an id for a photo with an external id. It is always the same in one gallery, and another in each other
    gallery."""
    digest = hashlib.sha256(f"{gallery.key}/{gallery.created_at}/{external_id or ''}\0".encode())
    digest.update(image)
    return digest.hexdigest()[:32]
