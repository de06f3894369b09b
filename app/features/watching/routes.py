"""Operations on sightings, strangers, events and webhooks."""

from __future__ import annotations

import asyncio
import math
import pathlib
import time
from contextlib import ExitStack
from functools import partial
from typing import Annotated, TypeAlias

from fastapi import Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import SecretStr, StringConstraints

from app.access.audit import AuditEntry, fit_id
from app.access.grants import Grant, Scope
from app.access.keys import ADMIN, Guard, digest_of
from app.api.body import JPEG_TYPE, MANY_IMAGES, File, Sent
from app.api.components import HEXADECIMAL, Components, Reached, path_id
from app.api.feature import Feature, Part, PeriodicTask
from app.api.operation import CURSOR, GALLERY_PATH, LIVENESS, NO_SUBJECT, RATE_CODES, TEMPLATES
from app.api.route import Router
from app.api.wire import given_key
from app.errors import GalleryNotFound, InvalidInput, NotFound, Overloaded
from app.features.corrected import prune_corrections
from app.features.watching import schemas
from app.features.watching.events import among
from app.features.watching.feature import DAYS, TABLES
from app.features.watching.service import Watching
from app.features.watching.streaming import Listeners
from app.features.watching.webhooks import Sender, Webhooks
from app.gallery.records import Gallery
from app.gallery.store import Store

router = Router("watching")

SIGHTINGS = f"{GALLERY_PATH}/sightings"
SIGHTING = f"{SIGHTINGS}/{{sighting}}"
CAMERAS = f"{GALLERY_PATH}/cameras"
STRANGERS = f"{GALLERY_PATH}/strangers"
STRANGER = f"{STRANGERS}/{{stranger}}"
WEBHOOKS = "/v1/webhooks"
WEBHOOK = f"{WEBHOOKS}/{{webhook}}"
NO_SIGHTING = ("sighting_not_found",)
NO_STRANGER = ("stranger_not_found",)
NO_WEBHOOK = ("webhook_not_found",)
ENROLLED = (*TEMPLATES, "face_conflict", "sighting_without_face", "subject_expired", *NO_SUBJECT)
EVENT_STREAM = "text/event-stream"
CLOSE_S, REEMBED_S, REGROUP_S = 10.0, 60.0, 3600.0
"""Seconds between searches for silent tracks, searches for templates of another package, and regroupings of
strangers."""
_HEX = StringConstraints(pattern=HEXADECIMAL)  # the caller chooses it
SightingId: TypeAlias = Annotated[str, path_id("The sighting's id.", "9f10c3a9a3e0c6d7b8a6f1f2d5f0f0c4"), _HEX]
StrangerId: TypeAlias = Annotated[str, path_id("The stranger's id.", "a3e0c6d7b8a9f104c3a96f1f2d5f0f0c")]
WebhookId: TypeAlias = Annotated[str, path_id("The webhook's id.", "c6d7b8a9f106f1f2d5f0f0c4c3a9a3e0")]


@router.operation(
    "PUT",
    SIGHTING,
    scope=Scope.WATCH,
    images=MANY_IMAGES,
    codes=(*RATE_CODES, *TEMPLATES, *LIVENESS, "no_face", "sighting_taken"),
)
def tell_sighting(
    watching: Watching, gallery: Gallery, sighting: SightingId, sent: Sent[schemas.SightingParams]
) -> schemas.Sighting:
    """Report a track.

    Takes up to 8 photos of one person's face, the best of a visit so far. The caller chooses the id, and uses it again
    for later reports on the same track. The usable faces are fused and decided once. A later decision that contradicts
    the first one replaces it, at most once.
    """
    return watching.tell(gallery, sighting, sent.params, sent.images)


@router.operation("PATCH", SIGHTING, scope=Scope.WATCH, codes=NO_SIGHTING)
def hear_sighting(
    watching: Watching, gallery: Gallery, sighting: SightingId, told: schemas.SightingHeard
) -> schemas.Sighting:
    """Report that a track goes on, or has ended.

    A track without a report for a minute has ended.
    """
    return watching.sightings.hear(gallery, sighting, told.last_at, ended=told.ended, zone=told.zone)


@router.operation("GET", SIGHTINGS, scope=Scope.READ, codes=CURSOR)
def list_sightings(
    watching: Watching, gallery: Gallery, query: Annotated[schemas.SightingsParams, Query()]
) -> schemas.SightingPage:
    """List sightings.

    Lists who was in front of which camera and when, newest first, page by page.
    """
    page = watching.sightings.page(gallery, query)
    return schemas.SightingPage.of(page, sightings=list(page.items))


