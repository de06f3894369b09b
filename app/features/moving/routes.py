"""The REST operations that move faces and merge subjects."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from pydantic import Field

from app.access.audit import AuditEntry, fit_id
from app.access.grants import Scope
from app.api import schemas
from app.api.components import Components, FaceId, SubjectId
from app.api.feature import Feature, Part, PeriodicTask
from app.api.operation import FACES_PATH, NO_FACE, NO_SUBJECT, SUBJECT_PATH
from app.api.route import Router
from app.api.routes.faces import FACE_PATH, stored_face
from app.api.schemas import Subject
from app.api.schemas.base import FACE_ID, MAX_PAGE, Example, Id, Params, Wire
from app.features import transfers
from app.features.transfers import Move
from app.gallery.records import Gallery
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.gallery.text import clean_id

subjects_router, faces_router = Router("subjects"), Router("faces")


class SubjectMerge(Params):
    example: ClassVar[Example] = {"into": "collins"}
    into: Id = Field(description="The subject that gets all faces, in the same gallery.")


class MergedSubject(Wire):
    """The merged subject, and the faces to move back with `.../faces/move` to undo the merge."""

    subject: Subject
    merged: str = Field(description="The id of the subject that was merged and deleted.")
    faces: list[str] = Field(examples=[[FACE_ID]], description="The ids of the faces that were the deleted subject's.")


class FaceMove(Params):
    example: ClassVar[Example] = {"subject": "eileen"}
    subject: Id = Field(description="The face's new subject, in the same gallery.")


class FacesMove(FaceMove):
    example: ClassVar[Example] = {"faces": [FACE_ID], "subject": "eileen", "create": True}
    faces: list[str] = Field(min_length=1, max_length=MAX_PAGE, description="The ids of the faces.")
    create: bool = Field(default=False, description="Whether to create the new subject if it is missing.")


@subjects_router.operation(
    "POST", f"{SUBJECT_PATH}/merge", scope=Scope.ENROLL, changes=True, codes=(*NO_SUBJECT, "subject_expired")
)
def merge_subject(
    store: Store,
    galleries: Galleries,
    entry: AuditEntry,
    gallery: Gallery,
    subject: SubjectId,
    asked: SubjectMerge,
) -> MergedSubject:
    """Merge a subject into another one.

    In one step, the other subject gets all faces, which keep their ids, and this subject is deleted. The other subject
    keeps its name, metadata and consent, and gets those that it lacks; the earlier expiry counts. If the request is
    repeated within a day, it changes nothing and gets the same answer. To undo it, move `faces` back.
    """
    entry.target = fit_id(asked.into)
    with galleries.change(gallery) as change:
        faces = transfers.merge_subjects(change, subject, asked.into)
    kept = schemas.Subject.model_validate(store.subject(gallery, asked.into))
    return MergedSubject(subject=kept, merged=clean_id(subject, "subject"), faces=faces)


@faces_router.operation(
    "POST", f"{FACE_PATH}/move", scope=Scope.ENROLL, changes=True, codes=(*NO_FACE, "subject_expired")
)
def move_face(
    store: Store,
    galleries: Galleries,
    gallery: Gallery,
    subject: SubjectId,
    face_id: FaceId,
    asked: FaceMove,
) -> schemas.StoredFace:
    """Move a face to another subject.

    The face keeps its id, template, quality and crop. After the answer, searches find it under its new subject.
    The old subject stays, even if it has no face left.
    """
    known = store.face(gallery, face_id, subject)
    target = store.subject(gallery, asked.subject).id
    with galleries.change(gallery) as change:
        transfers.move_faces(change, [Move(known.face_id, known.subject, target)])
    return stored_face(store.face(gallery, face_id, target), gallery)


@faces_router.operation(
    "POST", f"{FACES_PATH}/move", scope=Scope.ENROLL, changes=True, codes=(*NO_FACE, "subject_expired")
)
def move_faces(
    store: Store,
    galleries: Galleries,
    entry: AuditEntry,
    gallery: Gallery,
    subject: SubjectId,
    asked: FacesMove,
) -> schemas.Subject:
    """Move several faces to another subject.

    Moves all faces or none, in the same way as a single face. Answers with the new subject.
    """
    entry.target = fit_id(asked.subject)
    source, target = store.subject(gallery, subject).id, clean_id(asked.subject, "subject")
    moves = [Move(face_id, source, target) for face_id in asked.faces]
    with galleries.change(gallery) as change:
        transfers.move_faces(change, moves, create=asked.create)
    return schemas.Subject.model_validate(store.subject(gallery, target))


def _start(core: Components) -> Part:
    prune = partial(transfers.prune_answers, core.store.database)
    return Part(tasks=[PeriodicTask(transfers.PRUNE_ANSWERS_S, "answers to merges", prune)])


FEATURE = Feature([subjects_router, faces_router], _start)
