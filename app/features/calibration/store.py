"""Galleries' own calibrations in SQL: rates, thresholds, and suspicious pairs by their faces' keys; no templates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.engine import Connection

from app.db.engine import Cache
from app.db.schema import CALIBRATION_PAIRS, FACES, GALLERIES, GALLERY_CALIBRATIONS, SUBJECTS
from app.errors import GalleryNotFound
from app.features.calibration.population import Figures, deciding
from app.features.own_jobs import check_not_running
from app.gallery.records import Gallery, lock_gallery, not_expired
from app.gallery.store import Store
from app.package.manifest import Calibration
from app.package.thresholds import Thresholds

STALE_SHARE = 0.2
"""A gallery is measured again after this many changes, as a share of its faces at the last measurement."""
LISTED = 100
"""Maximum number of suspicious pairs to store: the most similar ones. All others are only counted."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A gallery's calibration as it was measured; ``calibration`` is None if its pairs support fewer than two rates."""

    package: str
    measured_at: str
    changes: int
    """The number of the gallery's last change before the measurement."""
    figures: Figures
    calibration: Calibration | None


@dataclass(frozen=True, slots=True)
class SuspiciousFace:
    subject: str
    name: str | None
    face_id: str


@dataclass(frozen=True, slots=True)
class SuspiciousPair:
    """Two faces of two subjects who may be one person."""

    first: SuspiciousFace
    second: SuspiciousFace
    score: float


@dataclass(frozen=True, slots=True)
class Standing:
    """A gallery's package, the number of its last change, how many faces it has, the last job that measured it, and the
    last measurement."""

    gallery: str
    package: str
    last_change: int
    faces: int
    job: str | None
    measured: Measured | None

    @property
    def changed(self) -> float:
        """Return the number of changes since the measurement, as a share of the faces at that time. Changes are entries
        of the change log, or faces by which the gallery has shrunk, if these are more: a deleted subject has only one
        entry for all its faces."""
        if (then := self.measured) is None:
            return 0.0
        return max(self.last_change - then.changes, then.figures.faces - self.faces) / max(1, then.figures.faces)

    @property
    def is_due(self) -> bool:
        """Return whether a gallery whose own calibration decides should be measured again."""
        return self.measured is None or self.measured.package != self.package or self.changed > STALE_SHARE


_FIGURES = TypeAdapter(Figures)


