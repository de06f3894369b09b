"""The operations on users, who are the subjects that are not unnamed. Associating a face moves it to the user's
subject."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

from app.access.grants import Scope
from app.errors import FaceNotFound
from app.features import transfers
from app.features.listing import faces_by_id
from app.features.photos import embed_for
from app.features.rekognition import errors, requests
from app.features.rekognition.answers import (
    Shape,
    face_detail,
    face_id_from,
    face_id_to,
    largest_first,
    paged,
    percent,
    quality_reasons,
    status_of,
    user_of,
)
from app.features.rekognition.call import Call, good_enough
from app.features.rekognition.errors import RekognitionError
from app.features.rekognition.recognition import match_users
from app.features.transfers import AlreadyAnswered, Move, keep_answer
from app.gallery import subjects
from app.gallery.records import Gallery, StoredFace
from app.gallery.store import Change
from app.gallery.text import unnamed_id
from app.recognition.decisions import by_fused_score, template_of

MOST_FACES = 100
"""Maximum faces of one user."""
PAGE = 500
StoreAnswer: TypeAlias = Callable[[Change, Shape], None]
"""Stores the answer in the change's transaction; does nothing if the request has no token."""
UserWork: TypeAlias = Callable[[Call, Gallery, Any, StoreAnswer], Shape]


def once(work: UserWork) -> Callable[[Call, Any], Shape]:
    """Return an operation that runs ``work`` once per token: a repeated request gets the stored answer.

    ``work`` stores its answer in the transaction of its change, so that a retry after a crash gets it too. Raises
    RekognitionError (IdempotentParameterMismatchException) if the token was used with other parameters.
    """

    @wraps(work)
    def answer(call: Call, wanted: Any) -> Shape:
        gallery = call.gallery(wanted.CollectionId)
        call.entry.subject = wanted.UserId
        token = wanted.ClientRequestToken
        if token is None:
            return work(call, gallery, wanted, lambda _change, _answer: None)
        text = json.dumps(wanted.model_dump(exclude={"ClientRequestToken"}), sort_keys=True)
        digest = hashlib.sha256(text.encode()).digest()

        def store(change: Change, shape: Shape) -> None:
            keep_answer(change, call.name, token, digest, json.dumps(shape))

        before = _stored_answer(call, gallery, token, digest)
        if before is not None:
            return before
        try:
            return work(call, gallery, wanted, store)
        except AlreadyAnswered:
            return _stored_answer(call, gallery, token, digest) or {}

    return answer


def _stored_answer(call: Call, gallery: Gallery, token: str, digest: bytes) -> Shape | None:
    with call.store.database.read() as connection:
        before = transfers.recall_answer(connection, gallery, call.name, token)
    if before is None:
        return None
    if before[0] != digest:
        raise RekognitionError(
            errors.MISMATCH, "This ClientRequestToken was used with other parameters.", code="conflict"
        )
    answer: Shape = json.loads(before[1])
    return answer


@once
def create(call: Call, gallery: Gallery, wanted: requests.UserRequest, store_answer: StoreAnswer) -> Shape:
    with call.store.change(gallery) as change:
        store_answer(change, {})
        subjects.create_subject(change, wanted.UserId)
    return {}


@once
def delete(call: Call, gallery: Gallery, wanted: requests.UserRequest, store_answer: StoreAnswer) -> Shape:
    """Delete a user. The user's faces stay, and then belong to no user."""
    with call.galleries.change(gallery) as change:
        store_answer(change, {})
        transfers.dissolve_subject(change, wanted.UserId)
    return {}


def list_all(call: Call, wanted: requests.ListUsers) -> Shape:
    gallery = call.gallery(wanted.CollectionId)
    page = call.store.subjects(gallery, wanted.NextToken, wanted.MaxResults or PAGE, named=True)
    users = [{"UserId": user.id, "UserStatus": status_of(user.face_count > 0)} for user in page.items]
    return paged({"Users": users}, page)


def search(call: Call, wanted: requests.SearchUsers) -> Shape:
    """Search for users by an enrolled face, or by all faces of a user."""
    gallery = call.gallery(wanted.CollectionId)
    if (wanted.UserId is None) == (wanted.FaceId is None):
        raise RekognitionError(errors.INVALID_PARAMETER, "Give either UserId or FaceId.")
    searched: Shape
    if wanted.FaceId is not None:
        probes = [call.stored(gallery, face_id_from(wanted.FaceId)).template]
        searched = {"SearchedFace": {"FaceId": wanted.FaceId}}
    else:
        user = wanted.UserId or ""
        probes = [row.template for row in call.store.faces(gallery, user, None, PAGE).items]
        searched = {"SearchedUser": {"UserId": user}}
    matches = match_users(call, gallery, probes, wanted.UserMatchThreshold, wanted.MaxUsers, leave_out=wanted.UserId)
    call.count_faces(len(probes))
    return {"UserMatches": matches, "FaceModelVersion": gallery.embedder} | searched


