"""Until when subjects are kept, and on what grounds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("subjects", sa.Column("expires_at", sa.String(32)))
    op.add_column("subjects", sa.Column("consent", sa.Text))
    op.create_index("ix_subjects_expires_at", "subjects", ["expires_at"])


def downgrade() -> None:
    op.drop_index("ix_subjects_expires_at", "subjects")
    op.drop_column("subjects", "consent")
    op.drop_column("subjects", "expires_at")
