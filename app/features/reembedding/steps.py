"""The steps that move a gallery from one model package to another, in SQL.

begin → add (some faces at a time) → complete → switch → (rollback → switch …) → finish or cancel → clear (some faces at
a time) → forget. Each step is one transaction that locks the gallery's row. Enrollments lock it too, so each new face
gets templates of exactly the packages that `Gallery.written` lists at that moment.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Literal, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.choices import WithoutCrop
from app.db.schema import CROPS, FACES, GALLERIES, REEMBEDDINGS, SECOND_TEMPLATES
from app.errors import Conflict, NotFound, ReembeddingIncomplete
from app.features.own_jobs import check_not_running
from app.gallery.records import Gallery, join_templates, lock_gallery, template_column, to_bytes
from app.gallery.store import STAMP_BITS, Store
from app.types import Template, utc_now

State: TypeAlias = Literal["embedding", "ready", "switched", "ending"]
"""``embedding``: faces get templates of the target. ``ready``: all faces have one; this is also the state after a
rollback. ``switched``: the target is the gallery's package, and a rollback is possible. ``ending``: the other package's
templates are being removed."""


@dataclass(frozen=True, slots=True)
class Reembedding:
    """A gallery's move from the package `source` to `target`; ``missing`` faces have no template of the target."""

    gallery: str
    source: str
    source_dimension: int
    source_generation: int
    target: str
    target_dimension: int
    target_generation: int
    state: State
    without_crop: WithoutCrop
    missing: int
    keep_days: float
    job: str | None
    started_at: str
    switched_at: str | None
    keep_until: str | None
    """The time, in UTC, when a switched gallery is finished automatically; None before the switch."""


@dataclass(frozen=True, slots=True)
class StoredCrop:
    """A face and its crop as JPEG, or None if it has none."""

    key: int
    face_id: str
    jpeg: bytes | None


