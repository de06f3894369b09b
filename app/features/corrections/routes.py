"""The REST operations on corrections: photos that were wrongly taken for a subject."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, TypeAlias

from pydantic import Field

from app.access.grants import Grant, Scope
from app.api.body import ONE_IMAGE, Sent
from app.api.components import Components, SubjectId, path_id
from app.api.feature import Feature, Part, PeriodicTask
from app.api.operation import NO_SUBJECT, SUBJECT_PATH, TEMPLATES
from app.api.route import Router
from app.api.schemas.base import Params, Time, Wire
from app.api.schemas.recognition import FACE_INDEX, FaceIndex
from app.features import corrected
from app.features.corrections.correcting import Correcting
from app.gallery.records import Gallery
from app.gallery.store import Store

router = Router("subjects")

CORRECTIONS = f"{SUBJECT_PATH}/corrections"
CorrectionId: TypeAlias = Annotated[
    str,
    path_id("The correction's id, as its creation gave it.", "4c3a9a3e0c6d7b8a9f106f1f2d5f0f0c"),
]


class CorrectionParams(Params):
    face: FaceIndex | None = Field(default=None, description=FACE_INDEX.format("the photo"))
    expires_at: Time | None = Field(
        default=None,
        description="When it expires; by default after `LIKENESS_CORRECTION_DAYS`.",
        examples=["2096-01-31T12:00:00Z"],
    )
    confirm: bool = Field(default=False, description="Record it even if the photo matches the subject beyond doubt.")


class Correction(Wire):
    """A probe that does not show the subject."""

    id: str
    subject: str
    model: str = Field(validation_alias="package")
    has_crop: bool = Field(description="Whether it can follow the gallery to another model package.")
    created_at: datetime
    expires_at: datetime


class CorrectionList(Wire):
    corrections: list[Correction] = Field(
        description="All corrections of the subject, oldest first. A subject has at most 32: one more"
        " replaces the oldest."
    )


@router.operation("GET", CORRECTIONS, scope=Scope.READ, codes=NO_SUBJECT)
def list_corrections(store: Store, gallery: Gallery, subject: SubjectId) -> CorrectionList:
    """List a subject's corrections.

    Lists the corrections that have not expired, oldest first.
    """
    listed = corrected.corrections_of(store, gallery, subject)
    return CorrectionList.of(corrections=listed)


@router.operation(
    "POST",
    CORRECTIONS,
    scope=Scope.ENROLL,
    changes=True,
    status=201,
    images=ONE_IMAGE,
    codes=(*TEMPLATES, *NO_SUBJECT, "no_face", "face_unalignable", "invalid_expiry", "correction_unlikely"),
)
def add_correction(
    correcting: Correcting,
    grant: Grant,
    gallery: Gallery,
    subject: SubjectId,
    sent: Sent[CorrectionParams],
) -> Correction:
    """Say that a photo does not show the subject.

    Send the photo of a wrong answer again. The template of its face is kept, and its crop if the gallery keeps crops.
    From then on, a probe that is more similar to this face than to the subject's own faces is neither `known` as the
    subject nor a match; `explain` lists the subjects that corrections ruled out. A correction expires; it is erased
    with its subject, and dropped when the subject is merged into another. Unless `confirm` is given, the photo is first
    compared with the subject, for which the key also needs the scope `recognize`.
    """
    params = sent.params
    if not params.confirm:
        grant.require(Scope.RECOGNIZE)
    correction = correcting.correct(
        gallery, subject, sent.images[0], params.face, params.expires_at, confirm=params.confirm
    )
    return Correction.model_validate(correction)


@router.operation(
    "DELETE",
    f"{CORRECTIONS}/{{correction}}",
    scope=Scope.ENROLL,
    changes=True,
    codes=(*NO_SUBJECT, "correction_not_found"),
)
def delete_correction(
    store: Store,
    gallery: Gallery,
    subject: SubjectId,
    correction: CorrectionId,
) -> None:
    """Delete a correction.

    The correction no longer counts when people are identified.
    """
    corrected.delete_correction(store, gallery, subject, correction)


def _start(core: Components, *, correction_days: float, expiry_seconds: float) -> Part:
    prune = partial(corrected.prune_corrections, core.store)
    return Part(
        {"correcting": Correcting(core, correction_days)}, tasks=[PeriodicTask(expiry_seconds, "corrections", prune)]
    )


FEATURE = Feature([router], _start, ["correction_days", "expiry_seconds"])
