"""How each gallery's vectors are searched."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("galleries", sa.Column("search", sa.String(16), nullable=False, server_default="fp32"))


def downgrade() -> None:
    op.drop_column("galleries", "search")