@router.operation("DELETE", SIGHTINGS, scope=Scope.ENROLL, changes=True)
def delete_sightings(
    watching: Watching, gallery: Gallery, query: Annotated[schemas.FilterParams, Query()]
) -> schemas.Deleted:
    """Delete sightings.

    Deletes the sightings that the parameters select, by default all of the gallery, with their crops and events.
    """
    return schemas.Deleted(deleted=watching.sightings.delete(gallery, query))


@router.operation("GET", SIGHTING, scope=Scope.READ, name="show_sighting", codes=NO_SIGHTING)
def get_sighting(watching: Watching, gallery: Gallery, sighting: SightingId) -> schemas.Sighting:
    """Show a sighting.

    Answers whom it shows, the score, and the rate that the decision was made at.
    """
    return watching.sightings.find(gallery, sighting).sighting


@router.operation("DELETE", SIGHTING, scope=Scope.ENROLL, changes=True, codes=NO_SIGHTING)
def delete_sighting(watching: Watching, gallery: Gallery, sighting: SightingId) -> None:
    """Delete a sighting.

    Deletes it with its crop and its events.
    """
    watching.sightings.drop(gallery, sighting)


@router.operation(
    "GET",
    f"{SIGHTING}/crop",
    scope=Scope.READ,
    name="show_sighting_crop",
    file=File((JPEG_TYPE,), "The aligned face, 112x112."),
    codes=(*NO_SIGHTING, "crop_not_stored"),
)
def get_sighting_crop(watching: Watching, gallery: Gallery, sighting: SightingId) -> Response:
    """Show a sighting's crop.

    Answers the best aligned face, as JPEG, as long as it is kept.
    """
    crop = watching.sightings.find(gallery, sighting).crop
    if crop is None:
        raise NotFound("The sighting's crop is not kept.", code="crop_not_stored")
    return Response(crop, media_type=JPEG_TYPE)


@router.operation("POST", f"{SIGHTING}/who", scope=Scope.ENROLL, changes=True, codes=(*NO_SIGHTING, *ENROLLED))
def say_who(
    watching: Watching, entry: AuditEntry, gallery: Gallery, sighting: SightingId, asked: schemas.Who
) -> schemas.Sighting:
    """Say who a sighting shows.

    With a subject, the sighting shows this subject from now on. With null, it does not show the person it was taken
    for, and a correction is recorded. Nobody is enrolled from a sighting unless this request asks for it.
    """
    entry.subject = fit_id(asked.subject)
    return watching.say_who(gallery, sighting, asked.subject, enroll=asked.enroll)


@router.operation("PUT", CAMERAS, scope=Scope.WATCH)
def tell_cameras(watching: Watching, gallery: Gallery, told: schemas.CamerasTold) -> None:
    """Report the state of cameras.

    Takes whether a camera sends pictures, and what they have shown in the last hour.
    """
    watching.cameras.tell(gallery, told.cameras)


@router.operation("GET", CAMERAS, scope=Scope.READ)
def list_cameras(watching: Watching, gallery: Gallery) -> schemas.CameraList:
    """List cameras.

    Lists each camera's state, as its watcher reports it, and how many sightings it had in the last hour.
    """
    return schemas.CameraList(cameras=watching.cameras.all(gallery))


@router.operation("GET", STRANGERS, scope=Scope.READ, codes=CURSOR)
def list_strangers(
    watching: Watching, gallery: Gallery, query: Annotated[schemas.StrangersParams, Query()]
) -> schemas.StrangerPage:
    """List strangers.

    Lists unknown people who were seen well, each once, newest first, if `LIKENESS_STRANGER_DAYS` is set.
    """
    page = watching.strangers.page(gallery, query.cursor, query.limit, ignored=query.ignored)
    return schemas.StrangerPage.of(page, strangers=list(page.items))


@router.operation("GET", STRANGER, scope=Scope.READ, name="show_stranger", codes=NO_STRANGER)
def get_stranger(watching: Watching, gallery: Gallery, stranger: StrangerId) -> schemas.Stranger:
    """Show a stranger.

    Answers how often, when and where the stranger was seen. To list the sightings, pass `stranger` to their list.
    """
    return watching.strangers.find(gallery, stranger)


@router.operation("PATCH", STRANGER, scope=Scope.ENROLL, changes=True, codes=NO_STRANGER)
def edit_stranger(
    watching: Watching, gallery: Gallery, stranger: StrangerId, asked: schemas.StrangerEdit
) -> schemas.Stranger:
    """Ignore a stranger, or note who it may be.

    An ignored stranger, such as the postman, causes no events.
    """
    return watching.strangers.edit(gallery, stranger, asked.model_dump(exclude_none=True))


