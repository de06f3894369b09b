"""Signatures of requests that were used, so that no server of the database takes one twice."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "seen_signatures",
        sa.Column("signature", sa.String(64), primary_key=True),
        sa.Column("attempt", sa.String(255), primary_key=True),
        sa.Column("seen_at", sa.Float, nullable=False),
    )
    op.create_index("ix_seen_signatures_seen_at", "seen_signatures", ["seen_at"])


def downgrade() -> None:
    op.drop_table("seen_signatures")
