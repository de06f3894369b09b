"""The truth: galleries, subjects, faces and crops in SQL (SQLite, or PostgreSQL by URL).

Every public call is one transaction: what it returned is on disk, what it raised changed nothing.
Rows go in and come out as the frozen values of `app.gallery.records`.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Connection, Engine, Row, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.errors import Conflict, NotFound, Overloaded, Unusable
from app.gallery.records import (
    MAX_METADATA_BYTES,
    UNSET,
    Counts,
    CropPolicy,
    Enrolled,
    FaceBlock,
    FaceRow,
    Gallery,
    Metadata,
    NewFace,
    Page,
    Subject,
    Unset,
    clean_id,
    clean_name,
    clean_search,
    decode_cursor,
    encode_cursor,
    encode_metadata,
    fold,
)
from app.gallery.tables import CROPS, FACES, GALLERIES, SUBJECTS
from app.types import Box, Quality, Reason

BUSY_TIMEOUT_S = 30
"""How long a SQLite write waits for another process's."""
POOL_SIZE = 20
"""Connections kept open; up to as many again for a burst."""
SCRUB_RETRY_S = 0.2
"""Between attempts to empty SQLite's write-ahead log after a deletion, while readers still use it."""
STREAM_ROWS = 10_000
LABELS_AT_ONCE = 5_000
"""Keys in one IN (...): under SQLite's limit of 32,766 and PostgreSQL's of 65,535 parameters."""
MIGRATION_LOCK = 0x4C494B45
"""PostgreSQL advisory lock ("LIKE" in ASCII), so that processes starting together migrate one after the other."""
CREATE_ATTEMPTS = 10
"""How often an enrollment makes its subject anew when others keep deleting it."""
K = TypeVar("K", Gallery, Subject, FaceRow)
_FACE_ID = re.compile("[0-9a-f]{32}")


