"""Sightings in SQL: each track is a row. When the decision on whom it shows changes, an event is written in the same
transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final, TypeAlias

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Row

from app.choices import EventKind
from app.db.pagination import Page, read_page
from app.db.schema import GALLERIES, SIGHTINGS, STRANGERS
from app.errors import Conflict
from app.features.corrected import take_back_corrections
from app.features.stored import embed_crops
from app.features.watching.events import write_event
from app.features.watching.rows import (
    LOOKS,
    ROWS,
    Stored,
    delete_sightings,
    drop_unseen,
    find_row,
    fits,
    to_sighting,
    to_stored,
)
from app.features.watching.schemas import Decided, FilterParams, Sighting, SightingParams, SightingsParams
from app.gallery.records import Gallery, brief_subjects, encode_crop, find_subject, to_bytes
from app.gallery.store import Change, Store
from app.inference.embedders import Embedders
from app.recognition.decisions import Identification, template_of
from app.types import Template, utc_now

SILENT_S: Final = 60.0
"""Seconds without a report after which a track counts as ended: its watcher or the connection is gone."""
AT_ONCE: Final = 500
"""Maximum rows that one run of a scheduled task processes."""
NOBODY: Final = "nobody"
"""The value of the column ``said`` if the last event was about somebody unknown; otherwise it is the subject's key."""
TOLD: Final = Decided.model_fields.keys() - {"subject", "name"}
"""The columns that are copied into an event unchanged."""
Values: TypeAlias = dict[str, Any]
_DECIDED = frozenset({"subject_key", "decision", "score", "margin", "threshold", "fpir", "crop_until"})
"""The columns of the decision; the others describe the track itself."""


