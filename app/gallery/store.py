"""Galleries, subjects, faces and crops in SQL, and the log of their changes. The indexes are derived from it.

Every public call is one transaction: when it returns, its changes are on disk; when it raises, nothing has changed.
Functions over a `Change` make all changes of subjects and faces (`app.gallery.subjects`); several of them may share
one. `app.gallery.service.Galleries.change` opens a change that the indexes follow, `Store.change` one that they don't.
Locks are always taken in the same order: the index's lock, the transaction, the gallery's row. The row's lock excludes
all other writers to the gallery's subjects and faces, so there are no deadlocks, and changes don't mix. The answer to a
request with a token is stored in the same transaction, so that a repeated request gets the same answer and changes
nothing.

The log's entries are numbered without gaps and written in the transaction of the change itself. The gallery's row holds
the last number and stays locked until that transaction ends, so a number becomes visible only after all lower ones.
Entries hold keys, never a template or a name. A gallery's last entry is never pruned, since it marks the log's end.
`ChangeReader` reads the log, and faces, for the search indexes.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeAlias, Unpack

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.engine import Cache, Database, in_parts, select_in
from app.db.opening import BUSY_TIMEOUT_S, Inserting
from app.db.pagination import Page, read_page
from app.db.schema import CHANGES, FACES, GALLERIES, PACKAGES, REEMBEDDINGS, SUBJECTS
from app.db.sealed_columns import Blobs
from app.errors import Conflict, GalleryNotFound, PackageMismatch, PackageUnavailable
from app.gallery.records import (
    GALLERY_ROWS,
    SUBJECT_ROWS,
    Candidate,
    Counts,
    Gallery,
    GalleryChanges,
    GallerySettings,
    StoredFace,
    Subject,
    face_query,
    find_face,
    find_gallery,
    find_subject,
    is_unnamed_row,
    join_templates,
    lock_gallery,
    not_expired,
    population_column,
    read_crop,
    reread,
    subject_not_found,
    template_column,
    template_sets,
    to_block,
    to_face,
    to_gallery,
    to_subject,
)
from app.gallery.text import MAX_METADATA_BYTES, check_visible, clean_id, clean_search, encode_metadata, fold
from app.package.folders import Package
from app.search.types import (
    Changes,
    FaceBlock,
    FaceChange,
    GalleryState,
    IndexSpec,
    LogPosition,
    Match,
    Moved,
    Removed,
)
from app.types import Sizes, utc_now

BEGIN, ADD, MOVE, REMOVE, REMOVE_SUBJECT, ERASE = "begin", "add", "move", "remove", "subject", "erase"
LogEntry: TypeAlias = tuple[str, int, int | None]
"""The kind of change, the subject's key (of a MOVE the new one), and the face's key or None for all."""
STAMP_BITS = 63
"""Bits of a random stamp: as many as fit in a signed integer of 64 bits."""
MAX_NUMBER = 2**63 - 1
"""The largest number of an entry: a signed integer of 64 bits."""
STREAM_ROWS = 10_000
"""Number of faces read at a time when an index is built."""
LOG_KEPT = timedelta(days=1)
"""Time that the change log reaches back. A process that was away for longer rebuilds its indexes."""
LABELS_KEPT = 16_384
"""Maximum faces whose ids and names are cached until the database changes: about 8 MB."""


@dataclass(eq=False, slots=True)
class Change:
    """An open transaction that holds the lock of the gallery."""

    gallery: Gallery
    """The gallery as of this transaction."""
    connection: Connection
    insert: Inserting
    """INSERT with ON CONFLICT, in the database's dialect."""
    blobs: Blobs
    max_metadata_bytes: int
    now: str = field(default_factory=utc_now)
    overwrites: bool = False
    """Whether something is deleted or replaced, so that SQLite's files must be scrubbed."""
    entries: list[LogEntry] = field(default_factory=list)
    """The entries to write to the change log at the end."""

    def log(self, kind: str, faces: Iterable[tuple[int, int | None]]) -> None:
        """Note a change of these faces, given by subject key and face key (None: all of the subject's)."""
        self.overwrites |= kind != ADD
        self.entries += [(kind, subject, face) for subject, face in faces]