class Store:
    """SQL behind typed calls; safe to share between threads.

    `url` is ``sqlite:///path`` or ``postgresql://…``; the schema is brought up to date at opening.
    SQLite commits with synchronous=FULL: what was acknowledged survives a killed process and a power loss.
    Deleted rows are overwritten (secure_delete) and the write-ahead log, which still holds the old bytes, is emptied by
    a background thread as soon as no reader uses it: normally well within a second (`scrub` waits for it).
    PostgreSQL keeps deleted rows until it vacuums; that, and its own log's retention, are its administrator's.
    Raises Unusable where the database can't be opened or is newer than this program.
    """

    def __init__(
        self, url: str, *, max_metadata_bytes: int = MAX_METADATA_BYTES, busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> None:
        self._max_metadata_bytes = max_metadata_bytes
        self._busy_timeout_ms = round(busy_timeout_s * 1000)
        self._engine = _open(_parse(url), self._busy_timeout_ms)
        self._is_sqlite = self._engine.dialect.name == "sqlite"
        self._writer = self._engine.execution_options(likeness_write=True)
        self._insert = sqlite.insert if self._is_sqlite else postgresql.insert
        # One process's writers queue here, in turn, not in SQLite's busy handler, which sleeps between attempts.
        self._write_lock = threading.Lock()
        self._scrubber = _Scrubber(self._scrub_once) if self._is_sqlite else None
        try:
            self._migrate()
        except BaseException:
            self._engine.dispose()
            raise
        if self._scrubber:
            self._scrubber.request()  # a killed process may have left some behind

    def close(self) -> None:
        if self._scrubber:
            self._scrubber.close()
        self._engine.dispose()

    # Galleries

    def create_gallery(
        self,
        gallery_id: str,
        embedder: str,
        dimension: int,
        store: CropPolicy = "crop",
        metadata: Metadata | None = None,
    ) -> Gallery:
        """Raises InvalidInput ``invalid_id``, ``invalid_metadata``; Conflict ``gallery_exists``."""
        values = {
            "id": clean_id(gallery_id, "gallery"),
            "embedder": embedder,
            "dimension": dimension,
            "store": store,
            "metadata": self._encode(metadata or {}),
            "created_at": _now(),
        }
        insert = self._insert(GALLERIES).values(values).on_conflict_do_nothing().returning(*GALLERIES.c)
        with self._write() as connection:
            row = connection.execute(insert).one_or_none()
        if row is None:
            message = f"There is already a gallery {values['id']!r}."
            raise Conflict(message, code="gallery_exists", gallery=values["id"])
        return _gallery(row)

    def gallery(self, gallery_id: str) -> Gallery:
        """Raises InvalidInput ``invalid_id``; NotFound ``gallery_not_found``."""
        cleaned = clean_id(gallery_id, "gallery")
        with self._read() as connection:
            row = connection.execute(sa.select(GALLERIES).where(GALLERIES.c.id == cleaned)).one_or_none()
        if row is None:
            raise _gallery_not_found(cleaned)
        return _gallery(row)

    def check_gallery(self, gallery: Gallery) -> None:
        """Raises NotFound ``gallery_not_found`` where it was deleted, even if there is another of its id since."""
        with self._read() as connection:
            self._hold(connection, gallery)

    def galleries(self, cursor: str | None = None, limit: int = 100) -> Page[Gallery]:
        """Raises InvalidInput ``invalid_cursor``, as all lists."""
        query = sa.select(GALLERIES)
        return self._page(query, GALLERIES, _gallery, listing="galleries", cursor=cursor, limit=limit)

    def delete_gallery(self, gallery: Gallery) -> Counts:
        """What went with it. Raises NotFound ``gallery_not_found``."""
        with self._write() as connection:
            self._hold(connection, gallery, exclusively=True)
            counts = _count(connection, gallery)
            connection.execute(sa.delete(GALLERIES).where(GALLERIES.c.key == gallery.key))
        self._request_scrub()
        return counts

    def counts(self, gallery: Gallery) -> Counts:
        with self._read() as connection:
            return _count(connection, gallery)

    # Subjects

    def create_subject(
        self,
        gallery: Gallery,
        subject_id: str | None = None,
        name: str | None = None,
        metadata: Metadata | None = None,
    ) -> Subject:
        """A subject without faces; its id is made where none is given.

        Raises InvalidInput ``invalid_id``, ``invalid_name``, ``invalid_metadata``; NotFound ``gallery_not_found``;
        Conflict ``subject_exists``.
        """
        cleaned = clean_id(subject_id if subject_id is not None else uuid.uuid4().hex, "subject")
        cleaned_name = None if name is None else clean_name(name)
        encoded = self._encode(metadata or {})
        with self._write() as connection:
            self._hold(connection, gallery)
            key = self._insert_subject(connection, gallery, cleaned, cleaned_name, encoded)
            if key is None:
                message = f"Gallery {gallery.id!r} already has a subject {cleaned!r}."
                raise Conflict(message, code="subject_exists", gallery=gallery.id, subject=cleaned)
            return _read_subject(connection, gallery, cleaned)

    def subject(self, gallery: Gallery, subject_id: str) -> Subject:
        """Raises InvalidInput ``invalid_id``; NotFound ``subject_not_found``."""
        with self._read() as connection:
            return _read_subject(connection, gallery, clean_id(subject_id, "subject"))

    def subjects(
        self, gallery: Gallery, cursor: str | None = None, limit: int = 100, search: str | None = None
    ) -> Page[Subject]:
        """`search` keeps those whose id or name contains it, case folded. Raises InvalidInput ``invalid_search``."""
        query = _SUBJECTS_COUNTED.where(SUBJECTS.c.gallery_key == gallery.key)
        if search:
            # A plain substring function: LIKE has wildcards, and folds case differently on each database.
            contains = sa.func.instr if self._is_sqlite else sa.func.strpos
            query = query.where(contains(SUBJECTS.c.folded, fold(clean_search(search))) > 0)
        return self._page(query, SUBJECTS, _subject, listing=f"subjects/{gallery.key}", cursor=cursor, limit=limit)

    def update_subject(
        self,
        gallery: Gallery,
        subject_id: str,
        name: str | Unset | None = UNSET,
        metadata: Metadata | Unset = UNSET,
    ) -> Subject:
        """Replaces what is given, metadata as a whole; a `name` of None removes it.

        Raises InvalidInput ``invalid_id``, ``invalid_name``, ``invalid_metadata``; NotFound ``subject_not_found``.
        """
        cleaned = clean_id(subject_id, "subject")
        changes = self._changes(cleaned, name, metadata)
        with self._write() as connection:
            self._hold(connection, gallery)
            _update_subject(connection, _is_subject(gallery, cleaned), changes)
            subject = _read_subject(connection, gallery, cleaned)
        self._request_scrub()
        return subject

    def delete_subject(self, gallery: Gallery, subject_id: str) -> Subject:
        """The subject as it was. Raises InvalidInput ``invalid_id``; NotFound ``subject_not_found``."""
        cleaned = clean_id(subject_id, "subject")
        with self._write() as connection:
            self._hold(connection, gallery)
            connection.execute(sa.select(SUBJECTS.c.key).where(_is_subject(gallery, cleaned)).with_for_update())
            subject = _read_subject(connection, gallery, cleaned)
            connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key == subject.key))
        self._request_scrub()
        return subject

    # Faces

    def enroll(
        self,
        gallery: Gallery,
        subject_id: str,
        faces: Sequence[NewFace],
        *,
        crops: Sequence[bytes | None],
        name: str | None = None,
        metadata: Metadata | None = None,
    ) -> Enrolled:
        """Adds `faces`, with their `crops` as JPEG, to the subject, which is made where it is missing.

        `name` and `metadata` replace the subject's where given.
        Raises InvalidInput ``invalid_id``, ``invalid_name``, ``invalid_metadata``; NotFound ``gallery_not_found``.
        """
        cleaned = clean_id(subject_id, "subject")
        changes = self._changes(cleaned, UNSET if name is None else name, UNSET if metadata is None else metadata)
        with self._write() as connection:
            self._hold(connection, gallery)
            subject_key, created = self._ensure_subject(connection, gallery, cleaned)
            keys = _insert_faces(connection, gallery, subject_key, faces, crops)
            _update_subject(connection, SUBJECTS.c.key == subject_key, changes)
            subject = _read_subject(connection, gallery, cleaned)
            query = _FACES_NAMED.where(FACES.c.key.in_(keys)).order_by(FACES.c.key)
            rows = tuple(_face(row, crop) for row, crop in zip(connection.execute(query), crops, strict=True))
        return Enrolled(subject, rows, created)

    def faces(self, gallery: Gallery, subject_id: str, cursor: str | None = None, limit: int = 100) -> Page[FaceRow]:
        """The subject's faces, without their crops. Raises NotFound ``subject_not_found``."""
        subject = self.subject(gallery, subject_id)
        query = _FACES_NAMED.where(FACES.c.subject_key == subject.key)
        return self._page(query, FACES, _face, listing=f"faces/{subject.key}", cursor=cursor, limit=limit)

    def face(self, gallery: Gallery, subject_id: str, face_id: str) -> FaceRow:
        """With its crop. Raises NotFound ``subject_not_found``, ``face_not_found``."""
        with self._read() as connection:
            subject = _read_subject(connection, gallery, clean_id(subject_id, "subject"))
            row = _find_face(connection, subject, face_id)
            crop = connection.execute(sa.select(CROPS.c.jpeg).where(CROPS.c.face_key == row.key)).scalar()
        return _face(row, crop)

    def delete_face(self, gallery: Gallery, subject_id: str, face_id: str) -> tuple[int, int]:
        """The keys of the face and its subject. Raises NotFound ``subject_not_found``, ``face_not_found``."""
        with self._write() as connection:
            self._hold(connection, gallery)
            subject = _read_subject(connection, gallery, clean_id(subject_id, "subject"))
            face_key: int = _find_face(connection, subject, face_id, lock=True).key
            connection.execute(sa.delete(FACES).where(FACES.c.key == face_key))
            _update_subject(connection, SUBJECTS.c.key == subject.key, {})
        self._request_scrub()
        return face_key, subject.key

    # For the index

    def blocks(self, gallery: Gallery) -> Iterator[FaceBlock]:
        """All the gallery's faces as one moment saw them, in order of their keys, STREAM_ROWS at a time.

        Raises Unusable ``template_damaged``.
        """
        columns = (FACES.c.key, FACES.c.subject_key, FACES.c.quality, FACES.c.template)
        query = sa.select(*columns).where(FACES.c.gallery_key == gallery.key).order_by(FACES.c.key)
        with self._read() as connection:
            result = connection.execution_options(yield_per=STREAM_ROWS).execute(query)
            for rows in result.partitions():
                yield _block(rows, gallery.dimension)

    def labels(self, face_keys: Sequence[int]) -> dict[int, tuple[str, str, str | None]]:
        """Of each face that there (still) is: its face_id, its subject's id and name."""
        query = sa.select(FACES.c.key, FACES.c.face_id, SUBJECTS.c.id, SUBJECTS.c.name).join(SUBJECTS)
        found: dict[int, tuple[str, str, str | None]] = {}
        with self._read() as connection:
            for start in range(0, len(face_keys), LABELS_AT_ONCE):
                some = face_keys[start : start + LABELS_AT_ONCE]
                for key, face_id, subject_id, name in connection.execute(query.where(FACES.c.key.in_(some))):
                    found[key] = (face_id, subject_id, name)
        return found

    # Erasing

    def scrub(self, timeout_s: float = 10.0) -> bool:
        """Waits until nothing of what was deleted is left in SQLite's files; False where that took too long."""
        return self._scrubber.wait(timeout_s) if self._scrubber else True

    def _request_scrub(self) -> None:
        if self._scrubber:
            self._scrubber.request()

    def _scrub_once(self) -> bool:
        """Moves the write-ahead log into the database and empties it; False while a reader still needs it."""
        with self._write_lock, closing(self._engine.raw_connection()) as connection:
            cursor = connection.cursor()
            cursor.execute("PRAGMA busy_timeout = 0")  # waiting here would hold up all writers
            try:
                busy, _, _ = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.OperationalError:  # another process writes, or the disk is full: later
                return False
            finally:
                cursor.execute(f"PRAGMA busy_timeout = {self._busy_timeout_ms}")
        return not busy

    # Inside

    def _migrate(self) -> None:
        from alembic import command  # noqa: PLC0415 - half a second that tests of other parts don't need
        from alembic.config import Config  # noqa: PLC0415
        from alembic.util import CommandError  # noqa: PLC0415

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        try:
            with self._write() as connection:
                if not self._is_sqlite:
                    _check_encoding(connection)
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except CommandError as error:
            message = f"The database was made by a newer version of this program: {error}"
            raise Unusable(message, code="database_too_new") from error

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with _translated(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with ExitStack() as stack:
            if self._is_sqlite:
                stack.enter_context(self._write_lock)
            stack.enter_context(_translated())
            yield stack.enter_context(self._writer.begin())

    def _hold(self, connection: Connection, gallery: Gallery, *, exclusively: bool = False) -> None:
        """Makes sure that the gallery is there until the transaction ends (every writer takes it before anything else,
        so that none wait for each other in a circle)."""
        query = sa.select(GALLERIES.c.key).where(GALLERIES.c.key == gallery.key)
        query = query.with_for_update(read=not exclusively, key_share=not exclusively)
        if connection.execute(query).one_or_none() is None:
            raise _gallery_not_found(gallery.id)

    def _insert_subject(
        self, connection: Connection, gallery: Gallery, subject_id: str, name: str | None = None, metadata: str = "{}"
    ) -> int | None:
        """Its key; None where there already is one."""
        now = _now()
        values = {
            "gallery_key": gallery.key,
            "id": subject_id,
            "name": name,
            "folded": fold(subject_id, name),
            "metadata": metadata,
            "created_at": now,
            "updated_at": now,
        }
        insert = self._insert(SUBJECTS).values(values).on_conflict_do_nothing().returning(SUBJECTS.c.key)
        key: int | None = connection.execute(insert).scalar()
        return key

    def _ensure_subject(self, connection: Connection, gallery: Gallery, subject_id: str) -> tuple[int, bool]:
        """Its key, and whether it is new; the row is ours until the transaction ends.

        Between the two statements others may make or delete it, on PostgreSQL: hence the turns.
        """
        query = sa.select(SUBJECTS.c.key).where(_is_subject(gallery, subject_id)).with_for_update()
        for _ in range(CREATE_ATTEMPTS):
            key: int | None = connection.execute(query).scalar()
            if key is not None:
                return key, False
            key = self._insert_subject(connection, gallery, subject_id)
            if key is not None:
                return key, True
        raise Overloaded(f"Others keep deleting subject {subject_id!r}.", code="database_busy")

    def _changes(self, subject_id: str, name: str | Unset | None, metadata: Metadata | Unset) -> dict[str, object]:
        """Checked before the transaction begins; `_update_subject` writes them."""
        changes: dict[str, object] = {}
        if name is not UNSET:
            cleaned = None if name is None else clean_name(name)
            changes |= {"name": cleaned, "folded": fold(subject_id, cleaned)}
        if metadata is not UNSET:
            changes["metadata"] = self._encode(metadata)
        return changes

    def _encode(self, metadata: Metadata) -> str:
        return encode_metadata(metadata, self._max_metadata_bytes)

    def _page(
        self,
        query: sa.Select[Any],
        table: sa.Table,
        convert: Callable[[Row[Any]], K],
        *,
        listing: str,
        cursor: str | None,
        limit: int,
    ) -> Page[K]:
        """The `limit` rows after `cursor`; one more is read to know whether any follow."""
        if cursor is not None:
            query = query.where(table.c.key > decode_cursor(listing, cursor))
        with self._read() as connection:
            rows = connection.execute(query.order_by(table.c.key).limit(limit + 1)).all()
        items = tuple(convert(row) for row in rows[:limit])
        more = len(rows) > limit
        return Page(items, encode_cursor(listing, items[-1].key) if more else None)


class _Scrubber:
    """A thread that, once asked, tries `attempt` until it succeeds; it starts with the first request."""

    def __init__(self, attempt: Callable[[], bool]) -> None:
        self._attempt = attempt
        self._condition = threading.Condition()
        self._requested = 0
        self._done = 0
        self._closing = False
        self._thread: threading.Thread | None = None

    def request(self) -> None:
        with self._condition:
            self._requested += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="scrubber", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def wait(self, timeout_s: float) -> bool:
        with self._condition:
            target = self._requested
            return self._condition.wait_for(lambda: self._done >= target, timeout_s)

    def close(self) -> None:
        """One last attempt; what remains is for the next start."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._closing or self._requested > self._done)
                if self._requested == self._done:
                    return
                target, last = self._requested, self._closing
            succeeded = self._attempt()
            with self._condition:
                if succeeded:
                    self._done = target
                    self._condition.notify_all()
                elif last:
                    return
                else:
                    self._condition.wait_for(lambda: self._closing, SCRUB_RETRY_S)


def _parse(url: str) -> URL:
    try:
        return make_url(url)
    except ArgumentError as error:  # its text would repeat the URL, password and all
        raise Unusable("The database URL can't be understood.", code="database_unsupported") from error


def _open(url: URL, busy_timeout_ms: int) -> Engine:
    if url.get_backend_name() == "sqlite":
        return _open_sqlite(url, busy_timeout_ms)
    if url.get_backend_name() == "postgresql":
        return _open_postgresql(url)
    message = f"Likeness keeps galleries in SQLite or PostgreSQL, not in {url.get_backend_name()}."
    raise Unusable(message, code="database_unsupported")


def _open_sqlite(url: URL, busy_timeout_ms: int) -> Engine:
    if not url.database or url.database == ":memory:":
        raise Unusable("The SQLite database must be a file.", code="database_unsupported")
    path = Path(url.database)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Made here, so that nobody else can read it; SQLite gives its other files the same mode.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise Unusable(f"The database can't be opened: {error}", code="database_unavailable") from error
    engine = sa.create_engine(url.set(drivername="sqlite+pysqlite"), pool_size=POOL_SIZE, max_overflow=POOL_SIZE)
    sa.event.listen(engine, "connect", lambda connection, _record: _prepare_sqlite(connection, busy_timeout_ms))
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, busy_timeout_ms: int) -> None:
    connection.isolation_level = None  # transactions begin in `_begin_sqlite`, not when the driver thinks best
    for pragma in (
        f"busy_timeout = {busy_timeout_ms}",
        "journal_mode = WAL",  # readers never wait for the writer
        "synchronous = FULL",  # NORMAL may lose the last commits with the power
        "foreign_keys = ON",
        "secure_delete = ON",  # what is deleted is overwritten
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes the lock at once: one that read first could find, too late, that another wrote meanwhile."""
    write = connection.get_execution_options().get("likeness_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _open_postgresql(url: URL) -> Engine:
    try:
        return sa.create_engine(
            url.set(drivername="postgresql+psycopg"),
            pool_size=POOL_SIZE,
            max_overflow=POOL_SIZE,
            pool_pre_ping=True,
            connect_args={"client_encoding": "utf8"},
        )
    except ModuleNotFoundError as error:
        message = "PostgreSQL needs the driver psycopg: pip install 'likeness[postgresql]'."
        raise Unusable(message, code="database_driver_missing") from error


def _check_encoding(connection: Connection) -> None:
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding != "UTF8":
        message = f"The PostgreSQL database must be encoded in UTF8, not {encoding}: names are in any script."
        raise Unusable(message, code="database_unsupported")


@contextmanager
def _translated() -> Iterator[None]:
    """The database's troubles as errors of ours; the driver's text stays in the cause, for the log."""
    try:
        yield
    except PoolTimeout as error:
        raise Overloaded("All database connections are busy.", code="database_busy") from error
    except OperationalError as error:
        if "database is locked" in str(error.orig):
            raise Overloaded("The database is busy.", code="database_busy") from error
        raise Unusable("The database can't be used at the moment.", code="database_unavailable") from error
    except DBAPIError as error:
        broken = type(error) is DatabaseError or isinstance(error, InterfaceError | InternalError)
        if broken or error.connection_invalidated:  # damaged, no database at all, or gone
            raise Unusable("The database can't be used.", code="database_unavailable") from error
        raise


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _gallery_not_found(gallery_id: str) -> NotFound:
    return NotFound(f"There is no gallery {gallery_id!r}.", code="gallery_not_found", gallery=gallery_id)


def _count(connection: Connection, gallery: Gallery) -> Counts:
    counts = [
        connection.execute(
            sa.select(sa.func.count()).select_from(table).where(table.c.gallery_key == gallery.key)
        ).scalar_one()
        for table in (SUBJECTS, FACES)
    ]
    return Counts(*counts)


_SUBJECTS_COUNTED = sa.select(
    SUBJECTS,
    sa.select(sa.func.count())
    .select_from(FACES)
    .where(FACES.c.subject_key == SUBJECTS.c.key)
    .scalar_subquery()
    .label("face_count"),
)
_FACES_NAMED = sa.select(FACES, SUBJECTS.c.id.label("subject")).join(SUBJECTS)


def _is_subject(gallery: Gallery, subject_id: str) -> sa.ColumnElement[bool]:
    return (SUBJECTS.c.gallery_key == gallery.key) & (SUBJECTS.c.id == subject_id)


def _update_subject(connection: Connection, which: sa.ColumnElement[bool], changes: Mapping[str, object]) -> None:
    connection.execute(sa.update(SUBJECTS).where(which).values({"updated_at": _now(), **changes}))


def _read_subject(connection: Connection, gallery: Gallery, subject_id: str) -> Subject:
    row = connection.execute(_SUBJECTS_COUNTED.where(_is_subject(gallery, subject_id))).one_or_none()
    if row is None:
        message = f"Gallery {gallery.id!r} has no subject {subject_id!r}."
        raise NotFound(message, code="subject_not_found", gallery=gallery.id, subject=subject_id)
    return _subject(row)


def _find_face(connection: Connection, subject: Subject, face_id: str, *, lock: bool = False) -> Row[Any]:
    row = None
    if _FACE_ID.fullmatch(face_id):
        query = _FACES_NAMED.where((FACES.c.subject_key == subject.key) & (FACES.c.face_id == face_id))
        row = connection.execute(query.with_for_update(of=FACES) if lock else query).one_or_none()
    if row is None:
        message = f"Subject {subject.id!r} has no face {face_id!r}."
        raise NotFound(message, code="face_not_found", subject=subject.id, face_id=face_id)
    return row


def _insert_faces(
    connection: Connection,
    gallery: Gallery,
    subject_key: int,
    faces: Sequence[NewFace],
    crops: Sequence[bytes | None],
) -> list[int]:
    """The new faces' keys, in their order."""
    now = _now()
    values = [
        {
            "gallery_key": gallery.key,
            "subject_key": subject_key,
            "face_id": uuid.uuid4().hex,
            "package": face.template.package,
            "template": face.template.vector.astype("<f4").tobytes(),
            "quality": face.quality.score,
            "reasons": json.dumps([str(reason) for reason in face.quality.reasons]),
            "x": face.box.x,
            "y": face.box.y,
            "width": face.box.width,
            "height": face.box.height,
            "created_at": now,
        }
        for face in faces
    ]
    insert = sa.insert(FACES).returning(FACES.c.key, sort_by_parameter_order=True)
    keys: list[int] = list(connection.execute(insert, values).scalars())
    kept = [{"face_key": key, "jpeg": crop} for key, crop in zip(keys, crops, strict=True) if crop is not None]
    if kept:
        connection.execute(sa.insert(CROPS), kept)
    return keys


def _gallery(row: Row[Any]) -> Gallery:
    return Gallery(row.key, row.id, row.embedder, row.dimension, row.store, json.loads(row.metadata), row.created_at)


def _subject(row: Row[Any]) -> Subject:
    metadata = json.loads(row.metadata)
    return Subject(row.key, row.id, row.name, metadata, row.face_count, row.created_at, row.updated_at)


def _face(row: Row[Any], crop: bytes | None = None) -> FaceRow:
    return FaceRow(
        key=row.key,
        face_id=row.face_id,
        subject=row.subject,
        quality=Quality(row.quality, tuple(Reason(reason) for reason in json.loads(row.reasons))),
        box=Box(row.x, row.y, row.width, row.height),
        package=row.package,
        template=bytes(row.template),
        crop=None if crop is None else bytes(crop),
        created_at=row.created_at,
    )


def _block(rows: Sequence[Sequence[Any]], dimension: int) -> FaceBlock:
    faces, subjects, qualities, templates = zip(*rows, strict=True)
    if any(len(template) != dimension * 4 for template in templates):
        message = f"A stored template is not {dimension} numbers long: the database is damaged."
        raise Unusable(message, code="template_damaged")
    vectors = np.frombuffer(b"".join(templates), dtype="<f4").reshape(len(rows), dimension)
    return FaceBlock(
        np.array(faces, dtype=np.int64), np.array(subjects, dtype=np.int64), np.array(qualities, np.float32), vectors
    )
