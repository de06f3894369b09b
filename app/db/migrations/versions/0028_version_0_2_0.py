"""What version 0.2.0 adds to 0.1.0. Revisions that no version was released with are gone; hence the numbers."""

from __future__ import annotations

import unicodedata
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import SchemaItem

revision = "0028"
down_revision = "0012"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")
ID, TIME = sa.String(32), sa.String(32)
SUBJECTS_AT_ONCE = 5_000
SPACES = str.maketrans("_-.", "   ")
SUBJECTS = sa.table("subjects", sa.column("key"), sa.column("id"), sa.column("name"), sa.column("folded"))


def upgrade() -> None:
    # The search kinds fp16 and approximate were removed; int8 gives exact answers too.
    op.execute("UPDATE galleries SET search = 'int8' WHERE search IN ('fp16', 'approximate')")
    _refold()
    for table, column in (
        ("galleries", sa.Column("population", sa.Text)),
        ("galleries", sa.Column("on_conflict", sa.String(8), nullable=False, server_default="warn")),
        ("galleries", sa.Column("liveness", sa.String(8), nullable=False, server_default="off")),
        ("galleries", sa.Column("calibration", sa.String(16), nullable=False, server_default="package")),
        ("galleries", sa.Column("allow_laxer", sa.Boolean, nullable=False, server_default=sa.false())),
        ("subjects", sa.Column("cover", ID)),
        ("job_refusals", sa.Column("enrolled", sa.Boolean, nullable=False, server_default=sa.false())),
    ):
        op.add_column(table, column)
    _table("packages", sa.Column("id", sa.Text, primary_key=True), sa.Column("digest", sa.String(64), nullable=False))
    _create_access_tables()
    _create_review_tables()
    _create_calibration_tables()
    _create_corrections()
    _create_sightings()
    _create_events()
    _create_webhooks()


def _create_access_tables() -> None:
    _table(
        "seen_signatures",
        sa.Column("signature", sa.String(64), primary_key=True),
        sa.Column("attempt", sa.String(255), primary_key=True),
        sa.Column("seen_at", sa.Float, nullable=False),
        sa.Index(None, "seen_at"),
    )
    _table(
        "sign_ins",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
    )


