"""Faces whoever's they are: found, listed, moved between subjects, deleted, with where they came from.

A face whose person nobody has named is the only face of an unnamed subject (`texts.unnamed_id`), which is made with
it and goes when the face does. Every public call of `Placement` is one transaction, as in `Store`. To the index a moved
face is one that went and one that came, both in that transaction's entries of the change log: whoever follows the log
needs to know nothing new.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.engine import Database, in_parts
from app.db.pagination import Page, read_page
from app.db.schema import ANSWERED_REQUESTS, FACE_ORIGINS, FACES, SUBJECTS
from app.errors import FaceNotFound, NotFound, SubjectNotFound
from app.gallery import change_log
from app.gallery.gallery_rows import lock_gallery
from app.gallery.reassignment import rekey
from app.gallery.records import Gallery, Move, Origin, Person, PlacedFace
from app.gallery.text import UNNAMED_LENGTH, UNNAMED_SIGN, clean_id, fold, is_unnamed, unnamed_id
from app.timestamps import utc_now
from app.types import Box

ANSWERS_KEPT = timedelta(days=1)
_INSERT_ORIGINS = sa.insert(FACE_ORIGINS)


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """What a request under a token is answered with, and the digest of what it asked."""

    operation: str
    token: str
    digest: bytes
    answer: str


class AlreadyAnswered(Exception):
    """The same request was under way elsewhere, and has changed what this one was about to; nothing is written."""


class Placement:
    """Safe to share between threads. Every call may also raise what `Database` does."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def faces(
        self,
        gallery: Gallery,
        cursor: str | None = None,
        limit: int = 100,
        *,
        subject: str | None = None,
        only: Collection[str] | None = None,
    ) -> Page[PlacedFace]:
        """In the order they were enrolled; a `subject` that is not there has none, `only` those of these ids.

        Raises InvalidInput ``invalid_cursor``.
        """
        listing = f"placed/{gallery.key}/{'' if subject is None else subject}"
        query = _PLACED.where(FACES.c.gallery_key == gallery.key)
        if subject is not None:
            query = query.where(SUBJECTS.c.id == clean_id(subject, "subject"))
        if only is not None:
            query = query.where(FACES.c.face_id.in_(only))
        return read_page(self._database, query, FACES.c.key, _placed, listing=listing, cursor=cursor, limit=limit)

    def find(self, gallery: Gallery, face_ids: Sequence[str]) -> dict[str, PlacedFace]:
        """Those of the faces that there are, by their ids."""
        found: dict[str, PlacedFace] = {}
        with self._database.read() as connection:
            for some in in_parts(face_ids):
                query = _PLACED.where((FACES.c.gallery_key == gallery.key) & FACES.c.face_id.in_(some))
                found |= {row.face_id: _placed(row) for row in connection.execute(query)}
        return found

    def of_image(self, gallery: Gallery, image_id: str) -> list[PlacedFace]:
        """The faces that were enrolled from one photo."""
        query = _PLACED.where((FACE_ORIGINS.c.gallery_key == gallery.key) & (FACE_ORIGINS.c.image_id == image_id))
        with self._database.read() as connection:
            return [_placed(row) for row in connection.execute(query.order_by(FACES.c.key))]

    def people(self, gallery: Gallery, cursor: str | None = None, limit: int = 100) -> Page[Person]:
        """The named subjects, in the order they were made. Raises InvalidInput ``invalid_cursor``."""
        has_faces = sa.exists().where(FACES.c.subject_key == SUBJECTS.c.key).label("has_faces")
        query = sa.select(SUBJECTS.c.key, SUBJECTS.c.id, has_faces).where(_is_named(gallery))
        return read_page(
            self._database,
            query,
            SUBJECTS.c.key,
            lambda row: Person(row.id, bool(row.has_faces)),
            listing=f"people/{gallery.key}",
            cursor=cursor,
            limit=limit,
        )

    def count_people(self, gallery: Gallery) -> int:
        query = sa.select(sa.func.count()).select_from(SUBJECTS).where(_is_named(gallery))
        with self._database.read() as connection:
            return connection.execute(query).scalar_one()

    # Changes: called within `Galleries._changing`

    def move(self, gallery: Gallery, moves: Sequence[Move], answer: KeptAnswer | None = None) -> None:
        """All or none. A target that is unnamed is made where it is missing; a source that is unnamed goes with its
        last face.

        Raises NotFound ``gallery_not_found``, ``face_not_found`` (not its source's), ``subject_not_found`` (a target);
        AlreadyAnswered.
        """
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            self.noting(gallery, answer)(connection)
            _move(connection, self._database, gallery, moves)
        self._database.request_scrub()

    def dissolve(self, gallery: Gallery, subject_id: str, answer: KeptAnswer | None = None) -> None:
        """Gives each of the subject's faces an unnamed subject of its own, and deletes the subject.

        Raises NotFound ``gallery_not_found``, ``subject_not_found``; AlreadyAnswered.
        """
        cleaned = clean_id(subject_id, "subject")
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            self.noting(gallery, answer)(connection)
            keys = _lock_subjects(connection, gallery, [cleaned])
            if cleaned not in keys:
                raise _no_subject(gallery, cleaned)
            query = sa.select(FACES.c.face_id).where(FACES.c.subject_key == keys[cleaned]).order_by(FACES.c.key)
            ids = list(connection.execute(query).scalars())
            _move(connection, self._database, gallery, [Move(face, cleaned, unnamed_id()) for face in ids])
            connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key == keys[cleaned]))
        self._database.request_scrub()

    def delete(self, gallery: Gallery, face_ids: Sequence[str]) -> list[str]:
        """Those that were there, with their crops, and with their subjects where those are unnamed.

        Raises NotFound ``gallery_not_found``.
        """
        deleted: list[str] = []
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            touched: dict[int, list[int]] = defaultdict(list)
            for some in in_parts(face_ids):
                there = (FACES.c.gallery_key == gallery.key) & FACES.c.face_id.in_(some)
                returned = (FACES.c.face_id, FACES.c.key, FACES.c.subject_key)
                for face_id, key, subject in connection.execute(sa.delete(FACES).where(there).returning(*returned)):
                    touched[subject].append(key)
                    deleted.append(face_id)
            if touched:
                _tidy(connection, touched)
                for subject, faces in touched.items():
                    change_log.record(
                        connection,
                        gallery.key,
                        change_log.REMOVE,
                        subject_key=subject,
                        faces=sorted(faces),
                        now=utc_now(),
                    )
        self._database.request_scrub()
        return deleted

    # Requests that were answered

    def recall_answer(self, gallery: Gallery, operation: str, token: str) -> tuple[bytes, str] | None:
        """The digest of what was asked under this token, and the answer."""
        query = sa.select(ANSWERED_REQUESTS.c.digest, ANSWERED_REQUESTS.c.answer).where(
            ANSWERED_REQUESTS.c.gallery_key == gallery.key,
            ANSWERED_REQUESTS.c.operation == operation,
            ANSWERED_REQUESTS.c.token == token,
            ANSWERED_REQUESTS.c.created_at > utc_now(-ANSWERS_KEPT),
        )
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else (bytes(row.digest), row.answer)

    def noting(self, gallery: Gallery, answer: KeptAnswer | None) -> Callable[[Connection], None]:
        """What keeps the answer, in the transaction of the change that it speaks of."""

        def note(connection: Connection) -> None:
            if answer is not None:
                self._keep_answer(connection, gallery, answer)

        return note

    def _keep_answer(self, connection: Connection, gallery: Gallery, answer: KeptAnswer) -> None:
        connection.execute(sa.delete(ANSWERED_REQUESTS).where(ANSWERED_REQUESTS.c.created_at <= utc_now(-ANSWERS_KEPT)))
        values = asdict(answer) | {"gallery_key": gallery.key, "created_at": utc_now()}
        insert = self._database.insert(ANSWERED_REQUESTS).values(values).on_conflict_do_nothing()
        if connection.execute(insert.returning(ANSWERED_REQUESTS.c.token)).one_or_none() is None:
            raise AlreadyAnswered


