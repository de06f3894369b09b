"""The groups of people that a gallery was declared to hold."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("galleries", sa.Column("population", sa.Text))


def downgrade() -> None:
    op.drop_column("galleries", "population")
