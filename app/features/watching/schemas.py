"""Requests and answers about sightings, strangers, events and webhooks."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, ClassVar, Final, Literal, TypeAlias, get_args

from pydantic import AfterValidator, BaseModel, Field

from app.api.schemas.base import (
    COMPOSED,
    FACE_ID,
    TIME,
    AskedId,
    Example,
    Id,
    NextCursor,
    PageParams,
    Params,
    Time,
    Wire,
)
from app.choices import Decision, EventKind
from app.gallery.text import check_characters, check_visible, clean_id


def _shown(text: str) -> str:
    check_characters(text, "name")
    check_visible(text, "name")
    return text


MAX_PLACE_NAME: Final = 100
"""Maximum characters of a camera's or a zone's name, in NFC."""
PlaceName: TypeAlias = Annotated[str, COMPOSED, Field(min_length=1, max_length=MAX_PLACE_NAME), AfterValidator(_shown)]
CameraName: TypeAlias = Annotated[PlaceName, Field(description="The camera's name.", examples=["door"])]
Zone: TypeAlias = Annotated[
    PlaceName | None,
    Field(description="The named part of the camera's picture that the face was in last.", examples=["gate"]),
]


class SightingParams(Params):
    camera: CameraName = "camera"
    zone: Zone = None
    first_at: Time | None = Field(default=None, description="When the track began; by default `last_at`.")
    last_at: Time | None = Field(default=None, description="When the face was last seen; by default now.")
    ended: bool = Field(default=False, description="Whether the person has left.")


class SightingHeard(Params):
    example: ClassVar[Example] = {"last_at": TIME, "ended": True}
    last_at: Time = Field(description="When the face was last seen.")
    ended: bool = Field(default=False, description="Whether the person has left.")
    zone: Zone = None


class FilterParams(Params):
    camera: PlaceName | None = Field(default=None, description="Of this camera alone.")
    decision: Decision | None = Field(default=None, description="Only with this decision.")
    subject: AskedId | None = Field(default=None, description="Only of this subject, by id.")
    stranger: str | None = Field(default=None, max_length=32, description="Only of this stranger, by id.")
    since: Time | None = Field(default=None, description="Only sightings that went on at this time or later.")
    until: Time | None = Field(default=None, description="Only sightings that began at this time or before.")


class SightingsParams(PageParams, FilterParams):
    pass


class Decided(Wire):
    """Who is in front of which camera, and since when. Part of sightings and events."""

    camera: str = Field(examples=["door"])
    zone: Zone
    decision: Decision
    subject: str | None = Field(description="Who it is; of a sighting that is uncertain, who it may be.")
    name: str | None
    stranger: str | None = Field(description="The stranger's id, if the person was grouped as one.")
    score: float | None = Field(description="The score of the track's mean template; coarse, and null below the floor.")
    margin: float | None = Field(description="The score minus the next subject's.")
    threshold: float
    fpir: float = Field(description="The highest rate at which visits of people who are not enrolled are called known.")
    frames: int = Field(description="How many photos were used.")
    first_at: datetime


class Sighting(Decided):
    """A visit of one person in front of one camera."""

    id: str = Field(examples=[FACE_ID])
    quality: float = Field(description="Quality of the best photo.")
    last_at: datetime
    ended: bool
    expires_at: datetime
    has_crop: bool


class SightingPage(Wire):
    sightings: list[Sighting] = Field(description="The newest first.")
    next_cursor: NextCursor


class Deleted(Wire):
    deleted: int = Field(ge=0, description="How many sightings.")


class Who(Params):
    example: ClassVar[Example] = {"subject": "collins", "enroll": True}
    subject: Id | None = Field(
        default=None, description="Whom it shows; null: it does not show the person it was taken for."
    )
    enroll: bool = Field(
        default=False, description="Also enroll the sighting's crop; the subject is made if it is missing."
    )


class StrangersParams(PageParams):
    ignored: bool | None = Field(default=None, description="True: only ignored strangers; false: only the others.")


class Stranger(Wire):
    """An unnamed person, grouped from sightings."""

    id: str = Field(examples=[FACE_ID])
    ignored: bool = Field(description="Whether this person causes no events.")
    note: str | None
    sightings: int
    first_at: datetime
    last_at: datetime
    cameras: list[str]
    best: str = Field(description="The sighting whose crop is the best.", examples=[FACE_ID])
    expires_at: datetime


class StrangerPage(Wire):
    strangers: list[Stranger]
    next_cursor: NextCursor


class StrangerEdit(Params):
    example: ClassVar[Example] = {"ignored": True, "note": "the postman"}
    ignored: bool | None = Field(default=None, description="Whether this person causes no events from now on.")
    note: str | None = Field(default=None, min_length=1, max_length=255, description="Who it may be.")


class StrangerName(Params):
    example: ClassVar[Example] = {"subject": "collins", "also": []}
    subject: Id
    also: list[str] = Field(
        default=[],
        max_length=1000,
        description="Further sightings of the same person, chosen from the `resembling` ones.",
    )


class StrangerMerge(Params):
    example: ClassVar[Example] = {"into": FACE_ID}
    into: str = Field(max_length=32, description="The stranger who takes the sightings.")


class StrangerPart(Params):
    example: ClassVar[Example] = {"sightings": [FACE_ID]}
    sightings: list[str] = Field(min_length=1, max_length=1000, description="The sightings that show another person.")
    alike: bool = Field(
        default=False,
        description="Also move the sightings that resemble these more than they resemble the stranger's remaining"
        " sighting that is least similar to these.",
    )


class Resembling(Wire):
    sighting: Sighting
    score: float


class ResemblingList(Wire):
    """Sightings of unknown people that may be of the same person."""

    resembling: list[Resembling] = Field(description="The most alike first.")


class Named(Wire):
    """The sightings that became the subject's."""

    sightings: list[Sighting]