@router.operation("DELETE", STRANGER, scope=Scope.ENROLL, changes=True, codes=NO_STRANGER)
def forget_stranger(watching: Watching, gallery: Gallery, stranger: StrangerId) -> None:
    """Forget a stranger.

    Deletes all sightings of the stranger, with crops, templates and events.
    """
    watching.strangers.forget(gallery, stranger)


@router.operation("GET", f"{STRANGER}/resembling", scope=Scope.READ, codes=(*NO_STRANGER, *RATE_CODES))
def resembling_sightings(watching: Watching, gallery: Gallery, stranger: StrangerId) -> schemas.ResemblingList:
    """Look for a stranger in other sightings.

    Lists sightings that could be named together with the stranger: a person chooses.
    """
    return schemas.ResemblingList(resembling=watching.resembling(gallery, stranger))


@router.operation(
    "POST", f"{STRANGER}/name", scope=Scope.ENROLL, changes=True, codes=(*NO_STRANGER, *NO_SIGHTING, *ENROLLED)
)
def name_stranger(
    watching: Watching, entry: AuditEntry, gallery: Gallery, stranger: StrangerId, asked: schemas.StrangerName
) -> schemas.Named:
    """Name a stranger.

    Enrolls the stranger's best crops as the subject, which is created if missing; all sightings become the subject's.
    """
    entry.subject = fit_id(asked.subject)
    return schemas.Named(sightings=watching.name(gallery, stranger, asked.subject, asked.also))


@router.operation("POST", f"{STRANGER}/merge", scope=Scope.ENROLL, changes=True, codes=NO_STRANGER)
def merge_strangers(
    watching: Watching, gallery: Gallery, stranger: StrangerId, asked: schemas.StrangerMerge
) -> schemas.Stranger:
    """Merge a stranger into another one.

    The two are one person; later groupings don't separate them.
    """
    return watching.strangers.merge(gallery, stranger, asked.into)


@router.operation("POST", f"{STRANGER}/part", scope=Scope.ENROLL, changes=True, codes=(*NO_STRANGER, *NO_SIGHTING))
def part_stranger(
    watching: Watching, gallery: Gallery, stranger: StrangerId, asked: schemas.StrangerPart
) -> schemas.Stranger:
    """Split a stranger.

    The given sightings are of another person, who becomes a new stranger; later groupings don't join them.
    """
    return watching.strangers.part(gallery, stranger, asked.sightings, alike=asked.alike)


@router.operation(
    "GET",
    "/v1/events",
    scope=Scope.READ,
    streams=True,
    file=File((EVENT_STREAM,), "Events as they happen (server-sent events), until the client leaves."),
    codes=("gallery_not_found", "invalid_id"),
)
async def listen(
    request: Request,
    grant: Grant,
    store: Store,
    components: Components,
    listeners: Listeners,
    query: Annotated[schemas.EventsParams, Query()],
) -> StreamingResponse:
    """Listen to events.

    Sends events as they happen, as server-sent events. A listener that reconnects with `Last-Event-ID` gets every event
    since then that is still kept. Each `data` is an `Event`. The stream ends when the key is revoked, expires or is
    changed, or the browser is signed out.
    """
    seen = request.headers.get("last-event-id", "")
    galleries = grant.galleries if query.gallery is None else {query.gallery}
    if query.gallery is not None:
        if not grant.sees(query.gallery):
            raise GalleryNotFound.of(query.gallery)
        store.gallery(query.gallery)
    after = int(seen[:18]) if seen.isdecimal() and seen.isascii() else query.after
    where = among(galleries, query.camera and [query.camera], query.event and [query.event])
    begins = listeners.begin(after)
    ends = math.inf if query.seconds is None else time.monotonic() + query.seconds
    may_hear = partial(_may_still_hear, request, components, grant)
    pieces = listeners.stream(begins, where, ends, lambda: request.app.state.status == "ok", may_hear)
    return StreamingResponse(pieces, media_type=EVENT_STREAM, headers={"cache-control": "no-store"})


async def _may_still_hear(request: Request, components: Components, grant: Grant) -> bool:
    """Return whether the request's session, if it came in one, goes on, and its key allows what it allowed before."""
    scope = request.scope
    if given_key(request.headers, scope["path"]) is None:
        try:
            keys = [await session_key(scope) for session_key in components.session_keys]
        except (InvalidInput, Overloaded):  # signed out
            return False
        if scope["key"] not in keys:
            return False
    return await asyncio.to_thread(_still_grants, components.guard, scope["key"], grant)


