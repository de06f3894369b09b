"""Add, list, delete, restore and re-embed corrections (`app.gallery.corrections` says what they are)."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.engine import in_parts
from app.db.schema import CORRECTIONS
from app.errors import InvalidInput, NotFound
from app.gallery.corrections import all_rows, current_rows, pack, templates, unpack, wrong_rows
from app.gallery.records import Gallery, StoredFace, brief_subjects, find_subject, to_bytes
from app.gallery.service import fit_face
from app.gallery.store import Change, Store
from app.types import Template, Vectors, utc_now

MOST = 32
"""Maximum corrections of a subject, so that a decision reads no more than these. One more replaces the oldest."""


@dataclass(frozen=True, slots=True)
class Correction:
    """A probe that does not show `subject`: its template by `package` as little-endian float32, and its crop as
    JPEG."""

    id: str
    subject: str
    package: str
    template: bytes = field(repr=False)
    crop: bytes | None = field(repr=False)
    created_at: str
    expires_at: str

    @property
    def has_crop(self) -> bool:
        return self.crop is not None


def add_correction(
    store: Store, gallery: Gallery, subject_id: str, probe: StoredFace, expires_at: str, *, sighting: str | None = None
) -> Correction:
    """Record that the probe does not show the subject. With ``sighting``, the id of the sighting that it is from,
    `take_back_corrections` finds it.

    Raises InvalidInput ``invalid_expiry``; NotFound ``gallery_not_found``, ``subject_not_found``; Conflict
    ``subject_expired``, ``package_mismatch`` if the probe lacks a template that the gallery needs.
    """
    if expires_at <= utc_now():
        raise InvalidInput("The correction would have expired already.", code="invalid_expiry")
    with store.change(gallery) as change:
        fitted = fit_face(probe, change.gallery.written)
        subject = find_subject(change.connection, change.gallery, subject_id)
        correction_id = uuid.uuid4().hex
        if sighting is not None:
            take_back_corrections(change, subject.key, [sighting])
            correction_id = _id_by_sighting(sighting, subject.key)
        now = utc_now()
        row = {"id": correction_id, "subject_key": subject.key, "created_at": now, "expires_at": expires_at}
        made = [template for template in (fitted.template, fitted.second) if template]
        rows = [
            row | _probe(change, correction_id, template.package, to_bytes(template), probe.crop) for template in made
        ]
        _insert(change, rows)
        _drop_oldest(change, subject.key)
    current = fitted.template
    return Correction(correction_id, subject.id, current.package, to_bytes(current), probe.crop, now, expires_at)


def corrections_of(store: Store, gallery: Gallery, subject_id: str) -> list[Correction]:
    """Return the subject's corrections, at most MOST, oldest first. Raises NotFound ``subject_not_found``."""
    with store.database.read() as connection:
        subject = find_subject(connection, gallery, subject_id)
        query = current_rows(gallery, gallery.embedder).where(CORRECTIONS.c.subject_key == subject.key)
        rows = connection.execute(query.order_by(CORRECTIONS.c.key)).all()
    return [_correction(store, row) for row in rows]


def delete_correction(store: Store, gallery: Gallery, subject_id: str, correction_id: str) -> None:
    """Delete a correction. Raises NotFound ``subject_not_found``, ``correction_not_found``."""
    with store.change(gallery) as change:
        subject = find_subject(change.connection, gallery, subject_id)
        its = (CORRECTIONS.c.subject_key == subject.key) & (CORRECTIONS.c.id == correction_id)
        change.overwrites = True
        if not change.connection.execute(sa.delete(CORRECTIONS).where(its)).rowcount:
            message = f"Subject {subject.id!r} has no correction {correction_id!r}."
            raise NotFound(message, code="correction_not_found", subject=subject.id, correction=correction_id)


def take_back_corrections(change: Change, subject_key: int, sightings: Iterable[str]) -> None:
    """Delete the subject's corrections that were recorded from these sightings, by id: they show the subject."""
    for part in in_parts([_id_by_sighting(sighting, subject_key) for sighting in sightings]):
        gone = change.connection.execute(sa.delete(CORRECTIONS).where(CORRECTIONS.c.id.in_(part))).rowcount
        change.overwrites |= bool(gone)


def prune_corrections(store: Store) -> int:
    """Delete the expired corrections; return the number of deleted rows. Called by the scheduler."""
    with store.database.write() as connection:
        gone = connection.execute(sa.delete(CORRECTIONS).where(CORRECTIONS.c.expires_at <= utc_now())).rowcount
    if gone:
        store.database.request_scrub()
    return gone


def wrong_by_key(store: Store, gallery: Gallery, package: str, subjects: Collection[int]) -> dict[int, Vectors]:
    """Return the recorded wrong probes of these subjects, (N, D) each, by the subject's key."""
    rows_of = wrong_rows(store, gallery, package, CORRECTIONS.c.subject_key, subjects)
    return {key: templates(store.blobs, rows) for (key, _), rows in rows_of.items()}