def insert_origins(connection: Connection, gallery: Gallery, origins: Iterable[tuple[int, Origin | None]]) -> None:
    """Of those of the new faces, by their keys, that have one."""
    values = [
        {
            "face_key": key,
            "gallery_key": gallery.key,
            "image_id": origin.image_id,
            "external_id": origin.external_id,
            "width": origin.width,
            "height": origin.height,
            "score": origin.score,
        }
        for key, origin in origins
        if origin is not None
    ]
    if values:
        connection.execute(_INSERT_ORIGINS, values)


ORIGIN_COLUMNS: tuple[sa.ColumnElement[Any], ...] = (
    FACE_ORIGINS.c.image_id,
    FACE_ORIGINS.c.external_id,
    FACE_ORIGINS.c.width.label("photo_width"),
    FACE_ORIGINS.c.height.label("photo_height"),
    FACE_ORIGINS.c.score,
)


def origin_of(row: Row[Any]) -> Origin | None:
    """Of a row that has ORIGIN_COLUMNS."""
    if row.image_id is None:
        return None
    return Origin(row.image_id, row.photo_width, row.photo_height, row.score, row.external_id)


_PLACED = (
    sa.select(
        FACES.c.key,
        FACES.c.face_id,
        FACES.c.x,
        FACES.c.y,
        FACES.c.width,
        FACES.c.height,
        FACES.c.created_at,
        SUBJECTS.c.id.label("subject"),
        *ORIGIN_COLUMNS,
    )
    .select_from(FACES)
    .join(SUBJECTS)
    .outerjoin(FACE_ORIGINS, FACE_ORIGINS.c.face_key == FACES.c.key)
)


