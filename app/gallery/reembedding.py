"""Galleries on their way from one package to another, in SQL.

begin → (templates are added, some at a time) → complete → switch → (rollback → switch …) → end → (cleared, some at a
time) → gone. Each step is one transaction that holds the gallery's row: whoever enrolls holds it too, so each new face
has templates of just the packages that its moment asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.schema import CROPS, FACES, GALLERIES, REEMBEDDINGS, SECOND_TEMPLATES
from app.errors import Conflict, NotFound, ReembeddingIncomplete
from app.gallery import change_log
from app.gallery.records import (
    Gallery,
    Reembedding,
    ReembeddingState,
    StoredCrop,
    WithoutCrop,
    gallery_not_found,
    to_bytes,
)
from app.gallery.store import Store
from app.gallery.templates import join_templates, template_column
from app.timestamps import utc_now
from app.types import Template


class Reembeddings:
    """Safe to share between threads. Every call may raise what `Database` does, and NotFound ``gallery_not_found``."""

    def __init__(self, store: Store) -> None:
        self._database = store.database
        self._blobs = store.blobs

    def find(self, gallery: Gallery) -> Reembedding:
        """Raises NotFound ``reembedding_not_found``."""
        with self._database.read() as connection:
            return _found(connection, gallery)

    def all(self) -> list[Reembedding]:
        with self._database.read() as connection:
            return [_reembedding(row) for row in connection.execute(_REEMBEDDINGS)]

    def begin(
        self, gallery: Gallery, target: str, dimension: int, *, without_crop: WithoutCrop, keep_days: float
    ) -> Reembedding:
        """Begins, or goes on with what was begun for this target and has stopped.

        Raises Conflict ``package_unchanged``; ``reembedding_exists`` where another target's is not over, or this one's
        switch is made; ``crops_missing`` where faces have no crop and ``without_crop`` is to refuse.
        """
        with self._database.write() as connection:
            embedder = _hold(connection, gallery)
            old = connection.execute(_REEMBEDDINGS.where(_is(gallery))).one_or_none()
            if old is not None and (old.target != target or old.state not in {"embedding", "ready"}):
                message = f"Gallery {gallery.id!r} is on its way from {old.source} to {old.target} ({old.state})."
                raise Conflict(message, code="reembedding_exists", state=old.state, target=old.target)
            if embedder.embedder == target:
                raise Conflict(f"Gallery {gallery.id!r} has templates of {target}.", code="package_unchanged")
            missing = _count(connection, gallery, target, without_crop=True)
            if missing and without_crop == "refuse":
                raise _crops_missing(gallery, _count_all(connection, gallery), missing)
            asked = {"without_crop": without_crop, "keep_days": keep_days, "missing": missing}
            if old is not None:
                connection.execute(sa.update(REEMBEDDINGS).where(_is(gallery)).values(asked))
            else:
                values = asked | {
                    "gallery_key": gallery.key,
                    "source": embedder.embedder,
                    "source_dimension": embedder.dimension,
                    "source_generation": embedder.generation,
                    "target": target,
                    "target_dimension": dimension,
                    "target_generation": change_log.begin_stamp(),
                    "state": "embedding",
                    "started_at": utc_now(),
                }
                connection.execute(sa.insert(REEMBEDDINGS).values(values))
            return _found(connection, gallery)

    def assign(self, gallery: Gallery, job_id: str) -> Reembedding:
        """Notes the job that works on it. Raises NotFound ``reembedding_not_found``."""
        with self._database.write() as connection:
            connection.execute(sa.update(REEMBEDDINGS).where(_is(gallery)).values(job=job_id))
            return _found(connection, gallery)

    def left(self, gallery: Gallery, target: str) -> int:
        """How many faces have no template of the target."""
        with self._database.read() as connection:
            return _count(connection, gallery, target)

    def crops(self, gallery: Gallery, target: str, after: int, limit: int) -> list[StoredCrop]:
        """The next faces, in order of their keys, that have no template of the target.

        Raises Unusable ``sealed_unreadable``.
        """
        query = (
            sa.select(FACES.c.key, FACES.c.face_id, CROPS.c.jpeg)
            .select_from(join_templates(FACES, target).outerjoin(CROPS, CROPS.c.face_key == FACES.c.key))
            .where((FACES.c.gallery_key == gallery.key) & (FACES.c.key > after) & template_column(target).is_(None))
            .order_by(FACES.c.key)
            .limit(limit)
        )
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return [StoredCrop(row.key, row.face_id, self._opened(row)) for row in rows]

    def add(
        self,
        gallery: Gallery,
        templates: Sequence[tuple[StoredCrop, Template]],
        note: Callable[[Connection], None] = lambda _: None,
    ) -> None:
        """Of faces that are still there; ``note`` writes in the same transaction.

        Raises NotFound ``reembedding_not_found`` where it was cancelled meanwhile.
        """
        with self._database.write() as connection:
            _hold(connection, gallery, exclusively=False)
            if _found(connection, gallery).state != "embedding":
                raise _not_found(gallery)
            self._blobs.mark(connection)
            keys = [face.key for face, _ in templates]
            here = sa.select(FACES.c.key).where(FACES.c.key.in_(keys)).order_by(FACES.c.key)
            there = set(connection.execute(here.with_for_update(read=True, key_share=True)).scalars())
            values = [
                {
                    "face_key": face.key,
                    "package": template.package,
                    "template": self._blobs.pack("second", face.face_id, to_bytes(template)),
                }
                for face, template in templates
                if face.key in there
            ]
            if values:
                connection.execute(self._database.insert(SECOND_TEMPLATES).on_conflict_do_nothing(), values)
            note(connection)

    def complete(self, gallery: Gallery, unreadable: int) -> Reembedding:
        """All faces have both templates, but those without crop, and as many whose crop was ``unreadable``.

        Raises Conflict ``crops_missing`` where there are such faces and they were not to be dropped;
        ``reembedding_incomplete`` where there are others; NotFound ``reembedding_not_found``.
        """
        with self._database.write() as connection:
            _hold(connection, gallery)
            found = _found(connection, gallery)
            if found.state != "embedding":
                return found
            left = _count(connection, gallery, found.target)
            if left > _count(connection, gallery, found.target, without_crop=True) + unreadable:
                message = f"{left} faces of gallery {gallery.id!r} have no template of {found.target} yet."
                raise ReembeddingIncomplete(message, left=left)
            if left and found.without_crop == "refuse":
                raise _crops_missing(gallery, _count_all(connection, gallery), left)
            connection.execute(sa.update(REEMBEDDINGS).where(_is(gallery)).values(state="ready", missing=left))
            return _found(connection, gallery)

    def switch(self, gallery: Gallery) -> Reembedding:
        """From now on the target is the gallery's package; nothing where it is already.

        Raises Conflict ``reembedding_incomplete``; NotFound ``reembedding_not_found``.
        """
        with self._database.write() as connection:
            _hold(connection, gallery)
            row = connection.execute(_REEMBEDDINGS.where(_is(gallery))).one_or_none()
            if row is None:
                raise _not_found(gallery)
            if row.state == "ready":
                until = utc_now(timedelta(days=row.keep_days))
                _name(connection, gallery, row.target, row.target_dimension, row.target_generation)
                changed = {"state": "switched", "switched_at": utc_now(), "keep_until": until}
                connection.execute(sa.update(REEMBEDDINGS).where(_is(gallery)).values(changed))
            elif row.state != "switched":
                raise ReembeddingIncomplete(f"Gallery {gallery.id!r} can't switch yet.")
            return _found(connection, gallery)

    def rollback(self, gallery: Gallery) -> Reembedding:
        """The source is the gallery's package again, for faces enrolled since the switch too.

        Raises Conflict ``reembedding_not_switched``; NotFound ``reembedding_not_found``.
        """
        with self._database.write() as connection:
            _hold(connection, gallery)
            row = _switched(connection, gallery)
            _name(connection, gallery, row.source, row.source_dimension, row.source_generation)
            changed = {"state": "ready", "switched_at": None, "keep_until": None}
            connection.execute(sa.update(REEMBEDDINGS).where(_is(gallery)).values(changed))
            return _found(connection, gallery)

    def finish(self, gallery: Gallery) -> Reembedding:
        """The way back is closed; `clear` has to follow. Raises as `rollback` does."""
        with self._database.write() as connection:
            _hold(connection, gallery)
            _switched(connection, gallery, or_ending=True)
            connection.execute(sa.update(REEMBEDDINGS).where(_is(gallery)).values(state="ending", keep_until=None))
            return _found(connection, gallery)

    def cancel(self, gallery: Gallery) -> Reembedding:
        """Gives it up before the switch, or after a rollback; `clear` has to follow.

        Raises Conflict ``reembedding_switched``; NotFound ``reembedding_not_found``.
        """
        with self._database.write() as connection:
            _hold(connection, gallery)
            if _found(connection, gallery).state == "switched":
                message = f"Gallery {gallery.id!r} has switched: roll back first, or finish."
                raise Conflict(message, code="reembedding_switched")
            connection.execute(sa.update(REEMBEDDINGS).where(_is(gallery)).values(state="ending"))
            return _found(connection, gallery)

    def clear(self, gallery: Gallery, after: int, limit: int) -> tuple[list[int], list[str]]:
        """Leaves the next faces, in order of their keys, the gallery's own package's template alone.

        Their keys, none at the end; and the ids of those that have no such template: they have to go.
        """
        with self._database.write() as connection:
            package = _hold(connection, gallery, exclusively=False).embedder
            some = sa.select(FACES.c.key).where((FACES.c.gallery_key == gallery.key) & (FACES.c.key > after))
            query = some.order_by(FACES.c.key).limit(limit).with_for_update()
            keys = list(connection.execute(query).scalars())
            if not keys:
                return [], []
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
        """It is over, if everything is cleared: faces that move get new keys, and may have been overlooked."""
        with self._database.write() as connection:
            package = _hold(connection, gallery).embedder
            second = sa.exists().where(SECOND_TEMPLATES.c.face_key == FACES.c.key)
            left = sa.select(FACES.c.key).where(FACES.c.gallery_key == gallery.key)
            left = left.where((FACES.c.package != package) | second).limit(1)
            if connection.execute(left).one_or_none() is not None:
                return False
            connection.execute(sa.delete(REEMBEDDINGS).where(_is(gallery) & (REEMBEDDINGS.c.state == "ending")))
        self._database.request_scrub()
        return True

    def _opened(self, row: Any) -> bytes | None:
        return None if row.jpeg is None else self._blobs.unpack("crop", row.face_id, bytes(row.jpeg))


_REEMBEDDINGS = sa.select(REEMBEDDINGS, GALLERIES.c.id.label("gallery")).join(GALLERIES)


def _is(gallery: Gallery) -> sa.ColumnElement[bool]:
    return REEMBEDDINGS.c.gallery_key == gallery.key


def _hold(connection: Connection, gallery: Gallery, *, exclusively: bool = True) -> Any:
    """The gallery's package, its dimension and generation, which stay so until the transaction ends; so do its faces'
    templates where it is held exclusively."""
    query = sa.select(GALLERIES.c.embedder, GALLERIES.c.dimension, GALLERIES.c.generation)
    query = query.where(GALLERIES.c.key == gallery.key)
    row = connection.execute(query.with_for_update(read=not exclusively, key_share=not exclusively)).one_or_none()
    if row is None:
        raise gallery_not_found(gallery.id)
    return row


def _found(connection: Connection, gallery: Gallery) -> Reembedding:
    row = connection.execute(_REEMBEDDINGS.where(_is(gallery))).one_or_none()
    if row is None:
        raise _not_found(gallery)
    return _reembedding(row)


def _switched(connection: Connection, gallery: Gallery, *, or_ending: bool = False) -> Row[Any]:
    row = connection.execute(_REEMBEDDINGS.where(_is(gallery))).one_or_none()
    if row is None:
        raise _not_found(gallery)
    if row.state != "switched" and not (or_ending and row.state == "ending"):
        message = f"Gallery {gallery.id!r} has not switched to {row.target} ({row.state})."
        raise Conflict(message, code="reembedding_not_switched", state=row.state)
    return row


def _name(connection: Connection, gallery: Gallery, package: str, dimension: int, generation: int) -> None:
    values = {"embedder": package, "dimension": dimension, "generation": generation}
    connection.execute(sa.update(GALLERIES).where(GALLERIES.c.key == gallery.key).values(values))


def _count(connection: Connection, gallery: Gallery, target: str, *, without_crop: bool = False) -> int:
    """Faces that have no template of the target, or those of them without a crop."""
    faces = join_templates(FACES, target)
    query = sa.select(sa.func.count()).select_from(faces)
    query = query.where((FACES.c.gallery_key == gallery.key) & template_column(target).is_(None))
    if without_crop:
        query = query.where(~sa.exists().where(CROPS.c.face_key == FACES.c.key))
    return int(connection.execute(query).scalar_one())


def _count_all(connection: Connection, gallery: Gallery) -> int:
    query = sa.select(sa.func.count()).select_from(FACES).where(FACES.c.gallery_key == gallery.key)
    return int(connection.execute(query).scalar_one())


def _reembedding(row: Row[Any]) -> Reembedding:
    state: ReembeddingState = row.state
    return Reembedding(
        gallery=row.gallery,
        source=row.source,
        target=row.target,
        state=state,
        without_crop=row.without_crop,
        missing=row.missing,
        keep_days=row.keep_days,
        job=row.job,
        started_at=row.started_at,
        switched_at=row.switched_at,
        keep_until=row.keep_until,
    )


def _crops_missing(gallery: Gallery, faces: int, without_crop: int) -> Conflict:
    message = f"{without_crop} of {faces} faces of gallery {gallery.id!r} have no crop that can be embedded again."
    return Conflict(message, code="crops_missing", faces=faces, without_crop=without_crop)


def _not_found(gallery: Gallery) -> NotFound:
    message = f"Gallery {gallery.id!r} is on its way to no other package."
    return NotFound(message, code="reembedding_not_found", gallery=gallery.id)