class Sightings:
    """Keeps sightings. Safe to share between threads, the database between servers.

    Every call may raise what `Database` raises; those that name a gallery also NotFound ``gallery_not_found``.
    """

    def __init__(self, store: Store, kept: timedelta, unknown: timedelta, group: Callable[[Change, int], None]) -> None:
        """Keep sightings for ``kept`` after their last decision, but crops and templates of people who are neither
        known nor strangers for ``unknown`` only. ``group`` assigns an unknown person's sighting, by its key, to a
        stranger."""
        self.store, self.database, self._group = store, store.database, group
        self._kept, self._unknown = kept, unknown

    def tell(self, gallery: Gallery, sighting_id: str, told: SightingParams, found: Identification) -> Sighting:
        """Store the decision about a track's face, and write the resulting events.

        A decision that contradicts an event already sent replaces the earlier decision, but only once; a person's
        decision stays. Raises Conflict ``sighting_taken`` if the id belongs to another gallery or camera.
        """
        with self.store.change(gallery) as change:
            values = self._seen(change, sighting_id, told, found)
            row = change.connection.execute(ROWS.where(SIGHTINGS.c.id == sighting_id)).one_or_none()
            if row is None:
                insert = sa.insert(SIGHTINGS).values(values).returning(SIGHTINGS.c.key)
                key = change.connection.execute(insert).scalar_one()
            else:
                key = row.key
                change.overwrites = True
                values = _revised(change.gallery, row, values)
                change.connection.execute(sa.update(SIGHTINGS).where(SIGHTINGS.c.key == key).values(values))
            self._group(change, key)
            return _say(change, key, row)

    def hear(self, gallery: Gallery, sighting_id: str, last_at: str, *, ended: bool, zone: str | None) -> Sighting:
        """Note that the track goes on or has ended. Raises NotFound ``sighting_not_found``."""
        with self.store.change(gallery) as change:
            row = find_row(change.connection, change.gallery, sighting_id)
            values = {"last_at": max(row.last_at, last_at), "heard_at": utc_now(), "ended": bool(row.ended) or ended}
            values["zone"] = zone or row.zone
            change.connection.execute(sa.update(SIGHTINGS).where(SIGHTINGS.c.key == row.key).values(values))
            return _say(change, row.key, row)

    def find(self, gallery: Gallery, sighting_id: str) -> Stored:
        """Return the sighting with its template and crop. Raises NotFound ``sighting_not_found``."""
        with self.database.read() as connection:
            return to_stored(find_row(connection, gallery, sighting_id), self.store.blobs)

    def page(self, gallery: Gallery, wanted: SightingsParams) -> Page[Sighting]:
        """Return a page of the gallery's sightings, newest first. Raises InvalidInput ``invalid_cursor``."""
        query, key = ROWS.where(SIGHTINGS.c.gallery_key == gallery.key, fits(wanted)), SIGHTINGS.c.key
        cursor, limit, others = wanted.cursor, wanted.limit, wanted.model_dump(exclude={"cursor", "limit"})
        listing = f"sightings/{gallery.key}/{others}"
        return read_page(
            self.database, query, key, to_sighting, listing=listing, cursor=cursor, limit=limit, newest_first=True
        )

    def delete(self, gallery: Gallery, wanted: FilterParams) -> int:
        """Delete sightings with their crops and events; return how many."""
        with self.store.change(gallery) as change:
            query = ROWS.where(SIGHTINGS.c.gallery_key == gallery.key, fits(wanted)).with_only_columns(SIGHTINGS.c.key)
            return delete_sightings(change, change.connection.execute(query).scalars())

    def drop(self, gallery: Gallery, sighting_id: str) -> None:
        """Delete one sighting. Raises NotFound ``sighting_not_found``."""
        with self.store.change(gallery) as change:
            delete_sightings(change, [find_row(change.connection, change.gallery, sighting_id).key])

    def settle(self, change: Change, sightings: Iterable[str], subject_id: str | None) -> list[Sighting]:
        """Store a person's decision on whom these sightings show, which no later report changes; None: not the one they
        were taken for. The subject's corrections from these sightings are deleted.

        Raises NotFound ``sighting_not_found``, ``subject_not_found``.
        """
        subject = None if subject_id is None else find_subject(change.connection, change.gallery, subject_id)
        settled = []
        for sighting_id in sightings:
            row = find_row(change.connection, change.gallery, sighting_id)
            values = {
                "subject_key": None if subject is None else subject.key,
                "stranger_key": None,
                "decision": "unknown" if subject is None else "known",
                "settled": True,
                "crop_until": None if subject is not None else utc_now(self._unknown),
            }
            change.connection.execute(sa.update(SIGHTINGS).where(SIGHTINGS.c.key == row.key).values(values))
            settled.append(_say(change, row.key, row))
        if subject is not None:
            take_back_corrections(change, subject.key, [sighting.id for sighting in settled])
        drop_unseen(change.connection, change.gallery)
        return settled

    # The scheduler's tasks

    def close_silent(self) -> int:
        """End the tracks without a report for SILENT_S; return their number."""
        open_ = SIGHTINGS.c.ended.is_(False) & (SIGHTINGS.c.heard_at < utc_now(timedelta(seconds=-SILENT_S)))
        rows = self.database.rows(ROWS.where(open_).order_by(SIGHTINGS.c.key).limit(AT_ONCE))
        for row in rows:
            with self.store.change(self.store.gallery(row.gallery)) as change:
                end = sa.update(SIGHTINGS).where((SIGHTINGS.c.key == row.key) & open_).values(ended=True)
                if change.connection.execute(end).rowcount:
                    _say(change, row.key, row)
        return len(rows)

    def prune(self) -> int:
        """Delete expired sightings and strangers, and outdated crops and templates of unknown people; return the number
        of rows."""
        now = utc_now()
        due = (SIGHTINGS.c.crop_until <= now) & SIGHTINGS.c.stranger_key.is_(None)
        nothing = {"crop": None, "template": None, "crop_until": None}
        with self.database.write() as connection:
            gone = sum(
                connection.execute(statement).rowcount
                for statement in (
                    sa.delete(SIGHTINGS).where(SIGHTINGS.c.expires_at <= now),
                    sa.delete(STRANGERS).where(STRANGERS.c.expires_at <= now),
                    sa.update(SIGHTINGS).where(due).values(nothing),
                )
            )
        if gone:
            self.database.request_scrub()
        return gone

    def reembed(self, embedders: Embedders) -> int:
        """Make new templates from the crops of sightings whose gallery has moved to another package; delete templates
        without a crop. Return the number of sightings."""
        query = ROWS.add_columns(GALLERIES.c.embedder)
        from_other = query.where(SIGHTINGS.c.package != GALLERIES.c.embedder, SIGHTINGS.c.template.is_not(None))
        rows = self.database.rows(from_other.order_by(SIGHTINGS.c.key).limit(AT_ONCE))
        for row in rows:
            crop = to_stored(row, self.store.blobs).crop
            template = None if crop is None else embed_crops(embedders, row.embedder, [crop])[0]
            with self.store.change(self.store.gallery(row.gallery)) as change:
                change.blobs.mark(change.connection)
                packed = None if template is None else change.blobs.pack("sighting", row.id, to_bytes(template))
                values = {"package": row.embedder, "template": packed}
                change.connection.execute(sa.update(SIGHTINGS).where(SIGHTINGS.c.key == row.key).values(values))
                change.overwrites = True
        return len(rows)

    def _seen(self, change: Change, sighting_id: str, told: SightingParams, found: Identification) -> Values:
        """Return the column values of a track's row, from its report and the decision."""
        (face,) = found.faces
        last_at = told.last_at or utc_now()
        best = face.candidates[0] if face.candidates else None
        subject = None
        if best is not None and face.decision != "unknown":  # if the candidate was deleted meanwhile, nobody is known
            subject = brief_subjects(change.connection, change.gallery, [best.subject]).get(best.subject)
        decision = face.decision if subject is not None else "unknown"
        pixels, template = face.face.crop if change.gallery.store == "crop" else None, template_of(face.face)
        mean = Template(template.vector * np.float32(found.length), template.package)
        change.blobs.mark(change.connection)
        crop = None if pixels is None else change.blobs.pack("sighting_crop", sighting_id, encode_crop(pixels))
        return {
            **told.model_dump(include={"camera", "zone", "ended"}),
            "id": sighting_id,
            "gallery_key": change.gallery.key,
            "subject_key": None if subject is None else subject.key,
            "decision": decision,
            "score": None if best is None else best.score,
            "margin": face.margin,
            "threshold": found.point.threshold,
            "fpir": found.point.fpir,
            "frames": len(found.track or ()),
            "quality": face.face.quality.score,
            "first_at": min(told.first_at or last_at, last_at),
            "last_at": last_at,
            "heard_at": utc_now(),
            "expires_at": utc_now(self._kept),
            "crop_until": None if decision == "known" else utc_now(self._unknown),
            "package": template.package,
            "template": change.blobs.pack("sighting", sighting_id, to_bytes(mean)),
            "crop": crop,
        }


