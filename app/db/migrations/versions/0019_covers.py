"""The face that shows a subject, where one was chosen."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("subjects", sa.Column("cover", sa.String(32)))


def downgrade() -> None:
    op.drop_column("subjects", "cover")
