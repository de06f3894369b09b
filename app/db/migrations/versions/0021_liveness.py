"""What each gallery asks of liveness unless a request asks for something else."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("galleries", sa.Column("liveness", sa.String(8), nullable=False, server_default="off"))


def downgrade() -> None:
    op.drop_column("galleries", "liveness")
