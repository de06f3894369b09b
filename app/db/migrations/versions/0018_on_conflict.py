"""What galleries do with new faces that resemble enrolled ones; which items of a job's report were enrolled."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("galleries", sa.Column("on_conflict", sa.String(8), nullable=False, server_default="warn"))
    op.add_column("job_refusals", sa.Column("enrolled", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("job_refusals", "enrolled")
    op.drop_column("galleries", "on_conflict")