def search_by_image(call: Call, wanted: requests.SearchUsersByImage) -> Shape:
    gallery = call.gallery(wanted.CollectionId)
    photo = embed_for(call.operations, gallery, call.image(wanted.Image))
    good = good_enough(photo, wanted.QualityFilter)
    answer: Shape = {"UserMatches": [], "FaceModelVersion": gallery.embedder}
    if good:
        probes = [template_of(good[0])]
        answer["UserMatches"] = match_users(call, gallery, probes, wanted.UserMatchThreshold, wanted.MaxUsers)
        answer["SearchedFace"] = {"FaceDetail": face_detail(good[0], photo)}
    answer["UnsearchedFaces"] = [
        {
            "FaceDetails": face_detail(face, photo),
            "Reasons": ["FACE_NOT_LARGEST"] if any(face is good_face for good_face in good) else quality_reasons(face),
        }
        for face in largest_first(photo.faces)
        if not good or face is not good[0]
    ]
    return answer


@once
def associate(call: Call, gallery: Gallery, wanted: requests.AssociateFaces, store_answer: StoreAnswer) -> Shape:
    user = call.store.subject(gallery, wanted.UserId)
    ids = list(dict.fromkeys(face_id_from(face) for face in wanted.FaceIds))
    stored = faces_by_id(call.store, gallery, ids)
    accepted: list[str] = []
    refused: list[Shape] = []
    compared = 0
    for face in ids:
        refusal = _refusal(face, stored, user.id)
        if refusal is None and face in stored and user_of(stored[face].subject) is None and user.face_count:
            call.grant.require(Scope.RECOGNIZE)  # the answer reveals whether the face is this user's
            compared += 1
            refusal = _low_match(call, gallery, face, wanted)
        if refusal is not None:
            refused.append({"FaceId": face_id_to(face)} | refusal)
        elif stored[face].subject != user.id:  # faces that the user already has are skipped
            accepted.append(face)
    call.count_faces(compared)
    if accepted and user.face_count + len(accepted) > MOST_FACES:
        raise RekognitionError(errors.QUOTA, f"A user has {MOST_FACES} faces at most.", code="conflict")
    answer: Shape = {
        "AssociatedFaces": [{"FaceId": face_id_to(face)} for face in accepted],
        "UnsuccessfulFaceAssociations": refused,
        "UserStatus": status_of(bool(user.face_count or accepted)),
    }
    return _move(call, gallery, [Move(face, stored[face].subject, user.id) for face in accepted], answer, store_answer)


@once
def disassociate(call: Call, gallery: Gallery, wanted: requests.DisassociateFaces, store_answer: StoreAnswer) -> Shape:
    user = call.store.subject(gallery, wanted.UserId)
    ids = list(dict.fromkeys(face_id_from(face) for face in wanted.FaceIds))
    stored = faces_by_id(call.store, gallery, ids)
    refused = [
        {"FaceId": face_id_to(face)} | refusal
        for face in ids
        if (refusal := _refusal(face, stored, user.id)) is not None
    ]
    mine = [face for face in ids if face in stored and stored[face].subject == user.id]
    answer: Shape = {
        "DisassociatedFaces": [{"FaceId": face_id_to(face)} for face in mine],
        "UnsuccessfulFaceDisassociations": refused,
        "UserStatus": status_of(user.face_count > len(mine)),
    }
    return _move(call, gallery, [Move(face, user.id, unnamed_id()) for face in mine], answer, store_answer)


def _refusal(face: str, stored: dict[str, StoredFace], user: str) -> Shape | None:
    """Return the answer's part about a face that can't be associated, since it is unknown or another user's; None if it
    can."""
    if face not in stored:
        return {"Reasons": ["FACE_NOT_FOUND"]}
    owner = user_of(stored[face].subject)
    if owner in {None, user}:
        return None
    return {"UserId": owner, "Reasons": ["ASSOCIATED_TO_A_DIFFERENT_USER"]}


def _low_match(call: Call, gallery: Gallery, face: str, wanted: requests.AssociateFaces) -> Shape | None:
    probe = call.stored(gallery, face).template
    thresholds = call.operations.thresholds_in(gallery, probe.package)
    best = call.galleries.open_search(gallery, probe.package).verify(wanted.UserId, probe)
    (found,) = by_fused_score([best], thresholds)
    similarity = call.answered(gallery, wanted.UserMatchThreshold, {found.faces: 1})
    if found.score >= similarity.threshold:
        return None
    confidence = percent(similarity.answered(found.score) or 0.0)
    return {"UserId": wanted.UserId, "Confidence": confidence, "Reasons": ["LOW_MATCH_CONFIDENCE"]}


def _move(call: Call, gallery: Gallery, moves: list[Move], answer: Shape, store_answer: StoreAnswer) -> Shape:
    """Move faces and store the answer. If one was moved or deleted meanwhile, move none and raise RekognitionError
    (ConflictException)."""
    try:
        with call.galleries.change(gallery) as change:
            store_answer(change, answer)
            transfers.move_faces(change, moves)
    except FaceNotFound:
        raise RekognitionError(errors.CONFLICT, "A face was moved or deleted meanwhile.", code="conflict") from None
    return answer