class CameraReport(BaseModel):
    """The state of a camera, and what it has shown in the last hour, as its watcher reports."""

    problem: str | None = Field(default=None, max_length=100, description="Why there are no pictures now.")
    frames: int = Field(default=0, ge=0, description="Pictures in which faces were looked for.")
    faces: int = Field(default=0, ge=0, description="Faces in them.")
    usable: int = Field(default=0, ge=0, description="Faces that were good enough to be compared.")
    width: float | None = Field(default=None, ge=0, description="Median width of a face in pixels.")
    reasons: dict[Annotated[str, Field(max_length=40)], int] = Field(
        default={}, max_length=20, description="Why faces were not good enough, and how many."
    )


class CameraTold(Params, CameraReport):
    name: CameraName


class CamerasTold(Params):
    """A watcher's report on its cameras."""

    example: ClassVar[Example] = {"cameras": [{"name": "door", "frames": 900, "faces": 210, "usable": 180}]}
    cameras: list[CameraTold] = Field(min_length=1, max_length=64)


class CameraState(Wire, CameraReport):
    """A camera: its watcher's report, and its sightings."""

    name: str = Field(examples=["door"])
    told_at: datetime | None = Field(description="When a watcher last reported on it; null if none has.")
    visits: int = Field(description="Sightings of the last hour.")
    known: int = Field(description="How many of them were of known people.")
    last_at: datetime | None = Field(description="When a face was last seen.")
    picture: str | None = Field(description="The newest sighting that has a crop.", examples=[FACE_ID])


class CameraList(Wire):
    cameras: list[CameraState]


class EventsParams(Params):
    after: int | None = Field(
        default=None,
        ge=0,
        le=2**63 - 1,
        description="The number of the last event that the client has; by default the latest event.",
    )
    gallery: AskedId | None = Field(default=None, description="Of this gallery alone.")
    camera: PlaceName | None = Field(default=None, description="Of this camera alone.")
    event: EventKind | None = Field(default=None, description="Of this kind alone.")
    seconds: float | None = Field(
        default=None,
        ge=0,
        le=86_400,
        description="Seconds after which the stream ends; by default it goes on as long as the client listens.",
    )


class Event(Decided):
    """Something that happened in front of a camera, as webhooks, MQTT and `/v1/events` send it."""

    version: Literal[1] = Field(description="Version of this form. Fields may be added without a new version.")
    id: str = Field(description="Stays the same when the event is sent again.", examples=[FACE_ID])
    number: int = Field(description="Rises with each event.")
    event: EventKind
    at: datetime = Field(description="When it was decided.")
    age_s: float = Field(
        description="Seconds from `seen_at` until this was sent: don't open a door because of an old event."
    )
    gallery: str
    sighting: str = Field(examples=[FACE_ID])
    seen_at: datetime = Field(description="When the face was last seen.")
    crop: str | None = Field(description="Path of the best crop.")


class WebhookSubject(Params):
    gallery: Id = Field(examples=["staff"])
    subject: Id


class WebhookCreate(Params):
    example: ClassVar[Example] = {"url": "https://example.org/faces", "kinds": ["person_seen", "unknown_seen"]}
    url: str = Field(max_length=2048, pattern=r"^https?://[^\s@]+$", description="Where events are posted.")
    kinds: list[EventKind] = Field(
        default_factory=lambda: list(get_args(EventKind)), min_length=1, max_length=4, description="Which events."
    )
    galleries: list[Annotated[Id, AfterValidator(partial(clean_id, what="gallery"))]] | None = Field(
        default=None, max_length=100, description="Of these galleries alone."
    )
    cameras: list[PlaceName] | None = Field(default=None, max_length=100, description="Of these cameras alone.")
    subjects: list[WebhookSubject] | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="Only events that name one of these people, and `name_changed` events that take such a name back.",
    )
    quiet_s: float = Field(
        default=0,
        ge=0,
        le=86_400,
        description="After an event, others of the same kind, camera and person are left out for this many seconds.",
    )


class Webhook(Wire):
    id: str = Field(examples=[FACE_ID])
    url: str = Field(examples=["https://example.org/faces"])
    kinds: list[EventKind] = Field(examples=[["person_seen", "unknown_seen"]])
    galleries: list[str] | None
    cameras: list[str] | None = Field(examples=[["door"]])
    subjects: list[WebhookSubject] | None = Field(
        description="Null: events about anybody. Subjects that were deleted or expired are missing; if all are, "
        "nothing is sent."
    )
    quiet_s: float
    state: Literal["active", "set_aside"] = Field(
        description="`set_aside`: it has failed for a day, and waits to be resumed."
    )
    cursor: int = Field(description="The number of the last event that was delivered, or left out for good.")
    attempts: int = Field(description="Failed attempts to send the next event.")
    failing_since: datetime | None
    last_error: str | None
    delivered_at: datetime | None
    created_at: datetime


class WebhookMade(Webhook):
    """A new webhook, with its secret, which is not shown again."""

    secret: str = Field(
        description="The secret that deliveries are signed with, as Standard Webhooks specifies.",
        examples=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
    )


class WebhookList(Wire):
    webhooks: list[Webhook]
