"""Probes that were wrongly taken for a subject."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "corrections",
        sa.Column("key", KEY, nullable=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("gallery_key", KEY, nullable=False),
        sa.Column("subject_key", KEY, nullable=False),
        sa.Column("package", sa.Text, nullable=False),
        sa.Column("probe", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("expires_at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_corrections"),
        sa.UniqueConstraint("id", "package", name="uq_corrections_id_package"),
        sa.ForeignKeyConstraint(
            ["gallery_key"], ["galleries.key"], name="fk_corrections_gallery_key", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["subject_key"], ["subjects.key"], name="fk_corrections_subject_key", ondelete="CASCADE"
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_corrections_gallery_key", "corrections", ["gallery_key"])
    op.create_index("ix_corrections_subject_key", "corrections", ["subject_key"])
    op.create_index("ix_corrections_expires_at", "corrections", ["expires_at"])


def downgrade() -> None:
    op.drop_table("corrections")