def _create_review_tables() -> None:
    _table(
        "reviews",
        _owner("gallery_key", KEY, "galleries.key", primary=True),
        sa.Column("job", ID, nullable=False),
        sa.Column("published", ID),
        sa.Column("summary", sa.Text),
    )
    _numbered(
        "findings",
        sa.Column("id", ID, nullable=False, unique=True),
        _owner("gallery_key", KEY, "galleries.key"),
        sa.Column("review", ID, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("place", sa.BigInteger),
        sa.Column("strength", sa.Float, nullable=False),
        _owner("face_id", ID, "faces.face_id"),
        _owner("other_face_id", ID, "faces.face_id", nullable=True),
        sa.Column("evidence", sa.Text, nullable=False),
        sa.Column("dismissed", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.UniqueConstraint("review", "kind", "face_id", "other_face_id"),
        sa.Index(None, "gallery_key", "review", "place"),
        sa.Index(None, "face_id"),
        sa.Index(None, "other_face_id"),
    )
    _numbered(
        "dismissals",
        _owner("gallery_key", KEY, "galleries.key"),
        sa.Column("kind", sa.String(16), nullable=False),
        _owner("face_id", ID, "faces.face_id"),
        _owner("other_face_id", ID, "faces.face_id", nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Index(None, "gallery_key"),
        sa.Index(None, "face_id"),
        sa.Index(None, "other_face_id"),
    )


def _create_calibration_tables() -> None:
    _table(
        "gallery_calibrations",
        _owner("gallery_key", KEY, "galleries.key", primary=True),
        sa.Column("job", ID),
        sa.Column("package", sa.Text),
        sa.Column("document", sa.Text),
        sa.Column("calibration", sa.Text),
        sa.Column("changes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("measured_at", TIME),
    )
    _table(
        "calibration_pairs",
        _owner("gallery_key", KEY, "galleries.key", primary=True),
        _owner("first_key", KEY, "faces.key", primary=True),
        _owner("second_key", KEY, "faces.key", primary=True),
        sa.Column("score", sa.Float, nullable=False),
        sa.Index(None, "first_key"),
        sa.Index(None, "second_key"),
    )


def _create_corrections() -> None:
    _numbered(
        "corrections",
        sa.Column("id", ID, nullable=False),
        _owner("gallery_key", KEY, "galleries.key"),
        _owner("subject_key", KEY, "subjects.key"),
        sa.Column("package", sa.Text, nullable=False),
        sa.Column("probe", sa.LargeBinary, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.UniqueConstraint("id", "package"),
        sa.Index(None, "gallery_key"),
        sa.Index(None, "subject_key"),
        sa.Index(None, "expires_at"),
    )


def _create_sightings() -> None:
    _numbered(
        "strangers",
        sa.Column("id", ID, nullable=False, unique=True),
        _owner("gallery_key", KEY, "galleries.key"),
        sa.Column("ignored", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("note", sa.Text),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Index(None, "gallery_key"),
        sa.Index(None, "expires_at"),
    )
    _numbered(
        "sightings",
        sa.Column("id", ID, nullable=False, unique=True),
        _owner("gallery_key", KEY, "galleries.key"),
        _owner("subject_key", KEY, "subjects.key", nullable=True),
        _owner("stranger_key", KEY, "strangers.key", nullable=True),
        sa.Column("camera", sa.Text, nullable=False),
        sa.Column("zone", sa.Text),
        sa.Column("decision", sa.String(16), nullable=False),
        sa.Column("score", sa.Float),
        sa.Column("margin", sa.Float),
        sa.Column("threshold", sa.Float, nullable=False),
        sa.Column("fpir", sa.Float, nullable=False),
        sa.Column("frames", sa.Integer, nullable=False),
        sa.Column("quality", sa.Float, nullable=False),
        sa.Column("first_at", TIME, nullable=False),
        sa.Column("last_at", TIME, nullable=False),
        sa.Column("ended", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("said", sa.String(16)),
        sa.Column("settled", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("heard_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("crop_until", TIME),
        sa.Column("package", sa.Text, nullable=False),
        sa.Column("template", sa.LargeBinary),
        sa.Column("crop", sa.LargeBinary),
        sa.Index(None, "gallery_key", "key"),
        sa.Index(None, "subject_key"),
        sa.Index(None, "stranger_key"),
        sa.Index(None, "expires_at"),
    )
    _table(
        "cameras",
        _owner("gallery_key", KEY, "galleries.key", primary=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("told_at", TIME, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )


def _create_events() -> None:
    _table(
        "events",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", ID, nullable=False, unique=True),
        _owner("gallery_key", KEY, "galleries.key"),
        _owner("sighting_key", KEY, "sightings.key"),
        sa.Column("subject_key", KEY),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("camera", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Index(None, "gallery_key"),
        sa.Index(None, "sighting_key"),
    )
    _table(
        "event_numbers",
        sa.Column("key", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("last", sa.BigInteger, nullable=False),
    )
    _table(
        "event_cursors",
        sa.Column("name", ID, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("owner", ID, nullable=False),
        sa.Column("until", TIME, nullable=False),
    )


def _create_webhooks() -> None:
    _numbered(
        "webhooks",
        sa.Column("id", ID, nullable=False, unique=True),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("galleries", sa.Text),
        sa.Column("kinds", sa.Text, nullable=False),
        sa.Column("cameras", sa.Text),
        sa.Column("personal", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("quiet_s", sa.Float, nullable=False, server_default="0"),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("cursor", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("failing_since", TIME),
        sa.Column("not_before", TIME, nullable=False),
        sa.Column("last_error", sa.Text),
        sa.Column("delivered_at", TIME),
        sa.Column("created_at", TIME, nullable=False),
    )
    _table(
        "webhook_subjects",
        _owner("webhook_key", KEY, "webhooks.key", primary=True),
        _owner("subject_key", KEY, "subjects.key", primary=True),
        sa.Index(None, "subject_key"),
    )


def _table(name: str, *parts: SchemaItem, numbered: bool = False) -> None:
    op.create_table(name, *parts, sqlite_autoincrement=numbered)


def _numbered(name: str, *parts: SchemaItem) -> None:
    _table(name, sa.Column("key", KEY, primary_key=True), *parts, numbered=True)


def _owner(name: str, kind: Any, target: str, *, primary: bool = False, nullable: bool = False) -> sa.Column[object]:
    """Return a column that refers to another table, with whose row its own goes."""
    reference = sa.ForeignKey(target, ondelete="CASCADE")
    return sa.Column(name, kind, reference, primary_key=primary, autoincrement=False, nullable=nullable)


def _refold() -> None:
    """Write `folded` of every subject as 0.2.0 searches it: without accents, and with `_`, `-` and `.` as spaces."""
    connection = op.get_bind()
    some = sa.select(SUBJECTS.c.key, SUBJECTS.c.id, SUBJECTS.c.name, SUBJECTS.c.folded).order_by(SUBJECTS.c.key)
    update = sa.update(SUBJECTS).where(SUBJECTS.c.key == sa.bindparam("of")).values(folded=sa.bindparam("new"))
    last = 0
    while rows := connection.execute(some.where(SUBJECTS.c.key > last).limit(SUBJECTS_AT_ONCE)).all():
        last = rows[-1].key
        folds = [(row, "\n".join(_bare(text) for text in (row.id, row.name) if text)) for row in rows]
        if changed := [{"of": row.key, "new": new} for row, new in folds if new != row.folded]:
            connection.execute(update, changed)


def _bare(text: str) -> str:
    parts = unicodedata.normalize("NFKD", text).casefold()
    bare = "".join(part for part in parts if not unicodedata.combining(part))
    return unicodedata.normalize("NFC", bare).translate(SPACES)