class Reembeddings:
    """Carries out the steps of re-embeddings in SQL. Safe to share between threads.

    Every call may raise what `Database` raises, and NotFound ``gallery_not_found``.
    """

    def __init__(self, store: Store) -> None:
        self._database = store.database
        self._blobs = store.blobs

    def find(self, gallery: Gallery) -> Reembedding:
        """Return the gallery's re-embedding. Raises NotFound ``reembedding_not_found``."""
        with self._database.read() as connection:
            return _found(connection, gallery)

    def all(self) -> list[Reembedding]:
        return [Reembedding(*row) for row in self._database.rows(_REEMBEDDINGS)]

    def begin(
        self, gallery: Gallery, target: str, dimension: int, *, without_crop: WithoutCrop, keep_days: float
    ) -> Reembedding:
        """Begin a re-embedding, or continue a stopped one to the same target.

        Raises Conflict ``package_unchanged``; ``reembedding_exists`` if one to another target isn't finished, or the
        one to this target has switched; ``crops_missing`` if faces have no crop and ``without_crop`` is ``refuse``.
        """
        with self._database.write() as connection:
            current = lock_gallery(connection, gallery).index_spec
            old = _find(connection, gallery)
            if old is not None and (old.target != target or old.state not in {"embedding", "ready"}):
                message = (
                    f"Gallery {gallery.id!r} is being re-embedded from {old.source} to {old.target} ({old.state})."
                )
                raise Conflict(message, code="reembedding_exists", state=old.state, target=old.target)
            if current.key.package == target:
                raise Conflict(f"Gallery {gallery.id!r} has templates of {target}.", code="package_unchanged")
            missing = _count(connection, gallery, target, without_crop=True)
            if missing and without_crop == "refuse":
                raise _crops_missing(connection, gallery, missing)
            terms = {"without_crop": without_crop, "keep_days": keep_days, "missing": missing}
            if old is not None:
                return _update(connection, gallery, **terms)
            values = terms | {
                "gallery_key": gallery.key,
                "source": current.key.package,
                "source_dimension": current.dimension,
                "source_generation": current.key.generation,
                "target": target,
                "target_dimension": dimension,
                "target_generation": secrets.randbits(STAMP_BITS),
                "state": "embedding",
                "started_at": utc_now(),
            }
            connection.execute(sa.insert(REEMBEDDINGS).values(values))
            return _found(connection, gallery)

    def assign(self, connection: Connection, gallery: Gallery, job_id: str, step: str) -> None:
        """Store the id of the job that works on this step of the re-embedding.

        Raises UnderWay if another job works on it; NotFound ``reembedding_not_found``.
        """
        check_not_running(connection, _found(connection, gallery).job, step=step)
        _update(connection, gallery, job=job_id)

    def left(self, gallery: Gallery, target: str) -> int:
        """Return the number of faces without a template of the target."""
        with self._database.read() as connection:
            return _count(connection, gallery, target)

    def crops(self, gallery: Gallery, target: str, after: int, limit: int) -> list[StoredCrop]:
        """Return the next faces without a template of the target, in the order of their keys.

        Raises Unusable ``sealed_unreadable``.
        """
        query = (
            sa.select(FACES.c.key, FACES.c.face_id, CROPS.c.jpeg)
            .select_from(join_templates(FACES, target).outerjoin(CROPS, CROPS.c.face_key == FACES.c.key))
            .where((FACES.c.gallery_key == gallery.key) & (FACES.c.key > after) & template_column(target).is_(None))
            .order_by(FACES.c.key)
            .limit(limit)
        )
        return [
            StoredCrop(key, face_id, None if jpeg is None else self._blobs.unpack("crop", face_id, bytes(jpeg)))
            for key, face_id, jpeg in self._database.rows(query)
        ]

    def add(
        self,
        gallery: Gallery,
        templates: Sequence[tuple[StoredCrop, Template]],
        note: Callable[[Connection], None] = lambda _: None,
    ) -> None:
        """Add templates of the target to the faces that still exist; ``note`` writes in the same transaction.

        Raises NotFound ``reembedding_not_found`` if the re-embedding was cancelled meanwhile.
        """
        with self._step(gallery) as (connection, move):
            if move.state != "embedding":
                raise _not_found(gallery)
            self._blobs.mark(connection)
            there = sa.select(FACES.c.key).where(FACES.c.key.in_([face.key for face, _ in templates]))
            keys = set(connection.execute(there).scalars())
            values = [
                {
                    "face_key": face.key,
                    "package": template.package,
                    "template": self._blobs.pack("second", face.face_id, to_bytes(template)),
                }
                for face, template in templates
                if face.key in keys
            ]
            if values:
                connection.execute(self._database.insert(SECOND_TEMPLATES).on_conflict_do_nothing(), values)
            note(connection)

    def complete(self, gallery: Gallery, unreadable: int) -> Reembedding:
        """Mark the re-embedding as ready: all faces have both templates, except those without a crop and ``unreadable``
        damaged crops.

        Raises Conflict ``crops_missing`` if there are such exceptions but they must not be dropped,
        ``reembedding_incomplete`` if other faces lack a template; NotFound ``reembedding_not_found``.
        """
        with self._step(gallery) as (connection, move):
            if move.state != "embedding":
                return move
            left = _count(connection, gallery, move.target)
            if left > _count(connection, gallery, move.target, without_crop=True) + unreadable:
                message = f"{left} faces of gallery {gallery.id!r} have no template of {move.target} yet."
                raise ReembeddingIncomplete(message, left=left)
            if left and move.without_crop == "refuse":
                raise _crops_missing(connection, gallery, left)
            return _update(connection, gallery, state="ready", missing=left)

    def switch(self, gallery: Gallery) -> Reembedding:
        """Make the target the gallery's package, unless it is already.

        Raises Conflict ``reembedding_incomplete``; NotFound ``reembedding_not_found``.
        """
        with self._step(gallery) as (connection, move):
            if move.state == "switched":
                return move
            if move.state != "ready":
                raise ReembeddingIncomplete(f"Gallery {gallery.id!r} can't switch yet.")
            _set_own(connection, gallery, move.target, move.target_dimension, move.target_generation)
            until = utc_now(timedelta(days=move.keep_days))
            return _update(connection, gallery, state="switched", switched_at=utc_now(), keep_until=until)

    def rollback(self, gallery: Gallery) -> Reembedding:
        """Make the source the gallery's package again, also for faces enrolled since the switch.

        Raises Conflict ``reembedding_not_switched``; NotFound ``reembedding_not_found``.
        """
        with self._step(gallery) as (connection, move):
            if move.state != "switched":
                raise _not_switched(move)
            _set_own(connection, gallery, move.source, move.source_dimension, move.source_generation)
            return _update(connection, gallery, state="ready", switched_at=None, keep_until=None)

    def finish(self, gallery: Gallery) -> Reembedding:
        """End the time in which a rollback is possible; `clear` has to follow. Raises what `rollback` raises."""
        with self._step(gallery) as (connection, move):
            if move.state not in {"switched", "ending"}:
                raise _not_switched(move)
            return _update(connection, gallery, state="ending", keep_until=None)

    def cancel(self, gallery: Gallery) -> Reembedding:
        """Cancel the re-embedding, before the switch or after a rollback; `clear` has to follow.

        Raises Conflict ``reembedding_switched``; NotFound ``reembedding_not_found``.
        """
        with self._step(gallery) as (connection, move):
            if move.state == "switched":
                message = f"Gallery {gallery.id!r} has switched: roll back first, or finish."
                raise Conflict(message, code="reembedding_switched")
            return _update(connection, gallery, state="ending")

    def clear(self, gallery: Gallery, after: int, limit: int) -> tuple[list[int], list[str]]:
        """Remove the next faces' templates of the package that is not the gallery's, in the order of the faces' keys.

        Return the faces' keys (empty at the end, or if another job has cleared everything), and the ids of the faces
        without a template of the gallery's own package, which the caller must delete.
        """
        with self._database.write() as connection:
            package = lock_gallery(connection, gallery).embedder
            move = _find(connection, gallery)
            if move is None or move.state != "ending":
                return [], []
            query = sa.select(FACES.c.key).where((FACES.c.gallery_key == gallery.key) & (FACES.c.key > after))
            query = query.order_by(FACES.c.key).limit(limit)
            keys = list(connection.execute(query).scalars())
            second = SECOND_TEMPLATES.c
            its = (second.face_key == FACES.c.key) & (second.package == package)
            other = FACES.c.key.in_(keys) & (FACES.c.package != package)
            template = sa.select(second.template).where(its).scalar_subquery()
            has = sa.exists().where(its)
            connection.execute(sa.update(FACES).where(other & has).values(package=package, template=template))
            connection.execute(sa.delete(SECOND_TEMPLATES).where(second.face_key.in_(keys)))
            doomed = list(connection.execute(sa.select(FACES.c.face_id).where(other)).scalars())
        self._database.request_scrub()
        return keys, doomed

    def forget(self, gallery: Gallery) -> bool:
        """Delete the record of the re-embedding; return False if some faces still have to be cleared. Does nothing if
        another job has deleted it."""
        with self._database.write() as connection:
            package = lock_gallery(connection, gallery).embedder
            move = _find(connection, gallery)
            if move is None or move.state != "ending":
                return True
            second = sa.exists().where(SECOND_TEMPLATES.c.face_key == FACES.c.key)
            left = sa.select(FACES.c.key).where(FACES.c.gallery_key == gallery.key)
            left = left.where((FACES.c.package != package) | second).limit(1)
            if connection.execute(left).one_or_none() is not None:
                return False
            connection.execute(sa.delete(REEMBEDDINGS).where(_is(gallery)))
        self._database.request_scrub()
        return True

    @contextmanager
    def _step(self, gallery: Gallery) -> Iterator[tuple[Connection, Reembedding]]:
        """Begin a transaction during which nobody can be enrolled. Raises NotFound ``reembedding_not_found``."""
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            yield connection, _found(connection, gallery)


