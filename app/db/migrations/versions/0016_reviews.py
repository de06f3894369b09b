"""Reviews of galleries, their findings, and the findings that were called right."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "reviews",
        sa.Column(
            "gallery_key",
            KEY,
            sa.ForeignKey("galleries.key", ondelete="CASCADE"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("job", sa.String(32), nullable=False),
        sa.Column("published", sa.String(32)),
        sa.Column("summary", sa.Text),
    )
    op.create_table(
        "findings",
        sa.Column("key", KEY, primary_key=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        sa.Column("gallery_key", KEY, sa.ForeignKey("galleries.key", ondelete="CASCADE"), nullable=False),
        sa.Column("review", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("place", sa.BigInteger),
        sa.Column("strength", sa.Float, nullable=False),
        sa.Column("face_id", sa.String(32), sa.ForeignKey("faces.face_id", ondelete="CASCADE"), nullable=False),
        sa.Column("other_face_id", sa.String(32), sa.ForeignKey("faces.face_id", ondelete="CASCADE")),
        sa.Column("evidence", sa.Text, nullable=False),
        sa.Column("dismissed", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.UniqueConstraint("review", "kind", "face_id", "other_face_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "dismissals",
        sa.Column("key", KEY, primary_key=True),
        sa.Column("gallery_key", KEY, sa.ForeignKey("galleries.key", ondelete="CASCADE"), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("face_id", sa.String(32), sa.ForeignKey("faces.face_id", ondelete="CASCADE"), nullable=False),
        sa.Column("other_face_id", sa.String(32), sa.ForeignKey("faces.face_id", ondelete="CASCADE")),
        sa.Column("created_at", sa.String(32), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_findings_gallery_key_review_place", "findings", ["gallery_key", "review", "place"])
    for table in ("findings", "dismissals"):
        for column in ("face_id", "other_face_id"):
            op.create_index(f"ix_{table}_{column}", table, [column])
    op.create_index("ix_dismissals_gallery_key", "dismissals", ["gallery_key"])


def downgrade() -> None:
    for table in ("dismissals", "findings", "reviews"):
        op.drop_table(table)
