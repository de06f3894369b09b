"""Subjects and their faces."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from pydantic import Field

from app.api.schemas.base import (
    MAX_ID_LENGTH,
    ON_CONFLICT,
    TIME,
    AskedId,
    Example,
    Id,
    Metadata,
    Name,
    NextCursor,
    Note,
    PageParams,
    Params,
    Time,
    Wire,
    is_none,
)
from app.api.schemas.recognition import (
    FACE_INDEX,
    Box,
    DetectParams,
    Explain,
    FaceIndex,
    Liveness,
    LivenessParams,
    Quality,
)
from app.choices import OnConflict, QualityName

_MAX_OFFSET = 2**31 - 1
"""Maximum offset: more than any gallery's subjects, and the largest integer that both databases accept."""


class Consent(Params):
    note: Note
    given_at: Time | None = Field(default=None, description="Now if absent.", examples=[TIME])


class SubjectCreate(Params):
    example: ClassVar[Example] = {"id": "collins", "name": "Eileen Collins", "metadata": {"team": "STS-114"}}
    id: Id | None = Field(default=None, description="How programs call the subject; made by the server if absent.")
    name: Name | None = Field(default=None, description="How people call the subject; free text in any script.")
    metadata: Metadata = Field(default_factory=dict, description="Any JSON object, within the server's size limit.")
    expires_at: Time | None = Field(
        default=None, description="From then on no answer contains the subject, and soon it is erased."
    )
    consent: Consent | None = Field(default=None, description="The consent to keep the subject.")


class SubjectPatch(Params):
    """Changes: a given field replaces the old value as a whole (metadata is not merged), an absent one stays."""

    example: ClassVar[Example] = {"name": "Eileen Marie Collins"}

    id: Id = Field(
        default_factory=str, description="The new id, which no other subject of the gallery has; all else stays."
    )
    name: Name | None = Field(default=None, description="The new name; null removes it.")
    metadata: Metadata = Field(default_factory=dict, description="The new metadata; replaces all of the old.")
    expires_at: Time | None = Field(default=None, description="The new time of expiry; null: never.")
    consent: Consent | None = Field(default=None, description="The new consent; null removes it.")
    cover: str | None = Field(
        default=None, max_length=MAX_ID_LENGTH, description="The id of the face that shows the subject; null: none."
    )


class SubjectPageParams(PageParams):
    search: AskedId | None = Field(
        default=None,
        description="Only subjects whose id or name contains this text; case, accents, `_`, `-` and `.` don't matter.",
    )
    expires_before: Time | None = Field(
        default=None, description="Only subjects that expire before this time.", examples=[TIME]
    )
    offset: int = Field(
        default=0,
        ge=0,
        le=_MAX_OFFSET,
        description="How many subjects to leave out first, to begin anywhere in a long list; go on by `cursor`.",
    )


class GivenConsent(Wire):
    note: str
    given_at: datetime


class Subject(Wire):
    id: str = Field(examples=["collins"])
    name: str | None
    metadata: Metadata
    face_count: int = Field(ge=0)
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None = Field(description="From then on no answer contains it; null: never.")
    consent: GivenConsent | None
    cover: str | None = Field(default=None, description="The id of the face that shows it, if one was chosen.")
    portrait: str | None = Field(
        default=None, description="The id of the face whose crop shows it: its cover, or the first one; null: no crop."
    )


class SubjectPage(Wire):
    subjects: list[Subject]
    next_cursor: NextCursor


class StoredFace(Wire):
    """One enrolled image of a subject."""

    face_id: str
    box: Box = Field(description="Where the face was in the photo that was enrolled.")
    quality: Quality
    model: str
    has_crop: bool = Field(description="Whether `.../crop` returns its crop.")
    created_at: datetime


class FacePage(Wire):
    faces: list[StoredFace]
    next_cursor: NextCursor


class EnrollParams(DetectParams, LivenessParams):
    example: ClassVar[Example] = {"quality": "medium"}
    quality: QualityName = Field(
        default="medium",
        description="The least quality to accept; `none` accepts all; `low` and `medium` also accept a head that is "
        "turned away, if it matches a good photo of the request or a face of the subject.",
    )
    expires_at: Time | None = Field(
        default=None,
        description="When to erase the subject with all its faces; unchanged if absent.",
        examples=["2096-01-31T12:00:00Z"],
    )
    consent: Note | None = Field(default=None, description="A note on the consent, given now; unchanged if absent.")
    face: FaceIndex | None = Field(default=None, description=FACE_INDEX.format("the photo, sent alone,"))
    on_conflict: OnConflict | None = Field(default=None, description=f"{ON_CONFLICT} The gallery's if absent.")
    track: bool = Field(
        default=False,
        description="The images show one person, such as a camera's track: whether that person is another subject is "
        "decided once, by the mean of the images' templates.",
    )


class Resemblance(Wire):
    """The enrolled face that a new one resembles. All fields are null for keys without the scope `recognize`."""

    subject: str | None
    name: str | None
    face_id: str | None
    score: float | None
    index: int | None = Field(
        validation_alias="place", description="The place of its image, if it came with the same request."
    )


class EnrolledFace(Wire):
    index: int = Field(ge=0, description="The image's place in the request, counted from 0.")
    face_id: str
    quality: Quality
    box: Box
    duplicate: Resemblance | None = Field(default=None, description="The same photo, enrolled before.")
    conflict: Resemblance | None = Field(default=None, description="A face of another subject that it matches.")
    unlike: Resemblance | None = Field(
        default=None,
        description="If it looks like none of the subject's other faces, which are two or more: the most alike of "
        "them.",
        exclude_if=is_none,
    )
    liveness: Liveness | None = Field(default=None, description="Null unless it was asked for.")


class RejectedImage(Wire):
    index: int = Field(ge=0, description="The image's place in the request, counted from 0.")
    code: str = Field(
        description="An error code: `no_face`, `face_unalignable`, `low_quality`, `not_live`, `duplicate_face`, "
        "`face_conflict`, ..."
    )
    reasons: list[str] = Field(description="For `low_quality`, `face_unalignable` and `not_live`: why.")
    message: str
    duplicate: Resemblance | None = Field(default=None, description="The same photo, enrolled before.")
    conflict: Resemblance | None = Field(default=None, description="A face of another subject that it matches.")


class EnrollAnswer(Wire):
    subject: str
    created: bool = Field(description="Whether the subject was new.")
    enrolled: list[EnrolledFace]
    rejected: list[RejectedImage]
    model: str
    explain: Explain | None = None