class Calibrations:
    """Keeps galleries' calibrations. Safe to share between threads.

    Every call may raise what `Database` raises, and NotFound ``gallery_not_found``.
    """

    def __init__(self, store: Store) -> None:
        self._database = store.database
        self._known = Cache[int, Measured | None](store.database.version)

    def find(self, gallery: Gallery) -> Measured | None:
        """Return the gallery's calibration, or None if it has none yet. Cached like the gallery itself."""
        known = self._known.values()
        if gallery.key not in known:
            query = sa.select(GALLERY_CALIBRATIONS).where(GALLERY_CALIBRATIONS.c.gallery_key == gallery.key)
            known[gallery.key] = next(map(_measured, self._database.rows(query)), None)
        return known[gallery.key]

    def thresholds(self, gallery: Gallery, package: Thresholds) -> Thresholds:
        """Return the thresholds that decide in a gallery. ``package``: those of the model that compares its faces."""
        if gallery.calibration == "package":
            return package
        measured = self.find(gallery)
        if measured is None:
            return package.without_gallery("not_measured")
        if measured.calibration is None:
            return package.without_gallery("too_few_subjects")
        if measured.package != package.package or measured.calibration.measured_with != package.recipe:
            return package.without_gallery("other_model")
        return deciding(package, measured.calibration, allow_laxer=gallery.allow_laxer)

    def standing(self, gallery: Gallery) -> Standing:
        """Return the gallery's standing. Raises NotFound ``gallery_not_found``."""
        standings = self._standings(GALLERIES.c.key == gallery.key)
        if not standings:
            raise GalleryNotFound.of(gallery.id)
        return standings[0]

    def pairs(self, gallery: Gallery) -> list[SuspiciousPair]:
        """Return the suspicious pairs whose faces still exist and still belong to two subjects."""
        rows = self._database.rows(_PAIRS.where(CALIBRATION_PAIRS.c.gallery_key == gallery.key))
        return [
            SuspiciousPair(
                SuspiciousFace(row.first_subject, row.first_name, row.first_face),
                SuspiciousFace(row.second_subject, row.second_name, row.second_face),
                row.score,
            )
            for row in rows
        ]

    def assign(self, connection: Connection, gallery: Gallery, job_id: str) -> None:
        """Store the id of the job that measures the gallery. Raises UnderWay if another job is doing so."""
        last = sa.select(GALLERY_CALIBRATIONS.c.job).where(GALLERY_CALIBRATIONS.c.gallery_key == gallery.key)
        check_not_running(connection, connection.execute(last).scalar_one_or_none())
        insert = self._database.insert(GALLERY_CALIBRATIONS).values(gallery_key=gallery.key, job=job_id)
        connection.execute(insert.on_conflict_do_update(index_elements=["gallery_key"], set_={"job": job_id}))

    def write(
        self,
        gallery: Gallery,
        measured: Measured,
        pairs: Sequence[tuple[int, int, float]],
    ) -> None:
        """Replace the gallery's calibration and its suspicious pairs. ``pairs``: the keys of two faces, and their
        score."""
        values = {
            "package": measured.package,
            "document": _FIGURES.dump_json(measured.figures).decode(),
            "calibration": measured.calibration.model_dump_json() if measured.calibration else None,
            "changes": measured.changes,
            "measured_at": measured.measured_at,
        }
        insert = self._database.insert(GALLERY_CALIBRATIONS).values(values | {"gallery_key": gallery.key})
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            connection.execute(insert.on_conflict_do_update(index_elements=["gallery_key"], set_=values))
            connection.execute(sa.delete(CALIBRATION_PAIRS).where(CALIBRATION_PAIRS.c.gallery_key == gallery.key))
            keys = [key for first, second, _ in pairs for key in (first, second)]
            query = sa.select(FACES.c.key).where(FACES.c.key.in_(keys)).order_by(FACES.c.key)
            there = set(connection.execute(query.with_for_update(read=True, key_share=True)).scalars())
            rows = [
                {"gallery_key": gallery.key, "first_key": first, "second_key": second, "score": score}
                for first, second, score in pairs[:LISTED]
                if {first, second} <= there
            ]
            if rows:
                connection.execute(sa.insert(CALIBRATION_PAIRS), rows)

    def switched_on(self) -> list[Standing]:
        """Return the galleries that decide by their own calibration."""
        return self._standings(GALLERIES.c.calibration == "gallery")

    def _standings(self, which: sa.ColumnElement[bool]) -> list[Standing]:
        rows = self._database.rows(_STANDINGS.where(which).order_by(GALLERIES.c.key))
        return [Standing(row.id, row.embedder, row.last_change, row.faces, row.job, _measured(row)) for row in rows]


_FACES = sa.select(sa.func.count()).where(FACES.c.gallery_key == GALLERIES.c.key).label("faces")
_STANDINGS = sa.select(
    GALLERIES.c.id, GALLERIES.c.embedder, GALLERIES.c.last_change, _FACES, GALLERY_CALIBRATIONS
).select_from(GALLERIES.outerjoin(GALLERY_CALIBRATIONS))
_FIRST, _SECOND = FACES.alias("first_face"), FACES.alias("second_face")
_ONE, _OTHER = SUBJECTS.alias("one"), SUBJECTS.alias("other")
_PAIRS = (
    sa.select(
        _ONE.c.id.label("first_subject"),
        _ONE.c.name.label("first_name"),
        _FIRST.c.face_id.label("first_face"),
        _OTHER.c.id.label("second_subject"),
        _OTHER.c.name.label("second_name"),
        _SECOND.c.face_id.label("second_face"),
        CALIBRATION_PAIRS.c.score,
    )
    .select_from(CALIBRATION_PAIRS)
    .join(_FIRST, _FIRST.c.key == CALIBRATION_PAIRS.c.first_key)
    .join(_SECOND, _SECOND.c.key == CALIBRATION_PAIRS.c.second_key)
    .join(_ONE, _ONE.c.key == _FIRST.c.subject_key)
    .join(_OTHER, _OTHER.c.key == _SECOND.c.subject_key)
    .where(_FIRST.c.subject_key != _SECOND.c.subject_key, not_expired(_ONE), not_expired(_OTHER))
    .order_by(CALIBRATION_PAIRS.c.score.desc(), CALIBRATION_PAIRS.c.first_key)
)


def _measured(row: Any) -> Measured | None:
    if row.document is None:
        return None
    calibration = None if row.calibration is None else Calibration.model_validate_json(row.calibration)
    return Measured(row.package, row.measured_at, row.changes, _FIGURES.validate_json(row.document), calibration)