def _still_grants(guard: Guard, key: str, grant: Grant) -> bool:
    """Return whether the key allows what it allowed before."""
    digest = digest_of(key)
    if guard.admin.matches(digest):
        return grant == ADMIN
    try:
        return (guard.keys.recall(digest) or guard.keys.check(key)) == grant
    except InvalidInput:  # it was revoked, or has expired
        return False


@router.operation(
    "POST",
    WEBHOOKS,
    scope=Scope.ADMIN,
    unrestricted=True,
    changes=True,
    status=201,
    codes=("webhook_refused", "gallery_not_found", *NO_SUBJECT, "invalid_id"),
)
def create_webhook(webhooks: Webhooks, entry: AuditEntry, asked: schemas.WebhookCreate) -> schemas.WebhookMade:
    """Make a webhook.

    Events from now on are posted to the address, in order, each at least once. They are signed with a secret that only
    this answer contains. Private addresses need `LIKENESS_WEBHOOK_NETWORKS`. `subjects` stay the same people when an id
    changes or subjects are merged. Deleted people are removed from the list; when it is empty, nothing more is sent.
    """
    made, secret = webhooks.add(asked)
    entry.target = made.id
    return schemas.WebhookMade.of(made, secret=secret)


@router.operation("GET", WEBHOOKS, scope=Scope.ADMIN, unrestricted=True)
def list_webhooks(webhooks: Webhooks) -> schemas.WebhookList:
    """List webhooks.

    Lists each webhook with the number of the last event sent to it, and its problem if it has one.
    """
    return schemas.WebhookList(webhooks=webhooks.all())


@router.operation("GET", WEBHOOK, scope=Scope.ADMIN, unrestricted=True, name="show_webhook", codes=NO_WEBHOOK)
def get_webhook(webhooks: Webhooks, webhook: WebhookId) -> schemas.Webhook:
    """Show a webhook.

    Answers where it sends which events, and whether that succeeds.
    """
    return webhooks.find(webhook)


@router.operation("DELETE", WEBHOOK, scope=Scope.ADMIN, unrestricted=True, changes=True, codes=NO_WEBHOOK)
def delete_webhook(webhooks: Webhooks, webhook: WebhookId) -> None:
    """Delete a webhook.

    Nothing more is sent to it.
    """
    webhooks.delete(webhook)


@router.operation("POST", f"{WEBHOOK}/resume", scope=Scope.ADMIN, unrestricted=True, changes=True, codes=NO_WEBHOOK)
def resume_webhook(webhooks: Webhooks, webhook: WebhookId) -> schemas.Webhook:
    """Resume a webhook.

    A webhook that was set aside continues where it stopped, as far as the events are still kept.
    """
    return webhooks.resume(webhook)


def _start(
    core: Components, *, webhook_networks: tuple[str, ...], expiry_seconds: float, mqtt: SecretStr | None, **days: float
) -> Part:
    watching, database = Watching(core, **days), core.store.database
    webhooks = Webhooks(database, core.secrets, webhook_networks)
    running = ExitStack()
    if mqtt is not None:
        from app.features.watching.mqtt import Publisher  # noqa: PLC0415 - an extra that few have

        running.callback(Publisher(mqtt.get_secret_value(), core.store).close)
    running.callback(Sender(webhooks).close)
    tasks = (
        PeriodicTask(CLOSE_S, "silent tracks", watching.sightings.close_silent),
        PeriodicTask(expiry_seconds, "sightings", watching.sightings.prune),
        PeriodicTask(expiry_seconds, "cameras", watching.cameras.prune),
        PeriodicTask(expiry_seconds, "corrections of sightings", partial(prune_corrections, core.store)),
        PeriodicTask(REEMBED_S, "templates of sightings", partial(watching.sightings.reembed, core.embedders)),
        PeriodicTask(REGROUP_S, "strangers", watching.strangers.regroup),
    )
    handed = {"watching": watching, "webhooks": webhooks, "listeners": Listeners(database)}
    reached = Reached("sightings", watching.erase_like, TABLES)
    return Part(handed, tasks=tasks, erased_too=[reached], close=running.close)


FEATURE = Feature(
    [router],
    _start,
    (*DAYS, "webhook_networks", "expiry_seconds", "mqtt"),
    setting="watching",
    webhooks=(schemas.Event,),
    page=pathlib.Path(__file__).parent / "page",
)
