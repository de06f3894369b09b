"""Which generation of a package's templates galleries, their moves and collections are of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

COLUMNS = (
    ("galleries", "generation"),
    ("reembeddings", "source_generation"),
    ("reembeddings", "target_generation"),
    ("collections", "generation"),
)


def upgrade() -> None:
    for table, column in COLUMNS:
        op.add_column(table, sa.Column(column, sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    for table, column in reversed(COLUMNS):
        op.drop_column(table, column)