class Store:
    """Typed calls over SQL; safe to share between threads. Every call may also raise what `Database` raises.

    `url` and `busy_timeout_s` are `Database`'s; `max_metadata_bytes` limits each metadata object; `blobs` encrypts
    templates and crops, which are plain by default. Raises Unusable ``sealed_unreadable`` if it lacks the right key.
    """

    def __init__(
        self,
        url: str,
        *,
        max_metadata_bytes: int = MAX_METADATA_BYTES,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        blobs: Blobs | None = None,
    ) -> None:
        self.max_metadata_bytes = max_metadata_bytes
        self.blobs = blobs or Blobs()
        """Encrypts templates and crops, or leaves them plain."""
        self.database = Database(url, busy_timeout_s=busy_timeout_s)
        self.change_reader = ChangeReader(self.database, self.blobs)
        """Reads what indexes are built from."""
        self._known_galleries = Cache[str, Gallery](self.database.version)
        self._known_counts = Cache[int, _Counted](self.database.version)
        self._known_subjects = Cache[tuple[int, str], Subject](self.database.version)
        self._known_labels = Cache[int, tuple[str, str, str | None, str | None]](self.database.version, LABELS_KEPT)
        try:
            with self.database.read() as connection:
                self.blobs.check(connection)
        except BaseException:
            self.database.close()
            raise

    def close(self) -> None:
        self.database.close()

    @contextmanager
    def change(self, gallery: Gallery) -> Iterator[Change]:
        """Open a transaction that locks the gallery; no index follows it (`Galleries.change` is for that).

        Raises NotFound ``gallery_not_found``.
        """
        with self.database.write() as connection:
            held = lock_gallery(connection, gallery)
            change = Change(held, connection, self.database.insert, self.blobs, self.max_metadata_bytes)
            yield change
            if entries := change.entries:  # logged last: other writers to the gallery wait from here on
                stamp = secrets.randbits(STAMP_BITS)
                counted = {"gallery": held.key, "count": len(entries), "stamp": stamp}
                last: int = connection.execute(_COUNT_ENTRIES, counted).scalar_one()
                same = {"gallery_key": held.key, "stamp": stamp, "created_at": change.now}
                values = [
                    {**same, "number": number, "kind": kind, "subject_key": subject, "face_key": face}
                    for number, (kind, subject, face) in enumerate(entries, last - len(entries) + 1)
                ]
                connection.execute(_LOG, values)
        if change.overwrites:
            self.database.request_scrub()

    def create_gallery(
        self, gallery_id: str, embedder: str, dimension: int, **settings: Unpack[GallerySettings]
    ) -> Gallery:
        """Make a gallery. Raises InvalidInput ``invalid_id``, ``invalid_metadata``; Conflict ``gallery_exists``."""
        now, stamp = utc_now(), secrets.randbits(STAMP_BITS)
        cleaned = clean_id(gallery_id, "gallery")
        check_visible(cleaned, "gallery id")
        values = {
            "store": "crop",
            **settings,
            "id": cleaned,
            "embedder": embedder,
            "dimension": dimension,
            "population": population_column(settings.get("population", ())),
            "metadata": encode_metadata(settings.get("metadata", {}), self.max_metadata_bytes),
            "created_at": now,
            "last_stamp": stamp,
        }
        insert = self.database.insert(GALLERIES).values(values).on_conflict_do_nothing().returning(GALLERIES.c.key)
        with self.database.write() as connection:
            key = connection.execute(insert).scalar()
            if key is None:
                raise Conflict(f"There is already a gallery {cleaned!r}.", code="gallery_exists", gallery=cleaned)
            entry = {"gallery_key": key, "number": 0, "stamp": stamp, "kind": BEGIN, "created_at": now}
            connection.execute(_LOG, entry)
            return find_gallery(connection, cleaned)

    def gallery(self, gallery_id: str) -> Gallery:
        """Return the gallery as it is now. Raises InvalidInput ``invalid_id``; NotFound ``gallery_not_found``.

        All other calls, here and of `Galleries`, take the gallery that this returned. If its packages have changed
        since, they raise Conflict ``package_mismatch``: read it again (`app.db.engine.again_if_overtaken`).
        """
        known = self._known_galleries.values()
        if gallery_id not in known:
            with self.database.connect() as connection:
                known[gallery_id] = find_gallery(connection, gallery_id)
        return known[gallery_id]

    def galleries(
        self, cursor: str | None = None, limit: int = 100, only: Collection[str] | None = None
    ) -> Page[Gallery]:
        """List galleries, or `only` those with these ids. Raises InvalidInput ``invalid_cursor``, as all lists do."""
        query = GALLERY_ROWS
        if only is not None:
            query = query.where(GALLERIES.c.id.in_(only))
        return read_page(
            self.database, query, GALLERIES.c.key, to_gallery, listing="galleries", cursor=cursor, limit=limit
        )

    def update_gallery(self, gallery: Gallery, changes: GalleryChanges) -> Gallery:
        """Change these settings of the gallery. Raises NotFound ``gallery_not_found``."""
        columns: dict[str, object] = {**changes}
        if "population" in changes:
            columns["population"] = population_column(changes["population"])
        with self.change(gallery) as change:
            change.connection.execute(sa.update(GALLERIES).where(GALLERIES.c.key == gallery.key).values(columns))
            return reread(change.connection, gallery)

    def delete_gallery(self, gallery: Gallery) -> Counts:
        """Delete the gallery; return the counts of what it held. Raises NotFound ``gallery_not_found``."""
        with self.change(gallery) as change:
            counts = _count(change.connection, gallery).stored
            change.connection.execute(sa.delete(GALLERIES).where(GALLERIES.c.key == gallery.key))
            change.overwrites = True
        return counts

    def packages(self) -> frozenset[str]:
        return frozenset(self.database.column(sa.select(GALLERIES.c.embedder).distinct()))

    def counts(self, gallery: Gallery, *, expired: bool = False) -> Counts:
        """Return the numbers of the gallery's subjects and faces, cached until something changes.

        With `expired`, those that have expired but are not erased yet are counted, too.
        """
        known, now = self._known_counts.values(), utc_now()
        counted = known.get(gallery.key)
        if counted is None or not (expired or counted.holds(now)):
            with self.database.connect() as connection:
                counted = known[gallery.key] = _count(connection, gallery)
        return counted.stored if expired else counted.current

    def subject(self, gallery: Gallery, subject_id: str) -> Subject:
        """Return the subject with this id, unless it has expired. Raises InvalidInput ``invalid_id``; NotFound
        ``subject_not_found``."""
        known, key = self._known_subjects.values(), (gallery.key, subject_id)
        if key not in known:
            with self.database.connect() as connection:
                known[key] = find_subject(connection, gallery, subject_id)
        subject = known[key]
        if subject.expires_at is not None and subject.expires_at <= utc_now():
            raise subject_not_found(gallery, subject.id)
        return subject

    def subjects(
        self,
        gallery: Gallery,
        cursor: str | None = None,
        limit: int = 100,
        search: str | None = None,
        *,
        offset: int = 0,
        expires_before: str | None = None,
        named: bool = False,
    ) -> Page[Subject]:
        """List subjects, or only `named` ones, whose id or name contains `search`, both folded, without the first
        `offset`. Raises InvalidInput ``invalid_search``."""
        query = SUBJECT_ROWS.where(SUBJECTS.c.gallery_key == gallery.key, not_expired())
        if named:
            query = query.where(~is_unnamed_row())
        if expires_before is not None:
            query = query.where(SUBJECTS.c.expires_at < expires_before)
        if search:
            # LIKE has wildcards, and folds case differently on each database.
            contains = sa.func.instr if self.database.is_sqlite else sa.func.strpos
            query = query.where(contains(SUBJECTS.c.folded, fold(clean_search(search))) > 0)
        listing = f"subjects/{gallery.key}"
        return read_page(
            self.database,
            query,
            SUBJECTS.c.key,
            to_subject,
            listing=listing,
            cursor=cursor,
            limit=limit,
            offset=offset,
        )

    def faces(self, gallery: Gallery, subject_id: str, cursor: str | None = None, limit: int = 100) -> Page[StoredFace]:
        """List the subject's faces without their crops. Raises NotFound ``subject_not_found``."""
        subject = self.subject(gallery, subject_id)
        query = face_query(gallery.embedder).where(FACES.c.subject_key == subject.key)
        listing, convert = f"faces/{subject.key}", partial(to_face, blobs=self.blobs)
        return read_page(self.database, query, FACES.c.key, convert, listing=listing, cursor=cursor, limit=limit)

    def face(self, gallery: Gallery, face_id: str, subject_id: str | None = None) -> StoredFace:
        """Return a face, of any subject or of this one, with its crop. Raises NotFound ``face_not_found``, and
        ``subject_not_found`` for a missing ``subject_id``."""
        with self.database.read() as connection:
            subject = None if subject_id is None else find_subject(connection, gallery, subject_id)
            row = find_face(connection, gallery, face_id, subject)
            return to_face(row, self.blobs, read_crop(connection, row.key))

    def prune_changes(self, older_than: timedelta = LOG_KEPT) -> int:
        """Delete old entries of the change log, except each gallery's last; return how many. The scheduler calls it."""
        last = sa.select(GALLERIES.c.last_change).where(GALLERIES.c.key == CHANGES.c.gallery_key).scalar_subquery()
        old = sa.delete(CHANGES).where((CHANGES.c.created_at < utc_now(-older_than)) & (CHANGES.c.number < last))
        with self.database.write() as connection:
            return connection.execute(old).rowcount

    def candidates(self, rankings: Sequence[Sequence[Match]]) -> list[list[Candidate]]:
        """Return the matches with the ids and names that their keys stand for.

        Faces that were deleted meanwhile are left out, and subjects that have expired.
        """
        labels, now = self._known_labels.values(), utc_now()
        unknown = {match.face for ranking in rankings for match in ranking if match.face not in labels}
        if unknown:
            with self.database.connect() as connection:
                for part in in_parts(sorted(unknown)):
                    rows = connection.execute(_LABELS, {"keys": part}).all()
                    labels |= {key: (face_id, subject, name, end) for key, face_id, subject, name, end in rows}
        return [
            [
                Candidate(subject, name, face_id, match.score, match.mean_score, match.faces, match.length)
                for match in ranking
                if match.face in labels
                for face_id, subject, name, expires_at in [labels[match.face]]
                if expires_at is None or expires_at > now
            ]
            for ranking in rankings
        ]


