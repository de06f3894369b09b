"""Strangers: unknown people who were seen well, grouped, kept for some days, and named or ignored by a person.

They are separate from the gallery's subjects: they don't affect thresholds, counts, calibrations or reviews.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.pagination import Page, read_page
from app.db.schema import GALLERIES, SIGHTINGS, STRANGERS
from app.errors import NotFound
from app.face.quality import QualityLevel
from app.features.grouping import MOST, group_faces, link_threshold
from app.features.watching.rows import (
    LOOKS,
    ROWS,
    Stored,
    drop_unseen,
    find_row,
    sighting_template,
    templates,
    to_stored,
)
from app.features.watching.schemas import Stranger
from app.gallery.records import Gallery
from app.gallery.store import Change, Store
from app.package.thresholds import Thresholds, fuse_templates
from app.types import Vector, utc_now, utc_seconds

WELL_SEEN: Final = QualityLevel.MEDIUM.minimum
JOIN_FMR: Final = 1e-5
"""FMR of the threshold that a sighting's score with a group's mean must reach to join the group. On CFP, precision of
pairs is then .999 and recall .941."""
FAR_FMR: Final = 1e-6
"""The same if the group has no sighting by the same camera or within NEAR_S. It is stricter, since between poor cameras
even the best nets link only 6 % at an FPIR of 1 % (IJB-S)."""
NEAR_S: Final = 24 * 3600.0


class Strangers:
    """Keeps strangers. Safe to share between threads, the database between servers."""

    def __init__(self, store: Store, kept: timedelta, thresholds: Callable[[Gallery, str], Thresholds]) -> None:
        """Keep strangers for ``kept`` after their last sighting; with zero, there are none. ``thresholds`` returns the
        operating points of a gallery for templates of a package."""
        self._store, self._kept, self._thresholds = store, kept, thresholds

    def group(self, change: Change, key: int) -> None:
        """If the face was seen well, assign an unknown person's sighting to the nearest stranger, or to a new one."""
        row = change.connection.execute(ROWS.where(SIGHTINGS.c.key == key)).one()
        if row.decision != "unknown":
            if row.stranger_key is not None:
                change.connection.execute(sa.update(SIGHTINGS).where(SIGHTINGS.c.key == key).values(stranger_key=None))
                drop_unseen(change.connection, change.gallery)
            return
        well_seen = row.quality >= WELL_SEEN and row.frames >= LOOKS
        if not self._kept or row.stranger_key is not None or row.settled or not well_seen:
            return
        joined = self._nearest(change, row, self._thresholds(change.gallery, row.package))
        self._take(change, [key], joined or _make(change, utc_now(self._kept)))

    def regroup(self) -> int:
        """Group the strangers' sightings of each gallery again; return how many sightings moved to another stranger.

        People's decisions stay: noted and ignored strangers, and sightings that were merged or split by hand.
        """
        if not self._kept:
            return 0
        having = sa.select(GALLERIES.c.id).where(sa.exists().where(STRANGERS.c.gallery_key == GALLERIES.c.key))
        return sum(self._regroup(self._store.gallery(name)) for name in self._store.database.column(having))

    def page(self, gallery: Gallery, cursor: str | None, limit: int, *, ignored: bool | None) -> Page[Stranger]:
        """Return a page of the gallery's strangers, the newest first. Raises InvalidInput ``invalid_cursor``."""
        query = _SUMMARIES.where(STRANGERS.c.gallery_key == gallery.key)
        if ignored is not None:
            query = query.where(STRANGERS.c.ignored.is_(ignored))
        listing, key = f"strangers/{gallery.key}/{ignored}", STRANGERS.c.key
        return read_page(
            self._store.database, query, key, _stranger, listing=listing, cursor=cursor, limit=limit, newest_first=True
        )

    def find(self, gallery: Gallery, stranger_id: str) -> Stranger:
        """Return the stranger. Raises NotFound ``stranger_not_found``."""
        with self._store.database.read() as connection:
            return _summary(connection, find_stranger_key(connection, gallery, stranger_id))

    def seen(self, gallery: Gallery, stranger_id: str) -> list[Stored]:
        """Return the stranger's sightings, the best first. Raises NotFound ``stranger_not_found``."""
        with self._store.database.read() as connection:
            key = find_stranger_key(connection, gallery, stranger_id)
            query = ROWS.where(SIGHTINGS.c.stranger_key == key).order_by(SIGHTINGS.c.quality.desc())
            return [to_stored(row, self._store.blobs) for row in connection.execute(query)]

    def edit(self, gallery: Gallery, stranger_id: str, values: Mapping[str, object]) -> Stranger:
        """Set the stranger's ``ignored`` and ``note``, if given in ``values``. Raises NotFound
        ``stranger_not_found``."""
        with self._store.change(gallery) as change:
            key = find_stranger_key(change.connection, change.gallery, stranger_id)
            if values:
                change.connection.execute(sa.update(STRANGERS).where(STRANGERS.c.key == key).values(values))
            return _summary(change.connection, key)

    def merge(self, gallery: Gallery, stranger_id: str, into: str) -> Stranger:
        """Move all of the stranger's sightings to the stranger ``into``; return the latter. Raises NotFound
        ``stranger_not_found``."""
        with self._store.change(gallery) as change:
            source = find_stranger_key(change.connection, change.gallery, stranger_id)
            target = find_stranger_key(change.connection, change.gallery, into)
            mine = SIGHTINGS.c.stranger_key == source
            keys = list(change.connection.execute(sa.select(SIGHTINGS.c.key).where(mine)).scalars())
            self._take(change, keys, target, by_hand=True)
            drop_unseen(change.connection, change.gallery)
            return _summary(change.connection, target)

    def part(self, gallery: Gallery, stranger_id: str, sightings: Sequence[str], *, alike: bool = False) -> Stranger:
        """Move these of the stranger's sightings to a new stranger; return the new one. With ``alike``, also move the
        sightings that resemble these more than they resemble the stranger's sighting that is least similar to these.

        Raises NotFound ``stranger_not_found``, ``sighting_not_found``.
        """
        with self._store.change(gallery) as change:
            source = find_stranger_key(change.connection, change.gallery, stranger_id)
            rows = [find_row(change.connection, change.gallery, sighting_id) for sighting_id in sightings]
            if other := next((row.id for row in rows if row.stranger_key != source), None):
                message = f"Stranger {stranger_id!r} has no sighting {other!r}."
                raise NotFound(message, code="sighting_not_found", gallery=gallery.id, sighting=other)
            keys = [row.key for row in rows]
            if alike:
                keys += self._like(change, source, set(keys))
            made = _make(change, utc_now(self._kept))
            self._take(change, keys, made, by_hand=True)
            drop_unseen(change.connection, change.gallery)
            return _summary(change.connection, made)

    def forget(self, gallery: Gallery, stranger_id: str) -> None:
        """Delete the stranger with all sightings and their events. Raises NotFound ``stranger_not_found``."""
        with self._store.change(gallery) as change:
            key = find_stranger_key(change.connection, change.gallery, stranger_id)
            change.connection.execute(sa.delete(STRANGERS).where(STRANGERS.c.key == key))
            change.overwrites = True

    def _nearest(self, change: Change, row: Row[Any], points: Thresholds) -> int | None:
        """Return the key of the stranger with the highest score, if that reaches its threshold (JOIN_FMR, FAR_FMR)."""
        groups: dict[int, list[Vector]] = defaultdict(list)
        near: set[int] = set()
        for mean, length, other in _kept(change, points.package):
            groups[other.stranger_key].append(mean * length)
            if other.camera == row.camera or abs(utc_seconds(other.last_at) - utc_seconds(row.last_at)) <= NEAR_S:
                near.add(other.stranger_key)
        vector, own_length = sighting_template(row, change.blobs)
        best, found = -1.0, None
        for key, means in groups.items():
            mean, length = fuse_templates(np.stack(means))
            score = float(vector @ mean) * points.reduction_of_two(length, own_length)
            if score > best and score >= points.threshold(JOIN_FMR if key in near else FAR_FMR):
                best, found = score, key
        return found

    def _like(self, change: Change, stranger: int, parted: set[int]) -> list[int]:
        """Return the keys of the stranger's other sightings that resemble the split-off ones more than they resemble
        the sighting that is least similar to the split-off ones."""
        mine = _kept(change, change.gallery.embedder, SIGHTINGS.c.stranger_key == stranger)
        vectors = {row.key: vector for vector, _, row in mine}
        gone = [vectors[key] for key in parted & vectors.keys()]
        others = {key: vector for key, vector in vectors.items() if key not in parted}
        if not gone or not others:
            return []
        nearness = {key: max(float(vector @ other) for other in gone) for key, vector in others.items()}
        stays = others[min(nearness, key=nearness.__getitem__)]
        return [key for key, vector in others.items() if nearness[key] > float(vector @ stays)]

    def _regroup(self, gallery: Gallery) -> int:
        points = self._thresholds(gallery, gallery.embedder)
        with self._store.change(gallery) as change:
            fixed = sa.select(STRANGERS.c.key).where(STRANGERS.c.ignored | STRANGERS.c.note.is_not(None))
            said = set(change.connection.execute(fixed).scalars())
            # Scale each vector by the square root of its own track's reduction. The product of two vectors is then
            # never larger than their cosine times `reduction_of_two` of their lengths.
            free = [
                (vector * math.sqrt(points.reduction_of_two(length, length)), row)
                for vector, length, row in _kept(change, points.package)
                if row.stranger_key not in said and not row.settled
            ]
            if len(free) < 2:
                return 0
            groups = group_faces(np.stack([vector for vector, _ in free]), link_threshold(points.points, len(free)))
            changed, taken = 0, set[int]()
            for number in range(int(groups.max()) + 1):
                rows = [row for (_, row), group in zip(free, groups, strict=True) if group == number]
                ranked = Counter(row.stranger_key for row in rows).most_common()
                stays = next((key for key, _ in ranked if key not in taken), None)
                target = _make(change, utc_now(self._kept)) if stays is None else stays
                taken.add(target)
                moved = [row.key for row in rows if row.stranger_key != target]
                if moved:
                    self._take(change, moved, target)
                changed += len(moved)
            drop_unseen(change.connection, change.gallery)
            return changed

    def _take(self, change: Change, keys: Sequence[int], stranger: int, *, by_hand: bool = False) -> None:
        """Assign sightings to the stranger, and restart the time for which all of its sightings are kept."""
        ends, values = utc_now(self._kept), {"stranger_key": stranger} | ({"settled": True} if by_hand else {})
        change.connection.execute(sa.update(SIGHTINGS).where(SIGHTINGS.c.key.in_(keys)).values(values))
        change.connection.execute(sa.update(STRANGERS).where(STRANGERS.c.key == stranger).values(expires_at=ends))
        mine = SIGHTINGS.c.stranger_key == stranger
        change.connection.execute(sa.update(SIGHTINGS).where(mine).values(expires_at=ends))


