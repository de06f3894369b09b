"""Which collections of Milvus are this database's."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "collections",
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("server", sa.Text, nullable=False),
        sa.Column("gallery_key", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("touched_at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_collections"),
    )
    op.create_index("ix_collections_gallery_key", "collections", ["gallery_key"])


def downgrade() -> None:
    op.drop_table("collections")