def reembed_corrections(
    store: Store, gallery: Gallery, package: str, embed: Callable[[Sequence[bytes]], Sequence[Template | None]]
) -> tuple[int, int]:
    """Add the gallery's corrections' missing templates of this package; `embed` makes them from crops, given as JPEGs.

    Return how many were added, and how many corrections have no readable crop. These are dropped with the old package.
    """
    done = sa.select(CORRECTIONS.c.id).where(_of(gallery) & (CORRECTIONS.c.package == package))
    query = all_rows(gallery).where(CORRECTIONS.c.id.not_in(done)).order_by(CORRECTIONS.c.key)
    rows = store.database.rows(query)
    if not rows:
        return 0, 0
    crops = {row.id: crop for row in rows if (crop := unpack(store.blobs, row)[1]) is not None}
    embedded = zip(crops, embed(list(crops.values())), strict=True)
    made = {name: template for name, template in embedded if template is not None}
    with store.change(gallery) as change:
        there = set(change.connection.execute(sa.select(CORRECTIONS.c.id).where(_of(gallery))).scalars())
        values = [
            {name: getattr(row, name) for name in ("id", "subject_key", "created_at", "expires_at")}
            | _probe(change, row.id, package, to_bytes(made[row.id]), crops[row.id])
            for row in rows
            if row.id in made and row.id in there
        ]
        _insert(change, values)
    return len(values), len(rows) - len(made)


def drop_other_packages(store: Store, gallery: Gallery, package: str) -> None:
    """Delete all templates of other packages, and so the corrections that have no other template."""
    with store.change(gallery) as change:
        others = _of(gallery) & (CORRECTIONS.c.package != package)
        change.overwrites |= bool(change.connection.execute(sa.delete(CORRECTIONS).where(others)).rowcount)


def read_corrections(store: Store, gallery: Gallery, *, crops: bool) -> Iterator[Correction]:
    """Yield the gallery's corrections that have not expired, oldest first, with their crops if `crops` is set."""
    for row in store.database.rows(current_rows(gallery, gallery.embedder).order_by(CORRECTIONS.c.key)):
        correction = _correction(store, row)
        yield correction if crops else replace(correction, crop=None)


def restore_corrections(
    store: Store, gallery: Gallery, corrections: Sequence[Correction], also: Callable[[Connection], None]
) -> None:
    """Add exported corrections, whose templates are of the gallery's package; `also` writes in the same transaction.

    Corrections of missing subjects, expired corrections and corrections that the gallery already has are skipped.
    """
    now = utc_now()
    with store.change(gallery) as change:
        subjects = brief_subjects(change.connection, gallery, {correction.subject for correction in corrections})
        keys: dict[str, int] = {name: row.key for name, row in subjects.items()}
        others = {correction.id: id_here(gallery, correction.id) for correction in corrections}
        query = sa.select(CORRECTIONS.c.id, CORRECTIONS.c.gallery_key)
        query = query.where(CORRECTIONS.c.id.in_([*others, *others.values()]))
        homes: dict[str, int] = {row.id: row.gallery_key for row in change.connection.execute(query)}
        rows: dict[str, dict[str, object]] = {}
        for correction in corrections:
            known = any(homes.get(name) == gallery.key for name in (correction.id, others[correction.id]))
            name = others[correction.id] if correction.id in homes else correction.id
            if correction.subject in keys and not known and correction.expires_at > now:
                times = {"created_at": correction.created_at, "expires_at": correction.expires_at}
                probe = _probe(change, name, correction.package, correction.template, correction.crop)
                rows[name] = {"id": name, "subject_key": keys[correction.subject]} | times | probe
        _insert(change, list(rows.values()))
        for key in keys.values():
            _drop_oldest(change, key)
        also(change.connection)


def _of(gallery: Gallery) -> sa.ColumnElement[bool]:
    return CORRECTIONS.c.gallery_key == gallery.key


def _correction(store: Store, row: Row[Any]) -> Correction:
    template, crop = unpack(store.blobs, row)
    return Correction(row.id, row.subject, row.package, template, crop, row.created_at, row.expires_at)


def _probe(change: Change, correction_id: str, package: str, template: bytes, crop: bytes | None) -> dict[str, object]:
    return {"package": package, "probe": pack(change.blobs, correction_id, template, crop)}


def _insert(change: Change, rows: Sequence[Mapping[str, object]]) -> None:
    if rows:
        change.blobs.mark(change.connection)
        values = [{**row, "gallery_key": change.gallery.key} for row in rows]
        change.connection.execute(sa.insert(CORRECTIONS), values)


def _drop_oldest(change: Change, subject_key: int) -> None:
    """Delete the subject's corrections except the newest MOST."""
    mine = CORRECTIONS.c.subject_key == subject_key
    newest = sa.select(CORRECTIONS.c.id).where(mine).group_by(CORRECTIONS.c.id)
    kept = newest.order_by(sa.func.max(CORRECTIONS.c.key).desc()).limit(MOST)
    ids = list(change.connection.execute(kept).scalars())
    gone = change.connection.execute(sa.delete(CORRECTIONS).where(mine & CORRECTIONS.c.id.not_in(ids))).rowcount
    change.overwrites |= bool(gone)


def _id_by_sighting(sighting: str, subject_key: int) -> str:
    """Return the id of the correction that says that the sighting does not show the subject."""
    return hashlib.sha256(f"{sighting}/{subject_key}".encode()).hexdigest()[:32]


def id_here(gallery: Gallery, foreign: str) -> str:
    """Return an id for something whose own id exists in another gallery, perhaps a copy of this one. Each import gets
    the same id."""
    return hashlib.sha256(f"{gallery.key}/{foreign}".encode()).hexdigest()[:32]
