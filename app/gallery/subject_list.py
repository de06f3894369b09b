"""A gallery's subjects as a whole: who is there, who changes their id, everybody gone at once; faces by number.

Every public call is one transaction, as in `app.gallery.store.Store`.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.engine import Database, in_parts
from app.db.schema import FACES, SUBJECTS
from app.errors import DatabaseBusy, SubjectNotFound
from app.gallery import change_log
from app.gallery.gallery_rows import lock_gallery
from app.gallery.reassignment import rekey
from app.gallery.records import Counts, Gallery
from app.gallery.text import clean_id, fold
from app.timestamps import utc_now

ATTEMPTS = 10
"""How often a renaming looks again when others keep taking the id."""


class Roster:
    """Safe to share between threads. Every call may also raise what `Database` does."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def subject_ids(self, gallery: Gallery) -> list[str]:
        """Everybody's, in the order they were made."""
        query = sa.select(SUBJECTS.c.id).where(SUBJECTS.c.gallery_key == gallery.key).order_by(SUBJECTS.c.key)
        with self._database.read() as connection:
            return list(connection.execute(query).scalars())

    def face_ids(
        self, gallery: Gallery, subject_id: str | None = None, *, offset: int = 0, limit: int = 100
    ) -> tuple[list[tuple[str, str]], int]:
        """The ids of some faces and of their subjects, and how many faces there are: the gallery's, or one subject's,
        who need not be there. For those who page by number: what is skipped is counted through."""
        query = sa.select(FACES.c.face_id, SUBJECTS.c.id).join(SUBJECTS).where(FACES.c.gallery_key == gallery.key)
        if subject_id is not None:
            query = query.where(SUBJECTS.c.id == clean_id(subject_id, "subject"))
        count = sa.select(sa.func.count()).select_from(query.subquery())
        with self._database.read(one_moment=True) as connection:
            rows = connection.execute(query.order_by(FACES.c.key).offset(offset).limit(limit)).all()
            return [(face, subject) for face, subject in rows], connection.execute(count).scalar_one()

    # Changes: called within `Galleries._changing`

    def rename(self, gallery: Gallery, subject_id: str, new_id: str) -> str:
        """Gives the subject another id, which is returned as it is kept. Where that is another subject's, its faces go
        to that one, whose name and metadata stay, and it is no more.

        An id alone is nothing that an index knows, so only faces that go over are in the change log.
        Raises InvalidInput ``invalid_id``; NotFound ``gallery_not_found``, ``subject_not_found``.
        """
        old, new = clean_id(subject_id, "subject"), clean_id(new_id, "subject")
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            for _ in range(ATTEMPTS):
                found = _lock_subjects(connection, gallery, {old, new})
                if old not in found:
                    message = f"Gallery {gallery.id!r} has no subject {old!r}."
                    raise SubjectNotFound(message, gallery=gallery.id, subject=old)
                if old == new:
                    break
                if new in found:
                    _merge(connection, gallery, found[old], found[new])
                    break
                if _set_id(connection, found[old], new):
                    break
            else:
                raise DatabaseBusy(f"Others keep making subject {new!r}.")
        self._database.request_scrub()
        return new

    def clear(self, gallery: Gallery) -> Counts:
        """Everybody goes at once, the gallery stays; how many there were. Raises NotFound ``gallery_not_found``."""
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            everybody = sa.select(SUBJECTS.c.key).where(SUBJECTS.c.gallery_key == gallery.key)
            keys = list(connection.execute(everybody.order_by(SUBJECTS.c.key).with_for_update()).scalars())
            faces = 0
            for some in in_parts(keys):
                faces += connection.execute(sa.delete(FACES).where(FACES.c.subject_key.in_(some))).rowcount
                connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key.in_(some)))
            if keys:
                entries = [(change_log.REMOVE_SUBJECT, key, None) for key in keys]
                change_log.record_all(connection, gallery.key, entries, utc_now())
        self._database.request_scrub()
        return Counts(len(keys), faces)


def _lock_subjects(connection: Connection, gallery: Gallery, ids: Collection[str]) -> dict[str, int]:
    """The keys of those that are there, by id; ours until the transaction ends, taken in one order by everybody."""
    query = sa.select(SUBJECTS.c.id, SUBJECTS.c.key).where(
        (SUBJECTS.c.gallery_key == gallery.key) & SUBJECTS.c.id.in_(ids)
    )
    rows = connection.execute(query.order_by(SUBJECTS.c.key).with_for_update()).all()
    return {row.id: row.key for row in rows}


def _set_id(connection: Connection, key: int, new_id: str) -> bool:
    """False where somebody else has just taken the id."""
    name = connection.execute(sa.select(SUBJECTS.c.name).where(SUBJECTS.c.key == key)).scalar_one()
    try:
        with connection.begin_nested():
            _touch(connection, key, {"id": new_id, "folded": fold(new_id, name)})
    except sa.exc.IntegrityError:
        return False
    return True


def _merge(connection: Connection, gallery: Gallery, source: int, target: int) -> None:
    """The faces of one subject become the other's."""
    query = sa.select(FACES.c.key).where(FACES.c.subject_key == source).with_for_update()
    moved = rekey(connection, dict.fromkeys(connection.execute(query).scalars().all(), target))
    connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key == source))
    _touch(connection, target, {})
    entries: list[tuple[str, int, int | None]] = [(change_log.REMOVE_SUBJECT, source, None)]
    entries += [(change_log.ADD, target, key) for key in sorted(moved.values())]
    change_log.record_all(connection, gallery.key, entries, utc_now())


def _touch(connection: Connection, key: int, updates: dict[str, object]) -> None:
    connection.execute(sa.update(SUBJECTS).where(SUBJECTS.c.key == key).values({"updated_at": utc_now(), **updates}))
