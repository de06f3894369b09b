"""Make galleries of small vectors, for tests of several processes that follow each other."""

from __future__ import annotations

import secrets

import sqlalchemy as sa

from app.db.engine import MARK_BITS
from app.db.schema import CHANGES, SUBJECTS
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.search.follower import LocalBackend
from app.search.snapshots import Snapshots
from tests.support.galleries import template

NEVER_S = 3600.0
PAST = "2026-01-01T00:00:00.000000Z"


def found(galleries: Galleries, seed: int, gallery: str = "staff") -> list[str]:
    """Return the subjects that have exactly this face."""
    best = galleries.open_search(galleries.store.gallery(gallery)).search([template(seed)], 3)[0]
    return [candidate.subject for candidate in best if candidate.score > 0.99999]


def quiet(url: str, snapshots: Snapshots | None = None) -> Galleries:
    """Return galleries whose background work a test does by hand (`follow`, `save`)."""
    store = Store(url)
    return Galleries(store, LocalBackend(store.change_reader, snapshots))


def engine_of(url: str) -> sa.Engine:
    return sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool)


def let_expire(url: str, *subjects: str) -> None:
    """Let subjects expire. The commit is marked as a server's own, so that caches are invalidated."""
    with engine_of(url).begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql(f"PRAGMA user_version = {secrets.randbits(MARK_BITS)}")
        connection.execute(sa.update(SUBJECTS).where(SUBJECTS.c.id.in_(subjects)).values(expires_at=PAST))


def log_of(url: str) -> list[tuple[object, ...]]:
    """Return the whole change log: gallery key, number, kind, subject key, face key."""
    columns = (CHANGES.c.gallery_key, CHANGES.c.number, CHANGES.c.kind, CHANGES.c.subject_key, CHANGES.c.face_key)
    with engine_of(url).connect() as connection:
        rows = connection.execute(sa.select(*columns).order_by(CHANGES.c.gallery_key, CHANGES.c.number))
        return [tuple(row) for row in rows]
