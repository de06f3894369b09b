"""The models that templates were made with: an id's first model is the one that is found at the next start."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "packages",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("packages")