def _revised(gallery: Gallery, row: Row[Any], values: Values) -> Values:
    """Return the column values that a later report changes. Raises Conflict ``sighting_taken``."""
    if row.gallery_key != gallery.key or row.camera != values["camera"]:
        raise Conflict("This id is another sighting's.", code="sighting_taken", sighting=row.id)
    values |= {
        "first_at": min(row.first_at, values["first_at"]),
        "last_at": max(row.last_at, values["last_at"]),
        "ended": bool(row.ended) or values["ended"],
        "zone": values["zone"] or row.zone,
    }
    doubted = row.decision == "known" and values["decision"] == "uncertain"
    if row.settled or doubted:
        return {name: value for name, value in values.items() if name not in _DECIDED}
    return values | {"settled": row.said not in {None, _said(values["decision"], values["subject_key"])}}


def _say(change: Change, key: int, before: Row[Any] | None) -> Sighting:
    """Write the events that follow from the row's change since ``before`` (None: it is new); return the sighting."""
    said, ended_before = (None, False) if before is None else (before.said, bool(before.ended))
    row = change.connection.execute(ROWS.where(SIGHTINGS.c.key == key)).one()
    now, kind = _said(row.decision, row.subject_key), None
    is_ignored = row.ignored and now == NOBODY
    if said is None and not is_ignored and not ended_before:  # a track that had ended gets no first event
        kind = _first_event(row)
    elif said is not None and said != now:
        kind = "name_changed"
    subject_key = row.subject_key if row.decision == "known" else None
    if kind is not None:
        write_event(change, key, subject_key, kind, _about(row))
        change.connection.execute(sa.update(SIGHTINGS).where(SIGHTINGS.c.key == key).values(said=now))
    if row.ended and not ended_before and (kind or said):
        write_event(change, key, subject_key, "left", _about(row))
    return to_sighting(row)


def _said(decision: str, subject_key: int | None) -> str:
    """Return the value of the column ``said`` for a sighting that shows this subject."""
    return str(subject_key) if decision == "known" else NOBODY


def _about(row: Row[Any]) -> Values:
    """Return the fields of an event that come from its sighting, without the subject's id and name."""
    crop = f"/v1/galleries/{row.gallery}/sightings/{row.id}/crop" if row.crop is not None else None
    return {name: getattr(row, name) for name in TOLD} | {"sighting": row.id, "seen_at": row.last_at, "crop": crop}


def _first_event(row: Row[Any]) -> EventKind | None:
    """Return the kind of a sighting's first event; None while it is too early to send one."""
    if row.decision == "known":
        return "person_seen"
    sure = row.decision == "unknown" or row.ended  # somebody uncertain may still become known
    return "unknown_seen" if sure and row.frames >= LOOKS else None
