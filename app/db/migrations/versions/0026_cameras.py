"""What watchers say of their cameras (`app.features.watching`)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "cameras",
        sa.Column(
            "gallery_key",
            KEY,
            sa.ForeignKey("galleries.key", ondelete="CASCADE"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("told_at", sa.String(32), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("cameras")