@dataclass(frozen=True, slots=True)
class _Counted:
    """Counts of all that a gallery stores, and of what has not expired."""

    stored: Counts
    current: Counts
    since: str
    """The time of the count."""
    until: str | None
    """The time when the next subject of any gallery expires."""

    def holds(self, now: str) -> bool:
        """Return whether the count is still right at this time, which is before it if the clock was put back."""
        return self.since <= now and (self.until is None or now < self.until)


def _count(connection: Connection, gallery: Gallery) -> _Counted:
    now = utc_now()
    stored = [_rows_of(table, gallery) for table in (SUBJECTS, FACES)]
    # Without `+ 0` SQLite reads all subjects of the gallery, not just the few expired ones of all galleries.
    gone = [count.where(SUBJECTS.c.gallery_key + 0 == gallery.key).scalar_subquery() for count in expired_counts(now)]
    until = sa.select(sa.func.min(SUBJECTS.c.expires_at)).where(SUBJECTS.c.expires_at > now).scalar_subquery()
    counted = [*stored, *gone, until]
    subjects, faces, gone_subjects, gone_faces, end = connection.execute(sa.select(*counted)).one()
    return _Counted(Counts(subjects, faces), Counts(subjects - gone_subjects, faces - gone_faces), now, end)


def _rows_of(table: sa.Table, gallery: Gallery) -> sa.ColumnElement[int]:
    """Return SQL that counts the gallery's rows. If no other gallery has any, it counts all of the table's rows, which
    SQLite does page by page."""
    key, every = table.c.gallery_key, sa.select(sa.func.count()).select_from(table)
    others = sa.or_(sa.exists().where(key < gallery.key), sa.exists().where(key > gallery.key))
    in_gallery = every.where(key == gallery.key).scalar_subquery()
    return sa.case((others, in_gallery), else_=every.scalar_subquery())


