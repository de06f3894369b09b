"""A gallery's subjects as a whole: listed, renamed, merged, all removed; and its faces by number.

Every public call is one transaction, as in `app.gallery.store.Store`.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.engine import Database, in_parts
from app.db.schema import FACES, SUBJECTS
from app.errors import DatabaseBusy
from app.gallery import change_log
from app.gallery.faces import merge_rows
from app.gallery.gallery_rows import lock_gallery
from app.gallery.records import Counts, Gallery
from app.gallery.subject_rows import lock_subjects, subject_not_found, update_subject
from app.gallery.text import check_visible, clean_id, fold

ATTEMPTS = 10
"""How often a renaming looks again while others keep taking the id."""


class SubjectList:
    """Lists and changes many subjects. Safe to share between threads. Every call may also raise what `Database`
    does."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def subject_ids(self, gallery: Gallery) -> list[str]:
        """Return the ids of all subjects, oldest first."""
        query = sa.select(SUBJECTS.c.id).where(SUBJECTS.c.gallery_key == gallery.key).order_by(SUBJECTS.c.key)
        with self._database.read() as connection:
            return list(connection.execute(query).scalars())

    def face_ids(
        self, gallery: Gallery, subject_id: str | None = None, *, offset: int = 0, limit: int = 100
    ) -> tuple[list[tuple[str, str]], int]:
        """Return `limit` pairs of a face's and its subject's id after `offset` faces, and how many faces there are.

        The faces are the gallery's, or one subject's, which need not exist. The database counts through `offset` rows.
        """
        query = sa.select(FACES.c.face_id, SUBJECTS.c.id).join(SUBJECTS).where(FACES.c.gallery_key == gallery.key)
        if subject_id is not None:
            query = query.where(SUBJECTS.c.id == clean_id(subject_id, "subject"))
        count = sa.select(sa.func.count()).select_from(query.subquery())
        with self._database.read(one_moment=True) as connection:
            rows = connection.execute(query.order_by(FACES.c.key).offset(offset).limit(limit)).all()
            return [(face, subject) for face, subject in rows], connection.execute(count).scalar_one()

    def rename(self, gallery: Gallery, subject_id: str, new_id: str) -> str:
        """Give the subject another id and return it in its normal form.

        If another subject has that id, the two are merged (`app.gallery.faces.merge_rows`); only then the change log
        gets entries, since indexes don't know ids. Raises InvalidInput ``invalid_id``; NotFound ``gallery_not_found``,
        ``subject_not_found``.
        """
        old, new = clean_id(subject_id, "subject"), clean_id(new_id, "subject")
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            for _ in range(ATTEMPTS):
                found = lock_subjects(connection, gallery, {old, new})
                if old not in found:
                    raise subject_not_found(gallery, old)
                if old == new:
                    break
                if new in found:
                    merge_rows(connection, gallery, found[old], found[new])
                    break
                check_visible(new, "subject id")
                if _set_id(connection, found[old], new):
                    break
            else:
                raise DatabaseBusy(f"Subject {new!r} keeps being made by others.")
        self._database.request_scrub()
        return new

    def clear(self, gallery: Gallery) -> Counts:
        """Delete all subjects of the gallery at once; return how many. Raises NotFound ``gallery_not_found``."""
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            everybody = sa.select(SUBJECTS.c.key).where(SUBJECTS.c.gallery_key == gallery.key)
            keys = list(connection.execute(everybody.order_by(SUBJECTS.c.key).with_for_update()).scalars())
            faces = 0
            for some in in_parts(keys):
                faces += connection.execute(sa.delete(FACES).where(FACES.c.subject_key.in_(some))).rowcount
                connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key.in_(some)))
            if keys:
                change_log.record(connection, gallery.key, [(change_log.REMOVE_SUBJECT, key, None) for key in keys])
        self._database.request_scrub()
        return Counts(len(keys), faces)


def _set_id(connection: Connection, key: int, new_id: str) -> bool:
    """Return False if another subject has just taken the id."""
    name = connection.execute(sa.select(SUBJECTS.c.name).where(SUBJECTS.c.key == key)).scalar_one()
    try:
        with connection.begin_nested():
            update_subject(connection, key, {"id": new_id, "folded": fold(new_id, name)})
    except sa.exc.IntegrityError:
        return False
    return True
