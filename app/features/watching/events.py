"""Events: what happened, numbered in the order in which it became visible, kept with the sightings they are about."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.choices import EventKind
from app.db.engine import Database
from app.db.schema import EVENT_NUMBERS, EVENTS, GALLERIES, SUBJECTS
from app.gallery.change import Change
from app.timestamps import utc_now, utc_seconds

VERSION: Final = 1
"""Version of the events' form. Fields may be added to it; renaming or removing one makes a new version."""
Event: TypeAlias = dict[str, Any]
"""An event as `app.features.watching.schemas.Event` describes it, without its age."""
ONLY: Final = 1
"""The key of the one row of EVENT_NUMBERS."""


def write_event(
    change: Change, sighting_key: int, subject_key: int | None, kind: EventKind, about: Mapping[str, object]
) -> None:
    """Write an event in the change's transaction; whoever else writes one waits until it ends.

    ``about`` has the fields of `app.features.watching.schemas.Event` that come from the sighting. The subject's fields
    are read when the event is sent: it may have another id and name then, or be erased.
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
    """Return the number of the last event that was written, even if it was deleted since."""
    return int(connection.execute(sa.select(EVENT_NUMBERS.c.last)).scalar() or 0)


def read_events(
    database: Database, after: int, limit: int, galleries: Collection[str] | None = None, **equal: str | None
) -> list[Event]:
    """Return the events after this number, in order, of these galleries by id (None: all), whose columns are ``equal``
    to values that are not None."""
    who = SUBJECTS.c.id.label("subject"), SUBJECTS.c.name.label("name")
    query = sa.select(EVENTS.c.document, *who).join_from(EVENTS, GALLERIES)
    query = query.outerjoin(SUBJECTS, EVENTS.c.subject_key == SUBJECTS.c.key).where(EVENTS.c.number > after)
    query = query.order_by(EVENTS.c.number).limit(limit)
    query = query.where(*(EVENTS.c[name] == value for name, value in equal.items() if value is not None))
    if galleries is not None:
        query = query.where(GALLERIES.c.id.in_(sorted(galleries)))
    rows = database.rows(query)
    return [json.loads(row.document) | {"subject": row.subject, "name": row.name} for row in rows]


def aged(event: Event, now: float) -> dict[str, object]:
    """Return the event as it is sent at ``now`` (seconds since 1970): with the age in seconds of what it reports."""
    return event | {"age_s": round(max(0.0, now - utc_seconds(event["seen_at"])), 3)}
