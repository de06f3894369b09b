"""The changes from version 0.1.0 to 0.2.0, except those for watching cameras. Numbers are missing, since revisions that
were never released were removed."""

from __future__ import annotations

import unicodedata

import sqlalchemy as sa
from alembic import op

from app.db.migrations.tables import ID, KEY, TIME, numbered, owner, table

revision = "0024"
down_revision = "0012"

SUBJECTS_AT_ONCE = 5_000
SPACES = str.maketrans("_-.", "   ")
SUBJECTS = sa.table("subjects", sa.column("key"), sa.column("id"), sa.column("name"), sa.column("folded"))


def upgrade() -> None:
    # The search kinds fp16 and approximate were removed; int8 also gives exact answers.
    op.execute("UPDATE galleries SET search = 'int8' WHERE search IN ('fp16', 'approximate')")
    _refold()
    for name, column in (
        ("galleries", sa.Column("population", sa.Text)),
        ("galleries", sa.Column("on_conflict", sa.String(8), nullable=False, server_default="warn")),
        ("galleries", sa.Column("liveness", sa.String(8), nullable=False, server_default="off")),
        ("galleries", sa.Column("calibration", sa.String(16), nullable=False, server_default="package")),
        ("galleries", sa.Column("allow_laxer", sa.Boolean, nullable=False, server_default=sa.false())),
        ("subjects", sa.Column("cover", ID)),
        ("job_refusals", sa.Column("enrolled", sa.Boolean, nullable=False, server_default=sa.false())),
    ):
        op.add_column(name, column)
    table("packages", sa.Column("id", sa.Text, primary_key=True), sa.Column("digest", sa.String(64), nullable=False))
    _create_access_tables()
    _create_review_tables()
    _create_calibration_tables()
    _create_corrections()


def _create_access_tables() -> None:
    table(
        "seen_signatures",
        sa.Column("signature", sa.String(64), primary_key=True),
        sa.Column("attempt", sa.String(255), primary_key=True),
        sa.Column("seen_at", sa.Float, nullable=False),
        sa.Index(None, "seen_at"),
    )
    table(
        "sign_in_codes",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
    )


def _create_review_tables() -> None:
    table(
        "reviews",
        owner("gallery_key", KEY, "galleries.key", primary=True),
        sa.Column("job", ID, nullable=False),
        sa.Column("published", ID),
        sa.Column("summary", sa.Text),
    )
    numbered(
        "findings",
        sa.Column("id", ID, nullable=False, unique=True),
        owner("gallery_key", KEY, "galleries.key"),
        sa.Column("review", ID, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("place", sa.BigInteger),
        sa.Column("strength", sa.Float, nullable=False),
        owner("face_id", ID, "faces.face_id"),
        owner("other_face_id", ID, "faces.face_id", nullable=True),
        sa.Column("evidence", sa.Text, nullable=False),
        sa.Column("dismissed", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.UniqueConstraint("review", "kind", "face_id", "other_face_id"),
        sa.Index(None, "gallery_key", "review", "place"),
        sa.Index(None, "face_id"),
        sa.Index(None, "other_face_id"),
    )
    numbered(
        "dismissals",
        owner("gallery_key", KEY, "galleries.key"),
        sa.Column("kind", sa.String(16), nullable=False),
        owner("face_id", ID, "faces.face_id"),
        owner("other_face_id", ID, "faces.face_id", nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Index(None, "gallery_key"),
        sa.Index(None, "face_id"),
        sa.Index(None, "other_face_id"),
    )


def _create_calibration_tables() -> None:
    table(
        "gallery_calibrations",
        owner("gallery_key", KEY, "galleries.key", primary=True),
        sa.Column("job", ID),
        sa.Column("package", sa.Text),
        sa.Column("document", sa.Text),
        sa.Column("calibration", sa.Text),
        sa.Column("changes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("measured_at", TIME),
    )
    table(
        "calibration_pairs",
        owner("gallery_key", KEY, "galleries.key", primary=True),
        owner("first_key", KEY, "faces.key", primary=True),
        owner("second_key", KEY, "faces.key", primary=True),
        sa.Column("score", sa.Float, nullable=False),
        sa.Index(None, "first_key"),
        sa.Index(None, "second_key"),
    )


def _create_corrections() -> None:
    numbered(
        "corrections",
        sa.Column("id", ID, nullable=False),
        owner("gallery_key", KEY, "galleries.key"),
        owner("subject_key", KEY, "subjects.key"),
        sa.Column("package", sa.Text, nullable=False),
        sa.Column("probe", sa.LargeBinary, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.UniqueConstraint("id", "package"),
        sa.Index(None, "gallery_key"),
        sa.Index(None, "subject_key"),
        sa.Index(None, "expires_at"),
    )


def _refold() -> None:
    """Write every subject's `folded` for the search of 0.2.0: without accents, and with `_`, `-` and `.` as spaces."""
    connection = op.get_bind()
    subjects = sa.select(SUBJECTS.c.key, SUBJECTS.c.id, SUBJECTS.c.name, SUBJECTS.c.folded).order_by(SUBJECTS.c.key)
    update = sa.update(SUBJECTS).where(SUBJECTS.c.key == sa.bindparam("of")).values(folded=sa.bindparam("new"))
    last = 0
    while rows := connection.execute(subjects.where(SUBJECTS.c.key > last).limit(SUBJECTS_AT_ONCE)).all():
        last = rows[-1].key
        folds = [(row, "\n".join(_bare(text) for text in (row.id, row.name) if text)) for row in rows]
        if changed := [{"of": row.key, "new": new} for row, new in folds if new != row.folded]:
            connection.execute(update, changed)


def _bare(text: str) -> str:
    parts = unicodedata.normalize("NFKD", text).casefold()
    bare = "".join(part for part in parts if not unicodedata.combining(part))
    return unicodedata.normalize("NFC", bare).translate(SPACES)