def expired_counts(now: str) -> tuple[sa.Select[int], sa.Select[int]]:
    """Return the queries that count the expired subjects and their faces, which are few, as they are erased soon."""
    count = sa.select(sa.func.count()).select_from
    gone = SUBJECTS.c.expires_at <= now
    return count(SUBJECTS).where(gone), count(SUBJECTS.join(FACES)).where(gone)


# Built once, since that takes longer than running them on SQLite.
_COUNT_ENTRIES = (
    sa.update(GALLERIES)
    .where(GALLERIES.c.key == sa.bindparam("gallery"))
    .values(last_change=GALLERIES.c.last_change + sa.bindparam("count"), last_stamp=sa.bindparam("stamp"))
    .returning(GALLERIES.c.last_change)
)
_LOG = sa.insert(CHANGES)
_LABELS = (
    sa.select(FACES.c.key, FACES.c.face_id, SUBJECTS.c.id.label("subject"), SUBJECTS.c.name, SUBJECTS.c.expires_at)
    .join(SUBJECTS)
    .where(FACES.c.key.in_(sa.bindparam("keys", expanding=True)))
)


def bind_package(database: Database, package: Package) -> None:
    """Bind the package's id to its model, unless it is bound; a binding that no gallery needs is replaced.

    A package's id names a version; its digest identifies the file and its preparation. Another file with the same id
    makes other templates, so that comparing them would give meaningless scores.

    Raises PackageUnavailable with the reason ``package_changed`` if galleries have templates of another model.
    """
    digest = package.manifest.recipe_digest
    query = sa.select(PACKAGES.c.digest).where(PACKAGES.c.id == package.id)
    with database.read() as connection:
        bound = connection.execute(query).scalar()
    if bound == digest:
        return
    on_its_way = (REEMBEDDINGS.c.source == package.id) | (REEMBEDDINGS.c.target == package.id)
    moving = GALLERIES.c.key.in_(sa.select(REEMBEDDINGS.c.gallery_key).where(on_its_way))
    needing = sa.select(GALLERIES.c.id).where((GALLERIES.c.embedder == package.id) | moving).limit(1)
    insert = database.insert(PACKAGES).values(id=package.id, digest=digest)
    with database.write() as connection:
        connection.execute(insert.on_conflict_do_nothing())
        if (bound := connection.execute(query).scalar_one()) == digest:
            return
        gallery = connection.execute(needing).scalar()
        if gallery is None:
            connection.execute(sa.update(PACKAGES).where(PACKAGES.c.id == package.id).values(digest=digest))
            return
    message = (
        f"{package.folder} has another model than the one that gallery {gallery!r} has templates of, under the same id "
        f"{package.id}. Put the previous package back; or give this one another version in its manifest and move the "
        f"gallery: likeness reembed start {gallery} NAME@VERSION"
    )
    details = {"package": package.id, "reason": "package_changed", "expected": bound, "found": digest}
    raise PackageUnavailable(message, gallery=gallery, **details)