def find_stranger_key(connection: Connection, gallery: Gallery, stranger_id: str) -> int:
    """Return the stranger's key. Raises NotFound ``stranger_not_found``."""
    mine = (STRANGERS.c.gallery_key == gallery.key) & (STRANGERS.c.id == stranger_id)
    key = connection.execute(sa.select(STRANGERS.c.key).where(mine)).scalar()
    if key is None:
        message = f"Gallery {gallery.id!r} has no stranger {stranger_id!r}."
        raise NotFound(message, code="stranger_not_found", gallery=gallery.id, stranger=stranger_id)
    return int(key)


def _make(change: Change, expires_at: str) -> int:
    values = {"gallery_key": change.gallery.key, "created_at": change.now, "expires_at": expires_at}
    insert = sa.insert(STRANGERS).values(values | {"id": uuid.uuid4().hex}).returning(STRANGERS.c.key)
    return int(change.connection.execute(insert).scalar_one())


def _kept(change: Change, package: str, *where: sa.ColumnElement[bool]) -> Iterator[tuple[Vector, float, Row[Any]]]:
    """Return what `templates` yields for the newest MOST sightings of strangers."""
    whose = SIGHTINGS.c.stranger_key.is_not(None), *where
    return templates(change.connection, change.blobs, change.gallery, package, *whose, most=MOST)


SEPARATOR: Final = "\n"
"""Separates cameras' names, which can't contain it."""
_SEEN = SIGHTINGS.alias()
_BEST = sa.select(_SEEN.c.id).where(_SEEN.c.stranger_key == STRANGERS.c.key).order_by(_SEEN.c.quality.desc()).limit(1)
_SUMMARIES = (
    sa.select(
        STRANGERS,
        sa.func.count(SIGHTINGS.c.key).label("sightings"),
        sa.func.min(SIGHTINGS.c.first_at).label("first_at"),
        sa.func.max(SIGHTINGS.c.last_at).label("last_at"),
        sa.func.aggregate_strings(SIGHTINGS.c.camera, SEPARATOR).label("cameras"),
        _BEST.scalar_subquery().label("best"),
    )
    .join_from(STRANGERS, SIGHTINGS, SIGHTINGS.c.stranger_key == STRANGERS.c.key)
    .group_by(*STRANGERS.c)
)


def _summary(connection: Connection, key: int) -> Stranger:
    return _stranger(connection.execute(_SUMMARIES.where(STRANGERS.c.key == key)).one())


def _stranger(row: Row[Any]) -> Stranger:
    return Stranger.of(row, cameras=sorted(set(row.cameras.split(SEPARATOR))))
