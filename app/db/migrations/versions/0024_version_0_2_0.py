"""What version 0.2.0 adds to 0.1.0. Revisions that no version was released with are gone; hence the numbers."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0012"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")
SUBJECTS_AT_ONCE = 5_000
SPACES = str.maketrans("_-.", "   ")
SUBJECTS = sa.table("subjects", sa.column("key"), sa.column("id"), sa.column("name"), sa.column("folded"))
TABLES = (
    "packages",
    "corrections",
    "calibration_pairs",
    "gallery_calibrations",
    "sign_ins",
    "dismissals",
    "findings",
    "reviews",
    "seen_signatures",
)


def upgrade() -> None:
    # The search kinds fp16 and approximate were removed; int8 gives exact answers too.
    op.execute("UPDATE galleries SET search = 'int8' WHERE search IN ('fp16', 'approximate')")
    _refold(_bare)
    for table, column in _columns():
        op.add_column(table, column)
    _create_access_tables()
    _create_review_tables()
    _create_calibration_tables()
    _create_corrections()
    op.create_table(
        "packages",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
    )


def downgrade() -> None:
    """Undo the revision; ``int8`` stays, as 0.1.0 knows it too."""
    for table in TABLES:
        op.drop_table(table)
    for table, column in reversed(_columns()):
        op.drop_column(table, column.name)
    _refold(lambda text: unicodedata.normalize("NFC", text.casefold()))


def _columns() -> list[tuple[str, sa.Column[object]]]:
    return [
        ("galleries", sa.Column("population", sa.Text)),
        ("galleries", sa.Column("on_conflict", sa.String(8), nullable=False, server_default="warn")),
        ("galleries", sa.Column("liveness", sa.String(8), nullable=False, server_default="off")),
        ("galleries", sa.Column("calibration", sa.String(16), nullable=False, server_default="package")),
        ("galleries", sa.Column("allow_laxer", sa.Boolean, nullable=False, server_default=sa.false())),
        ("subjects", sa.Column("cover", sa.String(32))),
        ("job_refusals", sa.Column("enrolled", sa.Boolean, nullable=False, server_default=sa.false())),
    ]


def _create_access_tables() -> None:
    op.create_table(
        "seen_signatures",
        sa.Column("signature", sa.String(64), primary_key=True),
        sa.Column("attempt", sa.String(255), primary_key=True),
        sa.Column("seen_at", sa.Float, nullable=False),
    )
    op.create_index("ix_seen_signatures_seen_at", "seen_signatures", ["seen_at"])
    op.create_table(
        "sign_ins",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
    )


def _create_review_tables() -> None:
    op.create_table(
        "reviews",
        sa.Column("gallery_key", KEY, _owner("galleries.key"), primary_key=True, autoincrement=False),
        sa.Column("job", sa.String(32), nullable=False),
        sa.Column("published", sa.String(32)),
        sa.Column("summary", sa.Text),
    )
    op.create_table(
        "findings",
        sa.Column("key", KEY, primary_key=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        sa.Column("gallery_key", KEY, _owner("galleries.key"), nullable=False),
        sa.Column("review", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("place", sa.BigInteger),
        sa.Column("strength", sa.Float, nullable=False),
        sa.Column("face_id", sa.String(32), _owner("faces.face_id"), nullable=False),
        sa.Column("other_face_id", sa.String(32), _owner("faces.face_id")),
        sa.Column("evidence", sa.Text, nullable=False),
        sa.Column("dismissed", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.UniqueConstraint("review", "kind", "face_id", "other_face_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "dismissals",
        sa.Column("key", KEY, primary_key=True),
        sa.Column("gallery_key", KEY, _owner("galleries.key"), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("face_id", sa.String(32), _owner("faces.face_id"), nullable=False),
        sa.Column("other_face_id", sa.String(32), _owner("faces.face_id")),
        sa.Column("created_at", sa.String(32), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_findings_gallery_key_review_place", "findings", ["gallery_key", "review", "place"])
    for table in ("findings", "dismissals"):
        for column in ("face_id", "other_face_id"):
            op.create_index(f"ix_{table}_{column}", table, [column])
    op.create_index("ix_dismissals_gallery_key", "dismissals", ["gallery_key"])


def _create_calibration_tables() -> None:
    op.create_table(
        "gallery_calibrations",
        sa.Column("gallery_key", KEY, _owner("galleries.key"), primary_key=True, autoincrement=False),
        sa.Column("job", sa.String(32)),
        sa.Column("package", sa.Text),
        sa.Column("document", sa.Text),
        sa.Column("calibration", sa.Text),
        sa.Column("changes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("measured_at", sa.String(32)),
    )
    op.create_table(
        "calibration_pairs",
        sa.Column("gallery_key", KEY, _owner("galleries.key"), primary_key=True, autoincrement=False),
        sa.Column("first_key", KEY, _owner("faces.key"), primary_key=True, autoincrement=False),
        sa.Column("second_key", KEY, _owner("faces.key"), primary_key=True, autoincrement=False),
        sa.Column("score", sa.Float, nullable=False),
    )
    op.create_index("ix_calibration_pairs_first_key", "calibration_pairs", ["first_key"])
    op.create_index("ix_calibration_pairs_second_key", "calibration_pairs", ["second_key"])


def _create_corrections() -> None:
    op.create_table(
        "corrections",
        sa.Column("key", KEY, primary_key=True),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("gallery_key", KEY, _owner("galleries.key"), nullable=False),
        sa.Column("subject_key", KEY, _owner("subjects.key"), nullable=False),
        sa.Column("package", sa.Text, nullable=False),
        sa.Column("probe", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("expires_at", sa.String(32), nullable=False),
        sa.UniqueConstraint("id", "package"),
        sqlite_autoincrement=True,
    )
    for column in ("gallery_key", "subject_key", "expires_at"):
        op.create_index(f"ix_corrections_{column}", "corrections", [column])


def _owner(column: str) -> sa.ForeignKey:
    return sa.ForeignKey(column, ondelete="CASCADE")


def _bare(text: str) -> str:
    """Fold as 0.2.0 searches: without accents, and with `_`, `-` and `.` as spaces."""
    parts = unicodedata.normalize("NFKD", text).casefold()
    bare = "".join(part for part in parts if not unicodedata.combining(part))
    return unicodedata.normalize("NFC", bare).translate(SPACES)


def _refold(fold: Callable[[str], str]) -> None:
    """Write `folded` of every subject anew."""
    connection = op.get_bind()
    some = sa.select(SUBJECTS.c.key, SUBJECTS.c.id, SUBJECTS.c.name, SUBJECTS.c.folded).order_by(SUBJECTS.c.key)
    update = sa.update(SUBJECTS).where(SUBJECTS.c.key == sa.bindparam("of")).values(folded=sa.bindparam("new"))
    last = 0
    while rows := connection.execute(some.where(SUBJECTS.c.key > last).limit(SUBJECTS_AT_ONCE)).all():
        last = rows[-1].key
        folds = [(row, "\n".join(fold(text) for text in (row.id, row.name) if text)) for row in rows]
        if changed := [{"of": row.key, "new": new} for row, new in folds if new != row.folded]:
            connection.execute(update, changed)