_REEMBEDDINGS = sa.select(
    GALLERIES.c.id, *(REEMBEDDINGS.c[field.name] for field in fields(Reembedding) if field.name != "gallery")
).join_from(REEMBEDDINGS, GALLERIES)
"""Selects the columns in the order of a Reembedding's fields."""


def _is(gallery: Gallery) -> sa.ColumnElement[bool]:
    return REEMBEDDINGS.c.gallery_key == gallery.key


def _find(connection: Connection, gallery: Gallery) -> Reembedding | None:
    row = connection.execute(_REEMBEDDINGS.where(_is(gallery))).one_or_none()
    return None if row is None else Reembedding(*row)


def _found(connection: Connection, gallery: Gallery) -> Reembedding:
    move = _find(connection, gallery)
    if move is None:
        raise _not_found(gallery)
    return move


def _update(connection: Connection, gallery: Gallery, **columns: object) -> Reembedding:
    connection.execute(sa.update(REEMBEDDINGS).where(_is(gallery)).values(columns))
    return _found(connection, gallery)


def _not_switched(move: Reembedding) -> Conflict:
    message = f"Gallery {move.gallery!r} has not switched to {move.target} ({move.state})."
    return Conflict(message, code="reembedding_not_switched", state=move.state)


def _set_own(connection: Connection, gallery: Gallery, package: str, dimension: int, generation: int) -> None:
    """Make the templates of this package and generation the gallery's own."""
    values = {"embedder": package, "dimension": dimension, "generation": generation}
    connection.execute(sa.update(GALLERIES).where(GALLERIES.c.key == gallery.key).values(values))


def _count(connection: Connection, gallery: Gallery, target: str, *, without_crop: bool = False) -> int:
    """Return the number of faces without a template of the target; with ``without_crop``, only of those without a crop
    too."""
    faces = join_templates(FACES, target)
    query = sa.select(sa.func.count()).select_from(faces)
    query = query.where((FACES.c.gallery_key == gallery.key) & template_column(target).is_(None))
    if without_crop:
        query = query.where(~sa.exists().where(CROPS.c.face_key == FACES.c.key))
    return int(connection.execute(query).scalar_one())


def _crops_missing(connection: Connection, gallery: Gallery, without_crop: int) -> Conflict:
    query = sa.select(sa.func.count()).select_from(FACES).where(FACES.c.gallery_key == gallery.key)
    faces = int(connection.execute(query).scalar_one())
    message = f"{without_crop} of {faces} faces of gallery {gallery.id!r} have no crop that can be embedded again."
    return Conflict(message, code="crops_missing", faces=faces, without_crop=without_crop)


def _not_found(gallery: Gallery) -> NotFound:
    message = f"Gallery {gallery.id!r} is not being re-embedded."
    return NotFound(message, code="reembedding_not_found", gallery=gallery.id)