def _reading() -> sa.Select[Any]:
    package = sa.bindparam("package", type_=FACES.c.package.type)
    faces = sa.and_(CHANGES.c.kind == ADD, FACES.c.key == CHANGES.c.face_key)
    return (
        sa.select(CHANGES, FACES.c.quality, FACES.c.face_id, template_column(package).label("template"))
        .select_from(join_templates(CHANGES.outerjoin(FACES, faces), package))
        .where(CHANGES.c.gallery_key == sa.bindparam("gallery"))
        .where(CHANGES.c.number.between(sa.bindparam("since"), sa.bindparam("until")))
        .order_by(CHANGES.c.number)
        .limit(sa.bindparam("limit"))
    )


_READ = _reading()
_STATE = GALLERY_ROWS.where(GALLERIES.c.key == sa.bindparam("gallery"))
_SNAPSHOT = sa.text("SELECT pg_current_snapshot()::text")


class ChangeReader:
    """Implements `app.search.types.FaceSource`, which describes the calls. They also raise what `Database` raises."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database = database
        self._blobs = blobs

    def version(self) -> object:
        if self._database.is_sqlite:
            return self._database.version()
        with self._database.read() as connection:  # transactions with equal snapshots see the same
            return connection.execute(_SNAPSHOT).scalar_one()

    def states(self) -> dict[int, GalleryState]:
        return {
            row.key: GalleryState(LogPosition(row.last_change, row.last_stamp), template_sets(row)[0])
            for row in self._database.rows(GALLERY_ROWS)
        }

    def head(self, spec: IndexSpec) -> LogPosition | None:
        query = sa.select(GALLERIES.c.last_change, GALLERIES.c.last_stamp).where(GALLERIES.c.key == spec.key.gallery)
        rows = self._database.rows(query)
        return LogPosition(*rows[0]) if rows else None

    def changes(
        self, spec: IndexSpec, since: LogPosition, limit: int, until: LogPosition | None = None
    ) -> Changes | None:
        """Return up to `limit` entries after `since`, up to number `until`.

        Return None if the log has a gap after `since`: it was pruned, the database was restored, or the gallery is
        gone. Faces that have been removed since they were added are left out, since their removal follows; so are faces
        without a template of the gallery's package. A single statement reads everything, so the result is consistent.
        """
        wanted = {
            "gallery": spec.key.gallery,
            "package": spec.key.package,
            "since": since.number,
            "until": MAX_NUMBER if until is None else until.number,
            "limit": limit + 2,
        }
        with self._database.connect() as connection:
            rows = connection.execute(_READ, wanted).all()
        if not rows or LogPosition(rows[0].number, rows[0].stamp) != since:
            return None
        if rows[-1].number - since.number != len(rows) - 1:
            return None
        entries, steps, blobs = rows[: limit + 1], list[FaceChange](), self._blobs
        for kind, group in groupby(entries[1:], key=attrgetter("kind")):  # consecutive additions become one block
            if kind == ADD:
                there = [
                    (row.face_key, row.subject_key, row.quality, blobs.unpack("template", row.face_id, row.template))
                    for row in group
                    if row.template is not None
                ]
                steps += [to_block(there, spec.dimension)] if there else []
            elif kind == MOVE:
                moves = {row.face_key: row.subject_key for row in group}  # for a face that moved twice, the last move
                steps.append(Moved(np.array(list(moves), np.int64), np.array(list(moves.values()), np.int64)))
            else:
                steps += [Removed(row.subject_key, row.face_key, kind == ERASE) for row in group]
        return Changes(tuple(steps), LogPosition(entries[-1].number, entries[-1].stamp), len(rows) > len(entries))

    @contextmanager
    def read_all(self, spec: IndexSpec, *, named: bool = False) -> Iterator[tuple[LogPosition, Iterator[FaceBlock]]]:
        with self._database.read(one_moment=True) as connection:
            row = connection.execute(_STATE, {"gallery": spec.key.gallery}).one_or_none()
            if row is None:
                raise GalleryNotFound.of(spec.gallery_id)
            if spec.key not in (kept.key for templates in template_sets(row) for kept in templates):
                message = f"Gallery {spec.gallery_id!r} has no templates of {spec.key.package} any more."
                raise PackageMismatch(message, given=spec.key.package)
            position = LogPosition(row.last_change, row.last_stamp)
            query = _faces(spec, named=named).order_by(FACES.c.key)
            with connection.execution_options(yield_per=STREAM_ROWS).execute(query) as result:
                parts = result.partitions()
                yield position, (to_block(_opened(rows, self._blobs), spec.dimension) for rows in parts)

    def faces_of(self, spec: IndexSpec, subjects: Sequence[int]) -> FaceBlock | None:
        return self._some_faces(spec, FACES.c.subject_key, subjects)

    def faces_at(self, spec: IndexSpec, faces: Sequence[int]) -> FaceBlock | None:
        return self._some_faces(spec, FACES.c.key, faces)

    def sizes(self, spec: IndexSpec, *, named: bool = False) -> Sizes:
        faces = sa.func.count().label("faces")
        per_subject = _faces(spec, named=named).with_only_columns(faces).group_by(FACES.c.subject_key).subquery()
        rows = self._database.rows(sa.select(per_subject.c.faces, sa.func.count()).group_by(per_subject.c.faces))
        return {row[0]: row[1] for row in rows}

    def _some_faces(self, spec: IndexSpec, column: sa.Column[Any], keys: Sequence[int]) -> FaceBlock | None:
        with self._database.read() as connection:
            rows = sorted(select_in(connection, _faces(spec), column, keys), key=lambda row: row.key)
        return to_block(_opened(rows, self._blobs), spec.dimension) if rows else None


def _faces(spec: IndexSpec, *, named: bool = False) -> sa.Select[Any]:
    template = template_column(spec.key.package)
    columns = (FACES.c.key, FACES.c.subject_key, FACES.c.quality, FACES.c.face_id, template.label("template"))
    query = sa.select(*columns).select_from(join_templates(FACES, spec.key.package))
    query = query.where((FACES.c.gallery_key == spec.key.gallery) & template.is_not(None))
    return query.join(SUBJECTS, FACES.c.subject_key == SUBJECTS.c.key).where(~is_unnamed_row()) if named else query


def _opened(rows: Iterable[Sequence[Any]], blobs: Blobs) -> list[tuple[int, int, float, bytes]]:
    """Decrypt the templates; return the rows for `to_block`."""
    return [
        (key, subject, quality, blobs.unpack("template", face_id, template))
        for key, subject, quality, face_id, template in rows
    ]
