"""A gallery's faces across its subjects: listed, found, moved, deleted, with the photos they came from; and its
subjects as a whole: listed, renamed, merged, all deleted.

A face of an unidentified person is the only face of an unnamed subject (`app.gallery.text.unnamed_id`), which is made
with the face and deleted with it. Every public call of `Faces` is one transaction, as in `app.gallery.store.Store`. The
change log records a moved face as removed and added again, so its followers need no special case.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.engine import Database, in_parts
from app.db.pagination import Page, read_page
from app.db.schema import ANSWERED_REQUESTS, CORRECTIONS, FACE_ORIGINS, FACES, SUBJECTS
from app.errors import DatabaseBusy, InvalidInput
from app.gallery import change_log
from app.gallery.face_rows import ORIGIN_COLUMNS, box_of, face_not_found, reassign, to_origin
from app.gallery.gallery_rows import lock_gallery
from app.gallery.records import Counts, Gallery, Move, Person, PlacedFace
from app.gallery.subject_rows import (
    find_unexpired,
    inherited,
    lock_subjects,
    make_subjects,
    subject_not_found,
    subject_values,
    touch_subjects,
    update_subject,
)
from app.gallery.text import UNNAMED_LENGTH, UNNAMED_SIGN, check_visible, clean_id, fold, is_unnamed, unnamed_id
from app.timestamps import utc_now

ANSWERS_KEPT = timedelta(days=1)
"""How long a request that is repeated under its token gets the same answer."""
RENAME_ATTEMPTS = 10
"""How often a renaming looks again while others keep taking the id."""
MERGE = "merge"
"""The operation under which merges are kept; the token stands for the subject that is gone."""


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """The answer to a request that carries a token; ``digest`` is of the request."""

    operation: str
    token: str
    digest: bytes
    answer: str


class AlreadyAnswered(Exception):
    """Another process has just answered a request with this token; nothing was written."""


class Faces:
    """Typed calls over faces in SQL. Safe to share between threads. Every call may also raise what `Database` does."""

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
        """List the gallery's faces in the order of their enrollment: all, one subject's, or `only` those of these ids.

        The subject need not exist. Raises InvalidInput ``invalid_cursor``.
        """
        listing = f"placed/{gallery.key}/{'' if subject is None else subject}"
        query = _PLACED.where(FACES.c.gallery_key == gallery.key)
        if subject is not None:
            query = query.where(SUBJECTS.c.id == clean_id(subject, "subject"))
        if only is not None:
            query = query.where(FACES.c.face_id.in_(only))
        return read_page(self._database, query, FACES.c.key, _placed, listing=listing, cursor=cursor, limit=limit)

    def find(self, gallery: Gallery, face_ids: Sequence[str]) -> dict[str, PlacedFace]:
        """Return the faces that exist, by id."""
        found: dict[str, PlacedFace] = {}
        with self._database.read() as connection:
            for some in in_parts(face_ids):
                query = _PLACED.where((FACES.c.gallery_key == gallery.key) & FACES.c.face_id.in_(some))
                found |= {row.face_id: _placed(row) for row in connection.execute(query)}
        return found

    def of_image(self, gallery: Gallery, image_id: str) -> list[PlacedFace]:
        """Return the faces that were enrolled from one photo."""
        query = _PLACED.where((FACE_ORIGINS.c.gallery_key == gallery.key) & (FACE_ORIGINS.c.image_id == image_id))
        with self._database.read() as connection:
            return [_placed(row) for row in connection.execute(query.order_by(FACES.c.key))]

    def people(self, gallery: Gallery, cursor: str | None = None, limit: int = 100) -> Page[Person]:
        """List the named subjects, oldest first. Raises InvalidInput ``invalid_cursor``."""
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

    def move(
        self, gallery: Gallery, moves: Sequence[Move], answer: KeptAnswer | None = None, *, create: bool = False
    ) -> None:
        """Give faces to other subjects, all or none.

        Missing targets are made if they are unnamed or `create` says so; an unnamed source is deleted with its last
        face.

        Raises InvalidInput ``invalid_id``; NotFound ``gallery_not_found``, ``face_not_found`` (not its source's),
        ``subject_not_found`` (a target); AlreadyAnswered.
        """
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            self.noting(gallery, answer)(connection)
            _move(connection, self._database, gallery, moves, create=create)
        self._database.request_scrub()

    def merge(self, gallery: Gallery, subject_id: str, into: str) -> list[str]:
        """Give the subject's faces to another one and delete it (`merge_rows`); return the ids of the faces.

        Called again within ANSWERS_KEPT, it changes nothing and returns the same.

        Raises InvalidInput ``invalid_id``, ``invalid_request`` (into itself); NotFound ``gallery_not_found``,
        ``subject_not_found``; Conflict ``subject_expired``.
        """
        source, target = clean_id(subject_id, "subject"), clean_id(into, "subject")
        if source == target:
            raise InvalidInput("A subject can't be merged into itself.")
        asked = hashlib.sha256(json.dumps([source, target]).encode())
        token = hashlib.sha256(source.encode()).hexdigest()
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            keys = lock_subjects(connection, gallery, {source, target})
            if target not in keys:
                raise subject_not_found(gallery, target)
            if source not in keys:
                done = _recall(connection, gallery, MERGE, token)
                if done is None or done[0] != asked.digest():
                    raise subject_not_found(gallery, source)
                return [str(face_id) for face_id in json.loads(done[1])]
            find_unexpired(connection, gallery, list(keys.values()))
            query = sa.select(FACES.c.face_id).where(FACES.c.subject_key == keys[source]).order_by(FACES.c.key)
            ids = list(connection.execute(query).scalars())
            same = (ANSWERED_REQUESTS.c.gallery_key == gallery.key) & (ANSWERED_REQUESTS.c.token == token)
            connection.execute(sa.delete(ANSWERED_REQUESTS).where(same & (ANSWERED_REQUESTS.c.operation == MERGE)))
            self._keep_answer(connection, gallery, KeptAnswer(MERGE, token, asked.digest(), json.dumps(ids)))
            merge_rows(connection, gallery, keys[source], keys[target])
        self._database.request_scrub()
        return ids

    def dissolve(self, gallery: Gallery, subject_id: str, answer: KeptAnswer | None = None) -> None:
        """Give each of the subject's faces to an unnamed subject of its own, and delete the subject.

        Raises NotFound ``gallery_not_found``, ``subject_not_found``; AlreadyAnswered.
        """
        cleaned = clean_id(subject_id, "subject")
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            self.noting(gallery, answer)(connection)
            keys = lock_subjects(connection, gallery, [cleaned])
            if cleaned not in keys:
                raise subject_not_found(gallery, cleaned)
            query = sa.select(FACES.c.face_id).where(FACES.c.subject_key == keys[cleaned]).order_by(FACES.c.key)
            ids = list(connection.execute(query).scalars())
            _move(connection, self._database, gallery, [Move(face, cleaned, unnamed_id()) for face in ids])
            connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key == keys[cleaned]))
        self._database.request_scrub()

    def delete(self, gallery: Gallery, face_ids: Sequence[str]) -> list[str]:
        """Delete the faces that exist, with their crops and unnamed subjects, and return their ids.

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
                change_log.record(connection, gallery.key, _entries(change_log.REMOVE, touched))
        self._database.request_scrub()
        return deleted

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

    def rename_subject(self, gallery: Gallery, subject_id: str, new_id: str) -> str:
        """Give the subject another id and return it in its normal form.

        If another subject has that id, the two are merged (`merge_rows`); only then the change log
        gets entries, since indexes don't know ids. Raises InvalidInput ``invalid_id``; NotFound ``gallery_not_found``,
        ``subject_not_found``.
        """
        old, new = clean_id(subject_id, "subject"), clean_id(new_id, "subject")
        with self._database.write() as connection:
            lock_gallery(connection, gallery)
            for _ in range(RENAME_ATTEMPTS):
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

    def delete_subjects(self, gallery: Gallery) -> Counts:
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

    def recall_answer(self, gallery: Gallery, operation: str, token: str) -> tuple[bytes, str] | None:
        """Return the digest of the request that had this token, and its answer; None if there was none lately."""
        with self._database.read() as connection:
            return _recall(connection, gallery, operation, token)

    def noting(self, gallery: Gallery, answer: KeptAnswer | None) -> Callable[[Connection], None]:
        """Return a function that stores the answer in the transaction of the change it reports."""

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


def merge_rows(connection: Connection, gallery: Gallery, source: int, target: int) -> None:
    """Give one subject's faces to another, both given by their keys, and delete the first.

    The other keeps its name, metadata and consent, and takes those it lacks. The earlier expiry counts: nothing is kept
    longer than was promised. Corrections of both are dropped: they may be about each other. The caller has locked both.
    """
    query = sa.select(FACES.c.key).where(FACES.c.subject_key == source).order_by(FACES.c.key).with_for_update()
    moved = reassign(connection, dict.fromkeys(connection.execute(query).scalars().all(), target))
    update_subject(connection, target, inherited(connection, source, target))
    connection.execute(sa.delete(CORRECTIONS).where(CORRECTIONS.c.subject_key == target))
    connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key == source))
    entries: list[change_log.Entry] = [(change_log.REMOVE_SUBJECT, source, None)]
    entries += [(change_log.ADD, target, key) for key in sorted(moved.values())]
    change_log.record(connection, gallery.key, entries)


