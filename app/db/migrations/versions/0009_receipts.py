"""Receipts of erasures."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "receipts",
        sa.Column("key", KEY, nullable=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("gallery", sa.Text, nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_receipts"),
        sa.UniqueConstraint("id", name="uq_receipts_id"),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    op.drop_table("receipts")
