"""Corrections: probes that were wrongly taken for a subject. Faces that look like them are not taken for it again.

A correction holds the probe's template and, if the gallery keeps crops, its crop, sealed like those of faces. It is
erased with its subject and with its gallery, expires, and is dropped when its subject is merged. While a gallery is
re-embedded, a correction has a row for each of the two packages.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.engine import select_in
from app.db.schema import CORRECTIONS, SUBJECTS
from app.errors import InvalidInput, NotFound
from app.gallery.change import Change
from app.gallery.records import (
    Gallery,
    StoredFace,
    brief_subjects,
    find_subject,
    fit_face,
    from_bytes,
    templates_of,
    to_bytes,
)
from app.gallery.store import Store
from app.gallery.subjects import id_here
from app.timestamps import utc_now
from app.types import Template, Vector, Vectors

MOST = 32
"""The most corrections of one subject, which bounds what a decision reads. A further one replaces the oldest."""
PLAIN = b"\0"
"""The first byte of an unsealed probe, which tells it from a sealed one."""
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Correction:
    """A probe that is not `subject`: its template by `package` as float32 little endian, and its crop as JPEG."""

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


@dataclass(frozen=True, slots=True)
class Wrong:
    """The recorded wrong probes of a subject: ids, and templates (N, D)."""

    ids: tuple[str, ...]
    vectors: Vectors


class Corrections:
    """Keeps corrections. Safe to share between threads.

    Every call may raise what `Database` does, and NotFound ``gallery_not_found``.
    """

    def __init__(self, store: Store, days: float) -> None:
        """A correction expires after `days`, unless the call says otherwise."""
        self._store = store
        self._database = store.database
        self._blobs = store.blobs
        self._days = days

    def add(self, gallery: Gallery, subject_id: str, probe: StoredFace, expires_at: str | None = None) -> Correction:
        """Record that the probe is not the subject.

        Raises InvalidInput ``invalid_expiry``; NotFound ``subject_not_found``; Conflict ``subject_expired``,
        ``package_mismatch`` if the probe lacks a template that the gallery takes.
        """
        ends = expires_at or utc_now(timedelta(days=self._days))
        if ends <= utc_now():
            raise InvalidInput("The correction would have expired already.", code="invalid_expiry")
        correction_id = uuid.uuid4().hex
        with self._store.change(gallery) as change:
            fitted = fit_face(probe, change.gallery.written)
            subject = find_subject(change.connection, change.gallery, subject_id)
            now = utc_now()
            row = {"id": correction_id, "subject_key": subject.key, "created_at": now, "expires_at": ends}
            rows = [
                row | self._probe(correction_id, made.package, to_bytes(made), probe.crop) for made in fitted.templates
            ]
            self._insert(change, rows)
            _drop_oldest(change, subject.key)
        return Correction(correction_id, subject.id, fitted.package, fitted.template, probe.crop, now, ends)

    def of_subject(self, gallery: Gallery, subject_id: str) -> list[Correction]:
        """List the subject's corrections, oldest first; there are MOST at most. Raises NotFound
        ``subject_not_found``."""
        with self._database.read() as connection:
            subject = find_subject(connection, gallery, subject_id)
            query = _current(gallery.embedder).where(CORRECTIONS.c.subject_key == subject.key)
            rows = connection.execute(query.order_by(CORRECTIONS.c.key)).all()
        return list(map(self._correction, rows))

    def delete(self, gallery: Gallery, subject_id: str, correction_id: str) -> None:
        """Forget a correction. Raises NotFound ``subject_not_found``, ``correction_not_found``."""
        with self._store.change(gallery) as change:
            subject = find_subject(change.connection, gallery, subject_id)
            its = (CORRECTIONS.c.subject_key == subject.key) & (CORRECTIONS.c.id == correction_id)
            change.overwrites = True
            if not change.connection.execute(sa.delete(CORRECTIONS).where(its)).rowcount:
                message = f"Subject {subject.id!r} has no correction {correction_id!r}."
                raise NotFound(message, code="correction_not_found", subject=subject.id, correction=correction_id)

    def wrong_probes(self, gallery: Gallery, package: str, subjects: Collection[str]) -> dict[str, Wrong]:
        """Return the recorded wrong probes of these subjects, as templates of this package, by the subjects' ids."""
        return {subject: wrong for _, subject, wrong in self._read_wrong(gallery, package, SUBJECTS.c.id, subjects)}

    def wrong_by_key(self, gallery: Gallery, package: str, subjects: Collection[int]) -> dict[int, Vectors]:
        """Return the recorded wrong probes, (N, D), of the subjects of these keys, by key."""
        read = self._read_wrong(gallery, package, CORRECTIONS.c.subject_key, subjects)
        return {key: wrong.vectors for key, _, wrong in read}

    def drop_like(self, change: Change, subject_id: str, least: Callable[[str], float | None]) -> int:
        """Drop other subjects' corrections that may show this subject; return how many. Raises NotFound.

        A probe may show the subject if its score with the subject's faces is at least `least` of its package, or higher
        than its score with the faces of the subject that it was taken for.
        """
        if not change.gallery.corrected:
            return 0
        subject = find_subject(change.connection, change.gallery, subject_id, expired=True)
        query = _rows().where(_of(change.gallery) & (CORRECTIONS.c.subject_key != subject.key))
        rows = change.connection.execute(query).all()
        doomed: set[str] = set()
        for package in {row.package for row in rows}:
            mine = [row for row in rows if row.package == package]
            faces = templates_of(
                change.connection, change.blobs, package, {subject.key, *(row.subject_key for row in mine)}
            )
            for row in mine if subject.key in faces else ():
                probe = self._template(row)
                score, other = (
                    float((faces[key] @ probe).max()) if key in faces else -1.0
                    for key in (subject.key, row.subject_key)
                )
                floor = least(package)
                if score > other or (floor is not None and score >= floor):
                    doomed.add(row.id)
        change.connection.execute(sa.delete(CORRECTIONS).where(_of(change.gallery) & CORRECTIONS.c.id.in_(doomed)))
        return len(doomed)

    def prune(self) -> int:
        """Delete the corrections that have expired; return how many rows. The scheduler calls it."""
        with self._database.write() as connection:
            gone = connection.execute(sa.delete(CORRECTIONS).where(CORRECTIONS.c.expires_at <= utc_now())).rowcount
        if gone:
            self._database.request_scrub()
        return gone

    # Re-embedding, exports and imports

    def reembed(
        self, gallery: Gallery, package: str, embed: Callable[[Sequence[bytes]], Sequence[Template | None]]
    ) -> tuple[int, int]:
        """Add templates of this package, which `embed` makes from the JPEGs of crops, where they are missing.

        Return how many were added, and how many have no readable crop: those are dropped with the old package.
        """
        done = sa.select(CORRECTIONS.c.id).where(_of(gallery) & (CORRECTIONS.c.package == package))
        query = _rows().where(_of(gallery) & CORRECTIONS.c.id.not_in(done)).order_by(CORRECTIONS.c.key)
        rows = self._database.rows(query)
        if not rows:
            return 0, 0
        crops = {row.id: crop for row in rows if (crop := self._opened(row)[1]) is not None}
        embedded = zip(crops, embed(list(crops.values())), strict=True)
        made = {name: template for name, template in embedded if template is not None}
        with self._store.change(gallery) as change:
            there = set(change.connection.execute(sa.select(CORRECTIONS.c.id).where(_of(gallery))).scalars())
            values = [
                {name: getattr(row, name) for name in ("id", "subject_key", "created_at", "expires_at")}
                | self._probe(row.id, package, to_bytes(made[row.id]), crops[row.id])
                for row in rows
                if row.id in made and row.id in there
            ]
            self._insert(change, values)
        return len(values), len(rows) - len(made)

    def keep_only(self, gallery: Gallery, package: str) -> None:
        """Drop all templates of other packages, and with them the corrections that have none of this one."""
        with self._store.change(gallery) as change:
            others = _of(gallery) & (CORRECTIONS.c.package != package)
            change.overwrites |= bool(change.connection.execute(sa.delete(CORRECTIONS).where(others)).rowcount)

    def read_all(self, gallery: Gallery, *, crops: bool) -> Iterator[Correction]:
        query = _current(gallery.embedder).where(_of(gallery)).order_by(CORRECTIONS.c.key)
        for row in self._database.rows(query):
            correction = self._correction(row)
            yield correction if crops else replace(correction, crop=None)

    def restore(self, gallery: Gallery, corrections: Sequence[Correction], also: Callable[[Connection], None]) -> None:
        """Add exported corrections, whose templates are of the gallery's package; `also` writes in the transaction.

        Corrections of missing subjects, expired ones and those that the gallery already has are skipped.
        """
        now = utc_now()
        with self._store.change(gallery) as change:
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
                    probe = self._probe(name, correction.package, correction.template, correction.crop)
                    rows[name] = {"id": name, "subject_key": keys[correction.subject]} | times | probe
            self._insert(change, list(rows.values()))
            for key in keys.values():
                _drop_oldest(change, key)
            also(change.connection)

    def _read_wrong(
        self, gallery: Gallery, package: str, column: sa.ColumnElement[Any], subjects: Collection[int] | Collection[str]
    ) -> list[tuple[int, str, Wrong]]:
        """Return key, id and wrong probes, oldest first, of each subject that has some; `column` names the subjects."""
        rows_of: dict[tuple[int, str], list[Row[Any]]] = {}
        if gallery.corrected:
            with self._database.read() as connection:
                query = _current(package).where(_of(gallery)).order_by(CORRECTIONS.c.key)
                for row in select_in(connection, query, column, subjects):
                    rows_of.setdefault((row.subject_key, row.subject), []).append(row)
        return [
            (key, subject, Wrong(tuple(row.id for row in rows), np.stack([self._template(row) for row in rows])))
            for (key, subject), rows in rows_of.items()
        ]

    def _template(self, row: Row[Any]) -> Vector:
        return from_bytes(self._opened(row)[0])

    def _correction(self, row: Row[Any]) -> Correction:
        template, crop = self._opened(row)
        return Correction(row.id, row.subject, row.package, template, crop, row.created_at, row.expires_at)

    def _probe(self, correction_id: str, package: str, template: bytes, crop: bytes | None) -> dict[str, object]:
        plain = PLAIN + len(template).to_bytes(_FLOAT_BYTES, "little") + template + (crop or b"")
        return {"package": package, "probe": self._blobs.pack("correction", correction_id, plain)}

    def _opened(self, row: Row[tuple[object, ...]]) -> tuple[bytes, bytes | None]:
        """Return the template and the crop of a row."""
        plain = self._blobs.unpack("correction", row.id, bytes(row.probe))[len(PLAIN) :]
        end = _FLOAT_BYTES + int.from_bytes(plain[:_FLOAT_BYTES], "little")
        return plain[_FLOAT_BYTES:end], plain[end:] or None

    def _insert(self, change: Change, rows: Sequence[Mapping[str, object]]) -> None:
        if rows:
            change.blobs.mark(change.connection)
            values = [{**row, "gallery_key": change.gallery.key} for row in rows]
            change.connection.execute(sa.insert(CORRECTIONS), values)


def _rows() -> sa.Select[tuple[object, ...]]:
    return sa.select(CORRECTIONS, SUBJECTS.c.id.label("subject")).join_from(CORRECTIONS, SUBJECTS)


def _current(package: str) -> sa.Select[tuple[object, ...]]:
    return _rows().where((CORRECTIONS.c.package == package) & (CORRECTIONS.c.expires_at > utc_now()))


def _of(gallery: Gallery) -> sa.ColumnElement[bool]:
    return CORRECTIONS.c.gallery_key == gallery.key


def _drop_oldest(change: Change, subject_key: int) -> None:
    """Keep the newest MOST corrections of the subject."""
    mine = CORRECTIONS.c.subject_key == subject_key
    newest = sa.select(CORRECTIONS.c.id).where(mine).group_by(CORRECTIONS.c.id)
    kept = newest.order_by(sa.func.max(CORRECTIONS.c.key).desc()).limit(MOST)
    ids = list(change.connection.execute(kept).scalars())
    gone = change.connection.execute(sa.delete(CORRECTIONS).where(mine & CORRECTIONS.c.id.not_in(ids))).rowcount
    change.overwrites |= bool(gone)
