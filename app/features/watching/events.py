"""Write and read events, which are numbered in the order of their commits and deleted with their sightings."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.choices import EventKind
from app.db.engine import Database
from app.db.schema import EVENT_NUMBERS, EVENTS, GALLERIES, SUBJECTS
from app.features.watching.rows import Where
from app.gallery.records import not_expired
from app.gallery.store import Change
from app.types import utc_now, utc_seconds

VERSION: Final = 1
"""Version of the events' form. Fields may be added without a new version; renaming or removing one needs a new one."""
Event: TypeAlias = dict[str, Any]
"""An event as `app.features.watching.schemas.Event` describes it, without its age."""
Some: TypeAlias = Collection[str] | None
ONLY: Final = 1
"""The key of the one row of EVENT_NUMBERS."""


def write_event(
    change: Change, sighting_key: int, subject_key: int | None, kind: EventKind, about: Mapping[str, object]
) -> None:
    """Write an event in the change's transaction; other writers of events wait until it ends.

    ``about`` has the fields of `app.features.watching.schemas.Event` that come from the sighting. The subject's fields
    are read when the event is sent, since its id and name may change, or it may be erased.
    """
    event_id, number = uuid.uuid4().hex, _next_number(change)
    head = {"version": VERSION, "id": event_id, "number": number, "event": kind, "at": utc_now()}
    row = {
        "number": number,
        "id": event_id,
        "gallery_key": change.gallery.key,
        "sighting_key": sighting_key,
        "subject_key": subject_key,
        "kind": kind,
        "camera": about["camera"],
        "document": json.dumps(head | {"gallery": change.gallery.id} | dict(about), ensure_ascii=False),
    }
    change.connection.execute(sa.insert(EVENTS).values(row))


def _next_number(change: Change) -> int:
    bump = sa.update(EVENT_NUMBERS).values(last=EVENT_NUMBERS.c.last + 1).returning(EVENT_NUMBERS.c.last)
    number = change.connection.execute(bump).scalar()
    if number is None:
        change.connection.execute(change.insert(EVENT_NUMBERS).values(key=ONLY, last=0).on_conflict_do_nothing())
        number = change.connection.execute(bump).scalar_one()
    return int(number)


def last_number(connection: Connection) -> int:
    """Return the number of the last event written, even if that event has been deleted."""
    return int(connection.execute(sa.select(EVENT_NUMBERS.c.last)).scalar() or 0)


def among(galleries: Some, cameras: Some, kinds: Some) -> list[Where]:
    """Return the conditions for events of these galleries (by id), cameras and kinds; None: all."""
    asked = {GALLERIES.c.id: galleries, EVENTS.c.camera: cameras, EVENTS.c.kind: kinds}
    return [column.in_(sorted(values)) for column, values in asked.items() if values is not None]


def read_events(
    database: Database, after: int, limit: int, where: Sequence[Where] = (), named: Where | None = None
) -> list[Event]:
    """Return at most ``limit`` events with numbers above ``after`` for which ``where`` holds, in order. Subjects for
    whom ``named`` doesn't hold are not named in them; None: all are."""
    whom = (EVENTS.c.subject_key == SUBJECTS.c.key) & not_expired() & (sa.true() if named is None else named)
    query = sa.select(EVENTS.c.document, SUBJECTS.c.id.label("subject"), SUBJECTS.c.name.label("name"))
    query = query.join_from(EVENTS, GALLERIES).outerjoin(SUBJECTS, whom).where(EVENTS.c.number > after, *where)
    rows = database.rows(query.order_by(EVENTS.c.number).limit(limit))
    return [json.loads(row.document) | {"subject": row.subject, "name": row.name} for row in rows]


def aged(event: Event, now: float) -> dict[str, object]:
    """Return the event to send at ``now`` (seconds since 1970), with its age in seconds."""
    return event | {"age_s": round(max(0.0, now - utc_seconds(event["seen_at"])), 3)}