def _set_id(connection: Connection, key: int, new_id: str) -> bool:
    """Return False if another subject has just taken the id."""
    name = connection.execute(sa.select(SUBJECTS.c.name).where(SUBJECTS.c.key == key)).scalar_one()
    try:
        with connection.begin_nested():
            update_subject(connection, key, {"id": new_id, "folded": fold(new_id, name)})
    except sa.exc.IntegrityError:
        return False
    return True


def _recall(connection: Connection, gallery: Gallery, operation: str, token: str) -> tuple[bytes, str] | None:
    query = sa.select(ANSWERED_REQUESTS.c.digest, ANSWERED_REQUESTS.c.answer).where(
        ANSWERED_REQUESTS.c.gallery_key == gallery.key,
        ANSWERED_REQUESTS.c.operation == operation,
        ANSWERED_REQUESTS.c.token == token,
        ANSWERED_REQUESTS.c.created_at > utc_now(-ANSWERS_KEPT),
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else (bytes(row.digest), row.answer)


def _placed(row: Row[Any]) -> PlacedFace:
    return PlacedFace(row.face_id, row.subject, box_of(row), row.created_at, to_origin(row))


def _is_named(gallery: Gallery) -> sa.ColumnElement[bool]:
    return (SUBJECTS.c.gallery_key == gallery.key) & ~_is_unnamed()


def _is_unnamed() -> sa.ColumnElement[bool]:
    """Return `app.gallery.text.is_unnamed` as SQL."""
    return (sa.func.substr(SUBJECTS.c.id, 1, 1) == UNNAMED_SIGN) & (sa.func.length(SUBJECTS.c.id) == UNNAMED_LENGTH)


def _move(
    connection: Connection, database: Database, gallery: Gallery, moves: Sequence[Move], *, create: bool = False
) -> None:
    wanted = [move for move in {move.face_id: move for move in moves}.values() if move.source != move.target]
    now = utc_now()
    targets = sorted({move.target for move in wanted if create or is_unnamed(move.target)})
    if targets:
        for made in make_subjects(connection, database, [subject_values(gallery, one, now) for one in targets]):
            check_visible(made, "subject")
    subjects = lock_subjects(connection, gallery, {end for move in wanted for end in (move.source, move.target)})
    faces = _lock_faces(connection, gallery, [move.face_id for move in wanted])
    removed: dict[int, list[int]] = defaultdict(list)
    added: dict[int, list[int]] = defaultdict(list)
    for move in wanted:
        if move.target not in subjects:
            raise subject_not_found(gallery, move.target)
        key, subject = faces.get(move.face_id, (None, None))
        if key is None or subject is None or subject != subjects.get(move.source):
            raise face_not_found(move.source, move.face_id)
        removed[subject].append(key)
        added[subjects[move.target]].append(key)
    moved = reassign(connection, {key: subject for subject, keys in added.items() for key in keys})
    added = {subject: [moved[key] for key in keys] for subject, keys in added.items()}
    _tidy(connection, removed.keys() | added.keys())
    if wanted:
        entries = [*_entries(change_log.REMOVE, removed), *_entries(change_log.ADD, added)]
        change_log.record(connection, gallery.key, entries)


def _entries(kind: str, faces: Mapping[int, Sequence[int]]) -> list[change_log.Entry]:
    """Return one entry for each face, given by their subjects' keys."""
    return [(kind, subject, key) for subject, keys in faces.items() for key in sorted(keys)]


def _lock_faces(connection: Connection, gallery: Gallery, ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Lock the faces that exist until the transaction ends; return each one's key and its subject's, by id."""
    found: dict[str, tuple[int, int]] = {}
    for some in in_parts(ids):
        query = sa.select(FACES.c.face_id, FACES.c.key, FACES.c.subject_key).where(FACES.c.gallery_key == gallery.key)
        query = query.where(FACES.c.face_id.in_(some)).order_by(FACES.c.key).with_for_update()
        found |= {row.face_id: (row.key, row.subject_key) for row in connection.execute(query)}
    return found


def _tidy(connection: Connection, subjects: Iterable[int]) -> None:
    """Delete the unnamed subjects that have lost their last face; set the others' time of change."""
    for some in in_parts(list(subjects)):
        mine = SUBJECTS.c.key.in_(some)
        empty = ~sa.exists().where(FACES.c.subject_key == SUBJECTS.c.key)
        connection.execute(sa.delete(SUBJECTS).where(mine & _is_unnamed() & empty))
        touch_subjects(connection, some, utc_now())