def _placed(row: Row[Any]) -> PlacedFace:
    box = Box(row.x, row.y, row.width, row.height)
    return PlacedFace(row.face_id, row.subject, box, row.created_at, origin_of(row))


def _is_named(gallery: Gallery) -> sa.ColumnElement[bool]:
    return (SUBJECTS.c.gallery_key == gallery.key) & ~_is_unnamed()


def _is_unnamed() -> sa.ColumnElement[bool]:
    """`texts.is_unnamed` in SQL."""
    return (sa.func.substr(SUBJECTS.c.id, 1, 1) == UNNAMED_SIGN) & (sa.func.length(SUBJECTS.c.id) == UNNAMED_LENGTH)


def _move(connection: Connection, database: Database, gallery: Gallery, moves: Sequence[Move]) -> None:
    wanted = [move for move in {move.face_id: move for move in moves}.values() if move.source != move.target]
    for target in {move.target for move in wanted if is_unnamed(move.target)}:
        connection.execute(database.insert(SUBJECTS).values(_unnamed(gallery, target)).on_conflict_do_nothing())
    subjects = _lock_subjects(connection, gallery, {end for move in wanted for end in (move.source, move.target)})
    faces = _lock_faces(connection, gallery, [move.face_id for move in wanted])
    gone: dict[int, list[int]] = defaultdict(list)
    come: dict[int, list[int]] = defaultdict(list)
    for move in wanted:
        if move.target not in subjects:
            raise _no_subject(gallery, move.target)
        key, subject = faces.get(move.face_id, (None, None))
        if key is None or subject is None or subject != subjects.get(move.source):
            message = f"Subject {move.source!r} has no face {move.face_id!r}."
            raise FaceNotFound(message, subject=move.source, face_id=move.face_id)
        gone[subject].append(key)
        come[subjects[move.target]].append(key)
    moved = rekey(connection, {key: subject for subject, keys in come.items() for key in keys})
    come = {subject: [moved[key] for key in keys] for subject, keys in come.items()}
    _tidy(connection, gone.keys() | come.keys())
    for kind, sides in ((change_log.REMOVE, gone), (change_log.ADD, come)):
        for subject, keys in sides.items():
            change_log.record(connection, gallery.key, kind, subject_key=subject, faces=sorted(keys), now=utc_now())


def _lock_subjects(connection: Connection, gallery: Gallery, ids: Collection[str]) -> dict[str, int]:
    """The keys of those that are there, by id; ours until the transaction ends, taken in one order by everybody."""
    found: dict[str, int] = {}
    for some in in_parts(sorted(ids)):
        query = sa.select(SUBJECTS.c.id, SUBJECTS.c.key).where(SUBJECTS.c.gallery_key == gallery.key)
        query = query.where(SUBJECTS.c.id.in_(some)).order_by(SUBJECTS.c.key).with_for_update()
        found |= {row.id: row.key for row in connection.execute(query)}
    return found


def _lock_faces(connection: Connection, gallery: Gallery, ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The keys of each face and of its subject."""
    found: dict[str, tuple[int, int]] = {}
    for some in in_parts(ids):
        query = sa.select(FACES.c.face_id, FACES.c.key, FACES.c.subject_key).where(FACES.c.gallery_key == gallery.key)
        query = query.where(FACES.c.face_id.in_(some)).order_by(FACES.c.key).with_for_update()
        found |= {row.face_id: (row.key, row.subject_key) for row in connection.execute(query)}
    return found


def _tidy(connection: Connection, subjects: Iterable[int]) -> None:
    """After faces came and went: unnamed subjects without a face go, of the others it is known when they changed."""
    for some in in_parts(list(subjects)):
        mine = SUBJECTS.c.key.in_(some)
        empty = ~sa.exists().where(FACES.c.subject_key == SUBJECTS.c.key)
        connection.execute(sa.delete(SUBJECTS).where(mine & _is_unnamed() & empty))
        connection.execute(sa.update(SUBJECTS).where(mine).values(updated_at=utc_now()))


def _unnamed(gallery: Gallery, subject_id: str) -> dict[str, object]:
    now = utc_now()
    return {
        "gallery_key": gallery.key,
        "id": subject_id,
        "name": None,
        "folded": fold(subject_id),
        "metadata": "{}",
        "created_at": now,
        "updated_at": now,
    }


def _no_subject(gallery: Gallery, subject_id: str) -> NotFound:
    message = f"Gallery {gallery.id!r} has no subject {subject_id!r}."
    return SubjectNotFound(message, gallery=gallery.id, subject=subject_id)
